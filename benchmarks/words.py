"""Populations of devices with one word each, and what a trie finds of them, by arrays."""

import gzip
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.arrays import DigitRows
from protocol.domains.strings import Alphabet
from protocol.mechanism import Estimate
from protocol.mechanisms.central.trie_plan import TrieHhPlan, TrieHhQuestion
from protocol.mechanisms.central.trie_votes import encode_votes
from protocol.mechanisms.central.triehh import TrieHh
from protocol.privacy.release import ReleaseMode
from protocol.randomness import RandomWords
from protocol.simulation.noise import simulate_noise
from protocol.study import Terms
from protocol.study_state import EMPTY_STATE
from secagg.ring import Vector

LEVELS = 10
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORD_DOMAIN = Alphabet(characters="_" + LETTERS, length=LEVELS, pad="_")
DELTA = 1e-6
_MAX_COHORT_SIZE = 100_000
_SYNTHETIC_WORDS = 40_000
_TRIE = TrieHh()


@dataclass(frozen=True, slots=True)
class WordPopulation:
    """Devices with one word each: `held` has a row of `rows`, the digits of `words`, for each."""

    words: Sequence[str]  # first those that most devices hold
    rows: DigitRows
    held: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TrieStudyResult:
    """What a study found, best first, and the CPU seconds from the first vote to the conclusion."""

    words: Sequence[str]
    seconds: float
    nbytes: tuple[int, ...]  # of a vector, by level

    def recall(self, population: WordPopulation, most: int) -> float:
        """Return the share of the `most` words held by most that were found."""
        return len(set(self.words) & set(population.words[:most])) / most

    def f1(self, population: WordPopulation, most: int) -> float:
        """Return the harmonic mean of the recall and of the precision of the `most` best."""
        best, recall = self.words[:most], self.recall(population, most)
        right = len(set(best) & set(population.words[:most]))
        return 2 * recall / (recall * len(best) / right + 1) if right else 0.0


def frequencies(path: Path | None = None) -> tuple[list[str], NDArray[np.float64]]:
    """Return words of 3 to 9 letters and their shares: from lines of "word,count,...".

    Without a path they are made up.
    """
    if path is None:
        return _synthetic_words()
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        lines = [line.replace(",", " ").split() for line in file]
    kept = {word: int(count) for word, count, *_ in lines if count.isdigit() and _is_word(word)}
    shares = np.array(list(kept.values()), np.float64)
    return list(kept), shares / shares.sum()


def _is_word(word: str) -> bool:
    return 3 <= len(word) <= 9 and set(word) <= set(LETTERS)


def _synthetic_words() -> tuple[list[str], NDArray[np.float64]]:
    """Return random words, the k-th with a share in proportion to (k + 20)^-1.28.

    Of a million draws the 100th, 300th and 1,000th commonest have 1,616, 461 and 104: of film
    subtitles' words it is 1,470, 454 and 96.
    """
    rng = random.Random(0)
    words: dict[str, None] = {}
    while len(words) < _SYNTHETIC_WORDS:
        words["".join(rng.choices(LETTERS, k=rng.randint(3, 9)))] = None
    shares = (np.arange(1, _SYNTHETIC_WORDS + 1) + 20) ** -1.28
    return list(words), shares / shares.sum()


def draw_population(
    words: Sequence[str], shares: NDArray[np.float64], devices: int, rng: np.random.Generator
) -> WordPopulation:
    """Return so many `devices`, each of which drew a word."""
    counts = rng.multinomial(devices, shares)
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    held = np.repeat(np.arange(len(order)), counts[order])
    rng.shuffle(held)
    names = [words[place] for place in order.tolist()]
    return WordPopulation(names, WORD_DOMAIN.digits_of(names), held)


def first_plan(
    devices: int,
    epsilon: float,
    mode: ReleaseMode = "sample-threshold",
    *,
    stride: int = 1,
    tables: bool = False,
) -> TrieHhPlan:
    """Return the first plan of a study over so many `devices`, in cohorts of 100,000 at most."""
    cohort = min(devices, _MAX_COHORT_SIZE)
    terms = Terms(cohort_size=cohort, minimum=cohort // 2, cohorts=-(-devices // cohort))
    question = TrieHhQuestion(
        threshold=1,
        contribution=1,
        domain=WORD_DOMAIN,
        words=2**16,
        epsilon=epsilon,
        delta=DELTA,
        mode=mode,
        stride=stride,
        vote_tables=tables,
    )
    rounds = question.levels
    return _TRIE.first_plan(question, terms, "benchmark", rounds, random.Random(1))


def run_study(
    plan: TrieHhPlan, devices: WordPopulation, chance: RandomWords, rng: np.random.Generator
) -> TrieStudyResult:
    """Return what a study finds from `plan` on, nobody being lost."""
    tally, nbytes, started = EMPTY_STATE, [], time.process_time()
    while True:
        total = _round_sum(plan, devices, chance, rng)
        nbytes.append(_TRIE.ring(plan).nbytes)
        answer = _TRIE.decode(plan, total, len(devices.held), tally)
        tally = answer.state
        if _TRIE.is_over(plan, answer, tally):
            break
        plan = _TRIE.next_plan(plan, answer, tally, random.Random(plan.round))
    found: list[Estimate] = _TRIE.final_estimates(plan.question, tally)
    seconds = time.process_time() - started
    return TrieStudyResult([one.item for one in found], seconds, tuple(nbytes))


def _round_sum(
    plan: TrieHhPlan, devices: WordPopulation, chance: RandomWords, rng: np.random.Generator
) -> Vector:
    total, release = encode_votes(plan, devices.rows, devices.held, chance), plan.release
    if not release.variance:
        return total
    noise = release.max_variance(plan.terms.cohorts, plan.terms.dropout, plan.min_honest_share)
    return simulate_noise(plan, total[0], noise, rng)

"""Populations of devices with one word each, and what a trie finds of them, by arrays."""

import gzip
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.chance import Chance
from protocol.digits import Rows
from protocol.domain import Alphabet
from protocol.mechanism import Estimate, Terms
from protocol.mechanisms.releasing import noisy
from protocol.mechanisms.trie_votes import vector_of
from protocol.mechanisms.triehh import TrieHh, TrieHhPlan, TrieHhQuestion
from protocol.privacy.release import Mode
from protocol.tally import NOTHING
from secagg.ring import Vector

LEVELS = 10
LETTERS = "abcdefghijklmnopqrstuvwxyz"
DOMAIN = Alphabet(characters="_" + LETTERS, length=LEVELS, pad="_")
DELTA = 1e-6
_COHORT = 100_000
_MADE_UP = 40_000
_TRIE = TrieHh()


@dataclass(frozen=True, slots=True)
class Population:
    """Devices with one word each: `held` has a row of `rows`, the digits of `words`, for each."""

    words: Sequence[str]  # first those that most devices hold
    rows: Rows
    held: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Found:
    """What a study found, best first, and the CPU seconds from the first vote to the conclusion."""

    words: Sequence[str]
    seconds: float
    nbytes: tuple[int, ...]  # of a vector, by level

    def recall(self, population: Population, most: int) -> float:
        """Return the share of the `most` words held by most that were found."""
        return len(set(self.words) & set(population.words[:most])) / most

    def f1(self, population: Population, most: int) -> float:
        """Return the harmonic mean of the recall and of the precision of the `most` best."""
        best, recall = self.words[:most], self.recall(population, most)
        right = len(set(best) & set(population.words[:most]))
        return 2 * recall / (recall * len(best) / right + 1) if right else 0.0


def frequencies(path: Path | None = None) -> tuple[list[str], NDArray[np.float64]]:
    """Return words of 3 to 9 letters and their shares: from lines of "word,count,...".

    Without a path they are made up.
    """
    if path is None:
        return _made_up()
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        lines = [line.replace(",", " ").split() for line in file]
    kept = {word: int(count) for word, count, *_ in lines if count.isdigit() and _is_word(word)}
    shares = np.array(list(kept.values()), np.float64)
    return list(kept), shares / shares.sum()


def _is_word(word: str) -> bool:
    return 3 <= len(word) <= 9 and set(word) <= set(LETTERS)


def _made_up() -> tuple[list[str], NDArray[np.float64]]:
    """Return random words, the k-th with a share in proportion to (k + 20)^-1.28.

    Of a million draws the 100th, 300th and 1,000th commonest have 1,616, 461 and 104: of film
    subtitles' words it is 1,470, 454 and 96.
    """
    rng = random.Random(0)
    words: dict[str, None] = {}
    while len(words) < _MADE_UP:
        words["".join(rng.choices(LETTERS, k=rng.randint(3, 9)))] = None
    shares = (np.arange(1, _MADE_UP + 1) + 20) ** -1.28
    return list(words), shares / shares.sum()


def population(
    words: Sequence[str], shares: NDArray[np.float64], devices: int, rng: np.random.Generator
) -> Population:
    """Return so many `devices`, each of which drew a word."""
    counts = rng.multinomial(devices, shares)
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    held = np.repeat(np.arange(len(order)), counts[order])
    rng.shuffle(held)
    names = [words[place] for place in order.tolist()]
    return Population(names, DOMAIN.rows_of(names), held)


def planned(
    devices: int,
    epsilon: float,
    mode: Mode = "sample-threshold",
    *,
    stride: int = 1,
    tables: bool = False,
) -> TrieHhPlan:
    """Return the first plan of a study over so many `devices`, in cohorts of 100,000 at most."""
    cohort = min(devices, _COHORT)
    terms = Terms(cohort_size=cohort, minimum=cohort // 2, cohorts=-(-devices // cohort))
    question = TrieHhQuestion(
        threshold=1,
        contribution=1,
        domain=DOMAIN,
        words=2**16,
        epsilon=epsilon,
        delta=DELTA,
        mode=mode,
        stride=stride,
        tables=tables,
    )
    rounds = question.levels
    return _TRIE.first_plan(question, terms, "benchmark", rounds, random.Random(1))


def study(plan: TrieHhPlan, devices: Population, chance: Chance, rng: np.random.Generator) -> Found:
    """Return what a study finds from `plan` on, nobody being lost."""
    tally, nbytes, started = NOTHING, [], time.process_time()
    while True:
        total = _total(plan, devices, chance, rng)
        nbytes.append(_TRIE.ring(plan).nbytes)
        answer = _TRIE.decode(plan, total, len(devices.held), tally)
        tally = answer.tally
        if _TRIE.is_over(plan, answer, tally):
            break
        plan = _TRIE.next_plan(plan, answer, tally, random.Random(plan.round))
    found: list[Estimate] = _TRIE.conclude(plan.question, tally)
    seconds = time.process_time() - started
    return Found([one.item for one in found], seconds, tuple(nbytes))


def _total(
    plan: TrieHhPlan, devices: Population, chance: Chance, rng: np.random.Generator
) -> Vector:
    total, release = vector_of(plan, devices.rows, devices.held, chance), plan.release
    if not release.variance:
        return total
    noise = release.most_variance(plan.terms.cohorts, plan.terms.dropout, plan.honest)
    return noisy(plan, total[0], noise, rng)

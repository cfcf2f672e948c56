"""A large population with one word of 3 to 9 letters each, and the words that TrieHH finds in it.

There are ten levels of 27 symbols, epsilon and delta are over all of them, and frontiers fill 2^16
16-bit words at most.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.domains.strings import Alphabet
from protocol.estimation.estimates import Estimate
from protocol.mechanisms.central.trie_plan import TrieHhPlan, TrieHhQuestion
from protocol.mechanisms.central.trie_votes import encode_votes
from protocol.mechanisms.central.triehh import TrieHh
from protocol.numerics.array_types import DigitRows
from protocol.question_and_plan import Terms
from protocol.randomness import RandomWords
from protocol.study_state import EMPTY_STATE

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

    words: Sequence[str]  # those that most devices hold come first
    rows: DigitRows
    held: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TrieStudyResult:
    """The words that a study found, best first."""

    words: Sequence[str]
    nbytes: tuple[int, ...]  # size of a vector, by level

    def recall(self, population: WordPopulation, most: int) -> float:
        """Return the share found of the `most` words that most devices hold."""
        return len(set(self.words) & set(population.words[:most])) / most

    def f1(self, population: WordPopulation, most: int) -> float:
        """Return F1 for the `most` best: the harmonic mean of recall and precision."""
        best, recall = self.words[:most], self.recall(population, most)
        right = len(set(best) & set(population.words[:most]))
        return 2 * recall / (recall * len(best) / right + 1) if right else 0.0


def frequencies() -> tuple[list[str], NDArray[np.float64]]:
    """Return random words, the k-th with a share in proportion to (k + 20)^-1.28, and the shares.

    In a million draws the 100th, 300th and 1,000th most common word have 1,616, 461 and 104; of the
    words of film subtitles they have 1,470, 454 and 96.
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
    """Return a population of `devices`, each of which drew a word."""
    counts = rng.multinomial(devices, shares)
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    held = np.repeat(np.arange(len(order)), counts[order])
    rng.shuffle(held)
    names = [words[place] for place in order.tolist()]
    return WordPopulation(names, WORD_DOMAIN.digits_of(names), held)


def first_plan(devices: int, epsilon: float) -> TrieHhPlan:
    """Return the first plan of a study over `devices`, in cohorts of 100,000 at most."""
    cohort = min(devices, _MAX_COHORT_SIZE)
    terms = Terms(cohort_size=cohort, minimum=cohort // 2, cohorts=-(-devices // cohort))
    question = TrieHhQuestion(
        threshold=1,
        contribution=1,
        domain=WORD_DOMAIN,
        message_bytes=132_856,
        epsilon=epsilon,
        delta=DELTA,
    )
    return _TRIE.first_plan(question, terms, "benchmark", question.levels, random.Random(1))


def run_study(plan: TrieHhPlan, devices: WordPopulation, chance: RandomWords) -> TrieStudyResult:
    """Return the result of a study of samples that starts with `plan` and has no dropouts."""
    state, nbytes = EMPTY_STATE, []
    while True:
        total = encode_votes(plan, devices.rows, devices.held, chance)
        nbytes.append(_TRIE.ring(plan).nbytes)
        answer = _TRIE.decode(plan, total, len(devices.held), state)
        state = answer.state
        if _TRIE.is_over(plan, answer, state):
            break
        plan = _TRIE.next_plan(plan, answer, state, random.Random(plan.round))
    estimates: list[Estimate] = _TRIE.final_estimates(plan.question, state)
    return TrieStudyResult([estimate.item for estimate in estimates], tuple(nbytes))

"""Words of a trie for a million devices at epsilon 1, with invented Zipf words."""

import numpy as np
import pytest

from protocol.randomness import seeded_words
from tests.support.words_of_devices import (
    TrieStudyResult,
    WordPopulation,
    draw_population,
    first_plan,
    frequencies,
    run_study,
)


def run(devices: int) -> tuple[TrieStudyResult, WordPopulation]:
    rng = np.random.default_rng(1)
    people = draw_population(*frequencies(), devices, rng)
    return run_study(first_plan(devices, 1.0), people, seeded_words(rng)), people


def test_a_million_devices_give_a_thousand_words() -> None:
    result, people = run(10**6)
    assert len(result.words) >= 1_000
    assert result.recall(people, 300) >= 0.99
    assert result.f1(people, 300) >= 0.97
    assert len(result.nbytes) == 10


def test_a_hundred_thousand_devices_give_their_hundred_most_common_words() -> None:
    result, people = run(10**5)
    assert result.recall(people, 100) == 1


@pytest.mark.parametrize(("words", "recall", "f1"), [("abc", 0.75, 6 / 7), ("abx", 0.5, 4 / 7)])
def test_figures_follow_their_definitions(words: str, recall: float, f1: float) -> None:
    """The items are a, b, c and d; of the three best of "abx", two are right."""
    people = WordPopulation("abcd", np.zeros((4, 1), np.uint8), np.arange(4))
    result = TrieStudyResult(list(words), (1,))
    assert result.recall(people, 4) == recall
    assert result.f1(people, 4) == pytest.approx(f1)

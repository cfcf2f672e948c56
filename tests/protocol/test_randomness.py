"""Uniform integers and probabilities are exact, by enumeration of the words they are made of."""

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol import randomness


class Script:
    """Randomness that returns given words, in order."""

    def __init__(self, words: list[int]) -> None:
        self.words = words

    def __call__(self, count: int) -> NDArray[np.uint64]:
        drawn, self.words = self.words[:count], self.words[count:]
        return np.array(drawn, np.uint64)


def test_below_takes_each_integer_from_equally_many_words() -> None:
    third = (2**32 - 1) // 3  # 2^32 = 3 third + 1: the word 0 alone is left over
    halves = [1, third, third + 1, 2 * third, 2 * third + 1, 2**32 - 1]
    drawn = randomness.uniform_below(Script([half << 32 for half in halves]), 3, 6)
    assert drawn.tolist() == [0, 0, 1, 1, 2, 2]


def test_below_draws_again_where_a_word_would_favour_an_integer() -> None:
    script = Script([0, 2**33 - 1 << 31, 0, 1 << 63])
    assert randomness.uniform_below(script, 3, 2).tolist() == [1, 2]
    assert script.words == []


@pytest.mark.parametrize("bound", [1, 2, 7, 1000, 2**32 - 1, 2**32])
def test_below_keeps_to_its_bound_with_the_systems_words(bound: int) -> None:
    drawn = randomness.uniform_below(randomness.system_words, bound, 1000)
    assert drawn.shape == (1000,)
    assert int(drawn.max()) < bound


@pytest.mark.parametrize("bound", [0, -1, 2**32 + 1])
def test_below_refuses_a_bound_out_of_range(bound: int) -> None:
    with pytest.raises(ValueError, match="bound must be between"):
        randomness.uniform_below(randomness.system_words, bound, 1)


def test_below_is_uniform() -> None:
    counts = np.bincount(
        randomness.uniform_below(
            randomness.seeded_words(np.random.default_rng(1)), 10, 100_000
        ).astype(int)
    )
    assert len(counts) == 10
    assert float(((counts - 10_000) ** 2 / 10_000).sum()) < 33.7  # chi-square, 9 degrees: 1e-4


def test_probabilities_are_exact_at_the_word() -> None:
    words = [0, 4, 5, 2**64 - 1]
    assert randomness.bernoulli(Script(words), 5, 4).tolist() == [True, True, False, False]
    assert randomness.bernoulli(Script(words), 0, 4).tolist() == [False] * 4
    assert randomness.bernoulli(Script([]), 2**64, 4).tolist() == [True] * 4


@pytest.mark.parametrize("probability", [-1, 2**64 + 1])
def test_probabilities_out_of_range_are_refused(probability: int) -> None:
    with pytest.raises(ValueError, match="of_2_64 must be between"):
        randomness.bernoulli(randomness.system_words, probability, 1)


def test_a_seed_repeats_its_words_and_the_system_does_not() -> None:
    first, again = (randomness.seeded_words(np.random.default_rng(7))(50) for _ in range(2))
    assert first.tolist() == again.tolist()
    assert randomness.system_words(50).tolist() != randomness.system_words(50).tolist()

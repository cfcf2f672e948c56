"""Intervals cover what they should, and a threshold is judged with the errors that are stated."""

import numpy as np
import pytest

from protocol.domains.strings import Utf8
from protocol.estimation.estimates import (
    Estimate,
    ListQuality,
    add_estimates,
    gamma_interval,
    quality_sentence,
    reaches_threshold,
)
from protocol.mechanism import Mechanism
from protocol.mechanisms.iblt.adaptive import AdaptiveIblt, AdaptiveIbltQuestion
from protocol.study_state import EMPTY_STATE


def sampled(count: int, t: float, draws: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Return estimates of a count from one sample of its tokens each, and their variances."""
    tokens = np.random.default_rng(1).binomial(count, 1 / t, draws)
    tokens = tokens[tokens > 0]  # what was never sampled has no estimate
    return tokens * t, tokens * t * (t - 1)


@pytest.mark.parametrize("t", [2, 5, 20, 50])
@pytest.mark.parametrize("count", [50, 100, 400, 2000])
def test_intervals_of_sampled_counts_cover(count: int, t: float) -> None:
    low, high = gamma_interval(*sampled(count, t))
    covered = ((low <= count) & (count <= high)).mean()
    assert 0.945 <= covered <= 0.995  # of 20,000: a standard error is 0.0015


def test_an_interval_is_the_normal_one_where_little_is_unsure() -> None:
    low, high = gamma_interval(np.array([10_000.0]), np.array([2_500.0]))
    assert low[0] == pytest.approx(10_000 - 98, abs=1)
    assert high[0] == pytest.approx(10_000 + 98, abs=1)


def test_what_is_certain_has_no_width() -> None:
    low, high = gamma_interval(np.array([7.0, -3.0, 0.0]), np.array([0.0, 4.0, 1.0]))
    assert low.tolist() == high.tolist() == [7, -3, 0]


def test_a_higher_level_is_wider() -> None:
    narrow, wide = (
        gamma_interval(np.array([60.0]), np.array([300.0]), level) for level in (0.5, 0.99)
    )
    assert wide[0] < narrow[0] < 60 < narrow[1] < wide[1]


@pytest.mark.parametrize("confidence", [0.05, 0.3, 0.5, 0.8, 0.95])
def test_an_item_at_the_threshold_is_found_with_the_stated_probability(confidence: float) -> None:
    """Checked to 4% with 20,000 estimates of a count at exactly the threshold."""
    counts, variances = sampled(800, 5)
    assert reaches_threshold(counts, variances, 800, confidence).mean() == pytest.approx(
        1 - confidence, abs=0.04
    )


def test_an_estimate_that_is_certain_needs_no_margin() -> None:
    reached = reaches_threshold(np.array([50.0, 49.0]), np.zeros(2), 50, 0.99)
    assert reached.tolist() == [True, False]


def test_estimates_and_variances_add_up_over_rounds_and_the_heavy_are_ranked() -> None:
    question = AdaptiveIbltQuestion(
        threshold=5, contribution=3, domain=Utf8(max_bytes=12), message_bytes=5784
    )
    first = add_estimates(
        EMPTY_STATE, [Estimate("a", 5, 1), Estimate("b", 3, 2), Estimate("c", 4, 9)]
    )
    state = add_estimates(first, [Estimate("b", 4, 3)])
    assert Mechanism.final_estimates(AdaptiveIblt(), question, state) == [
        Estimate("b", 7, 5),
        Estimate("a", 5, 1),
    ]


@pytest.mark.parametrize(("missed", "words"), [(0.45, "0.5"), (0.01, "0"), (1234.5, "1,234")])
def test_a_few_missed_items_are_not_rounded_to_none(missed: float, words: str) -> None:
    sentence = quality_sentence(
        ListQuality(expected_precision=1, expected_recall=0.8176, expected_missed=missed),
        has_keys=False,
    )
    assert sentence.endswith(
        f"about 81.8% are listed (recall). The number of items that reach the threshold "
        f"and are not listed is about {words}."
    )


def test_an_empty_list_has_no_precision_and_no_recall() -> None:
    empty = ListQuality(expected_precision=None, expected_recall=None, expected_missed=2.25)
    sentence = quality_sentence(empty, has_keys=False)
    assert sentence.startswith("The number of items that reach the threshold")
    assert sentence.endswith("is about 2.2.")

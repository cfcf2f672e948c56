"""Totals of rounds at thresholds that differ, of which none may add much noise."""

from random import Random

import numpy as np
import pytest

from protocol.domains.strings import Listed
from protocol.estimates import Estimate, add_estimates, totals_of_all_rounds
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltPlan, AdaptiveIbltQuestion
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.mechanisms.sampled_counts import capped_totals, record_round_counts
from protocol.question_and_plan import Terms
from protocol.study_state import EMPTY_STATE, StudyState, add_devices

_DEVICES, _ITEMS = 10_000, tuple(f"item{number}" for number in range(400))


def _study(thresholds: list[float], seed: int) -> tuple[StudyState, np.ndarray]:
    """Return the state after rounds at these thresholds (0: not read), and the true totals."""
    rng = np.random.default_rng(seed)
    question = AdaptiveIbltQuestion(
        threshold=50, contribution=1, words=2000, domain=Listed(items=_ITEMS)
    )
    terms = Terms(cohort_size=1000, minimum=500, cohorts=10)
    mechanism = SUM_MECHANISMS["adaptive-iblt"]
    plan = mechanism.first_plan(question, terms, "study", len(thresholds), Random(1))
    assert isinstance(plan, AdaptiveIbltPlan)
    state, rates = EMPTY_STATE, 10 ** rng.uniform(-4, -2, len(_ITEMS))
    truth = np.zeros(len(_ITEMS), np.int64)
    for number, t in enumerate(thresholds, 1):
        counts = rng.poisson(rates * _DEVICES)
        truth += counts
        now = plan.model_copy(update={"round": number})
        state = add_devices(state, _DEVICES, is_read=t > 0)
        if not t:
            state = record_round_counts(now, state, _DEVICES)
            continue
        samples = rng.binomial(counts, 1 / t)
        estimates = [
            Estimate(item, n * t, n * t * (t - 1))
            for item, n in zip(_ITEMS, samples.tolist(), strict=True)
            if n
        ]
        state = add_estimates(state, estimates)
        state = record_round_counts(now, state, _DEVICES, estimates, t - 1)
    return state, truth[[_ITEMS.index(item) for item in state.items]]


def test_rounds_at_one_threshold_are_added_up() -> None:
    state, _ = _study([10, 10, 10, 0], seed=1)
    capped = capped_totals(state)
    assert capped is not None
    counts, variances = totals_of_all_rounds(state)
    assert capped[0] == pytest.approx(counts, rel=1e-5)
    assert capped[1] == pytest.approx(variances.sum() / counts.sum(), rel=1e-5)


def test_a_round_at_a_far_higher_threshold_counts_less() -> None:
    """Errors are as large as stated, and a quarter smaller than those of plain sums.

    With eight seeds the first ratio was 1.00 +- 0.06 and the second 0.76 +- 0.02, so that another
    fails with probability below 0.01.
    """
    state, truth = _study([95, 14, 14], seed=2)
    capped = capped_totals(state)
    assert capped is not None
    errors, stated = capped[0] - truth, truth * capped[1]
    assert 0.82 < np.sqrt((errors**2).sum() / stated.sum()) < 1.2
    plain = totals_of_all_rounds(state)[0] - truth
    assert np.sqrt((errors**2).sum()) < 0.87 * np.sqrt((plain**2).sum())
    assert abs(errors.sum()) < 4 * np.sqrt(stated.sum())


def test_a_study_without_all_rounds_has_no_capped_totals() -> None:
    state, _ = _study([10, 10], seed=3)
    assert capped_totals(add_devices(state, 10, is_read=True)) is None
    assert capped_totals(EMPTY_STATE) is None

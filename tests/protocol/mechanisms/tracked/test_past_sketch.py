"""A sketch of untracked items gives their counts before they were known, with variances."""

import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from protocol.domains.strings import Alphabet, Listed
from protocol.estimation.estimates import gamma_interval
from protocol.estimation.history import History
from protocol.mechanisms.tracked.mechanism import Tracked
from protocol.mechanisms.tracked.past_sketch import (
    SketchAllocation,
    estimate_levels,
    past_count_sketch,
    store_sketch,
)
from protocol.mechanisms.tracked.plan import TrackedPlan, TrackedQuestion
from protocol.mechanisms.tracked.rate_filter import STATIONARY, Drift
from protocol.question_and_plan import Terms
from protocol.simulation.study import RoundOutcome, run_study
from protocol.study_state import StudyState

MECHANISM = Tracked()
NAMES = tuple(f"{number:04}" for number in range(1500))
DOMAIN = Listed(items=NAMES)
ROUNDS, DEVICES = 8, 2000.0
LETTERS = Alphabet(characters="abcdefghijklmnop", length=3)
ITEMS = ["".join(letters) for letters in product(LETTERS.characters, repeat=3)]
TERMS = Terms(cohort_size=2000, minimum=500, mode="semi-honest")


def studied(
    seed: int, since: int, shape: tuple[int, int], jumps: bool = False, common: int = 0
) -> tuple[StudyState, History, Any]:
    """Return a state with sketches of items that are counted after some round, and their counts.

    `shape` has the cells of a sketch, and their modulus. Before they are sampled, one token in
    five. The first `common` items have eight times as many.
    """
    rng = np.random.default_rng(seed)
    rates = rng.uniform(0.5, 3.0, len(NAMES))[:, np.newaxis] * np.ones(ROUNDS)
    rates[:common] *= 8
    if jumps:  # later rates reveal nothing about earlier ones
        rates[:, :since] = rng.uniform(0.5, 3.0, len(NAMES))[:, np.newaxis]
    counts = rng.poisson(rates)
    state = StudyState(items=NAMES)
    for block in range(since):
        sketch = past_count_sketch(*shape, DOMAIN.chunks, seed := rng.bytes(32))
        cells = sketch.insert(DOMAIN.encode(NAMES), counts[:, block])
        state = store_sketch(state, block, shape[1], seed, cells)
    known = np.arange(ROUNDS) >= since
    seen = np.where(known, counts, rng.binomial(counts, 0.2)).astype(np.float64)
    exposed = np.broadcast_to(np.where(known, DEVICES, 0.2 * DEVICES), seen.shape)
    return state, History(seen, exposed, np.full(ROUNDS, DEVICES)), counts.sum(axis=1)


def test_sketches_that_an_earlier_version_stored_are_read() -> None:
    """Read the bits of a cell from one byte, where now the modulus is in four."""
    state, history, _ = studied(1, 2, (1500, 16))
    earlier = state
    for block in range(2):
        header = state.arrays[f"sketch header {block}"]
        bits = np.array([4], np.uint8)
        earlier = earlier.with_array(f"sketch header {block}", np.append(bits, header[4:]))
    drift = Drift(0.0, 1.0, {2: 1.0})
    now, before = (estimate_levels(DOMAIN, each, history, drift) for each in (state, earlier))
    assert (now.totals == before.totals).all()


@pytest.mark.parametrize("shape", [(1500, 16), (3000, 32), (1500, 17), (1500, 65537)])
def test_counts_before_an_item_was_known_are_estimated(shape: tuple[int, int]) -> None:
    """Only the sketch informs after a jump of rates: half the error, and little bias."""
    state, history, truth = studied(1, 3, shape, jumps=True)
    jump = Drift(0.0, 1.0, {3: 1.0})
    errors = [
        estimate_levels(DOMAIN, kept, history, jump).totals - truth
        for kept in (state, StudyState())
    ]
    with_sketch, guessed = (float(np.sqrt((error**2).mean())) for error in errors)
    assert with_sketch < 0.75 * guessed
    assert abs(errors[0].mean()) < 0.5  # of counts of 14: what the filter's prior takes off


def test_intervals_of_totals_hold_what_they_should() -> None:
    """Slightly less than their level: items with unknown rates share the sketches."""
    inside = []
    for seed in range(3):
        state, history, truth = studied(seed, 5, (1500, 16))
        levels = estimate_levels(DOMAIN, state, history, STATIONARY)
        low, high = gamma_interval(levels.totals, levels.variances)
        inside.append((low <= truth) & (truth <= high))
    assert np.mean(inside) == pytest.approx(0.945, abs=0.015)


def test_totals_are_off_as_far_as_stated_also_where_cells_wrap() -> None:
    """Cells of 16 values, and 100 items of up to 24 tokens in a round, whose aliases are near.

    The root of the mean square has a deviation of 0.02; five are allowed. An error of more than
    five deviations has a probability of 1e-3 in 500 items.
    """
    z_scores = []
    for seed in range(5):
        state, history, truth = studied(seed, 2, (1500, 16), common=100)
        levels = estimate_levels(DOMAIN, state, history, STATIONARY)
        z_scores.append(((levels.totals - truth) / np.sqrt(levels.variances))[:100])
    errors = np.concatenate(z_scores)
    assert np.sqrt((errors**2).mean()) == pytest.approx(1, abs=0.16)
    assert np.abs(errors).max() < 5


def question(**changes: Any) -> TrackedQuestion:
    asked: dict[str, Any] = {"threshold": 24.0, "contribution": 1, "domain": LETTERS, "words": 1500}
    return TrackedQuestion(**(asked | changes))


@cache
def study(asked: TrackedQuestion, **how: Any) -> list[RoundOutcome[TrackedPlan]]:
    """Return the outcomes of 12 rounds of 2,000 devices whose shares drift to another order."""
    rng = np.random.default_rng(1)
    shares = 1 / np.arange(50, 50 + len(ITEMS))
    other, held = rng.permutation(shares), []
    for number in range(12):
        probabilities = shares + (other - shares) * number / 11
        drawn = rng.choice(len(ITEMS), 2000, p=probabilities / probabilities.sum())
        held.append([[{ITEMS[item]: 1} for item in drawn]])
    return list(run_study(MECHANISM, asked, TERMS, held, random.Random(1), planned=12, **how))


def rmse(asked: TrackedQuestion, outcomes: Sequence[RoundOutcome[TrackedPlan]]) -> float:
    truth = sum((Counter(outcome.truth) for outcome in outcomes), Counter[str]())
    easy = asked.model_copy(update={"threshold": 1.0})
    by_item = {
        each.item: each.count for each in MECHANISM.final_estimates(easy, outcomes[-1].study_state)
    }
    heavy = [item for item, count in truth.items() if count >= 15]
    return float(np.sqrt(np.mean([(by_item.get(item, 0) - truth[item]) ** 2 for item in heavy])))


def test_sketches_reduce_errors_with_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = question()
    outcomes = study(asked)
    assert outcomes[0].plan.past_sketch
    assert sum(outcome.plan.past_sketch is not None for outcome in outcomes) > 4
    for outcome in outcomes:
        assert MECHANISM.ring(outcome.plan).nbytes <= asked.nbytes
    monkeypatch.setattr(SketchAllocation, "best_sketch", lambda *_, **__: None)
    plain = study.__wrapped__(asked)
    assert all(outcome.plan.past_sketch is None for outcome in plain)
    assert rmse(asked, outcomes) < 0.85 * rmse(asked, plain)


@pytest.mark.parametrize(
    ("changes", "rounds"),
    [
        ({"words": 150}, 12),  # the table is too small to share
        ({"words": 40_000}, 12),  # and here it holds everything
        ({}, 65),  # more than a state has blocks
    ],
)
def test_where_a_sketch_is_not_worth_its_bytes_plans_are_as_ever(
    changes: dict[str, Any], rounds: int
) -> None:
    asked = question(**changes)
    plan = MECHANISM.first_plan(asked, TERMS, "study", rounds, random.Random(1))
    assert plan.past_sketch is None


def test_after_a_round_without_a_sum_the_sketch_is_as_before() -> None:
    outcomes = study(question())
    plan, state = outcomes[3].plan, outcomes[2].study_state
    assert plan.past_sketch
    following = MECHANISM.next_plan(plan, None, state, random.Random(1))
    assert following.past_sketch == plan.past_sketch
    TrackedPlan.model_validate(following.model_dump())


def test_falling_rates_have_the_errors_of_their_early_rounds() -> None:
    """Their mean rate has half the variance of their first round, in which they are sampled.

    Over seeds, the rms error has mean 1.03 and deviation 0.03; five deviations are allowed.
    """
    blocks, exposure = 30, 0.07
    rng = np.random.default_rng(1)
    devices = np.full(blocks, 10_000.0)
    fall = 2 * (1 - (np.arange(blocks) + 0.5) / blocks)
    counts = rng.poisson(10 ** rng.uniform(0.4, 1.5, (600, 1)) * fall)
    seen = counts.astype(np.float64)
    seen[:, 0] = rng.binomial(counts[:, 0], exposure)
    exposed = np.broadcast_to(devices, counts.shape).copy()
    exposed[:, 0] *= exposure
    history = History(seen, exposed, devices)
    levels = estimate_levels(DOMAIN, StudyState(), history, Drift(0.0, 1.0, {}, 1 / 15))
    errors = (levels.totals - counts.sum(axis=1)) / np.sqrt(levels.variances)
    assert np.sqrt((errors**2).mean()) == pytest.approx(1.03, abs=0.15)

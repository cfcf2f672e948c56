"""A sketch of what was not tracked tells what items were before they were known, and how surely."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from protocol.confidence import interval
from protocol.domain import Alphabet, Listed
from protocol.local_level import STATIONARY, Drift, History
from protocol.mechanism import Terms
from protocol.mechanisms.hindsight import Past, Sharing, keep_past, levels_of
from protocol.mechanisms.tracked import Tracked, TrackedPlan, TrackedQuestion
from protocol.simulation import Outcome, run_study
from protocol.tally import Tally

MECHANISM = Tracked()
NAMES = tuple(f"{number:04}" for number in range(1500))
DOMAIN = Listed(items=NAMES)
ROUNDS, DEVICES = 8, 2000.0
LETTERS = Alphabet(characters="abcdefghijklmnop", length=3)
ITEMS = ["".join(letters) for letters in product(LETTERS.characters, repeat=3)]
TERMS = Terms(cohort_size=2000, minimum=500, mode="semi-honest")


def studied(seed: int, since: int, past: Past, jumps: bool = False) -> tuple[Tally, History, Any]:
    """Return a tally with sketches of items that are counted from a round on, and their counts.

    Before they are sampled, one token in five.
    """
    rng = np.random.default_rng(seed)
    rates = rng.uniform(0.5, 3.0, len(NAMES))[:, np.newaxis] * np.ones(ROUNDS)
    if jumps:  # what comes after tells nothing of what was before
        rates[:, :since] = rng.uniform(0.5, 3.0, len(NAMES))[:, np.newaxis]
    counts = rng.poisson(rates)
    tally = Tally(items=NAMES)
    for block in range(since):
        sketch = past.sketch(DOMAIN.chunks, seed := rng.bytes(32))
        cells = sketch.insert(DOMAIN.encode(NAMES), counts[:, block])
        tally = keep_past(tally, block, past, seed, cells)
    known = np.arange(ROUNDS) >= since
    seen = np.where(known, counts, rng.binomial(counts, 0.2)).astype(np.float64)
    exposed = np.broadcast_to(np.where(known, DEVICES, 0.2 * DEVICES), seen.shape)
    return tally, History(seen, exposed, np.full(ROUNDS, DEVICES)), counts.sum(axis=1)


@pytest.mark.parametrize("past", [Past(cells=1500, bits=4), Past(cells=3000, bits=5)])
def test_what_came_before_an_item_was_known_is_told(past: Past) -> None:
    """Where rates jumped, so that nothing else tells: half the error, and little on average."""
    tally, history, truth = studied(1, 3, past, jumps=True)
    jump = Drift(0.0, 1.0, {3: 1.0})
    errors = [levels_of(DOMAIN, one, history, jump).totals - truth for one in (tally, Tally())]
    told, guessed = (float(np.sqrt((error**2).mean())) for error in errors)
    assert told < 0.75 * guessed
    assert abs(errors[0].mean()) < 0.5  # of counts of 14: what the filter's prior takes off


def test_intervals_of_totals_hold_what_they_should() -> None:
    """A little less than they say: items whose rates are not known share the sketches."""
    inside = []
    for seed in range(3):
        tally, history, truth = studied(seed, 5, Past(cells=1500, bits=4))
        levels = levels_of(DOMAIN, tally, history, STATIONARY)
        low, high = interval(levels.totals, levels.variances)
        inside.append((low <= truth) & (truth <= high))
    assert np.mean(inside) == pytest.approx(0.945, abs=0.015)


def test_sketches_make_totals_surer_and_say_so() -> None:
    tally, history, truth = studied(4, 5, Past(cells=3000, bits=4))
    told, plain = (levels_of(DOMAIN, t, history, STATIONARY) for t in (tally, Tally()))
    assert told.variances.mean() < 0.6 * plain.variances.mean()
    assert ((told.totals - truth) ** 2).mean() < 0.6 * ((plain.totals - truth) ** 2).mean()


def question(**changes: Any) -> TrackedQuestion:
    asked: dict[str, Any] = {"threshold": 24.0, "contribution": 1, "domain": LETTERS, "words": 1500}
    return TrackedQuestion(**(asked | changes))


def study(asked: TrackedQuestion, **how: Any) -> list[Outcome[TrackedPlan]]:
    """Return the outcomes of 12 rounds of 2,000 devices whose shares drift to another order."""
    rng = np.random.default_rng(1)
    shares = 1 / np.arange(50, 50 + len(ITEMS))
    other, held = rng.permutation(shares), []
    for number in range(12):
        odds = shares + (other - shares) * number / 11
        drawn = rng.choice(len(ITEMS), 2000, p=odds / odds.sum())
        held.append([[{ITEMS[item]: 1} for item in drawn]])
    return list(run_study(MECHANISM, asked, TERMS, held, random.Random(1), planned=12, **how))


def rmse(asked: TrackedQuestion, outcomes: Sequence[Outcome[TrackedPlan]]) -> float:
    truth = sum((Counter(outcome.truth) for outcome in outcomes), Counter[str]())
    easy = asked.model_copy(update={"threshold": 1.0})
    found = {one.item: one.count for one in MECHANISM.conclude(easy, outcomes[-1].tally)}
    heavy = [item for item, count in truth.items() if count >= 15]
    return float(np.sqrt(np.mean([(found.get(item, 0) - truth[item]) ** 2 for item in heavy])))


def test_a_study_with_sketches_is_nearer_than_one_of_as_many_words_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = question()
    outcomes = study(asked)
    assert outcomes[0].plan.past
    assert sum(outcome.plan.past is not None for outcome in outcomes) > 4
    for outcome in outcomes:
        assert MECHANISM.ring(outcome.plan).nbytes <= asked.nbytes
    monkeypatch.setattr(Sharing, "past", lambda *_, **__: None)
    plain = study(asked)
    assert all(outcome.plan.past is None for outcome in plain)
    assert rmse(asked, outcomes) < 0.85 * rmse(asked, plain)


def test_a_study_with_losses_has_sketches_too() -> None:
    asked = question()
    outcomes = study(asked, dropout=0.1)
    assert all(outcome.devices < 2000 for outcome in outcomes)
    assert outcomes[1].tally.arrays["past 1"].shape == (outcomes[1].plan.past.cells,)
    assert rmse(asked, outcomes) < 6


@pytest.mark.parametrize(
    ("changes", "rounds"),
    [
        ({"words": 150}, 12),  # the table is too small to share
        ({"words": 40_000}, 12),  # and here it holds everything
        ({"assume": "nothing"}, 12),
        ({}, 65),  # more than a tally has blocks
    ],
)
def test_where_a_sketch_is_not_worth_its_bytes_plans_are_as_ever(
    changes: dict[str, Any], rounds: int
) -> None:
    asked = question(**changes)
    plan = MECHANISM.first_plan(asked, TERMS, "study", rounds, random.Random(1))
    assert plan.past is None
    assert "past" not in plan.model_dump(mode="json")
    with_one = MECHANISM.first_plan(question(), TERMS, "study", 12, random.Random(1))
    assert with_one.past
    again = TrackedPlan.model_validate_json(with_one.model_dump_json())
    assert again.digest() == with_one.digest()


def test_after_a_round_without_a_sum_the_sketch_is_as_before() -> None:
    outcomes = study(question())
    plan, tally = outcomes[3].plan, outcomes[2].tally
    assert plan.past
    following = MECHANISM.next_plan(plan, None, tally, random.Random(1))
    assert following.past == plan.past
    TrackedPlan.model_validate(following.model_dump())

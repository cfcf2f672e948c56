"""Plans that no honest study has are recognised, and honest plans are not."""

import random
from typing import Any

import numpy as np
import pytest

from protocol.domains.hashed import Hashed
from protocol.domains.strings import Utf8
from protocol.mechanisms.tracked.counters import CounterGroup
from protocol.mechanisms.tracked.mechanism import Tracked
from protocol.mechanisms.tracked.plan import TrackedPlan, TrackedQuestion
from protocol.question_and_plan import Terms
from protocol.simulation.study import run_study

MECHANISM = Tracked()
DEVICES, ROUNDS, ITEM_BYTES = 64, 9, 60
TERMS = Terms(cohort_size=DEVICES, minimum=50)
NAMES = tuple(Hashed(max_bytes=ITEM_BYTES).name(str(number)) for number in range(40))


def question(**changes: Any) -> TrackedQuestion:
    asked: dict[str, Any] = {"threshold": 30, "contribution": 2, "message_bytes": 5784}
    return TrackedQuestion(**(asked | {"domain": Hashed(max_bytes=ITEM_BYTES)} | changes))


def plan(number: int, pieces: int = 0, start: int = 0, **changes: Any) -> TrackedPlan:
    """Return a plan of round `number` that fetches `pieces` strings, the last from `start` on."""
    asked = question(**changes | {"threshold": 30})
    first = MECHANISM.first_plan(asked, TERMS, "study", ROUNDS, random.Random(1))
    names = NAMES if isinstance(first.question.domain, Hashed) else tuple("abc")
    wanted = [(row, start if row == pieces - 1 else 0, 9) for row in range(pieces)]
    fields = {name: getattr(first, name) for name in TrackedPlan.model_fields}
    groups = (CounterGroup(bits=8, items=names),)
    lists = {"counter_groups": groups, "string_pieces": tuple(wanted)}
    lists["question"] = question(**changes)
    return TrackedPlan.model_validate(fields | lists | {"round": number, "cells": 60})


@pytest.mark.parametrize("rounds", [2, 3, 12])
@pytest.mark.parametrize("asked", [{}, {"threshold": 3}, {"domain": Hashed(max_bytes=9)}])
def test_an_honest_study_has_no_such_plan(rounds: int, asked: dict[str, Any]) -> None:
    rng, domain = np.random.default_rng(rounds), asked.get("domain", Hashed(max_bytes=ITEM_BYTES))
    items = [(f"{number}, an item of many words" * 2)[: domain.max_bytes] for number in range(60)]
    weights = 1 / np.arange(1, 61) ** 1.2
    drawn = rng.choice(60, (rounds, DEVICES, 2), p=weights / weights.sum())
    held = [[[dict.fromkeys((items[i] for i in row), 1) for row in each]] for each in drawn]
    outcomes = list(
        run_study(MECHANISM, question(**asked), TERMS, held, random.Random(1), planned=rounds)
    )
    assert [fault for outcome in outcomes for fault in outcome.plan.history_faults()] == []
    if asked != {} or rounds == 12:
        assert any(outcome.plan.string_pieces for outcome in outcomes)


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (plan(1), "tracks items in the first round"),
        (plan(1, 1), "tracks items in the first round"),
        (plan(9, 5, start=54), "byte 63 of strings of 60 bytes"),
        (plan(3, 3, domain=Utf8(max_bytes=4)), "a domain without hashes"),
        (plan(3, 1, threshold=2), "one device alone"),
        (plan(3, 1, threshold=1e12), "fetches 1 strings, and 0 items can be heavy"),
        (plan(3, 23, threshold=100), "fetches 23 strings, and 11 items can be heavy"),
    ],
)
def test_a_plan_without_a_history_is_recognised(refused: TrackedPlan, why: str) -> None:
    assert why in "; ".join(refused.history_faults())


@pytest.mark.parametrize(
    "possible", [plan(2), plan(2, 5, start=53), plan(3, 1, threshold=3), plan(3, 22, threshold=100)]
)
def test_a_plan_that_an_honest_study_could_have_is_accepted(possible: TrackedPlan) -> None:
    assert list(possible.history_faults()) == []


def test_no_study_is_created_whose_strings_devices_refuse_to_give() -> None:
    """All of its rounds after the first would fail."""
    rng = random.Random(1)
    with pytest.raises(ValueError, match="threshold of 5 must be above the contribution, 5"):
        MECHANISM.first_plan(question(threshold=5, contribution=5), TERMS, "study", ROUNDS, rng)
    MECHANISM.first_plan(question(threshold=6, contribution=5), TERMS, "study", ROUNDS, rng)
    text = question(threshold=5, contribution=5, domain=Utf8(max_bytes=4))
    MECHANISM.first_plan(text, TERMS, "study", ROUNDS, rng)

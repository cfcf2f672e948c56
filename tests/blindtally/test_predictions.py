"""What the page tells of a study before it is created, by the commands that tell it."""

from random import Random
from typing import Any

import pytest

from blindtally import predictions
from protocol.mechanism import Terms
from protocol.mechanisms import MECHANISMS, AnyPlan, parse_question


def plan_of(mechanism: str, **question: Any) -> AnyPlan:
    asked = {"mechanism": mechanism, "threshold": 5, "contribution": 1, "words": 200} | question
    terms = Terms(cohort_size=20, minimum=10, corrupt=0.1, dropout=0.2)
    return MECHANISMS[mechanism].first_plan(parse_question(asked), terms, "x", 2, Random(1))


async def test_a_study_that_finds_items_is_simulated_and_its_costs_are_measured() -> None:
    plan = plan_of("tracked", domain={"kind": "hashed", "max_bytes": 16})
    told = {line.what: line for line in await predictions.predict(plan)}
    assert told["F1"].value.startswith("0.")
    assert told["Rounds read"].note == "of 2"
    assert {"Words for an F1 of 0.95", "A device computes", "The server computes"} <= told.keys()


async def test_of_other_sums_costs_are_told() -> None:
    domain = {"kind": "alphabet", "characters": "ab", "length": 3}
    plan = plan_of("count-median", domain=domain, hashes=1)
    told = [line.what for line in await predictions.predict(plan)]
    assert told == ["A device computes", "The server computes"]


async def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"blindtally params: .*(?s:.*)clients"):
        await predictions._ask("params", "--clients", "1")


async def test_a_command_that_takes_too_long_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "_PATIENCE", 0.0)
    with pytest.raises(TimeoutError):
        await predictions.predict(plan_of("tracked", domain={"kind": "hashed", "max_bytes": 16}))

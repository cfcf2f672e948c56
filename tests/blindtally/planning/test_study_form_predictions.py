"""Predictions for the page that creates studies, each in its own process."""

import os
import subprocess
import sys
import time
from random import Random
from typing import Any

import psutil
import pytest

from blindtally.planning import study_form_predictions as form_predictions
from protocol.mechanisms.registry import MECHANISMS, AnyPlan, parse_question
from protocol.question_and_plan import Terms

HASHED = {"kind": "hashed", "max_bytes": 16}


def plan_of(
    mechanism: str, *, cohorts: int = 1, rounds: int = 2, size: int = 20, **question: Any
) -> AnyPlan:
    fields = {"mechanism": mechanism, "threshold": 5, "contribution": 1, "words": 200} | question
    terms = Terms(cohort_size=size, minimum=min(size, 10), cohorts=cohorts, corrupt=0.1)
    return MECHANISMS[mechanism].first_plan(parse_question(fields), terms, "x", rounds, Random(1))


async def test_a_study_that_finds_items_is_simulated_and_its_costs_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(form_predictions, "_TIMEOUT_SECONDS", 600)  # shared machines
    plan = plan_of("tracked", domain=HASHED)
    lines = {line.label: line for line in await form_predictions.predict(plan)}
    assert lines["F1"].value.startswith("0.")
    assert lines["Rounds decoded"].note == "of 2"
    assert lines["F1 in other data"].note.startswith("low: ")
    assert {"Words for an F1 of 0.95", "A device computes", "The server computes"} <= lines.keys()


def test_the_times_of_other_sums_are_predicted() -> None:
    domain = {"kind": "alphabet", "characters": "ab", "length": 3}
    lines = form_predictions.predict_here(plan_of("count-median", domain=domain, rows=1))
    assert [line.label for line in lines] == ["A device computes", "The server computes"]


@pytest.mark.parametrize("beyond", [{"cohorts": 1000, "size": 1001}, {"rounds": 1001}, {"size": 9}])
def test_a_study_that_is_too_large_to_simulate_is_reported(beyond: dict[str, int]) -> None:
    plan = plan_of("tracked", domain=HASHED, words=2000, **beyond)
    first, *others = form_predictions.predict_here(plan)
    assert (first.label, first.value, len(others)) == ("F1", "not simulated", 2)


async def test_a_prediction_that_fails_has_the_reason() -> None:
    with pytest.raises(ValueError, match="allow longer ones"):
        await form_predictions.predict(plan_of("tracked", domain=HASHED | {"max_bytes": 4}))


async def test_a_prediction_that_takes_too_long_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form_predictions, "_TIMEOUT_SECONDS", 0.5)
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(TimeoutError):
        await form_predictions.predict(plan_of("tracked", domain=HASHED, cohorts=900, size=1000))
    after = set(psutil.Process().children(recursive=True)) - before
    assert not [child for child in after if "--multiprocessing-fork" in child.cmdline()]


def test_a_prediction_ends_with_the_service() -> None:
    program = (
        "import asyncio, os, sys\n"
        "from blindtally.planning import study_form_predictions as form_predictions\n"
        "from tests.blindtally.planning.test_study_form_predictions import announce_and_sleep\n"
        "form_predictions._predict_with_limits = announce_and_sleep\n"
        "asyncio.run(form_predictions.predict(None))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as service:
        assert service.stdout is not None
        worker = psutil.Process(int(service.stdout.readline()))
        service.kill()
    worker.wait(60)


def announce_and_sleep(_plan: object) -> None:
    print(os.getpid(), flush=True)  # noqa: T201 (read by the test)
    time.sleep(600)


def test_the_memory_of_a_prediction_is_limited() -> None:
    module = "blindtally.planning.study_form_predictions"
    program = f"from {module} import limit_memory; limit_memory(2**28); bytearray(2**29)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert ended.returncode == 1
    assert b"MemoryError" in ended.stderr

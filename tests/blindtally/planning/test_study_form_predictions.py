"""Predictions for the page that creates studies, each in its own process."""

import asyncio
import os
import subprocess
import sys
import time
from contextlib import aclosing
from random import Random
from typing import Any

import psutil
import pytest

from blindtally.planning import study_form_predictions as form_predictions
from blindtally.planning.stepwise_forecast import forecast_steps
from blindtally.planning.study_form_predictions import ProcessPredictions, lines_of, request_of
from protocol.mechanisms.registry import MECHANISMS, AnyPlan, parse_question
from protocol.question_and_plan import Terms
from server.pages.forms.predictor import PartialPrediction

HASHED = {"kind": "hashed", "max_bytes": 16}


def plan_of(
    mechanism: str, *, cohorts: int = 1, rounds: int = 2, size: int = 20, **question: Any
) -> AnyPlan:
    fields = {"mechanism": mechanism, "threshold": 5, "contribution": 1, "words": 200} | question
    terms = Terms(cohort_size=size, minimum=min(size, 10), cohorts=cohorts, corrupt=0.1)
    return MECHANISMS[mechanism].first_plan(parse_question(fields), terms, "x", rounds, Random(1))


async def test_a_study_that_finds_items_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form_predictions, "_TIMEOUT_SECONDS", 600)  # shared machines
    plan = plan_of("tracked", domain=HASHED)
    steps = [step async for step in ProcessPredictions().predict(plan)]
    assert [(step.done, step.steps) for step in steps] == [(n, 7) for n in range(1, 8)]
    first, lines = ({line.label: line for line in steps[at].lines} for at in (0, -1))
    assert first.keys() == {"F1", "Rounds decoded", "A device receives"}
    assert "±" not in first["F1"].value
    assert "±" in lines["F1"].value
    assert lines["F1"].value.startswith("0.")
    assert lines["Rounds decoded"].note == "of 2"
    assert lines["F1 in other data"].note.startswith("low: ")
    assert "Words for an F1 of 0.95" in lines


@pytest.mark.parametrize("beyond", [{"cohorts": 1000, "size": 1001}, {"rounds": 1001}, {"size": 9}])
def test_a_study_that_is_too_large_to_simulate_is_reported(beyond: dict[str, int]) -> None:
    plan = plan_of("tracked", domain=HASHED, words=2000, **beyond)
    (forecast,) = forecast_steps(request_of(plan))
    (line,) = lines_of(plan, forecast)
    assert (line.label, line.value) == ("F1", "not simulated")


async def first_of(plan: AnyPlan) -> PartialPrediction:
    async with aclosing(ProcessPredictions().predict(plan)) as predictions:
        return await anext(predictions)


async def test_a_prepared_process_answers_and_one_that_is_not_used_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(form_predictions, "_TIMEOUT_SECONDS", 600)
    monkeypatch.setattr(form_predictions, "_IDLE_SECONDS", 1.0)
    before = set(psutil.Process().children(recursive=True))
    predictions = ProcessPredictions()
    for _ in range(2):
        predictions.prepare()  # the second time it is ready already
    numbers = [len(spawned(before))]
    for _ in range(600):
        await asyncio.sleep(0.1)
        numbers.append(len(spawned(before)))
        if numbers[-1] == 0 and 1 in numbers:
            break
    assert set(numbers) == {0, 1}
    monkeypatch.setattr(form_predictions, "_IDLE_SECONDS", 600)
    predictions.prepare()
    plan = plan_of("tracked", domain=HASHED)
    async with aclosing(predictions.predict(plan)) as steps:
        first = await anext(steps)
    assert first.lines
    predictions.close()
    assert not spawned(before)


def spawned(before: set[psutil.Process]) -> list[psutil.Process]:
    """Return the processes of pools that this process has started since `before`."""
    children = set(psutil.Process().children(recursive=True)) - before
    return [child for child in children if "--multiprocessing-fork" in child.cmdline()]


async def test_a_prediction_that_fails_has_the_reason() -> None:
    with pytest.raises(ValueError, match="allow longer ones"):
        await first_of(plan_of("tracked", domain=HASHED | {"max_bytes": 4}))


async def test_a_prediction_that_takes_too_long_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form_predictions, "_TIMEOUT_SECONDS", 0.5)
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(TimeoutError):
        await first_of(plan_of("tracked", domain=HASHED, cohorts=900, size=1000))
    assert not spawned(before)


def test_a_prediction_ends_with_the_service() -> None:
    program = (
        "import asyncio, os, sys\n"
        "from blindtally.planning import study_form_predictions as form_predictions\n"
        "from tests.blindtally.planning.test_study_form_predictions import announce_and_sleep\n"
        "form_predictions.prepare = announce_and_sleep\n"
        "async def wait():\n"
        "    form_predictions.ProcessPredictions().prepare()\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(wait())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as service:
        assert service.stdout is not None
        worker = psutil.Process(int(service.stdout.readline()))
        service.kill()
    worker.wait(60)


def announce_and_sleep() -> None:
    print(os.getpid(), flush=True)  # noqa: T201 (read by the test)
    time.sleep(600)


def test_the_memory_of_a_prediction_is_limited() -> None:
    module = "blindtally.planning.stepwise_forecast"
    program = f"from {module} import limit_memory; limit_memory(2**28); bytearray(2**29)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert ended.returncode == 1
    assert b"MemoryError" in ended.stderr

"""What the page tells of a study before it is created, by the commands that tell it."""

import subprocess
import sys
from random import Random
from typing import Any

import pytest

from blindtally import predictions
from protocol.mechanism import Terms
from protocol.mechanisms import MECHANISMS, AnyPlan, parse_question

HASHED = {"kind": "hashed", "max_bytes": 16}


def plan_of(
    mechanism: str, *, cohorts: int = 1, rounds: int = 2, size: int = 20, **question: Any
) -> AnyPlan:
    asked = {"mechanism": mechanism, "threshold": 5, "contribution": 1, "words": 200} | question
    terms = Terms(cohort_size=size, minimum=min(size, 10), cohorts=cohorts, corrupt=0.1)
    return MECHANISMS[mechanism].first_plan(parse_question(asked), terms, "x", rounds, Random(1))


async def test_a_study_that_finds_items_is_simulated_and_its_costs_are_measured() -> None:
    plan = plan_of("tracked", domain=HASHED)
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
        await predictions.predict(plan_of("tracked", domain=HASHED))


def test_numbers_of_any_size_are_said_in_full() -> None:
    """1e+06 is no whole number on a command line, and 1.23457e+06 is another one."""
    large = {"threshold": 1_234_567.5, "words": 1_234_567}
    plan = plan_of("tracked", cohorts=1000, size=1000, domain=HASHED, **large)
    said = predictions._study(plan)
    assert said[:2] == ["--devices", "1000000"]
    assert {"1234567.5", "1234567"} <= set(said)


@pytest.mark.parametrize("beyond", [{"cohorts": 1000, "size": 1001}, {"rounds": 1001}, {"size": 9}])
async def test_what_is_not_simulated_is_said_to_be_so(
    monkeypatch: pytest.MonkeyPatch, beyond: dict[str, int]
) -> None:
    async def ask(command: str, *_options: str) -> dict[str, Any]:
        assert command == "params"
        spent = {"all": 0.5}
        names = ("device", "server", "server_with_losses")
        return {"dropout": 0.2} | {f"seconds_of_{name}": spent for name in names}

    monkeypatch.setattr(predictions, "_ask", ask)
    plan = plan_of("tracked", domain=HASHED, words=2000, **beyond)
    first, *others = await predictions.predict(plan)
    assert (first.what, first.value, len(others)) == ("F1", "not simulated", 2)


def test_what_predicts_ends_with_whoever_asked() -> None:
    """The service may be killed: then nobody is left to end it, but its input ends."""
    words = "plan --devices 1000000 --rounds 1000 --threshold 1000 --words 100000 --runs 2"
    with subprocess.Popen(
        [sys.executable, "-m", "blindtally.predictions", *words.split()],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 1


def test_what_takes_too_much_memory_ends_by_itself() -> None:
    """The module bounds itself before it runs a command, as this program does."""
    bounded = "import blindtally.predictions as p; p.bound_memory(2**28); bytearray(2**29)"
    ended = subprocess.run([sys.executable, "-c", bounded], capture_output=True, check=False)
    assert ended.returncode == 1
    assert b"MemoryError" in ended.stderr

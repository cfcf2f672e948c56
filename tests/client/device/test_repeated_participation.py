"""A device that takes part again and again, at a service that answers by a script."""

import logging
import signal
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from threading import Timer, main_thread
from typing import Any

import httpx
import pytest

from client.device import repeated_participation
from client.device.blocking_device import Device
from client.device.device_state import DeviceState
from client.device.driver import EndState
from client.device.repeated_participation import take_part_repeatedly
from client.device.take_part import ParticipationOutcome, take_part
from client.fleet.devices import ClientFactory
from protocol.api.messages import StudyView
from protocol.mechanisms.registry import AnyPlan
from tests.client.device.test_blocking_device import URL, connect_by, no_study
from tests.client.device.test_take_part import POLICY
from tests.support.policies import trusting_policy

SHORT_PERIOD = timedelta(milliseconds=1)


class Passes(list[tuple[ParticipationOutcome, ...]]):
    """The outcomes of passes, with a condition to stop after a number of them."""

    def reach(self, number: int) -> Callable[[], bool]:
        return lambda: len(self) >= number


async def run(passes: Passes, stop: Callable[[], bool], **options: Any) -> None:
    options = {"study": "s1", "every": SHORT_PERIOD, "items": lambda: ["hello"]} | options
    kept = DeviceState.in_memory()
    await take_part_repeatedly(
        URL, stop=stop, on_pass=passes.append, device_state=kept, patience=0.1, **options
    )


async def test_each_pass_reads_the_items_and_reports_its_outcomes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect_by(monkeypatch, no_study)
    passes, read = Passes(), list[int]()

    def items() -> list[str]:
        read.append(len(read))
        return ["hello"]

    await run(passes, passes.reach(3), items=items)
    assert len(read) == 3
    assert [outcome.state for (outcome,) in passes] == [EndState.REJECTED] * 3
    await run(passes, passes.reach(4), study=None)
    assert passes[3] == ()  # no study runs


async def test_a_service_out_of_reach_ends_a_pass_and_not_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unreachable(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody")

    connect_by(monkeypatch, unreachable)
    passes = Passes()
    await run(passes, passes.reach(2), study=None)
    assert [outcome.state for (outcome,) in passes] == [EndState.DISCONNECTED] * 2
    assert "http://service" in passes[0][0].error


async def test_items_and_back_off_that_raise_end_a_pass_and_not_the_program(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connect_by(monkeypatch, no_study)
    passes, pauses = Passes(), iter([OSError("no network")])

    def items() -> list[str]:
        raise OSError("database is locked: a secret item")

    def back_off() -> None:
        for error in pauses:
            raise error

    await run(passes, passes.reach(2), items=items, back_off=back_off)
    assert [outcome.state for (outcome,) in passes] == [EndState.FAULT] * 2
    assert passes[0][0].error == "the items could not be read: OSError"
    assert "back_off failed" in caplog.text


async def test_passes_begin_every_period_with_jitter_and_pause_where_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect_by(monkeypatch, no_study)
    waited = list[float]()

    async def wait(seconds: float, _stop: object) -> None:
        waited.append(seconds)

    monkeypatch.setattr(repeated_participation, "_wait", wait)
    passes, night = Passes(), iter([timedelta(hours=3), timedelta(microseconds=1)])
    every = timedelta(hours=24)
    await run(passes, passes.reach(50), every=every, back_off=lambda: next(night, None))
    assert waited[:2] == [10_800, repeated_participation.STOP_CHECK_SECONDS]
    hours = [seconds / 3600 for seconds in waited[2:]]
    assert all(0.9 * 24 - 0.1 < each <= 1.1 * 24 for each in hours)
    assert max(hours) - min(hours) > 1  # else with probability below 10^-20


async def test_a_timeout_and_a_stop_end_all_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    connect_by(monkeypatch, no_study)
    passes, began = Passes(), time.monotonic()
    day = timedelta(days=1)
    await run(passes, lambda: False, every=day, timeout=timedelta(seconds=0.2))
    assert len(passes) == 1
    monkeypatch.setattr(repeated_participation, "STOP_CHECK_SECONDS", 0.01)
    await run(passes, lambda: time.monotonic() > began + 0.4, every=day)
    assert len(passes) == 2

    def fail() -> list[str]:
        raise TimeoutError("of the program's own database")

    await run(passes, passes.reach(3), items=fail, timeout=day)
    assert passes[2][0].state is EndState.FAULT


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ({"items": ["hello"]}, "items is a function"),
        ({"every": 3600}, r"every is a time such as timedelta\(hours=6\), got 3600"),
        ({"every": timedelta()}, "every is a time"),
        ({"jitter": 1.5}, "jitter is a fraction"),
        ({"timeout": 60}, r"timeout is a time such as timedelta\(days=1\), got 60"),
        ({"items": lambda: "Paris"}, r"pass \['Paris'\]"),
    ],
)
async def test_arguments_that_cannot_be_right_end_the_program(
    argument: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        await run(Passes(), lambda: False, **argument)


def test_ctrl_c_ends_a_device_that_runs_without_an_event_loop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connect_by(monkeypatch, no_study)
    caplog.set_level(logging.INFO, "client.device.repeated_participation")
    passes = Passes()
    with Device(URL, device_state=DeviceState.in_memory()) as device:
        device.run(list, SHORT_PERIOD, study="s1", stop=passes.reach(1), on_pass=passes.append)
        Timer(0.2, signal.pthread_kill, [main_thread().ident, signal.SIGINT]).start()
        device.run(lambda: ["hello"], timedelta(days=1), study="s1")
    assert "study s1, round None: rejected." in caplog.text


async def test_the_user_is_asked_before_each_study_and_only_the_log_remembers(
    connect: ClientFactory,
    study: StudyView,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("client.device.take_part.http_client", lambda _url: connect())
    caplog.set_level(logging.INFO, "client.device.take_part")
    asked = Counter[str]()

    async def refuse(plan: AnyPlan) -> bool:
        asked[plan.study] += 1
        return False

    kept = DeviceState.in_memory()
    give = {"study": study.id, "device_state": kept, "consent": refuse}
    for _ in range(2):
        (outcome,) = await take_part(URL, ["hello"], POLICY, **give)
        assert (outcome.state, outcome.last_step) == (EndState.DECLINED, None)
        assert outcome.error == "ConsentRefusedError: consent to this study was refused"
    assert asked == {study.id: 2}
    assert caplog.messages == [f"consent to study {study.id} was refused"] * 2
    assert not kept.journal.at(URL).rounds_by_study()
    (outcome,) = await take_part(URL, ["hello"], trusting_policy(min_cohort=99), **give)
    assert "min_cohort" in outcome.error
    assert asked[study.id] == 2  # what the policy refuses needs no answer of the user

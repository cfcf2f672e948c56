"""A device in a thread of its program, at a service that answers by a script."""

import asyncio
from concurrent.futures import CancelledError
from pydoc import render_doc
from threading import Event, current_thread
from typing import Any

import httpx
import pytest

from blindtally import take_part
from client.device.blocking_device import Device
from client.device.device_state import DeviceState
from client.device.driver import EndState
from client.errors import ServiceError

URL = "http://service"


def device(**options: Any) -> Device:
    return Device(URL, device_state=DeviceState.in_memory(), **options)


def connect_by(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    monkeypatch.setattr(
        "client.device.take_part.http_client",
        lambda url: httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url=f"{url}/v1"),
    )


async def no_study(request: httpx.Request) -> httpx.Response:
    if request.url.path == "/v1/studies":
        return httpx.Response(200, stream=httpx.ByteStream(b'{"studies": []}'))
    return httpx.Response(404, stream=httpx.ByteStream(b""))


def test_a_device_takes_part_without_an_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    connect_by(monkeypatch, no_study)
    progress = list[Any]()
    with device() as own:
        assert own.take_part(["hello"]) == ()  # no study runs
        (outcome,) = own.take_part(["hello"], study="s1", on_progress=progress.append)
    assert outcome.state is EndState.REJECTED
    assert progress == [EndState.REJECTED]


def test_a_repr_has_the_address_and_no_secret() -> None:
    own = Device("http://user:a-password@service/", token="a-token")
    assert repr(own) == "<Device at http://service>"


async def test_a_device_takes_part_inside_an_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    connect_by(monkeypatch, no_study)
    with device() as own:
        assert own.take_part(["hello"]) == ()


def test_an_error_comes_out_of_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(403, stream=httpx.ByteStream(b""))

    connect_by(monkeypatch, refuse)
    with device() as own, pytest.raises(ServiceError):
        own.start(["hello"]).result(timeout=60)


def test_a_device_in_the_background_drops_out_if_cancelled_or_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, dropped, names = Event(), Event(), list[str]()

    async def never(_request: httpx.Request) -> httpx.Response:
        names.append(current_thread().name)
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            dropped.set()
        raise AssertionError

    connect_by(monkeypatch, never)
    own = device()
    part = own.start(["hello"], study="s1")
    assert asked.wait(60)
    assert not part.done()
    assert part.cancel()
    assert dropped.wait(60)
    with pytest.raises(CancelledError):
        part.result()

    asked.clear()
    other = own.start(["hello"], study="s1")
    assert asked.wait(60)
    own.close()
    assert other.cancelled()
    assert set(names) == {"blindtally device"}
    own.close()  # again: nothing is left to close


def test_wrong_arguments_are_refused_at_once() -> None:
    with device() as own, pytest.raises(ValueError, match=r"pass \['Paris'\]"):
        own.start("Paris")
    with pytest.raises(ValueError, match="not an http or https address"):
        Device("service:8000")
    wrong: dict[str, Any]
    for wrong in ({"policy": {"max_epsilon": 2}}, {"device_state": "here"}, {"consent": True}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}.* (is a|are functions)"):
            Device("http://127.0.0.1:8000", **wrong)


def test_help_shows_a_function_that_is_imported_late() -> None:
    assert "Cancelling the call drops the device out" in render_doc(take_part)

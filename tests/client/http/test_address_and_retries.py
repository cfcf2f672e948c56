"""Addresses of services, and repetitions and errors that a program of a user sees."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import stamina
from stamina.instrumentation import RetryDetails, get_on_retry_hooks, set_on_retry_hooks

from client.analyst.analyst import Analyst
from client.analyst.requests import EventCursor
from client.analyst.sender import Sender
from client.device.blocking_device import Device
from client.device.device_state import DeviceState
from client.device.take_part import take_part
from client.errors import ServiceError, UnreadableAnswerError
from client.http.address_and_retries import repeated, service_url
from client.http.transport import http_client

WRONG_URLS = [
    "",
    "127.0.0.1:8000",
    "localhost",
    "ftp://host",
    "http://",
    "http:///path",
    "http://host:port",
    "http://host:99999",
    "http://two words",
    "http://host/?study=1",
    "http://host/#study",
]


@pytest.mark.parametrize("url", WRONG_URLS)
async def test_a_wrong_address_is_refused_before_any_request(url: str) -> None:
    for use in (Analyst, Device, http_client, service_url):
        with pytest.raises(ValueError, match=r"not an|not the address|cannot exist"):
            use(url)
    with pytest.raises(ValueError, match=r"not an|not the address|cannot exist"):
        await take_part(url, [], device_state=DeviceState.in_memory())


def test_a_device_sends_no_password() -> None:
    """Refuse a password, which would replace the ticket of the device."""
    with pytest.raises(ValueError, match="no user or password") as refusal:
        http_client("http://me:secret@host")
    assert "secret" not in str(refusal.value)


def test_an_address_has_one_form() -> None:
    assert service_url("HTTP://Host:8000/") == service_url("http://host:8000")


def test_repetitions_print_nothing() -> None:
    code = """
from blindtally import Analyst
from blindtally.errors import ServiceUnreachableError
try:
    next(Analyst("http://127.0.0.1:1", patience=0.3).studies())
except ServiceUnreachableError as error:
    print("unreachable")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.stdout == "unreachable\n"


@pytest.fixture
def hooked() -> Iterator[list[RetryDetails]]:
    """Yield the repetitions that a hook of the user's program sees."""
    seen = list[RetryDetails]()
    set_on_retry_hooks([seen.append])
    with stamina.set_testing(True, attempts=2):
        yield seen
    set_on_retry_hooks(None)


def test_repetitions_of_others_are_shown_as_before(
    hooked: list[RetryDetails], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise httpx.ConnectError("refused\n")

    fail.__module__ = "client.sender"
    for _ in range(2):  # hooks are wrapped once
        with caplog.at_level("DEBUG"), pytest.raises(httpx.ConnectError):
            repeated(fail, 1)()
    assert not hooked
    assert len(get_on_retry_hooks()) == 1
    assert caplog.messages == ["request 1 failed, next in 0.0 s: refused\\n"] * 2
    fail.__module__ = "theirs"
    with pytest.raises(httpx.ConnectError):
        stamina.retry(on=httpx.ConnectError)(fail)()
    assert [details.name for details in hooked] == [
        "theirs.test_repetitions_of_others_are_shown_as_before.<locals>.fail"
    ]


def analyst(response: httpx.Response, **options: Any) -> Analyst:
    return Analyst(
        "http://service", transport=httpx.MockTransport(lambda _request: response), **options
    )


def sender(response: httpx.Response) -> Sender:
    return Sender("http://service", None, 1, httpx.MockTransport(lambda _request: response))


@pytest.mark.parametrize(
    "response",
    [httpx.Response(200, html="<html>"), httpx.Response(200, json=[]), httpx.Response(200)],
)
def test_an_answer_of_another_program_is_our_error(response: httpx.Response) -> None:
    with pytest.raises(UnreadableAnswerError, match=r"cannot be read \(check that the address"):
        analyst(response).study("s1")
    with pytest.raises(UnreadableAnswerError, match="cannot be read"):
        next(sender(response).events(EventCursor("s1")))


def test_a_service_that_answered_may_restart() -> None:
    lost = httpx.ConnectError("refused")
    answers = iter([httpx.Response(404), lost, lost, httpx.Response(404)])

    def answer(_request: httpx.Request) -> httpx.Response:
        if isinstance(given := next(answers), Exception):
            raise given
        return given

    analyst = Analyst("http://service", transport=httpx.MockTransport(answer))
    for _ in range(2):
        with pytest.raises(ServiceError, match="404"):
            analyst.study("s1")


def test_a_malformed_event_is_our_error() -> None:
    headers = {"content-type": "text/event-stream"}
    response = httpx.Response(200, content=b"data: {}\n\n", headers=headers)
    with pytest.raises(UnreadableAnswerError, match="cannot be read"):
        next(sender(response).events(EventCursor("s1")))

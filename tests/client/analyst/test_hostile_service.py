"""A service that sends too much, too slowly or without end costs an analyst one error."""

import asyncio
import gzip
import json
import tracemalloc

import pytest

from client.analyst.async_analyst import AsyncAnalyst
from client.analyst.async_sender import AsyncSender
from client.analyst.requests import EventCursor, EventLimit
from client.errors import ServiceError, ServiceUnreachableError, UnreadableAnswerError
from client.http.exchange import parse_document
from protocol.api.messages import StudyView
from protocol.domains.strings import Utf8
from protocol.mechanisms.tracked.plan import TrackedQuestion
from protocol.question_and_plan import Terms
from secagg.errors import UnsafeRequestError
from tests.client.test_hostile_server import Answer, head, serving
from tests.support.views import study_document

JSON = "application/json"
EVENTS = "text/event-stream"


def sends(
    content: bytes, kind: str = JSON, status: int = 200, times: int = 1, **headers: object
) -> Answer:
    """Return an answer of `times` times the same bytes."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        size = len(content) * times
        writer.write(head(status, Content_Type=kind, Content_Length=size, **headers))
        for _ in range(times):
            writer.write(content)
            await writer.drain()

    return answer


async def slow_headers(writer: asyncio.StreamWriter) -> None:
    """Send a byte of a header from time to time."""
    writer.write(b"HTTP/1.1 200 X\r\nx: ")
    while True:
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(0.05)


async def slow_body(writer: asyncio.StreamWriter) -> None:
    writer.write(head(Content_Type=JSON, Content_Length=10_000))
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.05)


async def interim_answers(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 103 X\r\n\r\n")
        await asyncio.sleep(0.001)


ZEROS = gzip.compress(bytes(64 * 2**20))
ANSWERS: dict[str, tuple[Answer, type[Exception], str]] = {
    "compressed": (sends(ZEROS, Content_Encoding="gzip"), UnreadableAnswerError, "encoded body"),
    "compressed refusal": (
        sends(ZEROS, status=403, Content_Encoding="gzip"),
        UnreadableAnswerError,
        "encoded body",
    ),
    "endless": (sends(b" " * 2**20, times=2**20), UnreadableAnswerError, "more than 4194304 bytes"),
    "endless refusal": (
        sends(b" " * 2**20, status=404, times=2**20),
        UnreadableAnswerError,
        "more than 4194304 bytes",
    ),
    "many values": (
        sends(b'{"studies":[' + b"1," * 2**20 + b'{}],"next":null}'),
        UnreadableAnswerError,
        "more than 1,048,576 values",
    ),
    "many objects": (
        sends(b'{"studies":[' + b"{}," * 2**17 + b'{}],"next":null}'),
        UnreadableAnswerError,
        "more than 1,048,576 values",
    ),
    "many wrong rows": (
        sends(b'{"studies":[' + b"{}," * 100_000 + b'{}],"next":null}'),
        UnreadableAnswerError,
        "cannot be read",
    ),
    "deep": (sends(b"[" * 200_000), UnreadableAnswerError, "cannot be read"),
    "a long number": (
        sends(b'{"studies":[],"next":' + b"9" * 2**20 + b"}"),
        UnreadableAnswerError,
        "cannot be read",
    ),
    "pages without an end": (
        sends(b'{"studies":[],"next":"a"}'),
        UnreadableAnswerError,
        "pages without an end",
    ),
    "redirect": (
        sends(b"", status=302, Location="http://127.0.0.1:1/v1/studies"),
        ServiceError,
        "answered 302",
    ),
    "slow headers": (slow_headers, ServiceUnreachableError, "no response within"),
    "slow body": (slow_body, ServiceUnreachableError, "bytes within"),
    "interim answers": (interim_answers, ServiceUnreachableError, "no response within"),
}


@pytest.fixture(autouse=True)
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client.analyst.requests.MAX_ANSWER_VALUES", 2**20)
    monkeypatch.setattr("client.http.exchange.RESPONSE_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr("client.analyst.async_sender.MAX_ANSWER_BYTES", 2**22)
    monkeypatch.setattr("client.analyst.async_sender.HEAD_SECONDS", 0.5)


async def ask(url: str) -> list[object]:
    async with AsyncAnalyst(url, "a-key", patience=0.2) as analyst:
        return [each async for each in analyst.studies()]


@pytest.mark.parametrize("answer", ANSWERS)
async def test_an_answer_beyond_its_limits_is_an_error_and_takes_little_memory(answer: str) -> None:
    respond, error, reason = ANSWERS[answer]
    tracemalloc.start()
    try:
        async with serving(respond) as url, asyncio.timeout(20):
            with pytest.raises(error, match=reason):
                await ask(url)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 48 * 2**20


async def test_pages_that_never_end_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client.analyst.async_sender.MAX_LIST_ROWS", 40)
    question = TrackedQuestion(
        threshold=5, contribution=1, domain=Utf8(max_bytes=3), message_bytes=3324
    )
    study = study_document(question, Terms(cohort_size=16, minimum=8))
    sent = 0

    async def page(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        sent += 1
        body = json.dumps({"studies": [study] * 9, "next": f"s{sent}"}).encode()
        writer.write(head(Content_Type=JSON, Content_Length=len(body)) + body)

    async with serving(page) as url, asyncio.timeout(20):
        with pytest.raises(UnreadableAnswerError, match="more than 40 rows"):
            await ask(url)
    assert sent == 5


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (sends(b"data: " + b"a" * 2**20, EVENTS, times=2**20), "an event of more than"),
        (sends(b"data: a\r\n" * 2**16, EVENTS, times=2**20), "an event of more than"),
        (sends(ZEROS, EVENTS, Content_Encoding="gzip"), "encoded body"),
        (sends(b" " * 2**20, EVENTS, status=404, times=2**20), "more than 4194304 bytes"),
    ],
)
async def test_an_event_without_an_end_is_an_error(answer: Answer, reason: str) -> None:
    async with serving(answer) as url, asyncio.timeout(20):
        events = AsyncSender(url, None, 0.2, None).events(EventCursor("s1", 0))
        with pytest.raises(UnreadableAnswerError, match=reason):
            _ = [each async for each in events]


def test_short_events_of_any_number_are_within_the_limit() -> None:
    for end in (b"\n\n", b"\r\n\r\n", b"\r\r"):
        limit = EventLimit()
        stream = (b"data: " + b"a" * 1000 + end) * 3000
        for start in range(0, len(stream), 997):
            limit.add(stream[start : start + 997])


@pytest.mark.parametrize("id_sent", ["\x1b[2J", "..", "a/b", "a" * 65, ""])
def test_a_study_with_an_impossible_id_is_refused(id_sent: str) -> None:
    """Otherwise the id would be in paths and plans, whose errors no command expects."""
    question = TrackedQuestion(
        threshold=5, contribution=1, domain=Utf8(max_bytes=3), message_bytes=3324
    )
    document = study_document(question, Terms(cohort_size=16, minimum=8), id=id_sent)
    with pytest.raises(UnsafeRequestError, match="id"):
        parse_document(StudyView, json.dumps(document).encode())

"""Requests of a device: which are repeated, and the exceptions of refusals."""

import gzip
from collections.abc import Callable

import httpx
import pytest

from client.errors import (
    ERROR_CLASSES,
    BadRequestError,
    ServiceError,
    ServiceUnreachableError,
    UnavailableError,
    check_response,
    is_retryable,
)
from client.http.exchange import DocumentStream
from client.http.transport import RESPONSE_TIMEOUT_SECONDS, Transport
from protocol.api.messages import PROBLEM_TYPE_PREFIX, Problem, ProblemType
from protocol.api.messages_outside_sums import frame_document
from protocol.api.phases import Phase
from secagg.errors import UnsafeRequestError
from tests.client.mock_transport import MockTransport

pytestmark = pytest.mark.usefixtures("quick_retries")


def problem(kind: ProblemType, status: int, **more: object) -> httpx.Response:
    document = Problem.model_validate(
        {
            "type": PROBLEM_TYPE_PREFIX + kind,
            "title": kind,
            "status": status,
            "detail": "the reason",
            **more,
        }
    )
    return httpx.Response(status, content=document.model_dump_json())


def transport(*answers: httpx.Response | Exception, patience: float = 5.0) -> Transport:
    """Return a transport to a service that returns these answers in order."""
    waiting = iter(answers)

    def answer(_: httpx.Request) -> httpx.Response:
        response = next(waiting)
        if isinstance(response, Exception):
            raise response
        return response

    return Transport(client(answer), patience)


def client(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url="http://service/v1", transport=MockTransport(answer))


@pytest.mark.parametrize(
    "hitch",
    [
        httpx.ConnectError("refused"),  # the service is being started again
        httpx.ReadError("reset"),  # it was killed while it answered
        httpx.RemoteProtocolError("closed"),  # a connection that it had kept
        httpx.ReadTimeout("late"),
        problem(ProblemType.INTERNAL, 500),
        httpx.Response(502),
        httpx.Response(504),
        problem(ProblemType.UNAVAILABLE, 503),
        httpx.Response(429, headers={"retry-after": "0"}),
    ],
)
async def test_what_may_pass_is_repeated(hitch: httpx.Response | Exception) -> None:
    way = transport(hitch, hitch, httpx.Response(204))
    answer = await way.send("PUT", "/participants/p/masked-input", content=b"x")
    assert answer.status_code == 204


async def test_retry_after_determines_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("stamina._core._smart_sleep", sleep)
    busy = problem(ProblemType.UNAVAILABLE, 503)
    busy.headers["retry-after"] = "3"
    await transport(busy, httpx.Response(204)).send("GET", "/studies")
    assert waited == [3.0]


@pytest.mark.parametrize(("header", "waited"), [("9" * 400, 30.0), ("0", None), ("\xb2", None)])
async def test_retry_after_is_bounded(header: str, waited: float | None) -> None:
    content = problem(ProblemType.UNAVAILABLE, 503).content
    when = [(b"retry-after", header.encode("latin-1"))]
    with pytest.raises(UnavailableError) as caught:
        check_response(httpx.Response(503, headers=when, content=content))
    assert (caught.value.retry_after or 0) <= 30
    assert is_retryable(caught.value) == (waited or True)


async def test_patience_has_an_end() -> None:
    calls = 0

    def refuse(request: httpx.Request) -> httpx.Response:
        nonlocal calls
        calls += 1
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(ServiceUnreachableError, match="refused"):
        await Transport(client(refuse), patience=0.1).send("GET", "/studies")
    assert calls > 1


@pytest.mark.parametrize("kind", ProblemType)
async def test_each_problem_has_its_exception(kind: ProblemType) -> None:
    way = transport(problem(kind, 409, phase="masking"), patience=0.1)
    with pytest.raises(ERROR_CLASSES[kind], match="the reason") as raised:
        await way.send("GET", "/studies")
    assert raised.value.phase is Phase.MASKING


async def test_an_answer_without_a_problem_document_is_still_an_error() -> None:
    with pytest.raises(ServiceError, match="answered 404"):
        await transport(httpx.Response(404, text="<html>")).send("GET", "/studies")
    with pytest.raises(UnavailableError, match="database reachable"):
        await Transport(client(lambda _: httpx.Response(502)), 0.01).send("GET", "/studies")


@pytest.mark.parametrize(
    ("detail", "faults", "message"),
    [
        ("no", (), "no"),
        ("q must be less", ({"location": "query", "detail": "q must be less"},), "q must be less"),
        ("too few", ({"location": "body.rounds", "detail": "too few"},), "rounds: too few"),
        (
            "a: 1; and 1 more",
            ({"location": "a", "detail": "1"}, {"location": "b", "detail": "2"}),
            "a: 1; b: 2",
        ),
        ("not JSON", ({"location": "body", "detail": "line 1"},), "line 1"),
        ("big", ({"location": "body.question", "detail": "big"},), "big"),
        ("low", ({"location": "body.question.epsilon", "detail": "low"},), "epsilon: low"),
    ],
)
def test_faults_appear_once(detail: str, faults: tuple[dict[str, str], ...], message: str) -> None:
    document = Problem(type="x", title="x", status=422, detail=detail, errors=faults or None)
    assert BadRequestError(document).message == message


async def test_a_question_is_repeated_until_there_is_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("client.http.transport.MIN_POLL_INTERVAL_SECONDS", 0.001)
    pending = [httpx.Response(202, json={}) for _ in range(3)]
    way = transport(*pending, httpx.Response(200, content=b"shares"))
    assert (await way.poll("/participants/p/encrypted-shares", "ticket")).content == b"shares"


async def test_bytes_are_counted_both_ways_and_with_every_repetition() -> None:
    once = transport(httpx.Response(204))
    await once.send("PUT", "/participants/p/masked-input", content=bytes(1000))
    twice = transport(httpx.Response(503), httpx.Response(204))
    await twice.send("PUT", "/participants/p/masked-input", content=bytes(1000))
    assert 1000 < once.traffic.sent < 1400
    assert twice.traffic.sent == 2 * once.traffic.sent
    assert 0 < once.traffic.received < twice.traffic.received


async def test_the_ticket_and_the_kind_of_content_travel_in_the_head() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(204)

    way = Transport(client(answer))
    await way.send("PUT", "/participants/p/unmasking-shares", content=b"x", ticket="t" * 43)
    await way.send("POST", "/studies", content=b"{}")
    assert seen[0].headers["authorization"] == "Bearer " + "t" * 43
    assert seen[0].headers["content-type"] == "application/octet-stream"
    assert seen[1].headers["content-type"] == "application/json"
    assert seen[0].url.path == "/v1/participants/p/unmasking-shares"


@pytest.mark.parametrize(
    "base", ["http://service/v1", "http://u:p%40@[::1]:80/a%2Fb%20c/v1", "https://s.org:8443/é/v1"]
)
@pytest.mark.parametrize("path", ["/studies", "/studies/a%2Fb%3Fc/rounds/open", "/a/../ü"])
@pytest.mark.parametrize("params", [None, {"after": 3}, {"after": 0, "x": "a b&c=é?#"}])
async def test_a_request_has_the_url_that_httpx_makes_of_its_parts(
    base: str, path: str, params: dict[str, int | str] | None
) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(204)

    http = httpx.AsyncClient(base_url=base, transport=MockTransport(answer))
    for wait in (0.0, 2.5):
        await Transport(http).send("GET", path, params=params, wait=wait)
        all_params = {**(params or {}), **({"wait": wait} if wait else {})}
        expected = http.build_request("GET", path, params=all_params)
        assert seen[-1].url.raw_path == expected.url.raw_path
        assert seen[-1].url == expected.url


@pytest.mark.parametrize("path", ["/studies/a?wait=9", "/studies/a#b", "/a\n", "/" + "x" * 65536])
async def test_a_path_that_makes_no_url_is_declined(path: str) -> None:
    with pytest.raises(UnsafeRequestError, match="makes no URL"):
        await transport().send("GET", path)


async def following(response: httpx.Response, *max_bytes: int) -> tuple[DocumentStream, Transport]:
    way = transport(response)
    stream = await way.send_message("/participants/p/complaints", b"x", "t" * 43, max_bytes)
    return stream, way


async def test_a_message_is_answered_by_the_documents_that_follow() -> None:
    for body, documents in {
        b"": [None, None],
        frame_document(b""): [b"", None],
        frame_document(b"ab") + frame_document(b"c" * 99): [b"ab", b"c" * 99, None],
    }.items():
        stream, way = await following(httpx.Response(200, content=body), 2, 99)
        headers = way.traffic.received
        assert [await stream.next() for _ in documents] == documents
        assert way.traffic.received == headers + len(body)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (httpx.Response(200, content=frame_document(b"abc")), "more than 2 bytes"),
        (httpx.Response(200, content=b"\xff\xff\xff\xff"), "more than 2 bytes"),
        (httpx.Response(202, json={"phase": "masking"}), "more than 2 bytes"),
        (httpx.Response(200, content=frame_document(b"ab") + b"c"), "documents that follow"),
        (
            httpx.Response(200, content=gzip.compress(b""), headers={"content-encoding": "gzip"}),
            "encoded",
        ),
    ],
)
async def test_documents_beyond_their_limits_are_declined(
    response: httpx.Response, reason: str
) -> None:
    stream, _ = await following(response, 2)
    with pytest.raises(UnsafeRequestError, match=reason):
        await stream.next()


async def test_a_document_that_is_cut_off_is_asked_for() -> None:
    for kept in range(1, 6):
        stream, _ = await following(httpx.Response(200, content=frame_document(b"ab")[:kept]), 2, 9)
        assert [await stream.next(), await stream.next()] == [None, None]


async def test_a_join_without_an_answer_is_repeated() -> None:
    documents = frame_document(b"slot") + frame_document(b"roster")
    responses = [
        httpx.Response(201, content=documents[:kept]) for kept in (0, 3, 7, len(documents))
    ]
    way = transport(*responses)
    answer, stream = await way.post("/studies/s/rounds/1/participants", b"{}", "t" * 43, (9, 9))
    assert (answer, await stream.next(), await stream.next()) == (b"slot", b"roster", None)


async def test_a_message_without_documents_that_follow_does_not_wait() -> None:
    waits = list[str | None]()

    def answer(request: httpx.Request) -> httpx.Response:
        waits.append(request.url.params.get("wait"))
        # The acknowledgement comes at once, also to a wait for documents.
        assert request.extensions["timeout"]["read"] == RESPONSE_TIMEOUT_SECONDS
        return httpx.Response(204)

    way = Transport(client(answer))
    for max_bytes in ((), (9,)):
        await way.send_message("/participants/p/confirmation", b"x", "t" * 43, max_bytes)
    assert waits == [None, "25.0"]

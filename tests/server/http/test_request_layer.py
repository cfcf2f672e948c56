"""The log of requests: ids everywhere, and no contents of messages."""

import json
import logging
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from io import StringIO
from typing import Any

import pytest
import structlog

from secagg.messages import UnmaskingShares
from server.http import request_layer, request_limits
from server.telemetry import logs
from server.telemetry.logs import start_log_fields
from tests.server.conftest import Serve
from tests.server.harness import Served, play

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    """Log everything as JSON; return what was logged since the last call."""
    before = logging.getLogger().handlers[:], logging.getLogger().level
    logging.getLogger().handlers = []  # those of pytest would be closed
    stream = StringIO()
    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr", stream)
        logs.configure(as_json=True, level="debug")

    def since_last() -> list[dict[str, Any]]:
        logged = stream.getvalue()
        stream.seek(0)
        stream.truncate()
        return [json.loads(line) for line in logged.splitlines()]

    yield since_last
    structlog.reset_defaults()
    logging.getLogger().handlers, level = before
    logging.getLogger().setLevel(level)


def of_requests(some: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in some if line["event"] == "request"]


async def test_a_plain_request_id_is_kept_and_others_replaced(served: Served, lines: Lines) -> None:
    for given, is_kept in (
        ("abc-1.2_3", True), ("x" * 64, True), ("x" * 65, False), ("a b", False), ("", False),
        ("a\"},{", False), ("é", False),
    ):  # fmt: skip
        headers = {"X-Request-ID": given.encode()}
        answer = await served.client.get("/healthz", headers=headers)
        request_id = answer.headers["x-request-id"]
        assert (request_id == given) is is_kept
        assert [line["request_id"] for line in of_requests(lines())] == [request_id]


async def test_a_line_names_the_study_round_and_cohort(served: Served, lines: Lines) -> None:
    study = await served.create()
    (device,) = await served.join(study, 1)
    lines()
    await device.get("roster", wait=0)
    await served.client.get(f"/v1/studies/{study}/rounds/7?wait=secret")
    await served.client.get("/v1/studies/unknown")
    asked, missing, unknown = of_requests(lines())
    assert asked["level"] == "debug"
    assert asked["route"] == "/v1/participants/{participant}/roster"
    assert (asked["status"], asked["method"]) == (202, "GET")
    assert asked["seconds"] >= 0
    assert asked["cohort_id"] == 1
    assert (missing["level"], missing["status"]) == ("info", 404)
    assert (missing["study"], missing["round"], missing["problem"]) == (study, 7, "not-found")
    assert "cohort_id" not in missing  # what a request was about ends with it
    assert unknown["study"] == "unknown"
    assert "secret" not in json.dumps([asked, missing, unknown])


@pytest.mark.parametrize(
    ("message", "is_reset"),
    [("unable to perform operation on <X>; the handler is closed", True), ("other", False)],
)
async def test_a_connection_that_the_client_resets_breaks_nothing(
    closed: Served, lines: Lines, message: str, is_reset: bool
) -> None:
    """Uvloop raises this before uvicorn notices that the connection is lost."""

    async def send(_message: object) -> None:
        raise RuntimeError(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "path": "/v1/studies", "raw_path": b"/v1/studies"}
    scope |= {"query_string": b"", "scheme": "http", "headers": [(b"host", b"test")]}
    with nullcontext() if is_reset else pytest.raises(RuntimeError, match="other"):
        await closed.app(scope, receive, send)
    assert [line["status"] for line in of_requests(lines())] == [401]


async def test_strangers_cause_a_limited_number_of_lines_in_a_minute(
    serve: Serve, sqlite_url: str, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log grew by 200 bytes with each request for a public path that does not exist."""
    monkeypatch.setattr(request_layer, "_MAX_REFUSAL_LINES", 2)
    monkeypatch.setattr(request_layer, "logs_debug_lines", lambda: False)
    async with serve(sqlite_url, open=False) as served:
        for seconds, asked in ((60.0, 5), (600.0, 2)):
            monkeypatch.setattr(request_limits, "monotonic", lambda now=seconds: now)
            for _ in range(asked):
                assert (await served.client.get("/static/none")).status_code == 404
    logged = of_requests(lines())
    assert [(line["level"], line.get("not_logged")) for line in logged] == [
        ("info", None), ("info", None), ("info", 3), ("info", None),
    ]  # fmt: skip


async def test_what_breaks_is_answered_with_an_id_and_logged_with_it(
    served: Served, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object) -> None:
        raise ArithmeticError("internal detail")

    monkeypatch.setattr("server.db.repositories.studies.studies.StudyRepository.page", explode)
    answer = await served.client.get("/v1/studies")
    assert (answer.status_code, answer.json()["type"][-14:]) == (500, "internal-error")
    assert "internal detail" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    trace, request = lines()
    assert (trace["event"], request["event"]) == ("unexpected error", "request")
    assert trace["request_id"] == request["request_id"] == answer.headers["x-request-id"]
    assert "ArithmeticError: internal detail" in trace["exception"]
    assert (request["level"], request["status"]) == ("warning", 500)


async def test_no_secret_is_ever_logged(serve: Serve, postgres_url: str, lines: Lines) -> None:
    """A whole round with a dropout, on a database with a password: every log line is searched."""
    password = "correct-horse-battery"
    url = postgres_url.replace("://postgres:@", f"://postgres:{password}@")
    assert password in url
    async with serve(url) as served:
        study = await served.create()
        devices = await play(served, study, lost=((), (), (1,), (), ()))
        await served.until_closed(study)
        await served.client.get(f"/v1/studies/{study}/heavy-hitters?after=marmalade")
    logged = json.dumps(lines())
    assert study in logged
    assert len(logged) > 10_000
    secrets = [b"marmalade", password.encode()]
    for device in devices:
        given = UnmaskingShares.unpack(device.reveal_body)
        secrets += [device.secret_ticket, device.joined.mask_pair.secret, *device.bodies.values()]
        secrets += [*given.seed_shares.values(), *given.key_shares.values()]
        assert device.ticket not in logged
    for secret in secrets:
        part = secret[:32]
        for shown in (part.hex(), repr(part)[2:-1], b64encode(part).decode()[:40],
                      urlsafe_b64encode(part).decode()[:40]):  # fmt: skip
            assert shown not in logged


async def test_logs_of_libraries_are_structured_and_start_at_warnings(lines: Lines) -> None:
    logging.getLogger("sqlalchemy.engine").info("SELECT body FROM messages")
    logging.getLogger("uvicorn.error").warning("a library %s", "warns")
    (line,) = lines()
    assert (line["event"], line["level"], line["logger"]) == (
        "a library warns", "warning", "uvicorn.error",
    )  # fmt: skip


async def test_a_request_does_not_inherit_an_earlier_refusal(served: Served) -> None:
    start_log_fields(problem="malformed")
    assert (await served.client.get("/healthz")).status_code == 200
    refusals = served.service.metrics.problems
    assert not [
        sample for family in refusals.collect() for sample in family.samples if sample.value
    ]

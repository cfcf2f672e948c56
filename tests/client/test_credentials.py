"""Keys, tokens and passwords: no error and no log repeats them, even if an answer does."""

import asyncio
import json
import logging
import sys
import threading
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from typer import Exit
from typer.testing import CliRunner

from blindtally.cli import app
from blindtally.console.errors import parse_public_keys
from client.analyst.analyst import Analyst
from client.analyst.async_analyst import AsyncAnalyst
from client.committee.member import CommitteeMember
from client.committee.member_journal import MemberJournal
from client.committee.registrar import DrawRecord, Registrar
from client.device.blocking_device import Device
from client.device.device_state import DeviceState
from client.device.take_part import take_part
from client.errors import ServiceError, ServiceUnreachableError, UnreadableAnswerError
from client.fleet.config_and_results import FleetConfig
from client.http.transport import Transport, http_client
from protocol.api.messages import Problem
from protocol.committee_terms import CommitteeTerms
from protocol.device_policy.policy import Policy
from protocol.question_and_plan import Terms
from secagg.keys import Identity
from server.settings import Settings

SECRET = "not-a-real-secret"
LONG_SECRET = "bt0_" + "Not4Real" * 5 + "Key"
UNUSABLE_TEXTS = {
    "a line end inside": f"{SECRET}\n{SECRET}",
    "a blank inside": f"{SECRET} {SECRET}",
    "a byte order mark": f"\ufeff{SECRET}",
    "another alphabet": f"{SECRET}ключ",
    "a NUL": f"{SECRET}\0",
    "bytes": SECRET.encode(),
}
TRIMMED_TEXTS = {
    "a line end": f"{SECRET}\r\n",
    "a blank": f"{SECRET} ",
    "a tab before": f"\t{SECRET}",
}


_PROBLEM = (
    Problem(type="urn:blindtally:problem:not-authorised", title="no", status=401, detail="no key")
    .model_dump_json()
    .encode()
)


def _in_problem(shown: str) -> tuple[int, str, bytes]:
    fault = {"location": shown, "detail": shown}
    problem = json.loads(_PROBLEM) | {"title": shown, "detail": shown, "errors": [fault] * 2}
    return 401, "X", json.dumps(problem).encode()


def _escaped(shown: str) -> tuple[int, str, bytes]:
    escapes = "".join(f"\\u{ord(each):04x}" for each in shown)
    return 401, "X", _PROBLEM.replace(b"no key", escapes.encode())


# An answer for each way in which a service or a proxy repeats the header of a request.
ECHOES: dict[str, Callable[[str], tuple[int, str, bytes]]] = {
    "problem": _in_problem,
    "escapes": _escaped,
    "cut text": lambda shown: (401, "X", _PROBLEM.replace(b"no key", (shown * 99).encode())),
}
# A registrar asks again after these.
_OTHER_ECHOES: dict[str, Callable[[str], tuple[int, str, bytes]]] = {
    "type": lambda shown: (401, "X", _PROBLEM.replace(b"urn", shown.encode())),
    "reason": lambda shown: (401, shown, b"<html>"),
    "value": lambda shown: (200, "X", json.dumps({"studies": [shown], "next": shown}).encode()),
    "name": lambda shown: (200, "X", json.dumps({"studies": [{shown: 1}], shown: 1}).encode()),
}


class _Refusals(BaseHTTPRequestHandler):
    """A closed service, which records the secrets that it is shown."""

    shown: list[str | None] = []  # noqa: RUF012 - one for all requests
    echo: Callable[[str], tuple[int, str, bytes]] | None = None

    def do_GET(self) -> None:
        shown = self.headers["authorization"]
        self.shown.append(shown)
        status, reason, body = (self.echo and self.echo(shown or "")) or (401, "X", _PROBLEM)
        self.send_response(status, reason)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - names of http.server

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Refusals) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def analyst(url: str, secret: str, _folder: Path) -> None:
    with Analyst(url, secret) as analyst:
        list(analyst.studies())


def async_analyst(url: str, secret: str, _folder: Path) -> None:
    async def ask() -> None:
        async with AsyncAnalyst(url, secret) as analyst:
            await analyst.study("s")

    asyncio.run(ask())


def device(url: str, secret: str, _folder: Path) -> None:
    state = DeviceState.in_memory()
    outcome = asyncio.run(take_part(url, ["a"], study="s", token=secret, device_state=state))
    sys.stdout.write(repr(outcome))


def blocking_device(url: str, secret: str, _folder: Path) -> None:
    with Device(url, token=secret, device_state=DeviceState.in_memory()) as device:
        sys.stdout.write(repr(device.take_part(["a"], study="s")))


def transport(url: str, secret: str, _folder: Path) -> None:
    async def send() -> None:
        async with http_client(url) as http:
            await Transport(http).send("GET", "/studies", ticket=secret)

    asyncio.run(send())


def fleet(url: str, secret: str, _folder: Path) -> None:
    async def send(ticket: str | None) -> None:
        async with http_client(url) as http:
            await Transport(http).send("GET", "/studies", ticket=ticket)

    asyncio.run(send(FleetConfig(1, token=secret).token))


def registrar(url: str, secret: str, _folder: Path) -> None:
    async def seat() -> None:
        async with http_client(url) as http:
            await Registrar(Identity.of(bytes(32)), DrawRecord()).serve(Transport(http), secret)

    asyncio.run(seat())


def member(url: str, secret: str, _folder: Path) -> None:
    async def serve() -> None:
        served = CommitteeMember(Identity.of(bytes(32)), MemberJournal())
        async with http_client(url) as http:
            await served.serve(Transport(http), secret)

    asyncio.run(serve())


_MAKE_KEY = {"registrar": ["registrar", "create"], "member": ["member", "--new"]}


def _command(*arguments: str) -> Callable[[str, str, Path], None]:
    def run(url: str, secret: str, folder: Path) -> None:
        if isinstance(secret, bytes):
            return
        made = folder / "a.key"
        if arguments[0] in _MAKE_KEY and not made.exists():
            CliRunner().invoke(app, [*_MAKE_KEY[arguments[0]], str(made)])
        asked = [each.format(secret=secret, url=url, file=made) for each in arguments]
        with pytest.MonkeyPatch.context() as patch:  # the page for devices is shown no key
            patch.setattr("blindtally.status_page.page_server", lambda *_, **__: None)
            result = CliRunner().invoke(app, asked, env={"BLINDTALLY_API_KEY": secret})
        sys.stdout.write(result.output)
        assert result.exit_code in (1, 2), result.output
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception

    return run


DOORS: dict[str, Callable[[str, str, Path], None]] = {
    "Analyst": analyst,
    "AsyncAnalyst": async_analyst,
    "take_part": device,
    "Device": blocking_device,
    "Transport": transport,
    "FleetConfig": fleet,
    "Registrar": registrar,
    "CommitteeMember": member,
    "studies": _command("studies", "list", "--url", "{url}", "--key", "{secret}"),
    "query": _command("query", "s", "--url", "{url}"),
    "fleet": _command("fleet", "--study", "s", "--url", "{url}", "--token", "{secret}"),
    "seat": _command("registrar", "serve", "{file}", "--url", "{url}"),
    "member": _command("member", "{file}", "--url", "{url}"),
    "settings": lambda _url, secret, _folder: str(Settings(initial_api_key=secret)),
    "client secret": lambda _url, secret, _folder: str(Settings(oidc_client_secret=secret)),
}


def chained(error: BaseException | None) -> str:
    """Return all that an error, and each error behind it, can show."""
    if error is None:
        return ""
    text = "".join(traceback.format_exception(error))
    context = None if error.__suppress_context__ else error.__context__
    behind = chained(error.__cause__) + chained(context)
    return f"{text}{error!r}{error}{error.args}{vars(error)}{behind}"


@pytest.mark.parametrize("door", DOORS)
def test_no_error_and_no_log_repeats_a_secret(
    door: str,
    url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for kind, secret in {**UNUSABLE_TEXTS, **TRIMMED_TEXTS}.items():
        _Refusals.shown.clear()
        error = None
        with caplog.at_level(logging.DEBUG):
            try:
                DOORS[door](url, secret, tmp_path)  # type: ignore[arg-type]
            except Exception as caught:
                error = caught
        seen = chained(error) + caplog.text + "".join(capfd.readouterr())
        assert SECRET not in seen, (kind, seen)
        assert "is out of reach" not in seen, kind
        if kind in UNUSABLE_TEXTS:
            assert not _Refusals.shown, "no request has a part of it"
        elif _Refusals.shown:
            assert f"Bearer {SECRET}" in _Refusals.shown, kind


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Return a function that lets the service repeat what it is shown."""
    _Refusals.shown.clear()
    return lambda answer: monkeypatch.setattr(_Refusals, "echo", staticmethod(answer))


_PARSERS = ("Analyst", "AsyncAnalyst", "take_part", "Device", "studies", "query", "fleet")
_ECHOING_DOORS = [
    *((kind, door) for kind in ECHOES for door in [*_PARSERS, "Transport", "Registrar", "seat"]),
    *((kind, door) for kind in _OTHER_ECHOES for door in _PARSERS),
]


@pytest.mark.parametrize(("kind", "door"), _ECHOING_DOORS)
def test_no_error_and_no_log_repeats_a_secret_that_the_service_repeats(
    kind: str,
    door: str,
    url: str,
    tmp_path: Path,
    echo: Callable[[Any], None],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    echo((ECHOES | _OTHER_ECHOES)[kind])
    error = None
    with caplog.at_level(logging.DEBUG, "client"):
        try:
            DOORS[door](url, LONG_SECRET, tmp_path)
        except Exception as caught:
            error = caught
    seen = chained(error) + caplog.text + "".join(capfd.readouterr())
    assert f"Bearer {LONG_SECRET}" in _Refusals.shown
    assert seen
    assert LONG_SECRET[:12] not in seen, seen


def test_a_password_of_an_address_is_hidden_as_a_key_is(
    url: str, echo: Callable[[Any], None]
) -> None:
    echo(ECHOES["problem"])
    with (
        Analyst(url.replace("//", f"//me:{LONG_SECRET}@"), patience=0.1) as analyst,
        pytest.raises(ServiceError) as refusal,
    ):
        list(analyst.studies())
    header = b64encode(f"me:{LONG_SECRET}".encode()).decode()
    assert f"Basic {header}" in _Refusals.shown
    assert header not in chained(refusal.value)


def test_a_malformed_response_that_repeats_a_secret_is_not_the_cause_that_is_shown() -> None:
    def echo_in_header(request: httpx.Request) -> httpx.Response:
        cause = ValueError(f"illegal header line: {request.headers['authorization']}")
        raise httpx.RemoteProtocolError(str(cause)) from cause

    transport = httpx.MockTransport(echo_in_header)
    with (
        Analyst("http://host", LONG_SECRET, patience=0.1, transport=transport) as analyst,
        pytest.raises(ServiceUnreachableError) as refusal,
    ):
        list(analyst.studies())
    assert "illegal header line: Bearer (secret)" in str(refusal.value)
    assert LONG_SECRET not in chained(refusal.value)


def test_a_cause_without_a_secret_is_kept() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=b"{}"))
    with (
        Analyst("http://host", LONG_SECRET, transport=transport) as analyst,
        pytest.raises(UnreadableAnswerError) as refusal,
    ):
        list(analyst.studies())
    assert isinstance(refusal.value.__cause__, ValidationError)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:a@{SECRET}@host/name",
        SECRET,
        f"x://me:{SECRET}@host",
        f"postgresql://me:{SECRET}",
        f"postgresql://me:{SECRET}/name",
        f"postgresql://me:{SECRET}@host:port/name",
        f"postgresql:///me:{SECRET}@host/name",
        f"postgresql://me/{SECRET}@host/name",
        f"sqlite://me:{SECRET}@host/name.db",
    ],
)
def test_a_refused_setting_shows_no_password(
    url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BLINDTALLY_DATABASE_URL", url)
    for command in (["doctor"], ["serve"], ["keys", "list"]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code in (1, 2), result.output
        assert "database" in result.output
        assert SECRET not in "".join(result.output.split()), command
    assert SECRET not in "".join(capfd.readouterr())
    with pytest.raises(ValueError, match=r"database|sqlite") as refusal:
        Settings(database_url=url)
    assert SECRET not in chained(refusal.value)


@pytest.mark.parametrize(
    "address",
    [
        f"http://me:{SECRET}",
        f"http://me:{SECRET}@",
        f"http://me:{SECRET}/path",
        f"http://host/#{SECRET}",
        f"http:/me:{SECRET}@host",
        SECRET,
        f"http://me:{SECRET}@host:port",
        f"http://me:{SECRET}/{SECRET}@host",
        f"http://me:{SECRET}@{SECRET}@host:99999",
        f"http://me:{SECRET}#{SECRET}@host",
        f"me:{SECRET}@host",
        f"ftp://{SECRET}@host",
        f"http://host/?key={SECRET}",
        f"http://me:{SECRET}@host".encode(),
    ],
)
def test_a_refused_address_shows_no_password(
    address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for use in (Analyst, Device, http_client):
        with pytest.raises(ValueError, match=r"address|host") as refusal:
            use(address)
        assert SECRET not in chained(refusal.value)
    for command in (
        ["studies", "list"],
        ["fleet"],
        ["registrar", "serve", "a.key"],
        ["member", "a.key"],
    ):
        if isinstance(address, str):
            sys.stdout.write(CliRunner().invoke(app, [*command, "--url", address]).output)
    assert SECRET not in "".join(capfd.readouterr())


def test_a_password_of_an_address_is_in_no_log(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Move it into a header: httpx logs each request with its address."""
    with (
        caplog.at_level(logging.DEBUG),
        Analyst(url.replace("//", f"//me:{SECRET}@"), patience=1) as analyst,
        pytest.raises(Exception, match="no key") as refusal,
    ):
        list(analyst.studies())
    assert "Basic" in str(_Refusals.shown[-1])
    assert SECRET not in caplog.text + chained(refusal.value)


@pytest.mark.parametrize(
    "use",
    [
        lambda key: Policy(registrar=key),
        lambda key: Policy(registrar=key.encode()),
        lambda key: Policy(committee=frozenset([key])),
        lambda key: Terms(cohort_size=100, minimum=50, registrar=key),
        lambda key: CommitteeTerms(members=(key, key, key)),
        lambda key: list(parse_public_keys([key], "--member")),
    ],
)
def test_a_secret_key_that_is_pasted_as_a_public_one_is_not_shown(
    use: Callable[[str], object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    CliRunner().invoke(app, ["registrar", "create", str(tmp_path / "a.key")])
    content = (tmp_path / "a.key").read_text()
    with pytest.raises((ValueError, Exit)) as refusal:
        use(content)
    shown = chained(refusal.value) + capsys.readouterr().err
    digits = content.split()[-1]
    assert len(digits) == 64
    assert not any(digits[at : at + 8] in shown for at in range(57))

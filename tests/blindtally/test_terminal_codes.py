"""No command writes a code of a stranger to a terminal.

The texts of a hostile service, of devices, of data files and of the database go through every
command on a pseudo-terminal. A new command fails until it has a case.
"""

import asyncio
import csv
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import StringIO, TextIOWrapper
from pathlib import Path
from random import Random
from typing import Final
from urllib.parse import quote

import httpx
import pytest
from typer.core import TyperGroup

from blindtally.cli import COMMANDS, app, load_command
from blindtally.demo.server_process import COMMAND_PREFIX, free_port
from blindtally.fleet_run.registrar_key_files import create_key_file
from client.analyst.analyst import Analyst
from protocol.domains.strings import Utf8
from protocol.mechanisms.tracked.plan import TrackedQuestion
from protocol.printable import printable
from protocol.question_and_plan import Terms
from server.db import migrations
from server.db.database import Database
from server.db.repositories.access.credentials_and_audit import AccessRepository
from server.principals import SCOPES
from tests.blindtally.hostile_service import TEXT, hostile_service
from tests.server.application import on_a_port
from tests.support.terminal_codes import CORPUS, FORBIDDEN, MARKUP

# What rich writes: styles, erasing and moving within its own bars, and the cursor.
_OWN_CODES: Final = re.compile(r"\r?\x1b\[(\d+(;\d+)*m|m|0m|\?25[lh]|\d*[AKGJ])|\r(?=\x1b|\n|$)")
# How a text with codes looks on a terminal, and in JSON.
_ESCAPED: Final = re.compile(r"\\(x1b|u001b|u202e)")
URL: Final = "{url}"
PATH_TEXT: Final = TEXT.replace("/", "").replace("\0", "")
NO_FILE: Final = f"{{folder}}/{PATH_TEXT}"
SMALL_STUDY: Final = ["--devices", "16", "--threshold", "5", "--message-bytes", "4500"]
NEW_STUDY: Final = ["x", *SMALL_STUDY, "--url", URL]
# Commands that repeat no text but those of the package.
OWN_TEXT_COMMANDS: Final = {("mechanisms",), ("logout",)}
# By command, the arguments of runs that each show a hostile text; "{data}" has hostile items.
ARGUMENT_LISTS: Final[dict[tuple[str, ...], list[list[str]]]] = {
    ("audit",): [["--database", "{database}"]],
    ("keys", "list"): [["--database", "{database}"]],
    ("keys", "create"): [["ok", "--database", "{database}", "--json", NO_FILE]],
    ("keys", "revoke"): [[TEXT, "--database", "{database}"]],
    ("tokens", "list"): [["--database", "{database}"]],
    ("tokens", "create"): [["ok", "--database", "{database}", "--json", NO_FILE]],
    ("tokens", "revoke"): [[TEXT, "--database", "{database}"]],
    ("studies", "list"): [["--url", URL], ["--url", URL, "--json", "-"]],
    ("studies", "show"): [
        *(["items", "--url", URL, *more] for more in ([], ["--json", "-"])),
        *([kind, "--url", URL] for kind in ("trie", "sums", "problem", "problem" + TEXT)),
    ],
    ("studies", "create"): [
        [*NEW_STUDY, "--json", "-"],
        [*NEW_STUDY, "--set", TEXT],
        [*NEW_STUDY, "--mechanism", TEXT],
    ],
    ("studies", "share"): [["problem", "--url", URL]],
    ("studies", "start"): [["problem", "--url", URL]],
    ("studies", "stop"): [["problem-wrong-state", "--url", URL]],
    ("studies", "delete"): [["items", "--url", URL], ["problem", "--yes", "--url", URL]],
    ("studies", "compare"): [["items", "trie", "--url", URL]],
    ("query",): [
        *([kind, "--url", URL] for kind in ("items", "parts", "sums", "problem")),
        ["trie", "--prefix", "a", "--url", URL],
        ["items", "--threshold", "9", "--url", URL],
        ["items", "--range", TEXT, "--url", URL],
        *(["items", "--url", URL, "--out", "-", "--format", form] for form in ("csv", "ndjson")),
    ],
    ("watch",): [["problem", "--url", URL]],
    ("login",): [[URL, TEXT]],
    ("logout",): [["--profile", "other"]],
    ("changes",): [
        ["items", "--url", URL],
        ["items", "--item", TEXT, "--before", TEXT, "--url", URL],
        ["items", "--item", TEXT, "--url", URL],
    ],
    ("privacy",): [["items", "--url", URL], ["--population", TEXT, "--url", URL]],
    ("mechanisms",): [[]],
    ("backup",): [[NO_FILE, "--database", "{database}"]],
    ("restore",): [[NO_FILE, "--database", "sqlite:///{folder}/restored.db"]],
    ("clock",): [[TEXT, "--database", "{database}"]],
    ("params",): [["--devices", TEXT]],
    ("plan", "sum"): [[*SMALL_STUDY, "--rounds", "1", "--data", "{data}", "--column", TEXT]],
    ("plan", "reports"): [["--devices", "20", "--epsilon", "3", "--goal", TEXT]],
    ("plan", "release"): [["--devices", "20", "--epsilon", "3", "--json", NO_FILE]],
    ("doctor",): [["--database", "sqlite:///{folder}/x.db", "--port", "0"]],
    ("registrar", "create"): [[NO_FILE]],
    ("registrar", "show"): [[NO_FILE]],
    ("registrar", "allow"): [[NO_FILE, NO_FILE], ["{folder}/r.key", NO_FILE]],
    ("registrar", "tokens"): [[NO_FILE]],
    ("simulate",): [
        ["tracked", "--data", "{data}", "--devices", "20", "--threshold", "5", "--words", "9000"],
        ["krr", "--data", "{data}", "--devices", "200", "--epsilon", "3"],
        ["triehh", "--data", "{data}", "--devices", "400", "--levels", "4", "--rounds", "4"],
        ["tracked", "--data", "{data}", "--column", TEXT],
        [TEXT, "--data", "{data}"],
    ],
    ("fleet",): [["--study", "problem", "--url", URL]],
    ("demo",): [["--devices", TEXT]],
}
# Commands that run until they end, or are stopped once they have shown a hostile text.
PROCESS_ARGUMENTS: Final[dict[tuple[str, ...], list[str]]] = {
    ("try",): ["{users}", "--column", "item=item", "--out", "{folder}/try"],
    ("serve",): ["--port", "{port}", "--database", "sqlite:///{folder}/s.db"],
    ("member",): ["{folder}/m.key", "--create", "--url", URL],
    ("registrar", "serve"): ["{folder}/r2.key", "--url", URL],
}


def all_commands() -> Iterator[tuple[str, ...]]:
    for name in COMMANDS:
        command = load_command(name)
        if isinstance(command, TyperGroup):
            yield from ((name, inner) for inner in command.commands)
        else:
            yield (name,)


def test_every_command_has_a_case() -> None:
    assert set(all_commands()) == ARGUMENT_LISTS.keys() | PROCESS_ARGUMENTS.keys()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield the address of the hostile service, a data file, and a database of hostile names."""
    folder = tmp_path_factory.mktemp("hostile")
    data = folder / "data.csv"
    item = TEXT.replace("\0", "").replace('"', '""')
    rows = [f'"{item}",900', f'"{item}2",800', '"pe\u0302che",7', '"p\xeache",6', "plain,50"]
    data.write_text("\n".join(["item,count", *rows]), encoding="utf-8", newline="")
    users = folder / "users.csv"
    rows = ["user,item", *(f'u{n},"{item}"' for n in range(20))]
    users.write_text("\n".join(rows), encoding="utf-8", newline="")
    database = f"sqlite:///{folder}/names.db"
    asyncio.run(_fill(database))
    with hostile_service() as url:
        yield {
            "url": url,
            "data": str(data),
            "users": str(users),
            "database": database,
            "folder": str(folder),
            "port": str(free_port()),
        }


async def _fill(url: str) -> None:
    database = Database(url)
    await migrations.upgrade(database)
    access = AccessRepository(database, Random(1))
    await access.create_key(TEXT, SCOPES, None)
    await access.create_token(TEXT, 9, None)
    await access.record_audit(TEXT[:100], TEXT[:32], TEXT, "refused")
    await database.close()


class PseudoTerminal:
    """A terminal of 100 columns; `text` is what was written to it, without the codes of rich."""

    def __init__(self) -> None:
        self._master, self.slave = pty.openpty()
        tty.setraw(self.slave)
        termios.tcsetwinsize(self.slave, (50, 100))
        self._read = b""
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def _collect(self) -> None:
        while True:
            try:
                block = os.read(self._master, 2**16)
            except OSError:  # every writer has closed it
                return
            self._read += block

    @property
    def text(self) -> str:
        return _OWN_CODES.sub("", self._read.decode(errors="replace"))

    def close(self) -> str:
        """Close the terminal, and return all that was written to it."""
        os.close(self.slave)
        self._reader.join(5)
        os.close(self._master)
        return _OWN_CODES.sub("", self._read.decode())


def check(output: str, *, is_hostile: bool = True) -> None:
    """Fail if a code or a further line has come from a text, or if no hostile text is shown."""
    assert output.strip()
    assert bool(_ESCAPED.search(output)) is is_hostile, output
    bad = {ascii(each) for each in output if each in FORBIDDEN - {"\n"} or each == "\x1b"}
    assert not bad, (sorted(bad), output)
    assert not any(line.startswith("forged") for line in output.splitlines()), output
    assert "\N{SKULL}" not in output
    assert "\N{SKULL AND CROSSBONES}" not in output


def filled(arguments: Sequence[str], places: dict[str, str]) -> list[str]:
    filled_in = list(arguments)
    for name, value in places.items():
        filled_in = [each.replace(f"{{{name}}}", value) for each in filled_in]
    return filled_in


def run_on_terminal(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a command on a pseudo-terminal, and return all that it wrote there."""
    terminal = PseudoTerminal()
    streams = [
        TextIOWrapper(os.fdopen(os.dup(terminal.slave), "wb", 0), "utf-8", write_through=True)
        for _ in range(2)
    ]
    with monkeypatch.context() as patch:
        patch.setenv("TERM", "xterm-256color")
        patch.delenv("COLUMNS", raising=False)
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        patch.setattr(sys, "stdin", StringIO())
        with suppress(SystemExit):
            app(arguments, prog_name="blindtally")
    for stream in streams:
        stream.close()
    return terminal.close()


@pytest.mark.long_cells
@pytest.mark.parametrize(
    ("command", "arguments"),
    [(command, each) for command, runs in ARGUMENT_LISTS.items() for each in runs],
    ids=lambda part: ascii(part)[:60],
)
def test_no_code_of_a_stranger_reaches_the_terminal(
    command: tuple[str, ...],
    arguments: list[str],
    places: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLINDTALLY_OPEM\x1b[2J", "1")
    output = run_on_terminal([*command, *filled(arguments, places)], monkeypatch)
    check(output, is_hostile=command not in OWN_TEXT_COMMANDS)


@pytest.mark.long_cells
def test_no_code_that_devices_hold_reaches_the_terminals_of_a_real_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The devices send each code as an item, over HTTP, and the sum finds all of them."""
    codes = [f"a{code}b" for code in CORPUS if code != "\0"]  # the file can have no null
    data = tmp_path / "codes.csv"
    with data.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["user", "item"])
        writer.writerows([user, code] for user in range(12) for code in codes)
    question = TrackedQuestion(
        threshold=5, contribution=len(codes), domain=Utf8(max_bytes=24), message_bytes=81_524
    )
    terms = Terms(cohort_size=12, minimum=8, corrupt=0.1, dropout=0.2)
    with on_a_port(tmp_path, is_open=False) as server, Analyst(server.url, server.key) as analyst:
        refused = httpx.get(f"{server.url}/v1/studies/{quote(TEXT, safe='')}", trust_env=False)
        assert refused.status_code == 401
        study = analyst.create("\N{LATIN SMALL LETTER E WITH ACUTE}", question, terms, rounds=1)
        service = ["--url", server.url, "--key", server.key]
        fleet = ["--no-registrar", "--token", server.token, "--min-cohort=5", f"--data={data}"]
        outputs = [
            run_on_terminal([*words, *service], monkeypatch)
            for words in (
                ["fleet", "--study", study.id, *fleet],
                ["studies", "show", study.id],
                ["query", study.id],
                ["query", study.id, "--top", "99"],
                ["query", study.id, "--out", "-", "--format", "csv"],
            )
        ]
        assert {hitter.item for hitter in study.heavy_hitters()} == set(codes)
        trail = run_on_terminal(["audit", "--database", server.database_url], monkeypatch)
    for output in outputs:
        check(output)
    assert not [code for code in codes if f'"{printable(code)}"' not in outputs[-1]]
    check(trail, is_hostile=False)
    assert "%1B" in trail


def _send_codes(port: int) -> None:
    """Send requests with codes to a server that may not run yet; begin a login, and end it."""
    url = f"http://127.0.0.1:{port}"
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as connection:
        path = quote(TEXT, safe="")
        head = f"GET /v1/studies/{path} HTTP/1.1\r\nhost: x\r\n"
        names = f"x-request-id: \x1b[2J\r\nuser-agent: {MARKUP}\x9b5n\r\n\r\n"
        connection.sendall((head + names).encode("latin-1", "ignore"))
        connection.recv(2**16)
    with suppress(httpx.HTTPError), httpx.Client(base_url=url, trust_env=False) as browser:
        start = httpx.URL(browser.get("/login/oidc").headers["location"])
        browser.get("/login/oidc/callback", params={"state": start.params["state"], "code": "c"})


@pytest.mark.parametrize("command", PROCESS_ARGUMENTS)
def test_no_code_of_a_stranger_reaches_the_terminal_of_a_process(
    command: tuple[str, ...], places: dict[str, str]
) -> None:
    terminal = PseudoTerminal()
    if command == ("registrar", "serve"):
        create_key_file(Path(places["folder"], "r2.key"))
    arguments = [*COMMAND_PREFIX, *command, *filled(PROCESS_ARGUMENTS[command], places)]
    provider = {
        "PUBLIC_URL": f"http://127.0.0.1:{places['port']}",
        "OIDC_ISSUER": places["url"],
        "OIDC_CLIENT_ID": "c",
        "OIDC_CLIENT_SECRET": "s",
        "OIDC_ALLOWED": '{"@x.test": ["read"]}',
    }
    environment = os.environ | {f"BLINDTALLY_{name}": value for name, value in provider.items()}
    running = subprocess.Popen(
        arguments,
        stdout=terminal.slave,
        stderr=terminal.slave,
        env=environment | {"TERM": "xterm-256color"},
    )
    deadline = time.monotonic() + 90
    ends_by_itself = command == ("demo",)
    while running.poll() is None and time.monotonic() < deadline:
        if not ends_by_itself and _ESCAPED.search(terminal.text):
            running.send_signal(signal.SIGINT)
            break
        if command == ("serve",):
            _send_codes(int(places["port"]))
        time.sleep(0.1)
    running.kill() if ends_by_itself or time.monotonic() >= deadline else running.wait(30)
    running.wait(30)
    check(terminal.close())

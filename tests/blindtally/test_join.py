"""The link by which phones take part in a demo or a trial, and the round that waits for them."""

import asyncio
import ssl
import stat
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import segno
from cryptography import x509
from starlette.responses import Response
from typer.testing import CliRunner
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from blindtally import join_listener
from blindtally.cli import app
from blindtally.console.terminal import Terminal
from blindtally.demo import join
from blindtally.demo.own_file import Trial
from blindtally.demo.server_process import TLS_VARIABLES, ServerProcess
from blindtally.fleet_run.answer_sentence import answer_sentences
from blindtally.fleet_run.fleet_setup import SEATS_FOR_PEOPLE, WAIT_FOR_PEOPLE_SECONDS
from blindtally.fleet_run.study_run import _verify_sums
from blindtally.join_listener import JOIN_VARIABLE, JoinListener
from client.device.device import DeviceStep
from client.fleet.config_and_results import FleetRound


def test_a_round_with_seats_for_people_waits_for_them_without_a_registrar(tmp_path: Path) -> None:
    path = tmp_path / "fruit.csv"
    path.write_text("user,fruit\n" + "".join(f"u{n},kind {n % 20}\n" for n in range(40)))
    setup = Trial(path=path, kind="one-shot", join=True).setup()
    assert setup.rounds == 1
    assert setup.terms.registrar is None
    assert setup.terms.cohort_size == 40 + SEATS_FOR_PEOPLE == 40 + setup.seats
    assert setup.timeouts.collecting == WAIT_FOR_PEOPLE_SECONDS


@pytest.mark.parametrize("options", [[], ["--sum", "one-shot", "--epsilon", "1"]])
def test_studies_that_no_browser_can_join_are_refused(options: list[str]) -> None:
    run = CliRunner().invoke(app, ["try", "words", "--join", *options])
    assert run.exit_code == 2
    assert "add --sum one-shot, and leave out --epsilon" in run.output


def test_a_sum_with_vectors_of_people_is_not_compared_and_one_with_more_is_wrong() -> None:
    sent: Any = SimpleNamespace(last_step=DeviceStep.SENT)
    question = SimpleNamespace(mechanism="tracked", discards_sums=True)
    study: Any = SimpleNamespace(view=SimpleNamespace(question=question))
    terms = SimpleNamespace(is_one_shot=True)
    view: Any = SimpleNamespace(participants=5, cohorts=(), plan=SimpleNamespace(terms=terms))
    played = FleetRound(view, (sent, sent, sent))
    assert played.others_in_sum == 2
    assert _verify_sums(study, played, seats=2) is None
    assert _verify_sums(study, played, seats=1) is not None
    result: Any = SimpleNamespace(participants=5, exact=None)
    sentences = [*answer_sentences(study, [], [result])]
    assert sentences == [
        "The server saw one sum, of 5 devices; it could not see what any one device holds."
    ]


def test_the_certificate_is_private_and_the_token_reaches_the_service_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join, "network_address", lambda: "127.0.0.1")
    listener = join.make_listener(tmp_path)
    assert listener.url("ab").startswith(f"https://127.0.0.1:{listener.port}/{listener.token}/join")
    assert len(listener.token) == 22
    assert listener.token not in repr(listener)
    file = Path(listener.certificate)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    certificate = x509.load_pem_x509_certificate(file.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("127.0.0.1")]
    assert JoinListener.of_environment() is None
    monkeypatch.setenv(JOIN_VARIABLE, listener.as_environment()[JOIN_VARIABLE])
    assert JoinListener.of_environment() == listener


def test_a_given_certificate_names_the_link_and_is_of_this_listener_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(x509, "IPAddress", lambda _: x509.DNSName("phones.example.org"))
    given = tmp_path / "given.pem"
    given.write_bytes(join._self_signed("127.0.0.1"))
    for name in TLS_VARIABLES:
        monkeypatch.setenv(name, str(given))
    listener = join.make_listener(tmp_path)
    assert listener.url("ab").startswith(f"https://phones.example.org:{listener.port}/")
    join.print_invitation(Terminal(), listener.url("ab"))
    assert "A phone warns" not in capsys.readouterr().out
    monkeypatch.setenv("BLINDTALLY_HOST", "192.0.2.7")
    with ServerProcess(tmp_path, is_open=True, join=listener):  # without TLS, on this machine only
        ...
    monkeypatch.chdir(tmp_path)
    given.write_text("no certificate")
    for host, why in ("192.0.2.7", "192.0.2.7 is no IPv4 address of"), ("127.0.0.1", "Unable"):
        monkeypatch.setenv("BLINDTALLY_HOST", host)
        run = CliRunner().invoke(app, ["demo", "--sum", "one-shot", "--join", "--out", host])
        assert (run.exit_code, why in run.output) == (2, True)


async def test_a_stranger_takes_few_connections_and_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join, "network_address", lambda: "127.0.0.1")
    monkeypatch.setattr(join_listener, "HEAD_SECONDS", 1)
    monkeypatch.setattr(join_listener, "MAX_OF_ADDRESS", 3)
    listener, state = join.make_listener(tmp_path), SimpleNamespace(state={})
    server: Any = SimpleNamespace(server_state=ServerState(), lifespan=state, servers=[])
    await listener.listen(server, Response())  # type: ignore[arg-type]
    trusting = ssl.create_default_context(cafile=listener.certificate)
    writers = list[asyncio.StreamWriter]()

    async def connect(context: ssl.SSLContext | None = trusting) -> Any:
        opened = await asyncio.open_connection(listener.host, listener.port, ssl=context)
        writers.append(opened[1])
        return opened

    async def closed(reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 10)

    def fail(_protocol: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(H11Protocol, "shutdown", fail)
    monkeypatch.setattr(join_listener, "CONNECTION_SECONDS", 2)
    (silent, _), (idle, _), (endless, flood) = await connect(None), await connect(), await connect()
    await closed((await connect(None))[0])
    flood.write(b"GET / HTTP/1.1\r\nX: " + b"a" * 10**6)
    await closed(endless)
    await closed(silent)
    await closed(idle)
    await asyncio.sleep(1)
    for _ in range(2):
        reader, writer = await connect()
        writer.write(f"GET /{listener.token}/join/ab HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await closed(reader)
    for door in (*server.servers, *writers):
        door.close()
        with suppress(OSError):
            await door.wait_closed()


def test_the_qr_code_is_that_of_the_library_with_two_rows_in_a_line() -> None:
    url = "https://192.168.100.200:60000/abcdefghijklmnopqrstuv/join/0123456789abcdef"
    lines = join.qr_lines(url)
    rows = [[sign in kinds for sign in line] for line in lines for kinds in ("▀█", "▄█")]
    code = [[*map(bool, row)] for row in segno.make(url, error="l", micro=False).matrix]
    assert [row[3:-3] for row in rows[3 : 3 + len(code)]] == code
    assert not any(map(any, rows[:3] + rows[3 + len(code) :]))

"""`blindtally member` serves with its own key and journal, and shows its health."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from blindtally.cli import app
from blindtally.member_process import HEALTHY_SECONDS, MemberStatus
from client.committee.member import CommitteeMember
from client.committee.member_journal import MemberJournal
from client.committee.round_poller import RoundReporter
from client.http.transport import Transport
from protocol.api.messages import CommitteeRound
from protocol.api.phases import Phase
from secagg.keys import Identity

RUN = CliRunner()
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PENDING = CommitteeRound(study="abc", round=2, phase=Phase.AGREEING, deadline=NOW)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "operator.key"
    assert RUN.invoke(app, ["member", str(path), "--new"]).exit_code == 0
    return path


def test_each_step_is_reported_and_the_journal_is_next_to_the_key(
    key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = RUN.invoke(app, ["member", str(key), "--show"]).stdout.strip()

    async def serve(
        self: CommitteeMember, _at: Any, api_key: str, report: RoundReporter[CommitteeRound]
    ) -> None:
        assert (api_key, self.identity.public.hex()) == ("btk_1", public)
        assert (self.policy.min_devices, self.policy.serve_unverified) == (70, False)
        assert self.policy.registrars == {bytes.fromhex(public)}
        report(PENDING, "")
        report(PENDING, "no registrar vouches for its devices")

    monkeypatch.setattr(CommitteeMember, "serve", serve)
    options = ["--key", "btk_1", "--min-devices", "70", "--registrar", public]
    result = RUN.invoke(app, ["member", str(key), *options])
    assert result.exit_code == 0, result.output
    assert "round 2 of study abc: agreeing done" in result.stdout
    assert "round 2 of study abc is not served: no registrar" in result.stderr
    assert key.with_name("operator.key.journal").exists()


def test_a_container_makes_its_key_once_and_shows_the_public_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = list[str]()

    async def serve(
        self: CommitteeMember, _at: Any, _key: str, _report: RoundReporter[CommitteeRound]
    ) -> None:
        served.append(self.identity.public.hex())

    monkeypatch.setattr(CommitteeMember, "serve", serve)
    path, public = tmp_path / "member.key", tmp_path / "member-1"
    for _ in range(2):
        command = ["member", str(path), "--create", "--public-key", str(public)]
        assert RUN.invoke(app, command).exit_code == 0
        assert public.read_text() == f"{served[-1]}\n"
    assert served[0] == served[1]
    assert path.stat().st_mode & 0o077 == 0


def test_wrong_files_and_keys_are_named(key: Path, tmp_path: Path) -> None:
    again = RUN.invoke(app, ["member", str(key), "--new"])
    assert (again.exit_code, "is not overwritten" in again.stderr) == (2, True)
    registrar = tmp_path / "registrar.key"
    RUN.invoke(app, ["registrar", "create", str(registrar)])
    other = RUN.invoke(app, ["member", str(registrar)])
    assert (other.exit_code, "holds no member's key" in other.stderr) == (2, True)
    wrong = RUN.invoke(app, ["member", str(key), "--registrar", "xyz"])
    assert (wrong.exit_code, "--registrar takes the 64" in wrong.stderr) == (2, True)
    header = RUN.invoke(app, ["member", str(key), "--key", "\u00fc"])
    assert (header.exit_code, header.stderr.startswith("error: ")) == (2, True), header.output
    key.with_name("operator.key.journal").write_text("not a journal, but a much longer text")
    broken = RUN.invoke(app, ["member", str(key)])
    assert (broken.exit_code, "operator.key.journal" in broken.stderr) == (1, True)


def test_health_follows_the_last_contact_with_the_service_and_no_change_of_the_time() -> None:
    seconds, time = [50.0], [1000.0]
    member = CommitteeMember(
        Identity.of(bytes(32)), MemberJournal(), clock=lambda: time[0], seconds=lambda: seconds[0]
    )
    status = MemberStatus(member)

    async def show_no_rounds(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=httpx.ByteStream(b'{"rounds": []}'))

    async def act() -> None:
        transport = httpx.MockTransport(show_no_rounds)
        async with httpx.AsyncClient(transport=transport, base_url="http://service/v1") as http:
            await member.act(Transport(http))

    async def get(path: str) -> httpx.Response:
        transport = httpx.ASGITransport(status.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://member") as http:
            return await http.get(path)

    assert asyncio.run(get("/healthz")).status_code == 503
    asyncio.run(act())
    assert asyncio.run(get("/healthz")).text == "ok\n"
    time[0] += 40 * 24 * 3600.0
    assert asyncio.run(get("/healthz")).text == "ok\n"
    time[0] = 0.0
    seconds[0] += HEALTHY_SECONDS
    assert asyncio.run(get("/healthz")).status_code == 503
    status.count(PENDING, "")
    status.count(PENDING, "refused")
    metrics = asyncio.run(get("/metrics")).text
    assert 'blindtally_member_steps_total{phase="agreeing"} 1.0' in metrics
    assert "blindtally_member_refusals_total 1.0" in metrics
    assert "blindtally_member_last_contact_timestamp_seconds 1000.0" in metrics

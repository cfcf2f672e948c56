"""`blindtally seat` reports what it seats, and refuses files that are not its own."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from blindtally.cli import app
from blindtally.fleet_run.registrar_key_files import create_key_file
from client.committee.registrar import Registrar
from client.committee.round_poller import RoundReporter
from protocol.api.messages import PendingSeating

RUN = CliRunner()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "registrar.key"
    create_key_file(path)
    return path


def test_each_round_is_reported_and_the_draws_are_next_to_the_key(
    key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(
        self: Registrar, _at: Any, api_key: str, report: RoundReporter[PendingSeating]
    ) -> None:
        assert (api_key, self.identity.public) == ("btk_1", create_key_file_public)
        now = datetime(2026, 1, 1, tzinfo=UTC)
        report(PendingSeating(study="abc", round=2, joiners=2000, deadline=now), "")
        report(PendingSeating(study="abd", round=1, joiners=2, deadline=now), "too few")

    create_key_file_public = bytes.fromhex(
        RUN.invoke(app, ["registrar", str(key), "--show"]).stdout.strip()
    )
    monkeypatch.setattr(Registrar, "serve", serve)
    result = RUN.invoke(app, ["seat", str(key), "--url", "http://service", "--key", "btk_1"])
    assert result.exit_code == 0, result.output
    assert "seated 2,000 devices in round 2 of study abc" in result.stdout
    assert "round 1 of study abd is not seated: too few" in result.stderr
    assert key.with_name("registrar.key.draws").exists()


def test_a_missing_key_and_a_file_that_holds_no_draws_are_named(key: Path) -> None:
    missing = RUN.invoke(app, ["seat", str(key.with_name("other.key"))])
    assert (missing.exit_code, "other.key" in missing.stderr) == (2, True)
    key.with_name("registrar.key.draws").write_text("not a record of draws, but a longer text")
    broken = RUN.invoke(app, ["seat", str(key)])
    assert (broken.exit_code, "registrar.key.draws" in broken.stderr) == (1, True)

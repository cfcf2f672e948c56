"""The numbers of ledgers, recomputed by a script that shares no code with them."""

import json
import sys
from pathlib import Path

import pytest

from protocol.privacy.events import (
    DpEvent,
    LedgerEntry,
    Party,
    SampleThresholdEvent,
    SkellamNoiseEvent,
)
from protocol.privacy.ledger import Ledger
from tools import reproduce_ledger

LEVELS = SampleThresholdEvent(probability=0.145593, threshold=12, releases=10)
COUNTS = SkellamNoiseEvent(variance=180.0, releases=10)
SAMPLED_NOISE = SkellamNoiseEvent(variance=10.5, probability=0.25, join_probability=1.0, releases=7)
JOINING = SkellamNoiseEvent(variance=40.0, probability=0.25, join_probability=0.5, releases=7)
RARE_LEVELS = SampleThresholdEvent(probability=0.1, threshold=10, releases=4, join_probability=0.5)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that the script reads."""
    path = tmp_path / "statement.json"
    monkeypatch.setattr(sys, "argv", ["reproduce_ledger.py", str(path)])
    return path


def run_script(path: Path, ledger: Ledger, **changes: float) -> int:
    statement = json.loads(ledger.statement(1e-6).model_dump_json())
    for row in statement["parties"]:
        row["epsilon"] = changes.get(row["party"], row["epsilon"])
    path.write_text(json.dumps(statement))
    return reproduce_ledger.main()


@pytest.mark.parametrize(
    "events", [(LEVELS,), (COUNTS,), (SAMPLED_NOISE, COUNTS), (JOINING,), (RARE_LEVELS,)]
)
def test_a_ledger_is_recomputed(
    path: Path, capsys: pytest.CaptureFixture[str], events: tuple[DpEvent, ...]
) -> None:
    entries = tuple(LedgerEntry(name=str(i), event=event) for i, event in enumerate(events))
    assert run_script(path, Ledger(entries=entries)) == 0
    unbounded = any(isinstance(event, SampleThresholdEvent) for event in events)
    shown = capsys.readouterr().out
    assert ("server   stated None, recomputed None" in shown) == unbounded


@pytest.mark.parametrize("party", ["server", "analyst", "devices"])
def test_a_ledger_that_counts_a_coin_that_a_party_sees_is_caught(path: Path, party: Party) -> None:
    ledger = Ledger(entries=(LedgerEntry(name="joined", event=JOINING),))
    outside, inside = ledger.epsilon(1e-6), ledger.epsilon(1e-6, party)
    assert outside is not None
    assert inside is not None
    assert inside > 1.3 * outside
    assert run_script(path, ledger, **{party: outside}) == 1


def test_a_ledger_that_states_too_little_is_caught(path: Path) -> None:
    ledger = Ledger(entries=(LedgerEntry(name="counts", event=COUNTS),))
    assert run_script(path, ledger, public=0.9) == 1

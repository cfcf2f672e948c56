"""The numbers of ledgers, recomputed by a script that shares no code with them."""

import json
import subprocess
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

SCRIPT = Path(__file__).parent / "reproduce_ledger.py"
LEVELS = SampleThresholdEvent(probability=0.145593, threshold=12, releases=10)
COUNTS = SkellamNoiseEvent(variance=180.0, releases=10)
SAMPLED_NOISE = SkellamNoiseEvent(variance=10.5, probability=0.25, join_probability=1.0, releases=7)
JOINING = SkellamNoiseEvent(variance=40.0, probability=0.25, join_probability=0.5, releases=7)
RARE_LEVELS = SampleThresholdEvent(probability=0.1, threshold=10, releases=4, join_probability=0.5)


def run_script(
    tmp_path: Path, ledger: Ledger, **changes: float
) -> subprocess.CompletedProcess[str]:
    statement = json.loads(ledger.statement(1e-6).model_dump_json())
    for row in statement["parties"]:
        row["epsilon"] = changes.get(row["party"], row["epsilon"])
    path = tmp_path / "statement.json"
    path.write_text(json.dumps(statement))
    command = [sys.executable, str(SCRIPT), str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "events", [(LEVELS,), (COUNTS,), (SAMPLED_NOISE, COUNTS), (JOINING,), (RARE_LEVELS,)]
)
def test_a_ledger_is_recomputed(tmp_path: Path, events: tuple[DpEvent, ...]) -> None:
    entries = tuple(LedgerEntry(name=str(i), event=event) for i, event in enumerate(events))
    result = run_script(tmp_path, Ledger(entries=entries))
    assert result.returncode == 0, result.stdout + result.stderr
    unbounded = any(isinstance(event, SampleThresholdEvent) for event in events)
    assert ("server   stated None, recomputed None" in result.stdout) == unbounded


@pytest.mark.parametrize("party", ["server", "analyst", "devices"])
def test_a_ledger_that_counts_a_coin_that_a_party_sees_is_caught(
    tmp_path: Path, party: Party
) -> None:
    ledger = Ledger(entries=(LedgerEntry(name="joined", event=JOINING),))
    outside, inside = ledger.epsilon(1e-6), ledger.epsilon(1e-6, party)
    assert outside is not None
    assert inside is not None
    assert inside > 1.3 * outside
    assert run_script(tmp_path, ledger, **{party: outside}).returncode == 1


def test_a_ledger_that_states_too_little_is_caught(tmp_path: Path) -> None:
    ledger = Ledger(entries=(LedgerEntry(name="counts", event=COUNTS),))
    assert run_script(tmp_path, ledger, public=0.9).returncode == 1

"""What ledgers say is found again by a script that shares nothing with them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.privacy.entries import Entry, Mechanism, Noise, Party, SampleThreshold
from protocol.privacy.ledger import Ledger

SCRIPT = Path(__file__).parent / "reproduce_ledger.py"
LEVELS = SampleThreshold(probability=0.145593, threshold=12, releases=10)
COUNTS = Noise(variance=180.0, releases=10)
BOTH = Noise(variance=10.5, sampled=0.25, invited=1.0, releases=7)
JOINING = Noise(variance=40.0, sampled=0.25, invited=0.5, releases=7)
RARE = SampleThreshold(probability=0.1, threshold=10, releases=4, invited=0.5)


def ran(tmp_path: Path, ledger: Ledger, **changes: float) -> subprocess.CompletedProcess[str]:
    statement = json.loads(ledger.statement(1e-6).model_dump_json())
    for sight in statement["sights"]:
        sight["epsilon"] = changes.get(sight["party"], sight["epsilon"])
    path = tmp_path / "statement.json"
    path.write_text(json.dumps(statement))
    command = [sys.executable, str(SCRIPT), str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("mechanisms", [(LEVELS,), (COUNTS,), (BOTH, COUNTS), (JOINING,), (RARE,)])
def test_a_ledger_is_found_again(tmp_path: Path, mechanisms: tuple[Mechanism, ...]) -> None:
    entries = tuple(Entry(name=str(i), mechanism=one) for i, one in enumerate(mechanisms))
    result = ran(tmp_path, Ledger(entries=entries))
    assert result.returncode == 0, result.stdout + result.stderr
    unbounded = any(isinstance(one, SampleThreshold) for one in mechanisms)
    assert ("server   told None, found None" in result.stdout) == unbounded


@pytest.mark.parametrize("party", ["server", "analyst", "devices"])
def test_a_ledger_that_counts_a_coin_that_a_party_sees_is_caught(
    tmp_path: Path, party: Party
) -> None:
    ledger = Ledger(entries=(Entry(name="joined", mechanism=JOINING),))
    outside, inside = ledger.epsilon(1e-6), ledger.epsilon(1e-6, party)
    assert outside is not None
    assert inside is not None
    assert inside > 1.3 * outside
    assert ran(tmp_path, ledger, **{party: outside}).returncode == 1


def test_a_ledger_that_says_too_little_is_caught(tmp_path: Path) -> None:
    ledger = Ledger(entries=(Entry(name="counts", mechanism=COUNTS),))
    assert ran(tmp_path, ledger, public=0.9).returncode == 1

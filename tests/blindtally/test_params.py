"""`blindtally params` says k and t, what they cost, and plainly when there are none."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blindtally.cli import app
from blindtally.params import Cost
from protocol.messages import pack_envelopes, pack_reveal
from secagg.participant import ENVELOPE_BYTES, Reveal

RUN = CliRunner()


def test_json_on_stdout_has_k_and_t() -> None:
    asked = "params --clients 1000 --corrupt 0.2 --dropout 0.2 --mode semi-honest --json -"
    found = json.loads(RUN.invoke(app, asked.split()).stdout)
    assert (found["k"], found["t"]) == (112, 59)
    assert found["quorum"] == 800


def test_the_table_names_degree_and_threshold() -> None:
    result = RUN.invoke(app, ["params", "--clients", "1000"])
    assert result.exit_code == 0
    assert "degree k" in result.stdout
    assert "threshold t" in result.stdout


def test_json_goes_to_a_file_beside_the_table(tmp_path: Path) -> None:
    target = tmp_path / "params.json"
    result = RUN.invoke(app, ["params", "--clients", "50", "--json", str(target)])
    assert "quorum" in result.stdout
    assert json.loads(target.read_text())["clients"] == 50


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ("--clients 1000 --corrupt 0.5 --dropout 0.5", 1, "infeasible"),
        ("--clients 1000 --corrupt 0.34 --dropout 0.34 --mode active", 1, "infeasible"),
        ("--clients 1000 --corrupt 1.5", 2, "fraction"),
        ("--clients 1000 --sigma 0", 2, "sigma"),
        ("--clients 1", 2, "--clients"),
        ("--clients 1000000000000000", 2, "--clients"),  # beyond what logarithms tell apart
        ("--clients 1000 --mode naive", 2, "--mode"),
        ("--clients 10 --json /nowhere/at/all.json", 2, "cannot write"),
    ],
)
def test_what_cannot_be_is_said_plainly(options: str, code: int, says: str) -> None:
    result = RUN.invoke(app, ["params", *options.split()])
    assert result.exit_code == code
    assert says in result.stderr
    assert "Traceback" not in result.output


def test_the_bytes_are_those_of_the_messages() -> None:
    cost = Cost.of(42)
    envelopes = dict.fromkeys(range(42), bytes(ENVELOPE_BYTES))
    assert cost.envelope_bytes == len(pack_envelopes(envelopes))
    assert cost.reveal_bytes == len(pack_reveal(Reveal(dict.fromkeys(range(43), bytes(33)), {})))

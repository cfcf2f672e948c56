"""`blindtally params` prints parameters, costs, and clear errors."""

import json

import pytest
from typer.testing import CliRunner

from blindtally.cli import app
from blindtally.planning.parameter_report import feasible_alternatives
from secagg.oneshot.parameters import CommitteeParameters, drawn_committee_parameters
from secagg.oneshot.sharing import Sharing
from secagg.parameters import Assumptions, choose_parameters
from secagg.ring import Lane

RUN = CliRunner()


def test_json_on_stdout_has_k_and_t() -> None:
    asked = "params --devices 1000 --corrupt 0.2 --dropout 0.2 --json -"
    document = json.loads(RUN.invoke(app, asked.split()).stdout)
    needed = choose_parameters(1000, Assumptions(0.2, 0.2))
    assert (document["k"], document["t"]) == (needed.holders, needed.threshold)
    assert document["t_max"] == needed.threshold + needed.slack
    assert document["spot_checks"] == needed.spot_checks > 0
    assert document["quorum"] == 800


def test_json_has_the_bytes_and_seconds_of_each_message() -> None:
    document = json.loads(RUN.invoke(app, ["params", "--devices", "1000", "--json", "-"]).stdout)
    needed = choose_parameters(1000, Assumptions(0.1, 0.2))
    assert (document["k"], document["t"]) == (needed.holders, needed.threshold)
    sent = ["join", "shares", "complaints", "input", "confirmation", "reveal"]
    assert list(document["bytes_up"]) == sent
    assert document["bytes_down"]["roster"] == 224_000
    assert document["bytes_of_signatures"] == 6 * 64
    assert (document["words"], document["vector_bytes"]) == (100_000, 400_000)


def test_cohorts_that_a_registrar_seats_tolerate_a_fraction_of_the_round() -> None:
    asked = ["params", "--devices", "1000", "--cohorts", "100", "--json", "-"]
    for options, colluders in (([], 4_279), (["--no-registrar"], 100), (["--cohorts", "1"], 100)):
        document = json.loads(RUN.invoke(app, [*asked, *options]).stdout)
        assert document["colluders"] == colluders
    shown = " ".join(RUN.invoke(app, asked[:-2]).stdout.split())
    assert "colluders 4,279 of the 100,000 devices of a round, divided at random" in shown


@pytest.mark.parametrize("devices", [4, 1000])
def test_the_table_has_values_and_reasons_in_eighty_columns(devices: int) -> None:
    result = RUN.invoke(app, ["params", "--devices", str(devices)])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    names = ["holders k", "threshold t", "spot checks", "quorum", "messages", "bytes up", "  join"]
    names += ["  key shares", "  complaints", "  masked input", "  unmasking", "bytes down"]
    names += ["  roster", "  dealers", "  survivors", "  received", "vector"]
    names += ["  confirmation ", "  confirmations "]
    for name in names:
        assert any(line.startswith(name) for line in lines), name
    whys = [line.split(maxsplit=3)[-1] for line in lines]
    assert all(whys)


@pytest.mark.parametrize(
    ("options", "code", "error"),
    [
        ("--devices 1000 --corrupt 0.5 --dropout 0.5", 1, "infeasible"),
        ("--devices 1000 --corrupt 0.34 --dropout 0.34", 1, "can be done with --dropout 0.25"),
        ("--devices 1000 --corrupt 0.34 --dropout 0.34", 1, "can be done with --corrupt 0.2"),
        ("--devices 2 --corrupt 0.6 --dropout 0", 1, "can be done with --devices 4"),
        ("--devices 1000 --corrupt 1.5", 2, "fraction"),
        ("--devices 1000 --sigma 0", 2, "sigma"),
        ("--devices 1", 2, "--devices"),
        ("--devices 1000000000000000", 2, "--devices"),  # so large that logarithms are equal
        ("--devices 1000 --mode semi-honest", 2, "secure against an active server"),
        ("--corrupt 0.1", 2, "--devices"),
        ("--sum one-shot --members 2", 2, "--members"),
        ("--sum one-shot --corrupt 0.1", 2, "raise --corrupt"),
        ("--sum one-shot --members 9 --corrupt 0.4 --dropout 0.4", 2, "cannot agree"),
        ("--sum one-shot --words 0", 2, "--words"),
        ("--devices 10 --json /nowhere/at/all.json", 2, "cannot write"),
    ],
)
def test_impossible_options_have_a_clear_error(options: str, code: int, error: str) -> None:
    result = RUN.invoke(app, ["params", *options.split()])
    assert result.exit_code == code
    assert error in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("n", "assumptions"),
    [
        (1000, Assumptions(0.34, 0.34)),
        (1000, Assumptions(0.6, 0.35)),
        (2, Assumptions(0.6, 0.0)),
        (1000, Assumptions(0.95, 0.0)),
    ],
)
def test_each_way_out_leads_out(n: int, assumptions: Assumptions) -> None:
    ways = feasible_alternatives(n, assumptions)
    assert ways
    for way in ways:
        asked = {"devices": n, "corrupt": assumptions.corrupt, "dropout": assumptions.dropout}
        option, value = way.split()
        asked[option.removeprefix("--")] = value
        arguments = [f"--{name}={value}" for name, value in asked.items()]
        assert RUN.invoke(app, ["params", *arguments]).exit_code == 0, way


def test_the_cost_of_a_one_shot_sum_states_who_must_collude() -> None:
    asked = "params --sum one-shot --members 7 --words 490 --json"
    document = json.loads(RUN.invoke(app, [*asked.split(), "-"]).stdout)
    numbers = ["corrupt_members", "colluders_to_read", "absent_members", "t", "needed_sums"]
    assert [document[number] for number in numbers] == [1, 2, 1, 5, 6]
    sharing = Sharing(Lane(65_557, 490), CommitteeParameters(7, 1, 1, 5))
    shares, proof = 6 * sharing.share_bytes, sharing.proof_bytes
    assert document["message_bytes"] == 32 + 64 + 32 + shares + proof + 64


def test_a_committee_of_volunteers_has_the_parameters_of_its_draw() -> None:
    asked = "params --sum one-shot --members 100 --volunteers 1000 --dropout 0.1 --json -"
    document = json.loads(RUN.invoke(app, asked.split()).stdout)
    drawn = drawn_committee_parameters(100, 0.1, 0.1, 1000, sigma=40, eta=30)
    assert document["volunteers"] == 1000
    assert document["corrupt_members"] == drawn.corrupt > 10  # of 100 that are drawn by chance
    assert document["absent_members"] == drawn.dropouts
    result = RUN.invoke(app, [*asked.split()[:-2], "--corrupt", "0.3"])
    assert result.exit_code == 2
    assert "cannot agree on one set" in result.output


@pytest.mark.parametrize("members", [3, 7, 100])
def test_the_table_of_a_committee_fits_in_eighty_columns(members: int) -> None:
    asked = f"params --sum one-shot --members {members} --corrupt 0.34 --dropout 0 --no-registrar"
    result = RUN.invoke(app, asked.split())
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for name in ("members m", "colluders A", "readers", "dropouts D", "  received", "  sum"):
        assert any(line.startswith(name) for line in lines), name

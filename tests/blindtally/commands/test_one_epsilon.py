"""The epsilon of a device in several rounds is one number, in every command and on every device."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from blindtally.cli import app
from protocol.privacy.noise_loss import CountNoise, noise_epsilon
from protocol.privacy.parameters_for_budget import min_variance
from secagg.keys import Identity

EPSILON, DELTA, ROUNDS = 4.567, 1e-5, 3
REFUSAL = "noise for epsilon 4.567 at delta 1e-05, above 4"
BUDGET = ("--epsilon", str(EPSILON), "--delta", str(DELTA), "--levels", str(ROUNDS))
DOMAIN = '{"kind": "alphabet", "characters": "ab", "length": 3}'
FIELDS = {"epsilon": EPSILON, "delta": DELTA, "mode": "noise", "domain": DOMAIN}


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "items.csv"
    path.write_text("item,count\nabb,900\n")
    return str(path)


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*arguments])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 and arguments[-1] == "-" else result.output


def document(*arguments: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(run(*arguments, "--json", "-"))
    return read


def test_five_places_state_the_same_epsilon(url: str, data: str) -> None:
    variance = min_variance(EPSILON, DELTA, ROUNDS)
    number = noise_epsilon({CountNoise(variance): ROUNDS}, DELTA)
    assert EPSILON * 0.9999 < number <= EPSILON

    planned = document("plan", "release", "--devices", "1000", *BUDGET)
    (design,) = (each for each in planned["designs"] if each["mode"] == "noise")
    assert (design["epsilon"], design["epsilon_server"]) == (number, number)

    options = ("--devices", "100", "--set", "mode=noise", "--threshold", "50", "--data", data)
    simulated = document("simulate", "triehh", *options, *BUDGET)
    assert set(simulated["epsilon_by_party"].values()) == {number}

    fields = (part for name, value in FIELDS.items() for part in ("--set", f"{name}={value}"))
    sizes = (
        "--devices",
        "16",
        "--threshold",
        "5",
        "--rounds",
        str(ROUNDS),
        "--message-bytes",
        "4500",
    )
    created = run("studies", "create", "x", "--mechanism", "triehh", *sizes, *fields, "--url", url)
    assert f"devices with default settings refuse the study: it adds {REFUSAL}" in created
    study = next(line for line in created.splitlines() if line.isalnum())

    fleet = ("fleet", "--study", study, "--no-registrar", "--min-cohort", "5", "--data", data)
    refused = run(*fleet, "--url", url, code=1)
    assert REFUSAL in " ".join(refused.split())
    below = run(*fleet, "--url", url, "--max-epsilon", str(number * 0.99999), code=1)
    assert "noise for epsilon 4.567 at delta 1e-05" in " ".join(below.split())
    played = document(*fleet, "--url", url, "--max-epsilon", str(number))
    assert [each["number"] for each in played["rounds"]] == [1, 2, 3]

    statement = document("privacy", study, "--delta", str(DELTA), "--url", url)
    assert {each["epsilon"] for each in statement["parties"]} == {number}


PRESETS = pytest.mark.parametrize(
    "preset", [("--numbers", "0:100"), ("--options", "a,b"), ("--strings", "4")], ids=" ".join
)


@PRESETS
def test_a_preset_needs_no_number_of_words(preset: tuple[str, str], url: str) -> None:
    sizes = ("--devices", "900", "--threshold", "90", "--draft")
    assert "error" not in run("studies", "create", "pets", *sizes, *preset, "--url", url)


@pytest.mark.parametrize("domain", ["auto", "[1,2]", '"x"', "7"])
def test_a_domain_that_is_no_document_is_refused_by_name(domain: str, url: str) -> None:
    sizes = ("--devices", "30", "--threshold", "5", "--url", url)
    refused = run("studies", "create", "x", *sizes, "--set", f"domain={domain}", code=2)
    assert "domain" in refused


@PRESETS
def test_a_private_preset_is_the_epsilon_that_devices_compute(
    preset: tuple[str, str], url: str
) -> None:
    registrar = Identity.of(bytes(32)).public.hex()
    sizes = ("--devices", "200", "--threshold", "20", "--registrar", registrar, "--draft")
    create = ("studies", "create", "x", *sizes, *preset, "--url", url)
    accepted = run(*create, "--private", "1")
    assert "private: epsilon 1 at delta 1e-05" in accepted
    assert "refuse" not in accepted
    assert "pass one of" in run(*create, "--numbers", "1:2", "--strings", "3", code=2)
    if preset[0] == "--options":  # the cheapest
        assert "adds noise for epsilon 5 at delta 1e-05, above 4" in run(*create, "--private", "5")
        assert "at delta 1e-07" in run(*create, "--private", "1", "--set", "delta=1e-7")
        assert "epsilon 2 at" in run(*create, "--private", "1", "--set", "epsilon=2")
        for other in ("krr", "jl-hh"):
            assert "epsilon 1 at delta 0" in run(*create, "--private", "1", "--mechanism", other)
        exact = (*create, "--private", "1", "--set", "epsilon=null")
        assert "the question has none" in run(*exact, code=2)
        assert "no field 'epsilon'" in run(
            *create, "--private", "1", "--mechanism", "tracked", code=2
        )
    if preset[0] == "--strings":
        other = ("--strings", "3", "--private", "1", "--mechanism", "prefix-extension")
        assert "epsilon 1 at delta 0" in run("studies", "create", "x", *sizes, *other, "--url", url)


def test_a_fleet_spends_the_epsilon_of_its_preset(url: str, tmp_path: Path) -> None:
    asked = ("--options", "github.com, youtube.com,none", "--private", "1")
    key = str(tmp_path / "r.key")
    fleet = ("fleet", "--create", "--devices", "30", "--rounds", "1", "--registrar", key)
    played = document(*fleet, *asked, "--url", url)
    assert set(played["unlisted"]) | {row["item"] for row in played["heavy_hitters"]} >= {"none"}
    shown = run("privacy", played["study"], "--url", url)
    assert re.search(r"public +1 ", shown), shown

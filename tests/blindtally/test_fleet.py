"""`blindtally fleet` in front of a real server process."""

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from blindtally.cli import app
from blindtally.demo.service import Service, free_port


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("service")) as running:
        yield running


def fleet(*arguments: str) -> tuple[int, str]:
    run = CliRunner().invoke(app, ["fleet", *arguments])
    return run.exit_code, run.output


def test_a_fleet_creates_a_study_and_plays_it_to_the_end(service: Service) -> None:
    code, said = fleet(
        "--url", service.url, "--create", "--devices", "12", "--rounds", "1", "--min-cohort", "5"
    )
    assert code == 0, said
    assert "round 1/1" in said
    assert "sum exact" in said
    assert "Held 5 times or more" in said


def test_a_fleet_that_refuses_says_which_limit(service: Service) -> None:
    code, said = fleet("--url", service.url, "--create", "--devices", "12", "--min-cohort", "13")
    assert code == 1
    assert "min_cohort" in said


def test_an_unknown_study_is_told(service: Service) -> None:
    code, said = fleet("--url", service.url, "--study", "nobody-knows")
    assert code == 1
    assert "lists the studies" in said


def test_a_service_out_of_reach_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blindtally.fleet.PATIENCE", 0.2)
    code, said = fleet("--url", f"http://127.0.0.1:{free_port()}", "--create")
    assert code == 1
    assert "is out of reach" in said


@pytest.mark.parametrize("arguments", [[], ["--create", "--study", "one"]])
def test_a_fleet_needs_one_study(arguments: list[str]) -> None:
    code, said = fleet(*arguments)
    assert code == 1
    assert "--create" in said

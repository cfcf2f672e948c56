"""Errors of a service as a person at a terminal reads them."""

from pathlib import Path

import httpx
import pytest
import typer
from typer.testing import CliRunner

from blindtally.cli import app
from blindtally.console.service_connection import open_analyst, service_error_exit
from blindtally.datasets.cells import DataError
from blindtally.fleet_run.registrar_key_files import KeyFileError
from blindtally.fleet_run.results import InexactSumError
from client.errors import NotFoundError, ServiceError, check_response
from protocol.api.messages import Problem


def test_a_refused_key_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    problem = {
        "type": "urn:blindtally:problem:not-authorised",
        "title": "not authorised",
        "status": 401,
        "detail": "the API key or the credential is unknown, expired or revoked",
    }
    with pytest.raises(ServiceError) as refused:
        check_response(httpx.Response(401, json=problem))
    assert isinstance(service_error_exit(refused.value), typer.Exit)
    error = capsys.readouterr().err
    assert error.startswith("error: the API key or the credential is unknown")
    assert "--key or in BLINDTALLY_API_KEY" in error


@pytest.mark.parametrize("command", ["studies list", "query s", "privacy s", "watch s"])
@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "ftp://host", "https://h/?token=1"])
def test_an_address_of_no_service_is_wrong_use(command: str, url: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--url", url])
    assert (result.exit_code, "Invalid value for" in result.output) == (2, True)
    assert "token=1" not in result.output


def test_a_command_shows_that_it_waits_for_the_service(
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("blindtally.console.service_connection._TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr("client.http.address_and_retries._MIN_ANNOUNCED_SECONDS", 0.5)
    waiting_for = open_analyst("http://127.0.0.1:1", None, waits_for_start=True)
    with pytest.raises(typer.Exit), waiting_for as analyst:
        next(analyst.studies())
    (waiting,) = (each.getMessage() for each in caplog.records if each.levelname == "WARNING")
    assert waiting.startswith("http://127.0.0.1:1 is not available; trying again for 0 s (")
    assert capsys.readouterr().err.startswith("error: http://127.0.0.1:1 is out of reach")


def test_wrong_data_and_options_are_wrong_use_and_no_failure_of_the_service() -> None:
    assert service_error_exit(DataError(Path("a.csv"), "is empty")).exit_code == 2
    assert service_error_exit(ValueError("use fewer devices")).exit_code == 2
    assert service_error_exit(KeyFileError("is the key of another registrar")).exit_code == 2
    assert service_error_exit(InexactSumError("round 1")).exit_code == 1


@pytest.mark.parametrize(
    "command",
    [
        ("query", "s"),
        ("studies", "list"),
        ("registrar", "serve", "a.key"),
        ("member", "a.key"),
        ("fleet",),
    ],
)
def test_a_wrong_address_is_wrong_use_of_its_option(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*command, "--url", "here"])
    assert result.exit_code == 2
    assert "is not an http or https" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("missing", "advice"),
    [
        ("study", "`blindtally studies list` lists"),
        ("round", "`blindtally studies list` lists"),
        ("population", "`blindtally privacy --create` makes"),
        ("heavy hitter as 'study'", "`blindtally studies show` lists the heavy hitters"),
    ],
)
def test_advice_is_about_what_does_not_exist(
    missing: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    detail = f"there is no such {missing}"
    error = NotFoundError(Problem(type="x", title="x", status=404, detail=detail))
    assert service_error_exit(error).exit_code == 1
    assert advice in capsys.readouterr().err
    assert ("Analyst.studies()" in str(error)) == (missing in ("study", "round"))

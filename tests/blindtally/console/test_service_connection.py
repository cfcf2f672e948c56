"""Errors of a service as a person at a terminal reads them."""

import logging
from pathlib import Path

import httpx
import pytest
import typer

from blindtally.console.service_connection import open_analyst, service_error_exit
from blindtally.datasets.reader import DataError
from client.errors import ServiceError, check_response


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


def test_a_command_shows_that_it_waits_for_the_service(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindtally.console.service_connection._TIMEOUT_SECONDS", 0.5)
    with pytest.raises(typer.Exit), open_analyst("http://127.0.0.1:1", None) as analyst:
        next(analyst.studies())
    waiting, error = capsys.readouterr().err.splitlines()
    assert waiting == "http://127.0.0.1:1 does not answer; trying again for 0 s"
    assert error.startswith("error: http://127.0.0.1:1 is out of reach")
    assert not logging.getLogger("client.connection").handlers


def test_an_unusable_data_file_is_wrong_use_and_no_failure_of_the_service() -> None:
    assert service_error_exit(DataError(Path("a.csv"), "is empty")).exit_code == 2
    assert service_error_exit(ValueError("cannot be planned")).exit_code == 1

"""Errors of a service as a person at a terminal reads them."""

import httpx
import pytest
import typer

from blindtally.console.service_connection import service_error_exit
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

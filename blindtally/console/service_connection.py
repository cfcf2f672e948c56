"""Requests of commands to a running service: its analyst, and errors that advise a person."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer

from blindtally.console.errors import exit_with_error
from client.analyst.analyst import Analyst
from client.errors import (
    BadRequestError,
    NotAuthorisedError,
    NotFoundError,
    ServiceError,
    ServiceUnreachableError,
    WrongStateError,
)

_TIMEOUT_SECONDS: Final = 30.0
# The errors of the client advise programs; these advise people at a terminal.
_ADVICE: Final[dict[type[ServiceError], str]] = {
    BadRequestError: "",
    NotAuthorisedError: "pass a key by --key or in BLINDTALLY_API_KEY, or save it by `blindtally "
    "login`; `blindtally keys create NAME`, where the service runs, makes one",
    WrongStateError: "the study's page on the dashboard shows its state",
}
# By `NotFoundError.listed`.
_NOT_FOUND_ADVICE: Final = {
    "study": "check the name or id, and --url; `blindtally studies list` lists the studies",
    "population": "check the name, and --url; `blindtally privacy --create` makes populations",
    "heavy hitter": "`blindtally studies show` lists the heavy hitters of a study",
}


@contextmanager
def open_analyst(url: str, key: str | None, *, waits_for_start: bool = False) -> Iterator[Analyst]:
    """Yield an analyst of the service.

    Raises:
        typer.Exit: if the service does not answer, or refuses a request.
    """
    try:
        options: Any = {"patience": _TIMEOUT_SECONDS, "waits_for_start": waits_for_start}
        with Analyst(url, key, **options) as analyst:
            yield analyst
    except ServiceUnreachableError as error:
        raise exit_with_error(error, code=1) from None
    except (ServiceError, ValueError) as error:
        raise service_error_exit(error) from None


def service_error_exit(error: Exception) -> typer.Exit:
    """Print the error with advice; return the exit, with code 2 for wrong options or data."""
    if not isinstance(error, ServiceError):
        return exit_with_error(error, code=2 if isinstance(error, ValueError) else 1)
    advice = _ADVICE.get(type(error), error.advice)
    if isinstance(error, NotFoundError):
        advice = _NOT_FOUND_ADVICE[error.listed]
    return exit_with_error(f"{error.message} ({advice})" if advice else error.message, code=1)

"""What a service refuses, told to who types commands: the error's own advice is to programs."""

from typing import Final

import typer

from blindtally.output import failed
from client.problems import NotFoundError, RejectedError, ServiceError, WrongStateError

_ADVICE: Final[dict[type[ServiceError], str]] = {
    NotFoundError: "check --url and the id; the dashboard, or /v1/studies, lists the studies",
    RejectedError: "",
    WrongStateError: "its page on the dashboard shows its state",
}


def refused(error: Exception) -> typer.Exit:
    """Return the end, with exit code 1, of a command that `error` kept from what was asked."""
    if not isinstance(error, ServiceError):
        return failed(error, code=1)
    advice = _ADVICE.get(type(error), error.advice)
    return failed(f"{error.said} ({advice})" if advice else error.said, code=1)

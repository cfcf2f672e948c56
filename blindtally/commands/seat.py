"""`blindtally seat`: the registrar of studies, which seats their rounds.

It polls the service, so it may run behind a firewall. What it has drawn is in a file next to its
key: that file must not be lost, or a dishonest server could have devices drawn again.
"""

import asyncio
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument

from blindtally.console.errors import exit_with_error
from blindtally.console.options import DEFAULT_URL, ApiKeyOption, UrlOption

if TYPE_CHECKING:
    from client.registrar import Registrar
    from protocol.api.messages import PendingSeating

DRAWS_SUFFIX = ".draws"


def seat(
    path: Annotated[Path, Argument(help="Key file of the registrar.")],
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
) -> None:
    """Draw which devices share a cohort, in all rounds that name a registrar, until Ctrl-C.

    A study with a registrar and several cohorts needs this process in every round. An API key needs
    the scope `seat`. The draws are recorded in a file next to the key file: keep both.

    Example:
      blindtally seat registrar.key --url https://counts.example.org
    """
    from blindtally.console.service_connection import service_error_exit
    from blindtally.fleet_run.registrar_key_files import KeyFileError, load_key_file
    from client.errors import ServiceError
    from client.registrar import DrawRecord, Registrar

    try:
        identity = load_key_file(path)
        draws = DrawRecord(path.with_name(path.name + DRAWS_SUFFIX))
    except KeyFileError as error:
        raise exit_with_error(error) from None
    except sqlite3.Error as error:
        raise exit_with_error(f"cannot use {path}{DRAWS_SUFFIX}: {error}", code=1) from None
    try:
        asyncio.run(_serve(url, key, Registrar(identity, draws)))
    except (ServiceError, ValueError) as error:  # ValueError: an API key that no header can have
        raise service_error_exit(error) from None
    except sqlite3.Error as error:
        raise exit_with_error(
            f"cannot record a draw in {path}{DRAWS_SUFFIX}: {error}", code=1
        ) from None


async def _serve(url: str, key: str | None, registrar: "Registrar") -> None:
    from client.transport import Transport, http_client

    typer.echo(f"seating the rounds of {registrar.identity.public.hex()} at {url}")
    async with http_client(url) as http:
        await registrar.serve(Transport(http), key, _report)


def _report(pending: "PendingSeating", reason: str) -> None:
    where = f"round {pending.round} of study {pending.study}"
    if reason:
        typer.echo(f"{where} is not seated: {reason}", err=True)
    else:
        typer.echo(f"seated {pending.joiners:,} devices in {where}")

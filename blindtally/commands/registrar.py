"""The registrar of studies: `blindtally registrar` makes its key, `blindtally seat` seats rounds.

A third party must confirm which devices are real, or a server could invent devices. The public key
of this *registrar* is part of the study's terms. Its secret key is a file that only its owner may
read, and that is never overwritten.

To seat rounds it polls the service, so it may run behind a firewall. What it has drawn is in a file
next to its key: that file must not be lost, or a dishonest server could have devices drawn again.
"""

import asyncio
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from blindtally.console.errors import exit_with_error
from blindtally.console.options import DEFAULT_URL, ApiKeyOption, UrlOption
from blindtally.console.output_files import JsonOption, warn_of_readers, write_json
from blindtally.console.terminal import print_line

if TYPE_CHECKING:
    from client.committee.registrar import Registrar
    from protocol.api.messages import PendingSeating

DRAWS_SUFFIX = ".draws"


def registrar(
    path: Annotated[Path, Argument(help="Key file, which only its owner may read.")],
    show: Annotated[
        bool, Option("--show", help="Show the public key of an existing file.")
    ] = False,
    json_path: JsonOption = None,
) -> None:
    """Make the key of a registrar, and print its public half for a study's terms.

    Example:
      blindtally registrar registrar.key
    """
    from blindtally.fleet_run.registrar_key_files import (
        KeyFileError,
        create_key_file,
        load_key_file,
    )

    try:
        identity = load_key_file(path) if show else create_key_file(path)
    except KeyFileError as error:
        raise exit_with_error(error) from None
    if json_path != "-":
        print_line(identity.public.hex())
    write_json(json_path, {"public": identity.public.hex(), "file": str(path)})
    if not show:
        print_line(f"the secret half is in {path}: keep it, and keep it from the server", err=True)


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
    from client.committee.registrar import DrawRecord, Registrar
    from client.errors import ServiceError

    try:
        identity = load_key_file(path)
        record = path.with_name(path.name + DRAWS_SUFFIX)
        warn_of_readers(path, record)
        draws = DrawRecord(record)
    except KeyFileError as error:
        raise exit_with_error(error) from None
    except (OSError, sqlite3.Error) as error:
        raise exit_with_error(f"cannot use {path}{DRAWS_SUFFIX}: {error}", code=1) from None
    try:
        asyncio.run(_serve(url, key, Registrar(identity, draws)))
    except (ServiceError, ValueError) as error:  # ValueError: an API key that no header can have
        raise service_error_exit(error) from None


async def _serve(url: str, key: str | None, registrar: "Registrar") -> None:
    from client.http.address_and_retries import shown_url
    from client.http.transport import Transport, http_client

    print_line(f"seating the rounds of {registrar.identity.public.hex()} at {shown_url(url)}")
    async with http_client(url) as http:
        await registrar.serve(Transport(http), key, _report)


def _report(pending: "PendingSeating", reason: str) -> None:
    where = f"round {pending.round} of study {pending.study}"
    if reason:
        print_line(f"{where} is not seated: {reason}", err=True)
    else:
        print_line(f"seated {pending.joiners:,} devices in {where}")

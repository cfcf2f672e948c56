"""`blindtally registrar`: the party that confirms which devices are real.

A third party must do so, or a server could invent devices. Its secret key is a file that is never
overwritten. Next to the key are the draws of rounds and committees, and the enrolments. Neither may
be lost, or restored from an older copy: a server could have devices drawn again, and tokens spent
twice.
"""

import asyncio
import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from random import SystemRandom
from time import time
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from blindtally.console.errors import exit_with_error
from blindtally.console.options import ApiKeyOption, check_url
from blindtally.console.output_files import JsonOption, warn_of_readers, write_json
from blindtally.console.terminal import print_line

if TYPE_CHECKING:
    from blindtally.registrar_service.app import RegistrarService
    from blindtally.registrar_service.enrolment_record import EnrolmentRecord
    from blindtally.registrar_service.proofs import Prove
    from client.committee.registrar import Registrar
    from protocol.api.messages import PendingSeating
    from secagg.keys import Identity

DRAWS_SUFFIX = ".draws"
RECORD_SUFFIX = ".enrolments"
KeyArgument = Annotated[Path, Argument(metavar="FILE", help="Key file of the registrar.")]

registrar = typer.Typer(
    name="registrar",
    no_args_is_help=True,
    add_completion=False,
    help="The registrar, which signs the identities of real devices and seats rounds.\n\n"
    "Example:\n  blindtally registrar create registrar.key",
)


@registrar.command("create")
def create_key(path: KeyArgument, json_path: JsonOption = None) -> None:
    """Make the key of a registrar, and print its public half for a study's terms.

    Example:
      blindtally registrar create registrar.key
    """
    from blindtally.fleet_run.registrar_key_files import KeyFileError, create_key_file

    try:
        identity = create_key_file(path)
    except KeyFileError as error:
        raise exit_with_error(error) from None
    _print_public(path, identity, json_path)
    print_line(f"the secret half is in {path}: back it up, never on the server", err=True)


@registrar.command("show")
def show_key(path: KeyArgument, json_path: JsonOption = None) -> None:
    """Print the public half of a registrar's key.

    Example:
      blindtally registrar show registrar.key
    """
    _print_public(path, _load(path), json_path)


@registrar.command("allow")
def allow_study(
    path: KeyArgument,
    file: Annotated[
        Path,
        Argument(metavar="JSON", help="Study, as `studies create --json` writes it; - is stdin."),
    ],
) -> None:
    """Sign for a study from now on, with the terms that its analyst gave it.

    Take the file from the analyst, not from the server, which could make a study of few devices
    around one of them.

    Example:
      blindtally registrar allow registrar.key study.json
    """
    from protocol.api.messages import CreatedStudy

    try:
        document = json.loads(sys.stdin.read() if str(file) == "-" else file.read_bytes())
        study = CreatedStudy.model_validate(document.get("study", document))
    except (OSError, ValueError, AttributeError, RecursionError):
        raise exit_with_error(f"{file} has no study of `studies create --json`") from None
    registry, terms = study.registry, study.terms
    with _record(path) as (identity, record):
        if registry is None or registry.registrar != identity.public:
            raise exit_with_error(f"study {study.id} names another registrar, or none")
        if not record.allow(study.id, registry.scope):
            raise exit_with_error(f"the registrar knows study {study.id} with other terms", code=1)
    print_line(
        f"it signs for {study.name!r} ({study.id}): {study.question.mechanism}, "
        f"{study.rounds:,} rounds of {terms.minimum * terms.cohorts:,} to {terms.max_devices:,} "
        f"devices in {terms.cohorts:,} cohorts"
    )


@registrar.command("tokens")
def make_tokens(
    path: KeyArgument,
    count: Annotated[int, Option(min=1, max=1_000_000, help="Number of tokens.")] = 1,
    once: Annotated[
        bool, Option("--once", help="Let each token enrol a device in one study only.")
    ] = False,
    days: Annotated[
        float | None,
        Option(min=0, max=36_500, help="Days until they expire.", show_default="never"),
    ] = None,
    revoke: Annotated[
        str | None, Option(metavar="TOKEN", help="Refuse this token from now on; make none.")
    ] = None,
    json_path: JsonOption = None,
) -> None:
    """Make tokens for real devices, and print them: only their hashes are kept.

    Give each device its own token. It enrols one identity in each study. What the registrar has
    signed for a token that is revoked stays valid.

    Example:
      blindtally registrar tokens registrar.key --count 100 --days 365
      blindtally registrar tokens registrar.key --revoke btr_...
    """
    expires = None if days is None else time() + days * 86_400
    with _record(path) as (_, record):
        if revoke is not None:
            if not record.revoke(revoke.strip()):
                raise exit_with_error("the registrar has no such token", code=1)
            print_line("the token is revoked")
            return
        tokens = record.add_tokens(count, SystemRandom(), expires, is_once=once)
    if json_path != "-":
        for token in tokens:
            print_line(token)
    write_json(json_path, {"tokens": tokens}, is_secret=True)


@registrar.command("serve")
def serve_devices(
    path: KeyArgument,
    check: Annotated[
        Path | None, Option(metavar="COMMAND", help="Command that decides which devices are real.")
    ] = None,
    issuer: Annotated[
        str | None, Option(help="OpenID provider whose tokens prove that a device is real.")
    ] = None,
    audience: Annotated[
        str | None, Option(help="Client id of the registrar at the provider.")
    ] = None,
    url: Annotated[
        str | None,
        Option(
            help="URL of the service whose rounds the registrar seats.",
            callback=lambda url: url and check_url(url),
        ),
    ] = None,
    key: ApiKeyOption = None,
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=1, max=65535, help="Port for devices.")] = 8100,
    behind_proxy: Annotated[
        bool, Option("--behind-proxy", help="Serve other machines, through a proxy with TLS.")
    ] = False,
) -> None:
    """Sign the identities of real devices, and seat the rounds of a service, until Ctrl-C.

    Devices prove to be real by tokens (`registrar tokens`), by OpenID tokens, or as a command
    decides. The registrar signs for the studies that `registrar allow` has named. With --url it
    also draws which devices share a cohort, and committees of volunteers: a study with a registrar
    and several cohorts needs this in every round. The API key then needs the scope `seat`.

    Example:
      blindtally registrar serve registrar.key --url https://counts.example.org
      blindtally registrar serve registrar.key --check ./is-real
    """
    from blindtally.console.service_connection import service_error_exit
    from blindtally.registrar_service.app import RegistrarService
    from client.errors import ServiceError
    from server.settings import is_loopback

    if not (is_loopback(host) or behind_proxy):
        raise exit_with_error(
            f"devices send secrets to {host}: put a proxy with TLS in front, and add --behind-proxy"
        )
    with _record(path) as (identity, record):
        prove = _proof(record, check, issuer, audience)
        seats = None if url is None else _seats(path, identity)
        service = RegistrarService(identity, record, prove, seats)
        print_line(f"registrar {identity.public.hex()} signs at http://{host}:{port}")
        try:
            asyncio.run(_run(service, (host, port), seats, url, key))
        except (ServiceError, ValueError) as error:  # an API key that no header can have
            raise service_error_exit(error) from None


async def _run(
    service: "RegistrarService",
    address: tuple[str, int],
    registrar: "Registrar | None",
    url: str | None,
    key: str | None,
) -> None:
    """Serve devices at `address`, and seat the rounds of the service at `url`, if there is one."""
    from blindtally.status_page import page_server, run_together
    from client.http.address_and_retries import shown_url
    from client.http.transport import Transport, http_client

    def report(pending: "PendingSeating", reason: str) -> None:
        service.count("not seated" if reason else "seated")
        where = f"round {pending.round} of study {pending.study}"
        seated = f"seated {pending.joiners:,} devices in {where}"
        print_line(f"{where} is not seated: {reason}" if reason else seated, err=bool(reason))

    async with AsyncExitStack() as stack:
        seating = None
        if registrar is not None and url is not None:
            http = await stack.enter_async_context(http_client(url))
            print_line(f"it seats the rounds at {shown_url(url)}")
            seating = registrar.serve(Transport(http), key, report)
        devices = page_server(service.app(), *address)
        await run_together(devices, seating)


def _load(path: Path) -> "Identity":
    from blindtally.fleet_run.registrar_key_files import KeyFileError, load_key_file

    try:
        return load_key_file(path)
    except KeyFileError as error:
        raise exit_with_error(error) from None


def _print_public(path: Path, identity: "Identity", json_path: str | None) -> None:
    if json_path != "-":
        print_line(identity.public.hex())
    write_json(json_path, {"public": identity.public.hex(), "file": str(path)})


@contextmanager
def _record(path: Path) -> "Iterator[tuple[Identity, EnrolmentRecord]]":
    """Yield the registrar and its record; exit if that is an older copy or cannot be used."""
    from blindtally.registrar_service.enrolment_record import EnrolmentRecord, OlderCopyError

    identity, file = _load(path), path.with_name(path.name + RECORD_SUFFIX)
    warn_of_readers(path, file)
    try:
        yield identity, EnrolmentRecord(file, identity.public)
    except OlderCopyError as error:
        raise exit_with_error(error, code=1) from None
    except (OSError, sqlite3.Error) as error:
        raise exit_with_error(f"cannot use {file}: {error}", code=1) from None


def _proof(
    record: "EnrolmentRecord", check: Path | None, issuer: str | None, audience: str | None
) -> "Prove":
    """Return the one way in which devices prove to be real."""
    from blindtally.registrar_service.proofs import CheckCommand, OpenIdTokens, by_tokens
    from client.extras_installation import install_command
    from server.settings import is_secure_url

    if (issuer is None) != (audience is None) or (check is not None and issuer is not None):
        raise exit_with_error("give --issuer together with --audience, or --check, or none of them")
    if check is not None:
        if not (check.is_file() and os.access(check, os.X_OK)):
            raise exit_with_error(f"--check: {check} is not a command that can be executed")
        return CheckCommand(check.resolve())
    if issuer is None or audience is None:
        return by_tokens(record)
    if find_spec("joserfc") is None:
        raise exit_with_error(f"--issuer requires an extra: {install_command('oidc')}", code=1)
    if not is_secure_url(issuer):
        raise exit_with_error("--issuer: an https:// URL expected, or http:// of this machine")
    return OpenIdTokens(issuer, audience)


def _seats(path: Path, identity: "Identity") -> "Registrar":
    from client.committee.registrar import DrawRecord, Registrar

    record = path.with_name(path.name + DRAWS_SUFFIX)
    warn_of_readers(record)
    try:
        return Registrar(identity, DrawRecord(record))
    except (OSError, sqlite3.Error) as error:
        raise exit_with_error(f"cannot use {record}: {error}", code=1) from None

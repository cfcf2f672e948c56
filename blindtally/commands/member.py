"""`blindtally member`: an operator that opens one-shot sums together with other operators.

It polls the service, so it may run behind a firewall. Next to its key is its journal, without which
it must not serve again: a member that forgot which set of messages it signed could sign another.
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from blindtally.console.errors import parse_public_keys
from blindtally.console.options import DEFAULT_URL, ApiKeyOption, UrlOption
from blindtally.console.output_files import atomic_write, warn_of_readers
from blindtally.console.terminal import print_line

if TYPE_CHECKING:
    from protocol.api.messages import CommitteeRound

JOURNAL_SUFFIX = ".journal"


def member(
    path: Annotated[Path, Argument(help="Key file of the member.")],
    new: Annotated[
        bool, Option("--new", help="Make the key file, print the public key, and end.")
    ] = False,
    show: Annotated[bool, Option("--show", help="Print the public key of the file, and end.")] = (
        False
    ),
    create: Annotated[
        bool, Option("--create", help="Make the key file first if it is missing.")
    ] = False,
    public_key: Annotated[
        Path | None, Option(help="File to which the member writes its public key at the start.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
    min_devices: Annotated[
        int, Option(min=1, help="Smallest number of devices in a sum that the member opens.")
    ] = 50,
    registrar: Annotated[
        list[str] | None,
        Option(
            metavar="KEY",
            help="Public key of a registrar whose studies the member serves; may be repeated.",
            show_default="any",
        ),
    ] = None,
    unverified: Annotated[
        bool, Option("--unverified", help="Serve studies without a registrar too. For trials.")
    ] = False,
    max_megabytes: Annotated[
        int, Option(min=1, help="Largest size of what it receives of all devices of a sum, in MB.")
    ] = 512,
    status_host: Annotated[
        str, Option(help="Address of the status page, with /healthz and /metrics.")
    ] = "127.0.0.1",
    status_port: Annotated[
        int | None, Option(min=1, max=65535, help="Port of the status page.", show_default="none")
    ] = None,
) -> None:
    """Serve as a member of committees that open one-shot sums, until Ctrl-C.

    A study names its members by their public keys, and devices pin them in their policy. Members
    belong to different organisations: those that collude with the server see more than sums. An API
    key needs the scope `committee`. A journal of all steps is next to the key file: keep both.

    Example:
      blindtally member operator.key --new
      blindtally member operator.key --url https://counts.example.org
    """
    from blindtally.console.service_connection import service_error_exit
    from blindtally.fleet_run.registrar_key_files import create_key_file, load_key_file
    from blindtally.member_process import run_member
    from client.committee.member import CommitteeMember, MemberPolicy
    from client.committee.member_journal import MemberJournal, MemberJournalError
    from client.errors import ServiceError
    from client.http.address_and_retries import shown_url

    registrars = frozenset(parse_public_keys(registrar or (), "--registrar"))
    try:
        is_missing = new or (create and not path.exists())
        identity = create_key_file(path, "member") if is_missing else load_key_file(path, "member")
        if new or show:
            print_line(identity.public.hex())
            return
        policy = MemberPolicy(min_devices, registrars, unverified, max_megabytes * 2**20)
        record = path.with_name(path.name + JOURNAL_SUFFIX)
        warn_of_readers(path, record)
        journal = MemberJournal(record)
        served = CommitteeMember(identity, journal, policy)
        if public_key is not None:
            with atomic_write(public_key) as file:
                file.write_text(f"{identity.public.hex()}\n", encoding="ascii")
        print_line(f"member {identity.public.hex()} serves committees at {shown_url(url)}")
        asyncio.run(run_member(served, url, key, _report, status_host, status_port))
    except (ServiceError, MemberJournalError, ValueError) as error:
        raise service_error_exit(error) from None  # ValueError: a key file, address or API key


def _report(pending: "CommitteeRound", refusal: str) -> None:
    where = f"round {pending.round} of study {pending.study}"
    if refusal:
        print_line(f"{where} is not served: {refusal}", err=True)
    else:
        print_line(f"{where}: {pending.phase} done")

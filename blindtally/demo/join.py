"""Link by which phones take part in a demo: its address, its certificate, and its QR code.

WebCrypto exists on secure pages only, so the link is https. No authority signs a certificate for an
address such as 192.168.1.5; the program signs its own, and phones warn of it. A certificate that
the environment gives, as for `serve`, has the name of this machine.
"""

import os
import socket
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from secrets import token_urlsafe
from typing import Final
from urllib.parse import urlsplit

import segno
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from blindtally.console.terminal import Terminal
from blindtally.demo.server_process import TLS_VARIABLES, free_port
from blindtally.fleet_run.fleet_setup import SEATS_FOR_PEOPLE, WAIT_FOR_PEOPLE_SECONDS
from blindtally.join_listener import JoinListener
from client.process_files import open_private_file

_SOMEWHERE: Final = ("192.0.2.1", 9)  # an address of documentation: nothing is sent to it
_ALONE: Final = "127.0.0.1"
_ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - nothing listens here
_TOKEN_BYTES: Final = 16
_VALID: Final = timedelta(days=7)
# A character shows two modules, one below the other.
_BLOCKS: Final = {(0, 0): " ", (1, 0): "▀", (0, 1): "▄", (1, 1): "█"}


def network_address() -> str:
    """Return the IPv4 address by which others reach this machine, 127.0.0.1 without a network.

    The environment chooses one of several by `BLINDTALLY_HOST`, as for `serve`.

    Raises:
        ValueError: if that is no address of this machine.
    """
    chosen = os.environ.get("BLINDTALLY_HOST", _ANY_ADDRESS)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((chosen, 0))
        except OSError:
            reason = f"BLINDTALLY_HOST={chosen} is no IPv4 address of this machine"
            raise ValueError(reason) from None
        if probe.getsockname()[0] == _ANY_ADDRESS:
            with suppress(OSError):
                probe.connect(_SOMEWHERE)
        address = str(probe.getsockname()[0])
        return _ALONE if address == _ANY_ADDRESS else address


def make_listener(folder: Path) -> JoinListener:
    """Return a listener in this machine's network, with a new token, and a certificate in `folder`.

    The file of the certificate has its key, and only its owner may read it.

    Raises:
        OSError, ValueError: if there is no certificate in a given file, or no such address.
    """
    host, path = network_address(), folder / "join.pem"
    given = [os.environ[name] for name in TLS_VARIABLES if os.environ.get(name)]
    pem = b"\n".join(Path(file).read_bytes() for file in given) if given else _self_signed(host)
    names = [
        name
        for extension in x509.load_pem_x509_certificate(pem).extensions
        if isinstance(extension.value, x509.SubjectAlternativeName)
        for name in extension.value.get_values_for_type(x509.DNSName)
        if "*" not in name
    ]
    with os.fdopen(open_private_file(path, os.O_EXCL), "wb") as file:
        file.write(pem)
    name, token = next(iter(names), host), token_urlsafe(_TOKEN_BYTES)
    return JoinListener(name, host, free_port(host), str(path), token)


def _self_signed(host: str) -> bytes:
    """Return a certificate for an IP address with its key, as PEM."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "blindtally demo")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))]), False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)


def print_invitation(console: Terminal, url: str) -> None:
    """Print a link and its QR code, how long the round waits, and what a phone warns of."""
    console.print("Phones take part by this link:")
    for line in qr_lines(url):
        console.print(line, style="black on white", soft_wrap=True)
    console.print(url, soft_wrap=True)
    host = urlsplit(url).hostname
    network = "this machine only, which has no network" if host == _ALONE else "this network"
    console.print(
        f"It works in {network}. The round waits for people for {WAIT_FOR_PEOPLE_SECONDS:.0f} "
        f"seconds, or until {SEATS_FOR_PEOPLE} have taken part.",
        soft_wrap=True,
    )
    warning = (
        "A phone warns that it does not know the certificate, which this program has made: choose "
        "the details, and go on. "
    )
    console.print(
        f"{'' if any(map(os.environ.get, TLS_VARIABLES)) else warning}Whoever has the link reaches "
        "its page, and nothing else here.",
        soft_wrap=True,
    )


def qr_lines(text: str) -> list[str]:
    """Return the QR code of a text, with two rows of modules in each line; " " is white."""
    rows = [[*row] for row in segno.make(text, error="l", micro=False).matrix_iter(border=3)]
    rows += [[0] * len(rows[0])] * (len(rows) % 2)
    pairs = zip(rows[::2], rows[1::2], strict=True)
    return ["".join(_BLOCKS[pair] for pair in zip(*both, strict=True)) for both in pairs]

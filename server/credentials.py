"""Who asks, and what they may: operators by API keys, devices by credentials.

    an API key           btk_ and 43 characters of base64url; made and revoked by the command line
    an enrolment token   bte_ and 43 such; lets a number of identities in
    a credential         43 such, chosen by a device, which shows it from then on

Each has 256 random bits, so its SHA-256 is kept in place of it: nobody guesses one, a stolen
database holds none, and what is looked up by a digest tells nothing by how long it takes.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from random import Random
from typing import Final

SECRET_BYTES: Final = 32
API_KEY: Final = "btk_"
ENROLMENT_TOKEN: Final = "bte_"  # noqa: S105 - how one begins
_LETTERS = 43
_BEARER = re.compile(r"Bearer ((?:btk_|bte_)?[A-Za-z0-9_-]{43})")


class Right(StrEnum):
    """What somebody may do."""

    READ = "read"  # see studies, answers, ledgers
    WRITE = "write"  # create, start and stop studies; create populations
    OPERATE = "operate"  # see the audit trail, and metrics
    TAKE_PART = "take-part"  # as a device


SCOPES: Final = (Right.READ, Right.WRITE, Right.OPERATE)  # of an API key


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody whose credential is good: `name` is the key's id or the device's identity."""

    name: str
    rights: frozenset[Right]
    identity: str | None = None

    def __str__(self) -> str:
        return f"device {self.name}" if self.identity else f"key {self.name}"


ANYBODY: Final = Principal("anybody", frozenset(Right))  # of a service that is open


def make(prefix: str, rng: Random) -> str:
    """Return a new secret of this kind; pass the system's randomness."""
    return prefix + urlsafe_b64encode(rng.randbytes(SECRET_BYTES)).rstrip(b"=").decode()


def digest(secret: str) -> bytes:
    """Return what is kept of a secret: the SHA-256 of its prefix and its 32 bytes."""
    prefix, text = secret[:-_LETTERS], secret[-_LETTERS:]
    return sha256(prefix.encode() + urlsafe_b64decode(text + "=")).digest()


def bearer(header: str | None) -> str | None:
    """Return the secret in an Authorization header, or None if it holds none."""
    match = _BEARER.fullmatch(header or "")
    return match[1] if match else None

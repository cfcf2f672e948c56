"""What is shown to be let in: secrets of 32 random bytes, and what is kept of them.

    an API key           btk_ and 43 characters of base64url; made and revoked by the command line
    an enrolment token   bte_ and 43 such; lets a number of identities in
    a credential         43 such, chosen by a device, which shows it from then on
    a ticket             43 such, of a device in one round; its credential where it has one

Each has 256 random bits, so its SHA-256 is kept in place of it: nobody guesses one, a stolen
database holds none, and what is looked up by a digest tells nothing by how long it takes.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from random import Random
from typing import Final

API_KEY: Final = "btk_"
ENROLMENT_TOKEN: Final = "bte_"  # noqa: S105 - how one begins
_SECRET_BYTES = 32
_LETTERS = 43
_BEARER = re.compile(r"Bearer ((?:btk_|bte_)?[A-Za-z0-9_-]{43})")


def make(secrets: Random, prefix: str = "") -> str:
    """Return a new secret of the kind that begins so; pass the system's randomness."""
    return prefix + text_of(secrets.randbytes(_SECRET_BYTES))


def text_of(raw: bytes) -> str:
    """Return how 32 bytes are shown as a credential."""
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def digest(secret: str) -> bytes:
    """Return what is kept of a secret: the SHA-256 of its prefix and its 32 bytes."""
    prefix, text = secret[:-_LETTERS], secret[-_LETTERS:]
    return sha256(prefix.encode() + urlsafe_b64decode(text + "=")).digest()


def bearer(header: str | None, prefix: str | None = None) -> str | None:
    """Return the secret in an Authorization header, or None if it holds none.

    Given a `prefix`, only a secret that begins with it, and with nothing else, will do.
    """
    match = _BEARER.fullmatch(header or "")
    if match is None or prefix not in (None, match[1][:-_LETTERS]):
        return None
    return match[1]


def possession(credential: bytes) -> bytes:
    """Return what an identity signs to ask for a credential of this SHA-256."""
    return b"blindtally device v1\0" + credential

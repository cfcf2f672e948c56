"""Secrets of 32 random bytes that give access, and the digests that the service stores.

API keys begin with btk_, enrolment tokens with bte_, sessions with bts_, the tokens of shared links
with btl_, and a registrar's tokens with btr_. Credentials and tickets of devices have no prefix.
The service and the registrar store only SHA-256 digests: a secret cannot be guessed, a stolen
database contains none, and the time of a lookup by digest reveals nothing.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from random import Random
from typing import Final

API_KEY_PREFIX: Final = "btk_"
ENROLMENT_TOKEN_PREFIX: Final = "bte_"  # noqa: S105 - a prefix only
SESSION_PREFIX: Final = "bts_"
SHARE_PREFIX: Final = "btl_"
REGISTRAR_TOKEN_PREFIX: Final = "btr_"  # noqa: S105 - a prefix only
_SECRET_BYTES = 32
_SECRET_CHARACTERS = 43
_BEARER = re.compile(r"Bearer ((?:btk_|bte_|bts_|btl_)?[A-Za-z0-9_-]{43})")


def new_secret(secrets: Random, prefix: str = "") -> str:
    """Return a new secret that starts with `prefix`; pass the system's randomness."""
    return prefix + encode_secret(secrets.randbytes(_SECRET_BYTES))


def key_file_text(owner: str, secret: bytes) -> str:
    """Return the content of a registrar's or member's key file, so that no other file is one."""
    return f"blindtally {owner} v1 {secret.hex()}\n"


def encode_secret(raw: bytes) -> str:
    """Return the text form of a credential of 32 bytes."""
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def secret_digest(secret: str) -> bytes:
    """Return the SHA-256 of a secret's prefix and its 32 bytes, which the service stores."""
    prefix, text = secret[:-_SECRET_CHARACTERS], secret[-_SECRET_CHARACTERS:]
    return sha256(prefix.encode() + urlsafe_b64decode(text + "=")).digest()


def bearer_secret(header: str | None, prefix: str | None = None) -> str | None:
    """Return the secret in an Authorization header, without its exact `prefix`, or None."""
    match = _BEARER.fullmatch(header or "")
    if match is None or prefix not in (None, match[1][:-_SECRET_CHARACTERS]):
        return None
    return match[1]


def possession_statement(credential: bytes) -> bytes:
    """Return the statement that an identity signs to register a credential with this SHA-256."""
    return b"blindtally device v1\0" + credential

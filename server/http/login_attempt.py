"""A login at the OpenID provider that has begun, in a cookie of the browser.

The cookie has a random secret, the time of the start, and the page that was requested. The values
that the provider sees are HMACs of time and page under this secret:

    state      returns in the address of the callback: it proves that the same browser began, and
               that nobody changed time and page
    nonce      returns in the ID token: the token was made for this attempt
    verifier   is sent with the code; its SHA-256, the challenge, was sent before (PKCE)

So the server stores nothing before a person has logged in, and any process can continue an attempt.

Source: OpenID Connect Core 1.0, section 3.1.2.1; RFC 7636; RFC 9700, section 2.1.
"""

import re
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from hmac import compare_digest
from hmac import digest as hmac_digest
from random import Random
from typing import Final, Self
from urllib.parse import quote, unquote

from protocol.api.credentials import new_secret

ATTEMPT_LIFETIME: Final = timedelta(minutes=10)
_MAX_PAGE_CHARACTERS = 2000  # browsers refuse cookies of more than 4096 bytes
_COOKIE = re.compile(rf"(\d{{1,12}})\.([\w-]{{43}})\.([!-~]{{0,{_MAX_PAGE_CHARACTERS}}})", re.ASCII)


@dataclass(frozen=True, slots=True)
class LoginAttempt:
    """An attempt that began at `started`, in seconds since 1970; `next_page` is not checked."""

    secret: str = field(repr=False)
    started: int
    next_page: str

    @classmethod
    def start(cls, rng: Random, now: datetime, next_page: str) -> Self:
        """Return a new attempt; without the page if it is too long for a cookie."""
        is_short = len(quote(next_page, safe="")) <= _MAX_PAGE_CHARACTERS
        return cls(new_secret(rng), int(now.timestamp()), next_page if is_short else "")

    @classmethod
    def from_cookie(cls, text: str) -> Self | None:
        """Return the attempt in a cookie, or None if it has none."""
        match = _COOKIE.fullmatch(text)
        return match and cls(match[2], int(match[1]), unquote(match[3]))

    def to_cookie(self) -> str:
        return f"{self.started}.{self.secret}.{quote(self.next_page, safe='')}"

    def may_continue(self, state: str, now: datetime) -> bool:
        """Return whether `state` is that of this attempt, which began in the last ten minutes."""
        age = now.timestamp() - self.started
        is_recent = -1 < age <= ATTEMPT_LIFETIME.total_seconds()
        return is_recent and compare_digest(self.state.encode(), state.encode())

    @property
    def state(self) -> str:
        return self._derive("state")

    @property
    def nonce(self) -> str:
        return self._derive("nonce")

    @property
    def verifier(self) -> str:
        return self._derive("verifier")

    @property
    def challenge(self) -> str:
        return _base64url(sha256(self.verifier.encode()).digest())

    def _derive(self, purpose: str) -> str:
        text = f"blindtally login {purpose}\0{self.started}\0{self.next_page}"
        return _base64url(hmac_digest(self.secret.encode(), text.encode(), "sha256"))


def _base64url(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()

"""Asks who it is before anything else: before a body is read, and before what exists is told.

A closed service answers strangers alike, whatever they name. Whoever shows bad credentials
too often from one address waits; so does whoever asks too much with a good one. An open service
asks nobody: it is for trials on one machine.

Browsers show their key in a cookie, which counts for pages and for the event streams that pages
follow, and for nothing else: what another site may make a browser ask of the API has no credential.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from time import monotonic
from typing import Final

from cachetools import TTLCache
from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from protocol.credentials import API_KEY, bearer, digest
from protocol.messages import ProblemType
from server.database import UNAVAILABLE
from server.principals import ANYBODY, Principal
from server.problems import unavailable
from server.refusals import Refusal
from server.settings import Settings
from server.store.access import Access

COOKIE: Final = "blindtally_key"
WAIT: Final = "10"  # seconds
_PUBLIC: Final = frozenset(
    {"/login", "/healthz", "/readyz", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"}
)
_ASSETS: Final = "/static/"  # as public as the source that they are a part of
_PAGES: Final = re.compile(r"/|/(studies|operations|logout)(/.*)?", re.DOTALL)
_STREAMS: Final = re.compile(r"/v1/studies/[^/]+/events")
_OWN: Final = ("/v1/participants/", "/v1/devices")  # these look at tickets and tokens themselves
_MOST_KNOWN = 100_000
_HOST_BITS = 64  # of an IPv6 address: whoever has one has them all
_TOO_MANY: Final = "too many requests without a good credential: wait"


@dataclass(slots=True)
class Rates:
    """How often, a minute, an address may fail, and a credential may ask."""

    failures: RateLimitItemPerMinute
    requests: RateLimitItemPerMinute
    limiter: SlidingWindowCounterRateLimiter = field(
        default_factory=lambda: SlidingWindowCounterRateLimiter(MemoryStorage())
    )

    def may_try(self, address: str) -> bool:
        """Return whether an address has not yet failed too often."""
        return self.limiter.test(self.failures, "failures", _origin(address))

    def failed(self, address: str) -> bool:
        """Count a failure; return whether there was room for it."""
        return self.limiter.hit(self.failures, "failures", _origin(address))

    def asks(self, name: str) -> bool:
        """Count a request; return whether there is room for it."""
        return self.limiter.hit(self.requests, "requests", name)


class Keeper:
    """What one process knows of who is let in."""

    def __init__(self, settings: Settings, access: Access) -> None:
        self.is_open = settings.open
        self._access = access
        self._known: TTLCache[bytes, Principal] = TTLCache(
            _MOST_KNOWN, settings.access_seconds, timer=monotonic
        )
        self._rates = Rates(
            RateLimitItemPerMinute(settings.most_failures),
            RateLimitItemPerMinute(settings.most_requests),
        )

    def admit(self, address: str) -> None:
        """Refuse an address that has failed too often.

        Raises:
            Refusal: if it has.
        """
        if not self.is_open and not self._rates.may_try(address):
            raise Refusal(ProblemType.TOO_MANY, _TOO_MANY)

    async def fail(self, address: str, action: str, subject: str) -> None:
        """Note that `address` was refused.

        Raises:
            Refusal: if it has failed too often meanwhile, by requests that came together with
                this one; of those nothing is noted.
        """
        if not self._rates.failed(address) and not self.is_open:
            raise Refusal(ProblemType.TOO_MANY, _TOO_MANY)
        await self._access.note(f"address {address}"[:100], action, subject[:200], "refused")

    async def principal(self, secret: str | None) -> Principal | None:
        """Return who shows `secret`, if it is good.

        Raises:
            Refusal: if it asks too often.
        """
        if secret is None:
            return None
        key = digest(secret)
        found = self._known.get(key)
        if found is None:
            found = await self._access.principal(key)
            if found is None:
                return None
            self._known[key] = found
        self.count(found.name)
        return found

    def count(self, name: str) -> None:
        """Count a request of whoever showed the good credential that has this name.

        Raises:
            Refusal: if it asks too often.
        """
        if not self.is_open and not self._rates.asks(name):
            raise Refusal(ProblemType.TOO_MANY, "too many requests with this credential: wait")

    async def still_lets_in(self, principal: Principal) -> bool:
        """Return whether the key that was good when a long answer began is so now."""
        return self.is_open or await self._access.is_good_key(principal.name)


class Doorkeeper:
    """Lets requests pass whose credential is good, with `principal` in their state."""

    def __init__(self, app: ASGIApp, turn_away: Callable[[Scope, Refusal], Response]) -> None:
        self._app = app
        self._turn_away = turn_away

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it unread."""
        if scope["type"] != "http" or _is_public(scope["path"]):
            await self._app(scope, receive, send)
            return
        keeper: Keeper = scope["app"].state.service.keeper
        try:
            scope.setdefault("state", {})["principal"] = await _principal(keeper, scope)
        except Refusal as refusal:
            await self._turn_away(scope, refusal)(scope, receive, send)
            return
        except UNAVAILABLE as error:
            await self._turn_away(scope, unavailable(error))(scope, receive, send)
            return
        await self._app(scope, receive, send)


async def _principal(keeper: Keeper, scope: Scope) -> Principal:
    keeper.admit(address(scope))
    if keeper.is_open or scope["path"].startswith(_OWN):
        return ANYBODY
    secret = _shown(scope)
    found = await keeper.principal(secret)
    if found is None:
        action = f"{scope['method']} without credential" if secret is None else "bad credential"
        await keeper.fail(address(scope), action[:32], scope["path"])
        detail = "Authorization: Bearer and an API key, or a device's credential, are needed"
        raise Refusal(ProblemType.NOT_AUTHORISED, detail)
    return found


def _is_public(path: str) -> bool:
    return path in _PUBLIC or path.startswith(_ASSETS)


def is_page(path: str) -> bool:
    """Return whether people look at this path, and not programs."""
    return _PAGES.fullmatch(path) is not None


def _shown(scope: Scope) -> str | None:
    """Return the secret that a request shows: in its header, else, where that counts, a cookie."""
    headers = Headers(scope=scope)
    if "authorization" in headers or not _takes_cookie(scope):
        return bearer(headers.get("authorization"))
    return bearer(f"Bearer {cookie_parser(headers.get('cookie', '')).get(COOKIE, '')}", API_KEY)


def _takes_cookie(scope: Scope) -> bool:
    path = scope["path"]
    return is_page(path) or (scope["method"] == "GET" and bool(_STREAMS.fullmatch(path)))


def address(scope: Scope) -> str:
    """Return the address that a request came from."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


def _origin(address: str) -> str:
    """Return what failures from `address` are counted for: IPv6 has a network for everybody."""
    try:
        known = ip_address(address)
    except ValueError:
        return address
    if not isinstance(known, IPv6Address):
        return address
    if known.ipv4_mapped is not None:
        return str(known.ipv4_mapped)
    return f"{int(known) >> _HOST_BITS:x}::/{_HOST_BITS}"

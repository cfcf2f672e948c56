"""Authenticates each request before reading its body.

A closed service gives the same answer to every request without a valid credential, so the answer
does not reveal which studies exist. Browsers send a session in a cookie, which is only valid for
pages and the event streams that pages follow: requests to the API that another site makes through a
browser carry no credential. A shared link has its token in the query, which is
only valid for the pages of shared links.
"""

import re
from dataclasses import replace
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from time import monotonic
from typing import Final
from urllib.parse import parse_qs, quote

from cachetools import TTLCache
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import Scope

from protocol.api.credentials import SESSION_PREFIX, SHARE_PREFIX, bearer_secret, secret_digest
from protocol.api.messages import ProblemType
from protocol.printable import escape_hidden
from server.db.repositories.access.credentials_and_audit import AccessRepository
from server.db.repositories.access.shared_links import SharedLinkRepository
from server.errors import ProblemError
from server.http.request_limits import RateLimit, header
from server.http.response_headers import prefers
from server.principals import ANONYMOUS, VISITOR, Permission, Principal
from server.settings import Pace, Settings

# Of a path as it is received [RFC 3986, section 3.3]; "%" begins an escape.
_PATH_CHARACTERS: Final = "%/:@!$&'()*+,;="
COOKIE_NAME: Final = "blindtally_session"
AUTH_RETRY_AFTER: Final = "10"  # seconds
OIDC_PATH: Final = "/login/oidc"
OIDC_CALLBACK_PATH: Final = f"{OIDC_PATH}/callback"
_PUBLIC_PATHS: Final = frozenset(
    {"/login", OIDC_PATH, OIDC_CALLBACK_PATH, "/healthz", "/readyz", "/docs", "/openapi.json"}
)
_ASSET_PREFIX: Final = "/static/"  # public, as the source code is
SHARED_PREFIX: Final = "/shared/"
JOIN_PREFIX: Final = "/join/"
_PAGE_PATHS: Final = re.compile(r"/|/(studies|shared|join|operations|logout|help)(/.*)?", re.DOTALL)
_PROGRAM_PATHS: Final = re.compile(
    r"/(v1|metrics|healthz|readyz|static|openapi\.json)(/.*)?", re.DOTALL
)
_EVENT_STREAM_PATHS: Final = re.compile(r"/v1/studies/[^/]+/events")
_SELF_AUTHENTICATED_PREFIXES: Final = (
    "/v1/participants/",
    "/v1/devices",
)  # routes that check credentials and tokens
_MAX_CACHED_PRINCIPALS = 100_000
_MAX_RECENTLY_VALID = 100_000  # digests, of 32 bytes each
_RECENT_SECONDS = 3600.0
_MAX_ADDRESS_CHARACTERS = 64  # an IPv6 address with a zone has about 60
_MAX_AUDITED_REFUSALS = 600  # per minute and process: about 100 MB a day
# Bits of the IPv6 network that is one source: of failures that of a site, because its owner can use
# any address in it; of joins that of a household, because a provider has many of them.
_FAILURE_BITS, _JOIN_BITS = 48, 64
_MISSING: Final = "an API key or a device's credential is required in Authorization: Bearer"
_INVALID: Final = "the API key or the credential is unknown, expired or revoked"
_NO_KEY: Final = (
    "Authorization has no key of this service: an API key is Bearer btk_ and 43 letters, digits, - "
    "and _, and a device's credential is Bearer and 43 of these without a prefix"
)
_OTHER_NAME: Final = "an open service is for this machine: use http://localhost or its address"
_OTHER_SITE: Final = "a page of another site sent this request: an open service refuses its changes"
_ENDED_LINK: Final = (
    "this link has ended, or parts of it are missing: ask who sent it for a new one"
)
_READING_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_TOO_MANY_LOGINS: Final = "too many logins from this address: wait, or use an API key"
_TOO_MANY_FAILURES: Final = "too many requests without a valid credential: wait"


class Authenticator:
    """Authentication of requests, with a cache of recent credentials."""

    def __init__(
        self, settings: Settings, pace: Pace, access: AccessRepository, links: SharedLinkRepository
    ) -> None:
        self.is_open = settings.open
        self._scopes_of = settings.scopes_of_person
        self._access, self._links = access, links
        self.cached_principals: TTLCache[bytes, Principal] = TTLCache(
            _MAX_CACHED_PRINCIPALS, pace.credential_cache_seconds, timer=monotonic
        )
        self._recently_valid: TTLCache[bytes, None] = TTLCache(
            _MAX_RECENTLY_VALID, _RECENT_SECONDS, timer=monotonic
        )
        self._failures = RateLimit(settings.max_auth_failures)
        self._lookups = RateLimit(settings.max_joins)
        self._requests = RateLimit(settings.max_requests)
        self._logins = RateLimit(settings.max_auth_failures)
        self._joins = RateLimit(settings.max_joins)
        self._audited_of_source = RateLimit(1)
        self._audited = RateLimit(_MAX_AUDITED_REFUSALS)
        self._unrecorded = 0  # refusals since the last one in the audit trail

    def check_address(self, address: str, secret: str | None) -> None:
        """Raise ProblemError if an address has failed too often and `secret` may not be looked up.

        Others may share the address, so their valid credentials pass: those that were valid within
        the last hour always, and others as long as the address may have credentials looked up.
        """
        key = rate_limit_key(address)
        if self.is_open or self._failures.allows(key):
            return
        if secret is not None and (
            secret_digest(secret) in self._recently_valid or self._lookups.hit(key)
        ):
            return
        self._unrecorded += 1
        raise ProblemError(ProblemType.TOO_MANY, _TOO_MANY_FAILURES)

    def remember_valid(self, digest: bytes) -> None:
        """Let the credential or token of this digest pass `check_address` for an hour."""
        self._recently_valid[digest] = None

    def forget_valid(self, digest: bytes) -> None:
        """Undo `remember_valid`, because the credential or token of this digest was refused."""
        self._recently_valid.pop(digest, None)

    async def record_failure(
        self, address: str, action: str, subject: str, caller: str | None = None
    ) -> None:
        """Record in the audit trail that `address` was refused.

        One refusal a minute is recorded of each address, or of a known `caller`. The others are
        counted, and their number is recorded with the next one.

        Raises:
            ProblemError: if concurrent requests have meanwhile used up the limit of the address.
                Then nothing is recorded.
        """
        key = rate_limit_key(address)
        is_in_limit = self._failures.hit(key)
        is_first = self._audited_of_source.hit(caller or key)
        if not is_first or not self._audited.hit():
            self._unrecorded += 1
        else:
            unrecorded, self._unrecorded = self._unrecorded, 0
            await self._access.record_refusal(
                f"address {address}"[:100], action, subject[:200], unrecorded
            )
        if not self.is_open and not is_in_limit:
            raise ProblemError(ProblemType.TOO_MANY, _TOO_MANY_FAILURES)

    async def principal_of(self, scope: Scope) -> Principal:
        """Return the sender of a request.

        Routes that check credentials and tokens themselves get the anonymous principal.

        Raises:
            ProblemError: if it has no valid credential, or too many requests came from it; if the
                service is open, a request to a name that another site may have, or a change by
                the API that a page of another site causes (pages check their forms).
        """
        if self.is_open:
            if _may_name_a_site(header(scope, b"host") or ""):
                raise ProblemError(ProblemType.FORBIDDEN, _OTHER_NAME)
            is_change = scope["method"] not in _READING_METHODS
            if is_change and not is_page(scope["path"]) and _is_of_another_site(scope):
                raise ProblemError(ProblemType.FORBIDDEN, _OTHER_SITE)
        if scope["path"].startswith(SHARED_PREFIX):
            return await self._reader_of_link(scope)
        if scope["path"].startswith(JOIN_PREFIX):  # who knows the id of a study may read its page
            self.count_join(client_address(scope))
            return VISITOR
        if self.is_open:
            return ANONYMOUS
        secret = _bearer_secret(scope)
        self.check_address(client_address(scope), secret)
        if scope["path"].startswith(_SELF_AUTHENTICATED_PREFIXES):
            return ANONYMOUS
        principal = await self.authenticate(secret)
        if principal is None:
            has_header = header(scope, b"authorization") is not None
            is_missing = secret is None and not has_header
            action = f"{scope['method']} without credential" if is_missing else "bad credential"
            await self.record_failure(client_address(scope), action[:32], received_path(scope))
            detail = _MISSING if is_missing else _NO_KEY if secret is None else _INVALID
            raise ProblemError(ProblemType.NOT_AUTHORISED, detail)
        return principal

    async def _reader_of_link(self, scope: Scope) -> Principal:
        """Return who has the link of a request: a principal of its study without permissions.

        Links are not cached, so that one that was ended is refused at once.

        Raises:
            ProblemError: if the link has ended or never existed, or is used too often.
        """
        query = parse_qs(scope["query_string"].decode("latin-1"))
        secret = bearer_secret(f"Bearer {query.get('token', [''])[-1]}", SHARE_PREFIX)
        self.check_address(client_address(scope), secret)
        digest = secret_digest(secret) if secret else b""
        link = await self._links.find(digest) if secret else None
        if link is None or not self._may_share(link[1]):
            self.forget_valid(digest)
            await self.record_failure(client_address(scope), "ended link", received_path(scope))
            raise ProblemError(ProblemType.NOT_AUTHORISED, _ENDED_LINK)
        self.remember_valid(digest)
        self.count_request(f"link {digest.hex()}")
        return Principal(f"link to {link[0]}", frozenset(), study=link[0])

    def _may_share(self, maker: str) -> bool:
        """Return whether links of a maker are valid: a person, the id of a key, or anonymous."""
        if maker == ANONYMOUS.name:
            return self.is_open
        return "@" not in maker or Permission.READ in self._scopes_of(maker)

    async def authenticate(self, secret: str | None) -> Principal | None:
        """Return the owner of `secret`, or None; raises ProblemError after too many requests."""
        if secret is None:
            return None
        key = secret_digest(secret)
        principal = self.cached_principals.get(key)
        if principal is None:
            is_session = secret.startswith(SESSION_PREFIX)
            find = self._access.find_session if is_session else self._access.find_principal
            principal = await find(key)
            if principal is not None and principal.is_person:
                principal = self._admitted(principal)
            if principal is None:
                self.forget_valid(key)
                return None
            self.cached_principals[key] = principal
            self.remember_valid(key)
        self.count_request(principal.name)
        return principal

    def _admitted(self, person: Principal) -> Principal | None:
        """Return a person with the scopes of their login that the rules still allow, or None."""
        scopes = person.permissions & self._scopes_of(person.name)
        return replace(person, permissions=scopes) if scopes else None

    async def end_session(self, secret: str) -> None:
        """End a session; other processes may accept it until their caches forget it."""
        digest = secret_digest(secret)
        await self._access.end_session(digest)
        self.cached_principals.pop(digest, None)
        self.forget_valid(digest)

    def count_request(self, name: str) -> None:
        """Count a request of the principal `name`; raises ProblemError if it exceeds the limit."""
        if not self.is_open and not self._requests.hit(name):
            raise ProblemError(ProblemType.TOO_MANY, "too many requests with this credential: wait")

    def count_login(self, address: str) -> None:
        """Count a login at the OpenID provider; raises ProblemError if it exceeds the limit.

        The provider checks its code, so it is counted before. Invalid credentials that others at
        the address send do not count.
        """
        if not self._logins.hit(rate_limit_key(address)):
            raise ProblemError(ProblemType.TOO_MANY, _TOO_MANY_LOGINS)

    def count_join(self, source: str) -> None:
        """Count a device that joins or enrols from the address, or by the token, `source`.

        Raises:
            ProblemError: if it exceeds the limit.
        """
        if not self.is_open and not self._joins.hit(rate_limit_key(source, _JOIN_BITS)):
            detail = "too many devices join from this address, or enrol with this token: wait"
            raise ProblemError(ProblemType.TOO_MANY, detail)

    def count_enrolment(self, address: str, token: bytes) -> None:
        """Count a request for enrolment by the digest of its token.

        With a token that was valid within the last hour it counts as a device that joins from the
        address. False tokens would take the joins of the devices there.

        Raises:
            ProblemError: if it exceeds the limit.
        """
        if token in self._recently_valid:
            self.count_join(address)
        elif not self.is_open and not self._lookups.hit(rate_limit_key(address)):
            raise ProblemError(ProblemType.TOO_MANY, _TOO_MANY_FAILURES)

    def remember_enrolment(self, address: str, token: bytes, credential: bytes) -> None:
        """Let token and credential of an enrolled device pass `check_address` for an hour."""
        if token not in self._recently_valid:  # not counted before
            self._joins.hit(rate_limit_key(address, _JOIN_BITS))
        self.remember_valid(token)
        self.remember_valid(credential)

    async def is_still_valid(self, principal: Principal) -> bool:
        """Return whether the key or the session of a long response is still valid."""
        return self.is_open or await self._access.is_still_valid(principal)


def is_public(path: str) -> bool:
    """Return whether the path needs no credential."""
    return path in _PUBLIC_PATHS or path.startswith(_ASSET_PREFIX)


def is_page(path: str) -> bool:
    """Return whether the path is a page for people, and not the API."""
    return _PAGE_PATHS.fullmatch(path) is not None


def shows_page(scope: Scope) -> bool:
    """Return whether the response is for people: on a page's path, or a browser's mistyped one."""
    path = scope["path"]
    if is_page(path):
        return True
    is_reading = scope["method"] in ("GET", "HEAD") and not _PROGRAM_PATHS.fullmatch(path)
    return is_reading and prefers(scope, "text/html", to="application/json")


@lru_cache(64)
def _may_name_a_site(host: str) -> bool:
    """Return whether a site on the internet can have this host name.

    A site can let its own name lead to this machine, and so read an open service through the
    browser of a visitor ("DNS rebinding"). It cannot do so by an address or a name without a dot.
    """
    name, _, port = host.rpartition(":")
    name = name if port.isdecimal() else host
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return "." in name and not name.endswith(".localhost")
    return False


def _is_of_another_site(scope: Scope) -> bool:
    """Return whether a browser states that a page of another site, or of none, sent a request.

    Programs send neither header. A browser asks the service before it sends JSON or another method
    than POST for another site, but not before a POST without a body.
    """
    site, origin = header(scope, b"sec-fetch-site"), header(scope, b"origin")
    host = (origin or "").partition("://")[2]
    is_other_origin = origin is not None and host != header(scope, b"host")
    return is_other_origin or site not in (None, "same-origin", "none")


def _bearer_secret(scope: Scope) -> str | None:
    """Return the secret in the header of a request, or in its cookie where that is accepted."""
    authorization, path = header(scope, b"authorization"), scope["path"]
    is_event_stream = scope["method"] == "GET" and _EVENT_STREAM_PATHS.fullmatch(path)
    if authorization is None and (is_event_stream or shows_page(scope)):
        return session_secret(Headers(scope=scope))
    secret = bearer_secret(authorization)
    # A session in a header is refused: other sites cannot set one, but scripts could keep it.
    is_bearer = secret is not None and not secret.startswith((SESSION_PREFIX, SHARE_PREFIX))
    return secret if is_bearer else None


def session_secret(headers: Headers) -> str | None:
    """Return the secret of the session in the cookie of a request, or None."""
    cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE_NAME, "")
    return bearer_secret(f"Bearer {cookie}", SESSION_PREFIX)


def client_address(scope: Scope) -> str:
    """Return the address of a client, as its connection or a trusted proxy states it.

    A proxy may pass on what the client sends, which is then no address, and of any length.
    """
    client = scope.get("client")
    return escape_hidden(str(client[0]))[:_MAX_ADDRESS_CHARACTERS] if client else "unknown"


def received_path(scope: Scope) -> str:
    """Return the path of a request as it was received, percent-encoded, without its query.

    A decoded path may have control characters, which would reach readers of the audit trail.
    """
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return quote(raw, safe=_PATH_CHARACTERS)


@lru_cache(10_000)
def rate_limit_key(address: str, network_bits: int = _FAILURE_BITS) -> str:
    """Return the address, or the IPv6 network, by which failures and joins are counted."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{int(parsed) >> 128 - network_bits:x}::/{network_bits}"

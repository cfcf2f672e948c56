"""An OpenID provider, as a client finds it by its issuer: its addresses, its keys, its ID tokens.

    discovery    GET issuer/.well-known/openid-configuration: the provider's addresses, for an hour
    keys         GET the provider's public keys, whenever they are needed

An ID token counts if one of these keys signed it, by an asymmetric algorithm, for this client.
Answers are limited in size and time, and redirects are not followed. No error or log has a code, a
token or a secret.

Source: OpenID Connect Core 1.0, section 3.1.3; OpenID Connect Discovery 1.0, section 4.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import httpx
import structlog
from pydantic import BaseModel, ValidationError, ValidationInfo, field_validator

from protocol.api.messages import ProblemType
from server.errors import ProblemError
from server.settings import is_secure_url

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

ALGORITHMS: Final = ("RS256", "PS256", "ES256", "ES384", "EdDSA", "Ed25519")  # none is symmetric
CLOCK_LEEWAY_SECONDS: Final = 60
MAX_ANSWER_BYTES: Final = 256 * 1024
MIN_RSA_BITS: Final = 2048  # RFC 7518, sections 3.3 and 3.5
# InvalidURL and ImportError: of a proxy variable in the environment.
_REQUEST_ERRORS: Final = (httpx.HTTPError, httpx.InvalidURL, ImportError)
_ANSWER_SECONDS = 10.0
_MAX_REQUESTS = 10  # to the provider at a time
_ADDRESSES_SECONDS = 3600.0
_MAX_REASON = 200  # characters, of a line in the log
_PAUSE_SECONDS = 5.0  # until the addresses are requested again after a failure
_UNAVAILABLE = "the login service does not answer as expected: try again later, or use an API key"
_NOT_ACCEPTED = "the login service's answer was not accepted: log in again"
_log = structlog.get_logger(__name__)


class Addresses(BaseModel):
    """Fields of the provider's discovery document that this client uses."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    authorization_response_iss_parameter_supported: bool = False
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)

    @field_validator("authorization_endpoint", "token_endpoint", "jwks_uri")
    @classmethod
    def _is_secure(cls, url: str, info: ValidationInfo) -> str:
        is_local = not str(info.data.get("issuer")).startswith("https:")
        if not is_secure_url(url) or not (is_local or url.startswith("https:")):
            raise ValueError("an https:// URL expected")
        return url


class Answer(NamedTuple):
    """Status and JSON object of an answer."""

    status: int
    document: dict[str, Any]


class Issuer:
    """The provider with this issuer, which must be exactly as the provider states it."""

    def __init__(self, issuer: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._issuer = issuer
        self._transport, self._tls = transport, httpx.create_ssl_context()
        self._requests = asyncio.Semaphore(_MAX_REQUESTS)
        self._addresses: Addresses | None = None
        self._request_addresses_at = 0.0  # on the clock `monotonic`
        self._lock = asyncio.Lock()

    async def find_addresses(self) -> Addresses:
        """Return the addresses; raises ProblemError if the provider does not answer as expected."""
        async with self._lock:
            if monotonic() >= self._request_addresses_at:
                self._addresses = None
                try:
                    self._addresses = await self._fetch_addresses()
                finally:  # those who waited for it meanwhile do not repeat a failure
                    pause = _PAUSE_SECONDS if self._addresses is None else _ADDRESSES_SECONDS
                    self._request_addresses_at = monotonic() + pause
            if self._addresses is None:  # the failed request has logged the reason
                raise ProblemError(ProblemType.UNAVAILABLE, _UNAVAILABLE)
            return self._addresses

    async def _fetch_addresses(self) -> Addresses:
        url = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        answer = await self.fetch("GET", url, 200)
        try:
            addresses = Addresses.model_validate(answer.document)
        except ValidationError as error:
            fields = ", ".join(str(fault["loc"][0]) for fault in error.errors())
            raise unavailable(f"the discovery document has an invalid {fields}") from None
        if addresses.issuer != self._issuer:
            raise unavailable("the discovery document names another issuer")
        return addresses

    async def fetch_keys(self) -> dict[str, Any]:
        """Return the JWK set that the provider publishes now; raises ProblemError as above."""
        return (await self.fetch("GET", (await self.find_addresses()).jwks_uri, 200)).document

    async def fetch(self, method: str, url: str, *statuses: int, **options: Any) -> Answer:  # noqa: ANN401
        """Return the provider's JSON object, if it has one of `statuses`.

        Each request has its own connection: httpcore 1.0 loses those of a pool for which cancelled
        requests have waited, until none is left.
        """
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        body = bytearray()
        try:
            async with (
                asyncio.timeout(_ANSWER_SECONDS),
                self._requests,
                httpx.AsyncClient(
                    transport=self._transport, verify=self._tls, timeout=_ANSWER_SECONDS
                ) as client,
                client.stream(method, url, headers=headers, **options) as response,
            ):
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > MAX_ANSWER_BYTES:
                        raise unavailable(f"too large an answer from {url}")
            document = json.loads(body)
        except (TimeoutError, *_REQUEST_ERRORS, ValueError, RecursionError) as error:
            raise unavailable(f"{type(error).__name__} from {url}") from None
        if response.status_code not in statuses or not isinstance(document, dict):
            raise unavailable(f"status {response.status_code} of {url}")
        return Answer(response.status_code, document)


def read_claims(
    token: str,
    keys: Mapping[str, Any],
    issuer: str,
    client_id: str,
    nonce: str | None,
    now: datetime,
) -> dict[str, Any]:
    """Return the claims of an ID token that one of `keys`, a JWK set, signed for this client.

    A token that is not of a login has no particular `nonce`.

    Raises:
        ProblemError: if signature, issuer, audience, nonce or a time is wrong.
        ImportError: without the extra `oidc`.
    """
    from joserfc import jws, jwt  # noqa: PLC0415
    from joserfc.errors import JoseError  # noqa: PLC0415

    registry = jws.JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
    own: dict[str, Any] = {} if nonce is None else {"nonce": {"essential": True, "value": nonce}}
    checks = jwt.JWTClaimsRegistry(
        now=int(now.timestamp()),
        leeway=CLOCK_LEEWAY_SECONDS,
        iss={"essential": True, "value": issuer},
        aud={"essential": True, "value": client_id},
        exp={"essential": True},
        iat={"essential": True},
        sub={"essential": True},
        **own,
    )
    try:
        claims = jwt.decode(token, _import_keys(keys), ALGORITHMS, registry).claims
        checks.validate(claims)
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = str(error) if isinstance(error, JoseError) else type(error).__name__
        raise refused(reason[:_MAX_REASON]) from None
    has_others = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if claims.get("azp", None if has_others else client_id) != client_id:
        raise refused("the ID token is for another client")
    return claims


def _import_keys(keys: Mapping[str, Any]) -> "KeySet":
    """Return the safe keys of known kinds in a JWK set; providers add new kinds to theirs."""
    from joserfc import jwk  # noqa: PLC0415
    from joserfc.errors import JoseError  # noqa: PLC0415

    imported = []
    for key in keys["keys"]:
        with suppress(JoseError, ValueError, TypeError, KeyError, AttributeError):
            known = jwk.import_key(dict(key))
            if not isinstance(known, jwk.RSAKey) or known.raw_value.key_size >= MIN_RSA_BITS:
                imported.append(known)
    return jwk.KeySet(imported)


def refused(reason: str) -> ProblemError:
    """Log the reason of a refusal; return the refusal, which does not contain the reason."""
    _log.warning("login at the OpenID provider refused", reason=reason)
    return ProblemError(ProblemType.NOT_AUTHORISED, _NOT_ACCEPTED)


def unavailable(reason: str) -> ProblemError:
    _log.warning("the OpenID provider does not answer as expected", reason=reason)
    return ProblemError(ProblemType.UNAVAILABLE, _UNAVAILABLE)

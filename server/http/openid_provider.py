"""Client of the OpenID provider at which people log in: the authorization code flow with PKCE.

    discovery    GET issuer/.well-known/openid-configuration: the provider's addresses, for an hour
    browser      is sent to the provider, and returns with a code
    token        POST code, PKCE verifier and client secret: an ID token
    keys         GET the provider's public keys, at each login, so that changed keys are known

An ID token counts if one of these keys signed it, by an asymmetric algorithm, for this client and
this attempt. It must name a verified e-mail address. Answers are limited in size and time, and
redirects are not followed. No error or log has the code, a token or a secret.

Source: OpenID Connect Core 1.0, sections 3.1.2 and 3.1.3; OpenID Connect Discovery 1.0, section 4;
RFC 9207.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus

import httpx
import structlog
from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator

from protocol.api.messages import ProblemType
from server.errors import ProblemError
from server.http.auth import OIDC_CALLBACK_PATH
from server.http.login_attempt import LoginAttempt
from server.principals import Principal
from server.settings import Settings, is_secure_url

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
_MAX_CALLBACK_TEXT = 4000  # characters
_MAX_REASON = 200  # characters, of a line in the log
_PAUSE_SECONDS = 5.0  # until the addresses are requested again after a failure
_EMAIL = re.compile(r"[!-?A-~]+@[a-z0-9.-]+")
_MAX_EMAIL = 90  # characters, so that the audit trail has room
_UNAVAILABLE = "the login service does not answer as expected: try again later, or use an API key"
_NOT_ACCEPTED = "the login service's answer was not accepted: log in again"
_UNKNOWN_ATTEMPT = "this browser did not begin this login in the last ten minutes: log in again"
_UNVERIFIED = "the login service has not verified your e-mail address, or does not send it"
_NOT_ALLOWED = "this service does not admit {}: ask its operator"
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


class Callback(BaseModel):
    """Query of the address to which the provider sends a browser back."""

    state: str = Field(default="", max_length=_MAX_CALLBACK_TEXT)
    code: str = Field(default="", max_length=_MAX_CALLBACK_TEXT)
    error: str = Field(default="", max_length=_MAX_CALLBACK_TEXT)
    iss: str | None = Field(default=None, max_length=_MAX_CALLBACK_TEXT)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    document: dict[str, Any]


class OpenIdProvider:
    """The provider of `settings`, which must have one."""

    def __init__(
        self, settings: Settings, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        assert settings.oidc_issuer
        assert settings.oidc_client_id
        assert settings.oidc_client_secret
        self.name = settings.oidc_name
        self.redirect_uri = f"{settings.public_url}{OIDC_CALLBACK_PATH}"
        self._issuer, self._client_id = settings.oidc_issuer, settings.oidc_client_id
        self._client_secret = settings.oidc_client_secret
        self._scopes_of = settings.scopes_of_person
        self._transport, self._tls = transport, httpx.create_ssl_context()
        self._requests = asyncio.Semaphore(_MAX_REQUESTS)
        self._addresses: Addresses | None = None
        self._request_addresses_at = 0.0  # on the clock `monotonic`
        self._lock = asyncio.Lock()

    async def login_url(self, attempt: LoginAttempt) -> str:
        """Return the provider's address to which a browser is sent to log in.

        Raises:
            ProblemError: if the provider does not answer as expected.
        """
        addresses = await self._find_addresses()
        parameters = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self.redirect_uri,
            "scope": "openid email",
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": attempt.challenge,
            "code_challenge_method": "S256",
        }
        return str(httpx.URL(addresses.authorization_endpoint).copy_merge_params(parameters))

    async def log_in(
        self, attempt: LoginAttempt | None, callback: Callback, now: datetime
    ) -> Principal:
        """Return the person who logged in at the provider before the browser came to `callback`.

        Raises:
            ProblemError: if this is not the callback of `attempt`, if the provider does not answer
                as expected, if its ID token is not valid for the attempt, or if the person is not
                allowed.
        """
        if attempt is None or not attempt.may_continue(callback.state, now):
            raise ProblemError(ProblemType.NOT_AUTHORISED, _UNKNOWN_ATTEMPT)
        if callback.error or not callback.code or callback.iss not in (None, self._issuer):
            raise _refused(f"the callback has no code, or another issuer: {callback.error[:40]!r}")
        addresses = await self._find_addresses()
        if callback.iss is None and addresses.authorization_response_iss_parameter_supported:
            raise _refused("the callback does not name its issuer")
        token = await self._fetch_token(addresses, attempt, callback.code)
        keys = (await self._fetch("GET", addresses.jwks_uri, 200)).document
        email = verified_email(
            read_claims(token, keys, self._issuer, self._client_id, attempt.nonce, now)
        )
        scopes = self._scopes_of(email)
        if not scopes:
            raise ProblemError(ProblemType.FORBIDDEN, _NOT_ALLOWED.format(email))
        return Principal(email, scopes, is_person=True)

    async def _find_addresses(self) -> Addresses:
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
        answer = await self._fetch("GET", url, 200)
        try:
            addresses = Addresses.model_validate(answer.document)
        except ValidationError as error:
            fields = ", ".join(str(fault["loc"][0]) for fault in error.errors())
            raise _unavailable(f"the discovery document has an invalid {fields}") from None
        if addresses.issuer != self._issuer:
            raise _unavailable("the discovery document names another issuer")
        return addresses

    async def _fetch_token(self, addresses: Addresses, attempt: LoginAttempt, code: str) -> str:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
            "code_verifier": attempt.verifier,
        }
        auth, secret = None, self._client_secret.get_secret_value()
        if "client_secret_basic" in addresses.token_endpoint_auth_methods_supported:
            auth = httpx.BasicAuth(quote_plus(self._client_id), quote_plus(secret))
        else:
            form |= {"client_id": self._client_id, "client_secret": secret}
        answer = await self._fetch("POST", addresses.token_endpoint, 200, 400, data=form, auth=auth)
        token = answer.document.get("id_token")
        if answer.status == 400:
            code = str(answer.document.get("error"))[:40]
            raise _refused(f"the token endpoint answers {code!r}")
        if not isinstance(token, str):
            raise _refused("the token endpoint sent no ID token")
        return token

    async def _fetch(self, method: str, url: str, *statuses: int, **options: Any) -> _Answer:  # noqa: ANN401
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
                        raise _unavailable(f"too large an answer from {url}")
            document = json.loads(body)
        except (TimeoutError, *_REQUEST_ERRORS, ValueError, RecursionError) as error:
            raise _unavailable(f"{type(error).__name__} from {url}") from None
        if response.status_code not in statuses or not isinstance(document, dict):
            raise _unavailable(f"status {response.status_code} of {url}")
        return _Answer(response.status_code, document)


def read_claims(
    token: str, keys: Mapping[str, Any], issuer: str, client_id: str, nonce: str, now: datetime
) -> dict[str, Any]:
    """Return the claims of an ID token that one of `keys`, a JWK set, signed for this attempt.

    Raises:
        ProblemError: if signature, issuer, audience, nonce or a time is wrong.
        ImportError: without the extra `oidc`.
    """
    from joserfc import jws, jwt  # noqa: PLC0415
    from joserfc.errors import JoseError  # noqa: PLC0415

    registry = jws.JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
    checks = jwt.JWTClaimsRegistry(
        now=int(now.timestamp()),
        leeway=CLOCK_LEEWAY_SECONDS,
        iss={"essential": True, "value": issuer},
        aud={"essential": True, "value": client_id},
        nonce={"essential": True, "value": nonce},
        exp={"essential": True},
        iat={"essential": True},
        sub={"essential": True},
    )
    try:
        claims = jwt.decode(token, _import_keys(keys), ALGORITHMS, registry).claims
        checks.validate(claims)
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = str(error) if isinstance(error, JoseError) else type(error).__name__
        raise _refused(reason[:_MAX_REASON]) from None
    has_others = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if claims.get("azp", None if has_others else client_id) != client_id:
        raise _refused("the ID token is for another client")
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


def verified_email(claims: Mapping[str, Any]) -> str:
    """Return the verified e-mail address of an ID token in lower case, or raise ProblemError."""
    email = claims.get("email")
    is_verified = claims.get("email_verified") is True
    if is_verified and isinstance(email, str) and email.isascii() and len(email) <= _MAX_EMAIL:
        email = email.lower()
        if _EMAIL.fullmatch(email):
            return email
    raise ProblemError(ProblemType.FORBIDDEN, _UNVERIFIED)


def _refused(reason: str) -> ProblemError:
    """Log the reason of a refusal; return the refusal, which does not contain the reason."""
    _log.warning("login at the OpenID provider refused", reason=reason)
    return ProblemError(ProblemType.NOT_AUTHORISED, _NOT_ACCEPTED)


def _unavailable(reason: str) -> ProblemError:
    _log.warning("the OpenID provider does not answer as expected", reason=reason)
    return ProblemError(ProblemType.UNAVAILABLE, _UNAVAILABLE)

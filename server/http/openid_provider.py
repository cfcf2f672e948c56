"""Client of the OpenID provider at which people log in: the authorization code flow with PKCE.

    browser      is sent to the provider, and returns with a code
    token        POST code, PKCE verifier and client secret: an ID token

The ID token counts if it is valid for this client and this attempt, by the keys that the provider
publishes now (`openid_issuer`). It must name a verified e-mail address. No error or log has the
code, a token or a secret.

Source: OpenID Connect Core 1.0, sections 3.1.2 and 3.1.3; RFC 9207.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote_plus

import httpx
from pydantic import BaseModel, Field

from protocol.api.messages import ProblemType
from server.errors import ProblemError
from server.http.auth import OIDC_CALLBACK_PATH
from server.http.login_attempt import LoginAttempt
from server.http.openid_issuer import Addresses, Issuer, read_claims, refused
from server.principals import Principal
from server.settings import Settings

_MAX_CALLBACK_TEXT = 4000  # characters
_EMAIL = re.compile(r"[!-?A-~]+@[a-z0-9.-]+")
_MAX_EMAIL = 90  # characters, so that the audit trail has room
_UNKNOWN_ATTEMPT = "this browser did not begin this login in the last ten minutes: log in again"
_UNVERIFIED = "the login service has not verified your e-mail address, or does not send it"
_NOT_ALLOWED = "this service does not admit {}: ask its operator"


class Callback(BaseModel):
    """Query of the address to which the provider sends a browser back."""

    state: str = Field(default="", max_length=_MAX_CALLBACK_TEXT)
    code: str = Field(default="", max_length=_MAX_CALLBACK_TEXT)
    error: str = Field(default="", max_length=_MAX_CALLBACK_TEXT)
    iss: str | None = Field(default=None, max_length=_MAX_CALLBACK_TEXT)


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
        self._provider = Issuer(settings.oidc_issuer, transport)

    async def login_url(self, attempt: LoginAttempt) -> str:
        """Return the provider's address to which a browser is sent to log in.

        Raises:
            ProblemError: if the provider does not answer as expected.
        """
        addresses = await self._provider.find_addresses()
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
            raise refused(f"the callback has no code, or another issuer: {callback.error[:40]!r}")
        addresses = await self._provider.find_addresses()
        if callback.iss is None and addresses.authorization_response_iss_parameter_supported:
            raise refused("the callback does not name its issuer")
        token = await self._fetch_token(addresses, attempt, callback.code)
        keys = await self._provider.fetch_keys()
        email = verified_email(
            read_claims(token, keys, self._issuer, self._client_id, attempt.nonce, now)
        )
        scopes = self._scopes_of(email)
        if not scopes:
            raise ProblemError(ProblemType.FORBIDDEN, _NOT_ALLOWED.format(email))
        return Principal(email, scopes, is_person=True)

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
        url = addresses.token_endpoint
        answer = await self._provider.fetch("POST", url, 200, 400, data=form, auth=auth)
        token = answer.document.get("id_token")
        if answer.status == 400:
            code = str(answer.document.get("error"))[:40]
            raise refused(f"the token endpoint answers {code!r}")
        if not isinstance(token, str):
            raise refused("the token endpoint sent no ID token")
        return token


def verified_email(claims: Mapping[str, Any]) -> str:
    """Return the verified e-mail address of an ID token in lower case, or raise ProblemError."""
    email = claims.get("email")
    is_verified = claims.get("email_verified") is True
    if is_verified and isinstance(email, str) and email.isascii() and len(email) <= _MAX_EMAIL:
        email = email.lower()
        if _EMAIL.fullmatch(email):
            return email
    raise ProblemError(ProblemType.FORBIDDEN, _UNVERIFIED)

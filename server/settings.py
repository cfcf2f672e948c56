"""Settings of the service, by option or by environment variable BLINDTALLY_<NAME>."""

import re
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from pydantic import Field, Json, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from protocol.api.credentials import API_KEY_PREFIX, ENROLMENT_TOKEN_PREFIX, bearer_secret
from server.db.database_url import parse_url
from server.principals import Permission

PAGE_SCOPES: Final = frozenset({Permission.READ, Permission.WRITE, Permission.OPERATE})


# The path of the public URL is a part of links in pages, without escapes.
_PUBLIC_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)*/?")
MAX_DEVICE_DELTA: Final = 1e-3  # that a device may spend on reports to all studies
SHUTDOWN_SECONDS: Final = 5  # for open requests to finish after Ctrl-C


@dataclass(frozen=True, slots=True)
class Pace:
    """Durations that no operator needs to change; tests use others.

    Attributes:
        poll_seconds, min_poll_seconds: maximum and minimum between two checks of the cohorts.
        lease_seconds: until another process takes over a job of a process that died.
        credential_cache_seconds: for which a revoked credential may still be accepted.
    """

    poll_seconds: float = 1.0
    min_poll_seconds: float = 0.05
    lease_seconds: float = 15.0
    credential_cache_seconds: float = 5.0


DEFAULT_PACE: Final = Pace()


class Settings(BaseSettings):
    """Settings of a server process; the defaults serve one machine from one SQLite file."""

    model_config = SettingsConfigDict(
        env_prefix="BLINDTALLY_",
        frozen=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,  # the input may be a secret or a database's password
    )

    host: str = "127.0.0.1"
    """Address to listen on."""
    behind_proxy: bool = False
    """Serve other machines, through a proxy that limits their connections."""
    accept_unlimited_connections: bool = False
    """Serve other machines without a proxy, although one client can take all connections."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 selects a free one."""
    database_url: str = Field(default="sqlite:///blindtally.db", repr=False)  # a password
    """Database: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME."""
    database_timeout_seconds: float = Field(default=5.0, gt=0, le=60)
    """Seconds to wait for a locked database, or for a connection to it."""
    max_device_epsilon: float = Field(default=16.0, gt=0, le=1000)
    """Epsilon that a device may spend on locally private reports to all studies."""
    open: bool = False
    """Require no credentials: for trials on one machine."""
    initial_api_key: SecretStr | None = None
    """API key with all scopes, added at the start if it is new."""
    initial_enrolment_token: SecretStr | None = None
    """Enrolment token for a million devices, added at the start if it is new."""
    initial_member_key: SecretStr | None = None
    """API key of members of committees (scope `committee`), added at the start if it is new."""
    public_url: str | None = None
    """Address of the dashboard in browsers, such as https://example.org/statistics."""
    oidc_issuer: str | None = None
    """OpenID provider at which people may log in: its issuer, an https URL."""
    oidc_client_id: str | None = None
    """Client id that the OpenID provider gave this service."""
    oidc_client_secret: SecretStr | None = None
    """Client secret that the OpenID provider gave this service."""
    oidc_allowed: Json[dict[str, frozenset[Permission]]] = Field(default={}, validate_default=False)
    """Scopes of people (anna@example.org) and of domains (@example.org) after a login, as JSON."""
    oidc_name: str = Field(default="single sign-on", min_length=1, max_length=40)
    """Name of the OpenID provider on the login page."""
    max_auth_failures: int = Field(default=30, ge=1)
    """Requests with invalid credentials per minute and address."""
    max_requests: int = Field(default=1200, ge=1)
    """Requests per minute and valid credential."""
    max_joins: int = Field(default=3000, ge=1)
    """Devices that join or enrol, per minute and address or enrolment token."""
    max_upload_bytes: int = Field(default=64 * 2**20, ge=1024)
    """Largest binary body of a request, in bytes."""
    tls_certificate: Path | None = None
    """Certificate chain (PEM file) to serve HTTPS with."""
    tls_key: Path | None = None
    """Private key (PEM file) of the certificate."""
    hsts_seconds: int = Field(default=0, ge=0, le=2 * 365 * 24 * 3600)
    """Seconds for which browsers must use HTTPS (HSTS); 0 sends no such header."""
    forwarded_allow_ips: str = ""
    """Addresses or networks of proxies whose X-Forwarded-* headers are trusted; empty for none."""
    keep_devices_days: float = Field(default=30.0, ge=0, le=36_500)
    """Days to keep identities, messages and reports of devices after the end of their study."""
    keep_studies_days: float | None = Field(default=None, ge=0, le=36_500)
    """Days to keep a study and its answer after its end; unset for ever."""
    keep_audit_days: float = Field(default=400.0, ge=1, le=36_500)
    """Days to keep entries of the audit trail."""

    def scopes_of_person(self, email: str) -> frozenset[Permission]:
        """Return the scopes of an e-mail address in lower case, by its own or its domain's rule."""
        if self.oidc_issuer is None:
            return frozenset()
        of_domain = self.oidc_allowed.get(email[email.rindex("@") :], frozenset())
        return self.oidc_allowed.get(email, of_domain)

    @model_validator(mode="after")
    def _has_certificate_and_key(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("a certificate and its key: name both, or neither")
        return self

    @model_validator(mode="after")
    def _has_all_of_the_provider(self) -> Self:
        needed = self.public_url, self.oidc_client_id, self.oidc_client_secret, self.oidc_allowed
        if self.oidc_issuer is not None and not all(needed):
            raise ValueError(
                "BLINDTALLY_OIDC_ISSUER also requires BLINDTALLY_PUBLIC_URL and "
                "BLINDTALLY_OIDC_CLIENT_ID, _CLIENT_SECRET and _ALLOWED"
            )
        return self

    @field_validator("public_url", "oidc_issuer")
    @classmethod
    def _is_a_secure_url(cls, url: str | None, info: ValidationInfo) -> str | None:
        if url is None:
            return None
        if not is_secure_url(url) or urlsplit(url).query:
            raise ValueError("an https:// URL expected, or http:// of this machine")
        if info.field_name == "oidc_issuer":
            return url  # the provider's own spelling, perhaps with a last slash
        path = urlsplit(url).path
        if not _PUBLIC_PATH.fullmatch(path):
            raise ValueError("a path of letters, digits and .-_~ expected, such as /statistics")
        return url.removesuffix("/")

    @field_validator("forwarded_allow_ips")
    @classmethod
    def _are_addresses(cls, proxies: str) -> str:
        """Refuse what uvicorn would compare with addresses as text, and so never find."""
        for proxy in proxies.split(",") if proxies.strip() not in ("", "*") else ():
            try:
                ip_network(proxy.strip())
            except ValueError as error:
                raise ValueError(f"addresses and networks, or * for all: {error}") from None
        return proxies.strip()

    @field_validator("oidc_allowed")
    @classmethod
    def _are_rules(
        cls, rules: dict[str, frozenset[Permission]]
    ) -> dict[str, frozenset[Permission]]:
        for name, scopes in rules.items():
            local, at, domain = name.rpartition("@")
            if not (at and domain and name.isascii()) or "@" in local or name.split() != [name]:
                raise ValueError(f"{name!r} is neither anna@example.org nor @example.org")
            if not scopes <= PAGE_SCOPES:
                raise ValueError(f"{name}: the scopes are {', '.join(sorted(PAGE_SCOPES))}")
        by_name = {name.lower(): scopes for name, scopes in rules.items()}
        if len(by_name) < len(rules):
            raise ValueError("an address or a domain has two rules: upper and lower case are equal")
        return by_name

    @field_validator(
        "initial_api_key",
        "initial_enrolment_token",
        "initial_member_key",
        "oidc_client_secret",
        mode="before",
    )
    @classmethod
    def _without_line_end(cls, value: object) -> object:
        """Return a secret without the line end that files and shells add."""
        return value.strip() if isinstance(value, str) else value

    @field_validator("initial_api_key", "initial_enrolment_token", "initial_member_key")
    @classmethod
    def _is_a_secret(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        is_token = info.field_name == "initial_enrolment_token"
        prefix = ENROLMENT_TOKEN_PREFIX if is_token else API_KEY_PREFIX
        if value and not bearer_secret(f"Bearer {value.get_secret_value()}", prefix):
            raise ValueError(f"{prefix} and 43 characters of base64url expected")
        return value

    @field_validator("database_url")
    @classmethod
    def _is_a_known_database(cls, url: str) -> str:
        parse_url(url)
        return url


def is_secure_url(url: str) -> bool:
    """Return whether nobody on the network can read or change what is sent to `url`."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port  # raises ValueError
    except ValueError:
        return False
    has_no_rest = "@" not in parts.netloc and "#" not in url and url.isascii()
    if not (host and has_no_rest and url.isprintable() and " " not in url):
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))


def is_loopback(host: str) -> bool:
    """Return whether `host` is an address or name of this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

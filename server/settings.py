"""What an operator may choose: by flag, or by environment variable BLINDTALLY_<NAME>."""

from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from protocol.credentials import API_KEY, ENROLMENT_TOKEN, bearer
from server.database import parse_url


class Settings(BaseSettings):
    """The service's settings; the defaults serve one machine from one SQLite file."""

    model_config = SettingsConfigDict(env_prefix="BLINDTALLY_", frozen=True)

    host: str = Field(default="127.0.0.1", description="The address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="The port; 0 takes a free one.")
    database_url: str = Field(
        default="sqlite:///blindtally.db",
        description="sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME.",
        repr=False,  # it may hold a password
    )
    busy_timeout: float = Field(
        default=5.0, gt=0, le=60, description="Seconds to wait for a locked database."
    )
    most_epsilon: float = Field(
        default=16.0,
        gt=0,
        le=1000,
        description="What a device may spend on locally private reports, in all studies.",
    )
    most_delta: float = Field(
        default=1e-3, ge=0, lt=1, description="The same of delta: odds that a report tells more."
    )
    open: bool = Field(
        default=False, description="Ask nobody for credentials: for trials on one machine."
    )
    first_api_key: SecretStr | None = Field(
        default=None, description="A key that may do everything, kept at start if it is new."
    )
    first_enrolment_token: SecretStr | None = Field(
        default=None, description="A token for a million devices, kept at start if it is new."
    )
    access_seconds: float = Field(
        default=5.0, gt=0, le=300, description="How long what is revoked may still be taken."
    )
    most_failures: int = Field(
        default=30, ge=1, description="Refused credentials a minute and address."
    )
    most_requests: int = Field(default=1200, ge=1, description="Requests a minute and credential.")
    max_upload_bytes: int = Field(
        default=64 * 2**20, ge=1024, description="The largest binary body accepted."
    )
    max_json_bytes: int = Field(
        default=256 * 2**10, ge=1024, description="The largest JSON body accepted."
    )
    max_event_streams: int = Field(
        default=500, ge=1, le=100_000, description="Event streams open at a time, in a process."
    )
    max_head_bytes: int = Field(
        default=64 * 2**10, ge=1024, le=2**20, description="The longest head of a request."
    )
    max_head_fields: int = Field(
        default=100, ge=10, le=10_000, description="The most fields of a head."
    )
    head_seconds: float = Field(
        default=10.0, gt=0, le=600, description="How long the head of a request may take."
    )
    silence_seconds: float = Field(
        default=20.0, gt=0, le=600, description="The longest time between two pieces of a body."
    )
    body_seconds: float = Field(
        default=300.0, gt=0, le=3600, description="How long a whole body may take."
    )
    tls_certificate: Path | None = Field(
        default=None, description="A certificate chain (PEM): serve HTTPS."
    )
    tls_key: Path | None = Field(default=None, description="The certificate's private key (PEM).")
    hsts_seconds: int = Field(
        default=0,
        ge=0,
        le=2 * 365 * 24 * 3600,
        description="How long browsers that came by HTTPS come by it alone; 0: not said.",
    )
    forwarded_allow_ips: str = Field(
        default="127.0.0.1",
        description="Proxies (addresses, networks) whose X-Forwarded-* are believed.",
    )
    poll_seconds: float = Field(
        default=1.0, gt=0, le=60, description="The longest time between two looks at the cohorts."
    )
    pace_seconds: float = Field(
        default=0.05, ge=0, le=10, description="The shortest time between two such looks."
    )
    lease_seconds: float = Field(
        default=15.0,
        ge=1,
        le=3600,
        description="How long another process waits for the work of one that died.",
    )
    shutdown_seconds: int = Field(
        default=5, ge=1, le=300, description="How long requests may finish after Ctrl-C."
    )

    @model_validator(mode="after")
    def _has_certificate_and_key(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("a certificate and its key: name both, or neither")
        return self

    @field_validator("first_api_key", "first_enrolment_token")
    @classmethod
    def _is_a_secret(cls, given: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        prefix = API_KEY if info.field_name == "first_api_key" else ENROLMENT_TOKEN
        text = given.get_secret_value() if given else ""
        if given and not bearer(f"Bearer {text}", prefix):
            raise ValueError(f"{prefix} and 43 characters of base64url expected")
        return given

    @field_validator("database_url")
    @classmethod
    def _is_a_known_database(cls, url: str) -> str:
        parse_url(url)
        return url

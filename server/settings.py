"""What an operator may choose: by flag, or by environment variable BLINDTALLY_<NAME>."""

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

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
    max_upload_bytes: int = Field(
        default=64 * 2**20, ge=1024, description="The largest binary body accepted."
    )
    max_json_bytes: int = Field(
        default=256 * 2**10, ge=1024, description="The largest JSON body accepted."
    )
    max_event_streams: int = Field(
        default=500, ge=1, le=100_000, description="Event streams open at a time, in a process."
    )
    poll_seconds: float = Field(
        default=1.0, gt=0, le=60, description="The longest time between two looks at the cohorts."
    )
    pace_seconds: float = Field(
        default=0.05, ge=0, le=10, description="The shortest time between two such looks."
    )
    shutdown_seconds: int = Field(
        default=5, ge=1, le=300, description="How long requests may finish after Ctrl-C."
    )

    @field_validator("database_url")
    @classmethod
    def _is_a_known_database(cls, url: str) -> str:
        parse_url(url)
        return url

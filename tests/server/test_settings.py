"""Settings: from the environment, checked, and silent about passwords."""

import pytest
from pydantic import ValidationError

from server.settings import Settings


def test_the_environment_sets_what_no_argument_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLINDTALLY_PORT", "1234")
    monkeypatch.setenv("BLINDTALLY_POLL_SECONDS", "2.5")
    assert (Settings().port, Settings().poll_seconds) == (1234, 2.5)
    assert Settings(port=5).port == 5


@pytest.mark.parametrize(
    "fault", [{"port": 65536}, {"database_url": "mysql://x"}, {"database_timeout_seconds": 0}]
)
def test_a_setting_outside_its_range_is_refused(fault: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Settings(**fault)  # type: ignore[arg-type]


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(Settings(database_url="postgresql://u:secret@h/x"))

"""An attempt to log in is continued by its browser only, unchanged, and for ten minutes."""

from datetime import timedelta
from random import Random

import pytest

from server.http.login_attempt import ATTEMPT_LIFETIME, LoginAttempt
from tests.server.harness import NOON

ATTEMPT = LoginAttempt.start(Random(1), NOON, "/studies/a?q=é%;")


def test_a_cookie_keeps_an_attempt_and_shows_no_secret_in_a_log() -> None:
    assert LoginAttempt.from_cookie(ATTEMPT.to_cookie()) == ATTEMPT
    assert ATTEMPT.secret not in repr(ATTEMPT)


def test_an_attempt_lasts_ten_minutes() -> None:
    second = timedelta(seconds=1)
    assert ATTEMPT.may_continue(ATTEMPT.state, NOON)
    assert ATTEMPT.may_continue(ATTEMPT.state, NOON + ATTEMPT_LIFETIME)
    assert not ATTEMPT.may_continue(ATTEMPT.state, NOON + ATTEMPT_LIFETIME + second)
    assert not ATTEMPT.may_continue(ATTEMPT.state, NOON - second)


def test_the_state_belongs_to_one_secret_time_and_page() -> None:
    """Otherwise a browser could be led to another page, or an old attempt be made new."""
    started, page = ATTEMPT.started, ATTEMPT.next_page
    others = (
        LoginAttempt("A" * 43, started, page),
        LoginAttempt(ATTEMPT.secret, started + 1, page),
        LoginAttempt(ATTEMPT.secret, started, "/"),
    )
    values = {
        value
        for each in (ATTEMPT, *others)
        for value in (each.state, each.nonce, each.verifier, each.challenge)
    }
    assert len(values) == 16
    assert all(len(value) == 43 for value in values)
    for state in ("", "é", ATTEMPT.nonce, *(other.state for other in others)):
        assert not ATTEMPT.may_continue(state, NOON)


def test_a_page_too_long_for_a_cookie_is_forgotten() -> None:
    for page in ("/" + "%" * 700, "/" + "a" * 1998):
        assert LoginAttempt.start(Random(1), NOON, page).next_page == ""
    kept = LoginAttempt.start(Random(1), NOON, "/" + "a" * 1997)
    assert len(kept.next_page) == 1998
    assert LoginAttempt.from_cookie(kept.to_cookie()) == kept


@pytest.mark.parametrize(
    "text", ["", "1.a.", f"1.{'A' * 44}.", f".{'A' * 43}.", f"1.{'A' * 43}.\n", "1" * 5000]
)
def test_another_cookie_is_not_an_attempt(text: str) -> None:
    assert LoginAttempt.from_cookie(text) is None

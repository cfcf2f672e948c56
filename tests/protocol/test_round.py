"""When a phase is over, and what comes next."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.round import AFTER, Phase, Waiting, settle

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TICK = timedelta(seconds=1)
MASKING = Waiting(Phase.MASKING, expected=10, quorum=7, deadline=NOON, patience=2 * TICK)


@pytest.mark.parametrize(
    ("heard", "now", "phase"),
    [
        (9, NOON - TICK, Phase.MASKING),  # one is missing and there is time
        (10, NOON - TICK, Phase.UNMASKING),  # all have spoken: no reason to wait
        (11, NOON - TICK, Phase.UNMASKING),
        (7, NOON, Phase.UNMASKING),  # enough have spoken and time is up
        (6, NOON, Phase.FAILED),  # one short of a quorum
        (0, NOON - TICK, Phase.MASKING),
    ],
)
def test_masking_settles(heard: int, now: datetime, phase: Phase) -> None:
    assert settle(MASKING, heard, now).phase is phase


def test_a_quorum_cuts_the_deadline_down_to_patience() -> None:
    early = NOON - 10 * TICK
    assert settle(MASKING, 6, early).deadline == NOON
    assert settle(MASKING, 7, early).deadline == early + 2 * TICK


def test_patience_never_extends_a_deadline() -> None:
    assert settle(MASKING, 7, NOON - TICK).deadline == NOON


@pytest.mark.parametrize("phase", [Phase.SUMMED, Phase.FAILED])
def test_what_is_over_stays_over(phase: Phase) -> None:
    over = Waiting(phase, 10, 7, NOON, TICK)
    assert settle(over, 0, NOON + TICK).phase is phase
    assert phase.is_over


def test_the_phases_are_a_line_that_ends_in_a_sum() -> None:
    line = [Phase.ENROLLING]
    while line[-1] in AFTER:
        line.append(AFTER[line[-1]])
    assert line == [phase for phase in Phase if phase is not Phase.FAILED]


@given(st.sampled_from(list(AFTER)), st.integers(0, 12), st.integers(-20, 20))
def test_a_cohort_stays_goes_one_on_or_fails_and_fails_only_late_and_short(
    phase: Phase, heard: int, seconds: int
) -> None:
    waiting = Waiting(phase, 10, 7, NOON, TICK)
    now = NOON + seconds * TICK
    verdict = settle(waiting, heard, now)
    assert verdict.phase in (phase, AFTER[phase], Phase.FAILED)
    assert verdict.deadline <= NOON
    if verdict.phase is Phase.FAILED:
        assert heard < 7
        assert now >= NOON

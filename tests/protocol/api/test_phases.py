"""End of a phase, and the phase after it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api.phases import (
    DRAWN_SUM,
    ONE_SHOT_SUM,
    PAIRWISE_SUM,
    SEATED_SUM,
    Phase,
    PhaseStatus,
    Protocol,
    settle,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TICK = timedelta(seconds=1)
MASKING = PhaseStatus(
    Phase.MASKING,
    expected=10,
    quorum=7,
    received=0,
    last_received=NOON - TICK,
    deadline=NOON,
    idle=3 * TICK,
)


# Times are in seconds before noon, which is the deadline.
@pytest.mark.parametrize(
    ("received", "last", "now", "phase"),
    [
        (9, 1, 1, Phase.MASKING),  # one is missing and there is time
        (10, 1, 1, Phase.CONFIRMING),  # all have sent: no reason to wait
        (11, 1, 1, Phase.CONFIRMING),
        (7, 1, 0, Phase.CONFIRMING),  # enough have sent and time is up
        (6, 1, 0, Phase.FAILED),  # one short of a quorum
        (0, 1, 1, Phase.MASKING),
        (7, 60, 58, Phase.MASKING),  # the others may be on their way
        (7, 60, 57, Phase.CONFIRMING),  # a quorum, and silence since
        (6, 60, 57, Phase.MASKING),  # silence is no reason to fail: the deadline is
    ],
)
def test_masking_settles(received: int, last: int, now: int, phase: Phase) -> None:
    waiting = replace(MASKING, received=received, last_received=NOON - last * TICK)
    assert settle(waiting, NOON - now * TICK) is phase


def test_each_message_lengthens_the_wait_but_never_beyond_the_deadline() -> None:
    early = NOON - 60 * TICK
    waiting = replace(MASKING, received=7, last_received=early)
    assert waiting.closes_at == early + 3 * TICK
    assert replace(waiting, received=8, last_received=early + TICK).closes_at == early + 4 * TICK
    assert replace(waiting, last_received=NOON - TICK).closes_at == NOON


@pytest.mark.parametrize("phase", [Phase.SUMMED, Phase.FAILED])
def test_what_is_over_stays_over(phase: Phase) -> None:
    assert settle(replace(MASKING, phase=phase), NOON + TICK) is phase
    assert phase.is_over


def test_the_phases_are_a_line_that_ends_in_a_sum() -> None:
    line = [Phase.ENROLLING]
    while not line[-1].is_over:
        line.append(PAIRWISE_SUM.after(line[-1]))
    assert line == [*PAIRWISE_SUM.phases, Phase.SUMMED]


def test_a_round_that_a_registrar_seats_waits_for_it_after_enrolling() -> None:
    enrolling = replace(MASKING, phase=Phase.ENROLLING, received=10, protocol=SEATED_SUM)
    assert settle(enrolling, NOON) is Phase.SEATING
    assert settle(replace(enrolling, protocol=PAIRWISE_SUM), NOON) is Phase.SHARING
    seating = replace(enrolling, phase=Phase.SEATING, received=0, expected=1, quorum=1)
    assert settle(seating, NOON - TICK) is Phase.SEATING
    assert settle(seating, NOON) is Phase.FAILED
    assert seating.next_phase is Phase.SHARING


@pytest.mark.parametrize("protocol", [ONE_SHOT_SUM, DRAWN_SUM])
def test_a_one_shot_sum_has_its_own_line_of_phases(protocol: Protocol) -> None:
    one_shot, line = replace(MASKING, protocol=protocol, received=10), [Phase.CONVENING]
    while not line[-1].is_over:
        line.append(settle(replace(one_shot, phase=line[-1]), NOON - TICK))
    assert line == [*protocol.phases, Phase.SUMMED]


def test_masking_follows_answering() -> None:
    after = PAIRWISE_SUM.after
    assert after(Phase.CHECKING) is after(Phase.ANSWERING) is Phase.MASKING
    nobody = replace(MASKING, phase=Phase.ANSWERING, expected=2, quorum=0)
    assert settle(nobody, NOON - TICK) is Phase.ANSWERING
    assert settle(nobody, NOON) is Phase.MASKING  # without the dealers that did not answer
    assert settle(replace(nobody, quorum=1), NOON) is Phase.FAILED


def test_a_pairwise_sum_has_all_phases_but_those_of_others() -> None:
    others = (Phase.SEATING, Phase.ANSWERING, Phase.REPORTING, Phase.SUMMED, Phase.FAILED)
    others += (Phase.CONVENING, Phase.DRAWING, Phase.COLLECTING, Phase.AGREEING, Phase.RELEASING)
    assert list(PAIRWISE_SUM.phases) == [phase for phase in Phase if phase not in others]


@given(
    st.sampled_from(PAIRWISE_SUM.phases),
    st.integers(0, 12),
    st.integers(-60, 0),
    st.integers(-60, 20),
)
def test_a_cohort_stays_goes_one_on_or_fails_and_fails_only_late_and_short(
    phase: Phase, received: int, last: int, seconds: int
) -> None:
    waiting = replace(MASKING, phase=phase, received=received, last_received=NOON + last * TICK)
    now = NOON + seconds * TICK
    settled = settle(waiting, now)
    assert settled in (phase, PAIRWISE_SUM.after(phase), Phase.FAILED)
    assert waiting.closes_at <= NOON
    if settled is Phase.FAILED:
        assert received < 7
        assert now >= NOON

"""End of a phase, and the phase after it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api.phases import (
    ONE_SHOT_PHASES,
    PARTICIPANT_PHASES,
    Phase,
    PhaseStatus,
    next_phase,
    settle,
)
from secagg.parameters import Mode

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TICK = timedelta(seconds=1)
MASKING = PhaseStatus(
    Phase.MASKING,
    mode="active",
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


MODES: list[Mode] = ["semi-honest", "active"]


@pytest.mark.parametrize("mode", MODES)
def test_the_phases_are_a_line_that_ends_in_a_sum(mode: Mode) -> None:
    line = [Phase.ENROLLING]
    while not line[-1].is_over:
        line.append(next_phase(line[-1], mode))
    assert line == [*PARTICIPANT_PHASES[mode], Phase.SUMMED]


def test_a_round_that_a_registrar_seats_waits_for_it_after_enrolling() -> None:
    enrolling = replace(MASKING, phase=Phase.ENROLLING, received=10, is_seated=True)
    assert settle(enrolling, NOON) is Phase.SEATING
    assert settle(replace(enrolling, is_seated=False), NOON) is Phase.SHARING
    seating = replace(enrolling, phase=Phase.SEATING, received=0, expected=1, quorum=1)
    assert settle(seating, NOON - TICK) is Phase.SEATING
    assert settle(seating, NOON) is Phase.FAILED
    assert seating.next_phase is Phase.SHARING


def test_a_one_shot_sum_has_its_own_line_of_phases() -> None:
    one_shot, line = replace(MASKING, is_one_shot=True, received=10), [Phase.CONVENING]
    while not line[-1].is_over:
        line.append(settle(replace(one_shot, phase=line[-1]), NOON - TICK))
    assert line == [*ONE_SHOT_PHASES, Phase.SUMMED]


@pytest.mark.parametrize("mode", MODES)
def test_masking_follows_answering(mode: Mode) -> None:
    assert next_phase(Phase.CHECKING, mode) is next_phase(Phase.ANSWERING, mode) is Phase.MASKING
    nobody = replace(MASKING, phase=Phase.ANSWERING, mode=mode, expected=2, quorum=0)
    assert settle(nobody, NOON - TICK) is Phase.ANSWERING
    assert settle(nobody, NOON) is Phase.MASKING  # without the dealers that did not answer
    assert settle(replace(nobody, quorum=1), NOON) is Phase.FAILED


def test_an_active_server_alone_has_its_survivors_confirmed() -> None:
    others = (Phase.SEATING, Phase.ANSWERING, Phase.REPORTING, Phase.SUMMED, Phase.FAILED)
    others += (Phase.CONVENING, Phase.COLLECTING, Phase.AGREEING, Phase.RELEASING)
    assert list(PARTICIPANT_PHASES["active"]) == [phase for phase in Phase if phase not in others]
    assert set(PARTICIPANT_PHASES["active"]) - set(PARTICIPANT_PHASES["semi-honest"]) == {
        Phase.CONFIRMING
    }
    assert settle(replace(MASKING, mode="semi-honest", received=10), NOON) is Phase.UNMASKING


@given(
    st.sampled_from([(phase, mode) for mode in MODES for phase in PARTICIPANT_PHASES[mode]]),
    st.integers(0, 12),
    st.integers(-60, 0),
    st.integers(-60, 20),
)
def test_a_cohort_stays_goes_one_on_or_fails_and_fails_only_late_and_short(
    where: tuple[Phase, Mode], received: int, last: int, seconds: int
) -> None:
    phase, mode = where
    waiting = replace(
        MASKING, phase=phase, mode=mode, received=received, last_received=NOON + last * TICK
    )
    now = NOON + seconds * TICK
    settled = settle(waiting, now)
    assert settled in (phase, next_phase(phase, mode), Phase.FAILED)
    assert waiting.closes_at <= NOON
    if settled is Phase.FAILED:
        assert received < 7
        assert now >= NOON

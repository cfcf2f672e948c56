"""Pending cohorts: which of them a poll reads, and when the next is due."""

from dataclasses import replace
from datetime import datetime, timedelta

from protocol.api.messages import Timeouts
from protocol.api.phases import Phase, PhaseStatus
from protocol.question_and_plan import Terms
from server.db.channels import cohort_channel, cohorts_channel, study_channel
from server.db.repositories.rounds.pending_cohorts import CohortSelection, PendingCohort
from server.rounds.cohorts_to_poll import PendingCohorts
from tests.server.harness import NOON

SECOND = timedelta(seconds=1)
NO_COHORTS = CohortSelection(frozenset(), frozenset())


def cohort(number: int, study: str = "s", phase: Phase = Phase.SHARING) -> PendingCohort:
    status = PhaseStatus(phase, 4, 4, 0, NOON, NOON + 60 * SECOND, SECOND)
    assumptions = Terms(cohort_size=4, minimum=4).assumptions
    return PendingCohort(number, study, 1, number, status, 4, assumptions, Timeouts())


def reading(*cohorts: PendingCohort) -> PendingCohorts:
    """Return the pending cohorts of a process that has read these."""
    pending = PendingCohorts()
    assert select(pending) is None
    pending.update(None, cohorts)
    return pending


def select(pending: PendingCohorts, now: datetime = NOON) -> CohortSelection | None:
    return pending.select(pending.take_news(), now)


def chosen(pending: PendingCohorts, now: datetime = NOON) -> set[int] | None:
    selection = select(pending, now)
    return None if selection is None else set(selection.cohorts)


def test_a_process_reads_all_cohorts_first_and_then_those_with_news() -> None:
    pending = reading(cohort(1), cohort(2), cohort(3))
    assert select(pending) == NO_COHORTS
    pending.report([cohort_channel(2), cohorts_channel("t")])
    assert select(pending) == CohortSelection(frozenset({2}), frozenset({"t"}))
    assert select(pending) == NO_COHORTS
    pending.report([study_channel("s")])  # of the events of a study, such as a phase of one cohort
    assert select(pending) == NO_COHORTS
    pending.report(None)
    assert select(pending) is None


def test_a_cohort_is_read_when_it_is_due_and_only_at_its_last_time() -> None:
    pending = reading(cohort(1), cohort(2))
    pending.schedule(1, NOON + 5 * SECOND)
    pending.schedule(2, NOON + 3 * SECOND)
    pending.schedule(1, NOON + 9 * SECOND)  # a message has arrived meanwhile
    assert pending.next_due() == NOON + 3 * SECOND
    assert chosen(pending, NOON + 2 * SECOND) == set()
    assert chosen(pending, NOON + 5 * SECOND) == {2}
    assert pending.next_due() == NOON + 9 * SECOND
    assert chosen(pending, NOON + 9 * SECOND) == {1}
    assert pending.next_due() is None


def test_a_message_may_decide_at_the_quorum_and_when_all_have_arrived() -> None:
    status = replace(cohort(1).phase_status, expected=9, quorum=5)
    few, many = (replace(status, received=received) for received in (2, 6))
    pending = reading(replace(cohort(1), phase_status=few), replace(cohort(2), phase_status=many))
    deciding = {
        number: [n for n in range(3, 11) if pending.may_decide(number, Phase.SHARING, n)]
        for number in (1, 2)
    }
    assert deciding == {1: [5, 6, 7, 8, 9, 10], 2: [9, 10]}


def test_a_message_to_a_cohort_that_was_not_read_in_this_phase_may_decide() -> None:
    pending = reading(cohort(1))
    assert pending.may_decide(2, Phase.SHARING, 1)
    assert pending.may_decide(1, Phase.CHECKING, 1)
    assert not pending.may_decide(1, Phase.SHARING, 1)


def test_a_cohort_that_is_read_and_no_longer_pending_is_closed() -> None:
    pending = reading(cohort(1), cohort(2))
    pending.schedule(1, NOON)
    (change,) = pending.update(CohortSelection(frozenset({1}), frozenset()), [])
    assert (change.before, change.after) == (cohort(1), None)
    assert change.is_new_phase
    assert pending.next_due() is None
    assert pending.has_pending("s", 1)  # the other one
    (change,) = pending.update(CohortSelection(frozenset(), frozenset({"s"})), [])
    assert change.cohort == cohort(2)
    assert not pending.has_pending("s", 1)


def test_changes_show_which_cohorts_are_new_or_in_another_phase() -> None:
    pending = reading(cohort(1), cohort(2))
    status = replace(cohort(2).phase_status, received=3)
    read = [cohort(1, phase=Phase.CHECKING), replace(cohort(2), phase_status=status), cohort(3)]
    changes = pending.update(None, read)
    assert {change.cohort.id: change.is_new_phase for change in changes} == {
        1: True,
        2: False,
        3: True,
    }
    assert pending.update(CohortSelection(frozenset({9}), frozenset()), []) == []

"""A line shows the devices that a fleet waits for, once for each change."""

from datetime import UTC, datetime
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest

from blindtally.fleet_run import study_status
from blindtally.fleet_run.fleet_setup import DataFile, build_setup
from blindtally.fleet_run.study_status import MAX_SILENT_POLLS, StatusReporter, describe_study
from client.errors import ServiceUnreachableError
from protocol.api.messages import RoundView, StudyView
from protocol.api.phases import PAIRWISE_SUM, Phase
from protocol.mechanisms.registry import MECHANISMS, parse_question
from tests.support.views import cohort_document, round_document, study_document

SETUP = build_setup(
    DataFile(),
    devices=20,
    rounds=2,
    dropout=0.1,
    seed=1,
    threshold=3,
    contribution=2,
    message_bytes=None,
)
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
STUDY = StudyView.model_validate(study_document(SETUP.question, SETUP.terms, id="3f2a"))
URL = "http://127.0.0.1:8000"
UNTIL = "until 12:00:00 UTC at most"


def cohort(number: int, phase: Phase, *received: int) -> dict[str, Any]:
    """Return a cohort in `phase`, with the messages received in each phase so far."""
    line = [*PAIRWISE_SUM.phases, Phase.SUMMED]
    known = line[: line.index(phase) + 1]
    history = [
        {"phase": step, "entered": NOON, "received": count}
        for step, count in zip(known, (*received, 0), strict=False)
    ]
    enrolled = received[0]
    return cohort_document(phase, number=number, deadline=NOON, enrolled=enrolled, history=history)


def shown(
    *cohorts: dict[str, Any], state: str = "running", cohort_size: int = 20, **terms_changes: object
) -> RoundView:
    changes = {"cohort_size": cohort_size, "minimum": 10} | terms_changes
    terms = SETUP.terms.model_copy(update=changes)
    plan = MECHANISMS["tracked"].first_plan(SETUP.question, terms, "3f2a", 2, Random(1))
    return RoundView.model_validate(round_document(plan, state=state, cohorts=cohorts))


@pytest.mark.parametrize(
    ("cohorts", "text"),
    [
        (
            [cohort(0, Phase.ENROLLING, 17)],
            "17 of 20 devices in cohort 0; waiting for 3 more, until 12:00:00 UTC, then it goes on",
        ),
        (
            [cohort(0, Phase.ENROLLING, 4)],
            (
                "4 of 20 devices in cohort 0; waiting for 16 more, until 12:00:00 UTC, "
                "then it fails with fewer than 10"
            ),
        ),
        ([cohort(0, Phase.ENROLLING, 20)], "20 of 20 devices in cohort 0"),
        (
            [cohort(0, Phase.SHARING, 20, 12)],
            f"cohort 0 sharing, messages from 12 of 20 devices, {UNTIL}",
        ),
        (
            [cohort(0, Phase.MASKING, 20, 18, 18, 5)],
            f"cohort 0 masking, messages from 5 of 18 devices, {UNTIL}",
        ),
        (
            [
                cohort(0, Phase.SUMMED, 20),
                cohort(1, Phase.ENROLLING, 12),
                cohort(2, Phase.ENROLLING, 0),
            ],
            (
                "12 of 40 devices in 2 cohorts; waiting for 28 more, until 12:00:00 UTC, "
                "then it fails with fewer than 10; cohort 0 summed"
            ),
        ),
        ([cohort(0, Phase.SUMMED, 20)], "all cohorts are over; their sums are being decoded"),
    ],
)
def test_the_state_of_a_round_shows_the_missing_devices(
    cohorts: list[dict[str, Any]], text: str
) -> None:
    assert describe_study(URL, STUDY, shown(*cohorts))[1] == f"round 1: {text}"


def test_the_state_of_a_seated_round_counts_the_devices_of_all_its_cohorts() -> None:
    seated = {"cohorts": 3, "registrar": "ab" * 32}
    joining = shown(cohort(0, Phase.ENROLLING, 25), **seated)
    assert describe_study(URL, STUDY, joining)[1] == (
        "round 1: 25 of 60 devices in 3 cohorts; waiting for 35 more, until 12:00:00 UTC, "
        "then it fails with fewer than 30"
    )
    waiting = cohort(0, Phase.ENROLLING, 40) | {"phase": Phase.SEATING}
    assert describe_study(URL, STUDY, shown(waiting, **seated))[1] == (
        "round 1: 40 devices wait until 12:00:00 UTC for the seats of their registrar"
    )


def test_a_study_that_is_not_started_shows_the_page_to_start_it() -> None:
    assert f"{URL}/studies/3f2a" in describe_study(URL, STUDY, None)[1]


def test_the_reports_of_a_round_that_is_over_have_no_sum() -> None:
    domain = {"kind": "listed", "items": ["com", "org"]}
    fields = {"mechanism": "krr", "threshold": 5, "contribution": 1, "epsilon": 3, "domain": domain}
    question = parse_question(fields)
    plan = MECHANISMS["krr"].first_plan(question, SETUP.terms, "3f2a", 2, Random(1))
    over = round_document(plan, state="running", cohorts=[cohort(0, Phase.SUMMED, 20)])
    text = describe_study(URL, STUDY, RoundView.model_validate(over))[1]
    assert text == "round 1: the reports are being decoded"


def test_a_round_that_is_over_has_no_status_line() -> None:
    over = shown(cohort(0, Phase.SUMMED, 20), state="decoded")
    assert describe_study(URL, STUDY, over)[1] == ""


def test_the_failure_of_a_round_of_others_is_shown() -> None:
    over = cohort(0, Phase.SUMMED, 20) | {"phase": Phase.FAILED, "failure": "too few"}
    failed = shown(over, state="failed")
    assert describe_study(URL, STUDY, failed)[1] == "round 1 has failed: too few"
    assert describe_study(URL, STUDY, failed, is_ours=True)[1] == ""


async def test_a_silent_service_is_reported_with_its_patience_and_ends_the_fleet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(study_status, "POLL_SECONDS", 0.01)
    lines: list[str] = []
    screen = Mock(print_line=lines.append, has_bars=False, round_number=0)
    with pytest.raises(ServiceUnreachableError, match="has not answered for"):
        await study_status.report_status(
            "http://127.0.0.1:1", None, "3f2a", screen, 2.0, has_steps=True
        )
    assert lines == ["the service does not answer; the fleet tries again, and ends after 2 s"]


def test_a_stable_state_is_printed_once() -> None:
    printed: list[str] = []
    reporter = StatusReporter(printed.append, shows_progress=False)
    for count in (1, 2, 17, 17, 17, 17, 18, 18):
        reporter.update("enrolling", f"{count} of 20")
    assert printed == ["17 of 20", "18 of 20"]


def test_a_changing_state_is_printed_at_its_begin_and_every_few_polls() -> None:
    printed: list[str] = []
    reporter = StatusReporter(printed.append, shows_progress=True)
    for count in range(2 * MAX_SILENT_POLLS + 1):
        reporter.update("enrolling", f"{count} of 200")
    reporter.update("sharing", "0 shared")
    reporter.update("", "")
    assert printed == [
        "0 of 200",
        f"{MAX_SILENT_POLLS} of 200",
        f"{2 * MAX_SILENT_POLLS} of 200",
        "0 shared",
    ]

"""The devices of a fleet share processes where that saves time."""

import pytest

from blindtally.fleet_run.fleet_setup import useful_processes
from protocol.api.messages import StudyView
from protocol.mechanisms.registry import parse_question
from protocol.question_and_plan import Terms
from tests.support.views import study_document

TRACKED = {
    "mechanism": "tracked",
    "threshold": 20,
    "contribution": 3,
    "domain": {"kind": "hashed", "max_bytes": 200},
    "words": 1000,
}
REPORTS = {
    "mechanism": "ocms",
    "threshold": 20,
    "domain": {"kind": "alphabet", "characters": "ab", "length": 3},
    "epsilon": 2.0,
}


@pytest.fixture(autouse=True)
def _four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})


@pytest.mark.parametrize(
    ("devices", "processes"), [(3, 1), (99, 1), (None, 2), (100, 2), (200, 4), (1000, 4)]
)
def test_a_new_study_has_a_process_for_fifty_devices(devices: int | None, processes: int) -> None:
    assert useful_processes("pairwise", devices) == processes
    assert useful_processes("one-shot", devices) == 1  # one message each: no masks


def test_the_devices_that_fit_in_a_study_count() -> None:
    terms = Terms(cohort_size=80, minimum=40, cohorts=2)
    study = StudyView.model_validate(study_document(parse_question(TRACKED), terms))
    assert useful_processes(study, None) == 3
    assert useful_processes(study, 60) == 1
    reports = StudyView.model_validate(study_document(parse_question(REPORTS), terms))
    assert useful_processes(reports, None) == 1

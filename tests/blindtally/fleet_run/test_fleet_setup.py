"""The devices of a fleet share processes where that saves time."""

from pathlib import Path

import pytest

from blindtally.fleet_run.fleet_setup import DataFile, joined_study_setup, useful_processes
from client.fleet.config_and_results import FleetConfig
from protocol.api.messages import StudyView
from protocol.mechanisms.registry import parse_question
from protocol.question_and_plan import Terms
from tests.support.views import study_document

TRACKED = {
    "mechanism": "tracked",
    "threshold": 20,
    "contribution": 3,
    "domain": {"kind": "hashed", "max_bytes": 200},
    "message_bytes": 3784,
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


def test_numbers_with_two_readings_are_refused_for_an_existing_study(tmp_path: Path) -> None:
    file = tmp_path / "pay.csv"
    file.write_text("user;value\n" + "".join(f"u{n};1.{n:03}\n" for n in range(20)))
    domain = {"kind": "interval", "low": 0, "high": 2000, "alpha": 4, "length": 3}
    question = parse_question({"mechanism": "number-sums", "domain": domain, "message_bytes": 1984})
    terms = Terms(cohort_size=20, minimum=10)
    study = StudyView.model_validate(study_document(question, terms))
    with pytest.raises(ValueError, match="may be 1000, or have three decimals"):
        joined_study_setup(DataFile(file, "value"), FleetConfig(10), study, 10)


def test_the_devices_that_fit_in_a_study_count() -> None:
    terms = Terms(cohort_size=80, minimum=40, cohorts=2)
    study = StudyView.model_validate(study_document(parse_question(TRACKED), terms))
    assert useful_processes(study, None) == 3
    assert useful_processes(study, 60) == 1
    reports = StudyView.model_validate(study_document(parse_question(REPORTS), terms))
    assert useful_processes(reports, None) == 1

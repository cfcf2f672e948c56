"""The devices of the example report a fault, and not that their study was stopped."""

import time

import pytest
from structlog.testing import capture_logs

from blindtally.fleet_run import example_devices
from blindtally.fleet_run.example_devices import ExampleDevices
from client.fleet.fleet import NobodyEnteredError
from protocol.api.messages import StudyView
from tests.client.conftest import REQUEST
from tests.support.views import study_document


@pytest.mark.parametrize(
    ("error", "level"), [(NobodyEnteredError(1, "it is stopped"), "info"), (OSError(), "error")]
)
def test_only_a_fault_is_an_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception, level: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(example_devices, "joined_study_setup", fail)
    devices = ExampleDevices()
    view = StudyView.model_validate(study_document(REQUEST.question, REQUEST.terms))
    with capture_logs() as lines:
        devices.play(view, "127.0.0.1", 1)
        while devices.study:
            time.sleep(0.01)
    assert [line["log_level"] for line in lines] == [level]

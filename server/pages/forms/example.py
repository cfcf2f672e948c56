"""Example study of web domains, which simulated devices of the server's own program may answer.

Only a service for trials has them, because their registrar is known to the server's program.
"""

from asyncio import Lock
from typing import Final, Protocol

from protocol.api.messages import StudyRequest, StudyView
from server.pages.forms.questions import QUESTION_FORMS, study_document, values_for

EXAMPLE_QUESTION: Final = next(iter(QUESTION_FORMS))  # the first that lists show
_VALUES: Final = {
    "name": "Which web domains do people link to?",
    "question.threshold": "8",
    "question.contribution": "2",
    "question.message_bytes": "10000",
    "rounds": "4",
    "terms.cohort_size": "100",
    "terms.minimum": "90",
    "timeouts.idle": "1",
    "start": "on",
}


class Simulator(Protocol):
    """Simulated devices, enrolled by a `registrar` and busy with the study of this id, or None.

    Who has the `lock` may give them a study.
    """

    registrar: str
    lock: Lock

    @property
    def study(self) -> str | None: ...

    def play(self, study: StudyView, host: str, port: int) -> None:
        """Let the devices take part in `study` in the background, at this address."""


def example_request(registrar: str | None) -> StudyRequest:
    """Return the example, of devices that this `registrar` enrols."""
    question = QUESTION_FORMS[EXAMPLE_QUESTION]
    values = values_for(question, _VALUES | {"terms.registrar": registrar or ""})
    return StudyRequest.model_validate(study_document(question, values))

"""Examples of every document that the service takes, for who reads its description."""

from typing import Any, Final

from protocol.domain import Utf8
from protocol.mechanism import Terms
from protocol.mechanisms.adaptive_iblt import AdaptiveIbltQuestion
from protocol.messages import Enrolment, Join, PopulationRequest, StudyRequest
from protocol.privacy.ledger import Budget
from protocol.public import Public

_STUDY = StudyRequest(
    name="new words",
    question=AdaptiveIbltQuestion(
        threshold=20, contribution=3, domain=Utf8(max_bytes=12), words=5000
    ),
    terms=Terms(cohort_size=200, minimum=100, corrupt=0.1, dropout=0.2),
    rounds=5,
    start=True,
)
_POPULATION = PopulationRequest(budget=Budget(epsilon=4, delta=1e-6))
_JOIN = Join(identity="1f" * 32, mask_key="2e" * 32, seal_key="3d" * 32, signature="4c" * 64)
_ENROLMENT = Enrolment(identity="1f" * 32, credential="5b" * 32, signature="4c" * 64)
_EXAMPLES: Final[dict[str, Public]] = {
    "StudyRequest": _STUDY,
    "PopulationRequest": _POPULATION,
    "Join": _JOIN,
    "Enrolment": _ENROLMENT,
}


def example_of(schema: str) -> dict[str, Any]:
    """Return an example of the body that `schema`, by its name, describes."""
    return _EXAMPLES[schema].model_dump(mode="json", exclude_none=True)

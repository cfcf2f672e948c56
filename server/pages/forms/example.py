"""Example study of an empty dashboard: common web domains, among simulated devices."""

from typing import Final

from protocol.api.messages import StudyRequest, Timeouts
from protocol.domains.hashed import Hashed
from protocol.mechanisms.tracked.plan import TrackedQuestion
from protocol.question_and_plan import Terms

EXAMPLE: Final = StudyRequest(
    name="example: common web domains",
    question=TrackedQuestion(threshold=8, contribution=2, domain=Hashed(max_bytes=64), words=2000),
    terms=Terms(cohort_size=100, minimum=50),
    rounds=4,
    timeouts=Timeouts(idle=1),
    start=True,
)

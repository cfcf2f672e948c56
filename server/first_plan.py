"""First plan of a study: its checks, and the queue for its computation.

A plan may be impossible, or require more of a device than this service allows, though the parts of
the study are valid. An analyst gets all these errors at once.

A plan may take seconds of one processor core: the best design of a central release is a search over
privacy losses. So plans are computed one at a time; otherwise an analyst could occupy all threads
of the service with a few requests.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import ParamSpec, TypeVar

from pydantic import BaseModel, ValidationError

from protocol.api.messages import PopulationName, ProblemType, RoundCount
from protocol.device_policy.sizes_and_losses import upload_bytes
from protocol.domains.hashed import Hashed
from protocol.mechanisms.quality_goal import QualityGoal, goal_fault
from protocol.mechanisms.registry import (
    MECHANISMS,
    REPORT_MECHANISMS,
    SUM_MECHANISMS,
    AnyPlan,
    AnyQuestion,
)
from protocol.question_and_plan import Terms
from protocol.validation_errors import validation_faults
from secagg.keys import SIGNATURE_BYTES
from secagg.messages import KeyShares, UnmaskingShares
from secagg.parameters import MAX_HOLDERS
from server.errors import FieldError, ProblemError, malformed_fields

P = ParamSpec("P")
T = TypeVar("T")
MAX_JOBS = 16  # a queue of a minute or so at worst
_TABLES_NEED_OWN_BUDGET = (
    "vote tables spend their own epsilon on what they may fail to decode, which a population's "
    "ledger cannot charge: create the study without vote tables"
)

_VOLUNTEERS_COUNT_DEVICES = (
    "the members of a committee see how many devices are in a sum, which this question keeps "
    "secret: name operators instead of volunteers"
)
_REPORTS_HAVE_NO_SUM = "reports are private by themselves and have no sum: leave out sum, committee"


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """Limits of what a study may require of one device: bytes of an upload, cost of a report."""

    upload_bytes: int
    epsilon: float
    delta: float


class PlanRequest(BaseModel):
    """The parts of a study request that determine its plan."""

    question: AnyQuestion
    terms: Terms
    rounds: RoundCount
    population: PopulationName | None = None
    stop_at: QualityGoal | None = None


def first_plan(request: PlanRequest, study: str, limits: DeviceLimits, rng: Random) -> AnyPlan:
    """Return the plan of a study's round 1, which may take seconds to make.

    Raises:
        ProblemError: if there is none, or none within `limits`; with every error.
    """
    errors: list[FieldError] = []
    if request.population is not None and getattr(request.question, "vote_tables", False):
        errors = [{"location": "body.question.vote_tables", "detail": _TABLES_NEED_OWN_BUDGET}]
    if request.stop_at is not None and (fault := goal_fault(request.question)):
        errors.append({"location": "body.stop_at", "detail": fault})
    if request.terms.is_one_shot and request.question.mechanism in REPORT_MECHANISMS:
        errors.append({"location": "body.terms.sum", "detail": _REPORTS_HAVE_NO_SUM})
    if request.terms.draws_committee and request.question.hides_device_counts:
        errors.append({"location": "body.terms.committee", "detail": _VOLUNTEERS_COUNT_DEVICES})
    try:
        plan = unchecked_first_plan(request, study, rng)
        nbytes = _largest_upload(plan)
    except ValueError as error:
        raise malformed_fields([*errors, *_plan_errors(error)]) from None
    errors += _limit_errors(plan, nbytes, limits)
    if errors:
        raise malformed_fields(errors)
    return plan


def unchecked_first_plan(request: PlanRequest, study: str, rng: Random) -> AnyPlan:
    """Return the plan of a study's round 1; raises ValueError if there is none."""
    mechanism = MECHANISMS[request.question.mechanism]
    plan: AnyPlan = mechanism.first_plan(
        request.question, request.terms, study, request.rounds, rng
    )
    return plan


def with_salt(question: AnyQuestion, study: str) -> AnyQuestion:
    """Return `question` with the study's name as salt, if its keys are hashed without a salt.

    So a table of the keys of one study is useless for another.
    """
    if isinstance(question.domain, Hashed) and not question.domain.salt:
        domain = question.domain.model_copy(update={"salt": study})
        return question.model_copy(update={"domain": domain})
    return question


def _plan_errors(error: ValueError) -> Iterator[FieldError]:
    """Yield the errors of a mechanism, with its own texts instead of pydantic's."""
    if not isinstance(error, ValidationError):
        yield {"location": "body.question", "detail": str(error)}
        return
    for path, fault in validation_faults(error, AnyPlan):
        yield {"location": "body.question", "detail": ": ".join((*map(str, path), fault))}


def _limit_errors(plan: AnyPlan, nbytes: int, limits: DeviceLimits) -> Iterator[FieldError]:
    if nbytes > limits.upload_bytes:
        fault = f"uploads of {nbytes} bytes: this service accepts {limits.upload_bytes}"
        yield {"location": "body.question", "detail": fault}
    if plan.mechanism not in REPORT_MECHANISMS:
        return
    mechanism = REPORT_MECHANISMS[plan.mechanism]
    costs = {
        "epsilon": (mechanism.epsilon(plan), limits.epsilon),
        "delta": (mechanism.delta(plan), limits.delta),
    }
    for name, (cost, limit) in costs.items():
        if not cost <= limit:
            fault = (
                f"a report would cost {name} {cost:g}: this service lets a device spend {limit:g}"
            )
            yield {"location": f"body.question.{name}", "detail": fault}


def _largest_upload(plan: AnyPlan) -> int:
    """Return the size of the largest upload: masked input, shares, one-shot message, or report.

    Raises:
        ValueError: if the plan's vectors do not fit a one-shot sum.
    """
    if plan.mechanism in REPORT_MECHANISMS or plan.terms.is_one_shot:
        return upload_bytes(plan)
    size = plan.terms.cohort_size
    key_shares = KeyShares.nbytes(min(size - 1, MAX_HOLDERS))
    vector: int = SUM_MECHANISMS[plan.mechanism].ring(plan).nbytes
    return max(vector + SIGNATURE_BYTES, key_shares, UnmaskingShares.nbytes(size))


class PlanningQueue:
    """Runs one planning job at a time, outside the event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._jobs = 0

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of `job`, which waits for the jobs before it.

        Raises:
            ProblemError: if too many jobs are waiting.
        """
        if self._jobs >= MAX_JOBS:
            raise ProblemError(ProblemType.TOO_MANY, "too many studies are being planned: wait")
        self._jobs += 1
        try:
            async with self._lock:
                return await asyncio.to_thread(job, *args, **kwargs)
        finally:
            self._jobs -= 1

"""Whether a study can be asked: what is wrong with parts that are sound each by itself.

A plan may be impossible (the words hold no table, a sum would wrap), or ask more of a device
than this service lets anybody ask. An analyst hears of all that at once, and hears of it also if
another part of the request is at fault as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from pydantic import BaseModel, ValidationError

from protocol.faults import faults_of
from protocol.hashed import Hashed
from protocol.mechanism import Terms
from protocol.mechanisms import MECHANISMS, REPORTING, SUMMING, AnyPlan, AnyQuestion
from protocol.messages import PopulationName, Rounds
from protocol.report import packed_bytes
from secagg.deals import Reveal, SeedDeal
from secagg.keys import SIGNATURE_BYTES
from secagg.parameters import MOST_HOLDERS
from server.refusals import Fault, malformed_all

_UNPAID = (
    "tables pay for what they may fail to read by their own epsilon, and that of a population is "
    "more: ask without tables"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a study may ask of one device: bytes at once, and what a report may cost it."""

    upload_bytes: int
    epsilon: float
    delta: float


class Asked(BaseModel):
    """The parts of a request that a plan is made of."""

    question: AnyQuestion
    terms: Terms
    rounds: Rounds
    population: PopulationName | None = None


def first_plan(asked: Asked, study: str, limits: Limits, rng: Random) -> AnyPlan:
    """Return the plan of a study's round 1, which may take seconds to make.

    Raises:
        Refusal: if there is none, or none within `limits`; with every fault.
    """
    faults = list(_unpaid(asked))
    try:
        plan = plan_of(asked, study, rng)
    except ValueError as error:
        raise malformed_all([*faults, *_said(error)]) from None
    faults += _beyond(plan, limits)
    if faults:
        raise malformed_all(faults)
    return plan


def plan_of(asked: Asked, study: str, rng: Random) -> AnyPlan:
    """Return the plan of a study's round 1; raises ValueError if there is none."""
    mechanism = MECHANISMS[asked.question.mechanism]
    plan: AnyPlan = mechanism.first_plan(asked.question, asked.terms, study, asked.rounds, rng)
    return plan


def salted(question: AnyQuestion, study: str) -> AnyQuestion:
    """Return `question` with the study's name for a salt if its keys are hashed without one.

    Tables of keys made for one study are then of no use for another.
    """
    if isinstance(question.domain, Hashed) and not question.domain.salt:
        domain = question.domain.model_copy(update={"salt": study})
        return question.model_copy(update={"domain": domain})
    return question


def _unpaid(asked: Asked) -> Iterator[Fault]:
    if asked.population is not None and getattr(asked.question, "tables", False):
        yield {"at": "body.question.tables", "fault": _UNPAID}


def _said(error: ValueError) -> Iterator[Fault]:
    """Yield what a mechanism says is wrong: in its own words, not in pydantic's report of them."""
    if not isinstance(error, ValidationError):
        yield {"at": "body.question", "fault": str(error)}
        return
    for where, what in faults_of(error, AnyPlan):
        yield {"at": "body.question", "fault": ": ".join((*map(str, where), what))}


def _beyond(plan: AnyPlan, limits: Limits) -> Iterator[Fault]:
    nbytes = _largest_upload(plan)
    if nbytes > limits.upload_bytes:
        fault = f"uploads of {nbytes} bytes: this service accepts {limits.upload_bytes}"
        yield {"at": "body.question", "fault": fault}
    if plan.mechanism not in REPORTING:
        return
    mechanism = REPORTING[plan.mechanism]
    costs = {
        "epsilon": (mechanism.epsilon(plan), limits.epsilon),
        "delta": (mechanism.delta(plan), limits.delta),
    }
    for name, (cost, most) in costs.items():
        if not cost <= most:
            fault = (
                f"a report would cost {name} {cost:g}: this service lets a device spend {most:g}"
            )
            yield {"at": f"body.question.{name}", "fault": fault}


def _largest_upload(plan: AnyPlan) -> int:
    """Return how many bytes a device may say at once: a vector and a deal, a reveal, a report."""
    if plan.mechanism in REPORTING:
        nbytes: int = REPORTING[plan.mechanism].nbytes(plan)
        return packed_bytes(nbytes, plan.registry is not None)
    size = plan.terms.cohort_size
    deal = SeedDeal.nbytes(min(size - 1, MOST_HOLDERS)) + SIGNATURE_BYTES
    vector: int = SUMMING[plan.mechanism].ring(plan).nbytes
    return max(vector + deal, Reveal.nbytes(size))

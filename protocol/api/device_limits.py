"""Sizes and losses of a plan, which devices limit by their policy (`plan_check.py`)."""

import math
from typing import Final

from protocol.api.device_messages import packed_report_bytes
from protocol.api.one_shot import message_bytes
from protocol.committee_terms import CommitteeTerms
from protocol.mechanisms.central.release_mechanism import ReleasePlan
from protocol.mechanisms.registry import (
    REPORT_MECHANISMS,
    SUM_MECHANISMS,
    AnyPlan,
)
from secagg.keys import SIGNATURE_BYTES
from secagg.messages import KeyShares
from secagg.parameters import choose_parameters

# An element takes 20 bytes of memory, and each mask its time, even if it is uploaded as one bit.
UPLOAD_BYTES_PER_ELEMENT: Final = 2
_RATE_TOLERANCE: Final = 1e-9  # 0.2 of 35 counts as 7


def epsilon_of_rho(rho: float, delta: float) -> float:
    """Return the epsilon at `delta` of a privacy loss `rho` [BunSteinke16, proposition 1.3]."""
    return rho + 2 * math.sqrt(rho * -math.log(delta))


def reporting_threshold(plan: AnyPlan) -> float:
    """Return the smallest count with which the service lists an item."""
    if isinstance(plan, ReleasePlan):
        return float(plan.release.threshold)
    return float(plan.question.min_reported_count)


def rho_of(plan: AnyPlan) -> float | None:
    """Return a device's privacy loss rho in one sum [BunSteinke16], None if it has no noise."""
    shares = SUM_MECHANISMS[plan.mechanism].noise_shares(plan, plan.terms.cohort_size)
    return None if shares is None else plan.question.max_votes / shares.variance / 2


def vector_elements(plan: AnyPlan) -> int:
    """Return the elements of a device's vector, 0 for a report."""
    if plan.mechanism in REPORT_MECHANISMS:
        return 0
    return sum(lane.length for lane in SUM_MECHANISMS[plan.mechanism].ring(plan).lanes)


def upload_bytes(plan: AnyPlan) -> int:
    """Return the bytes of a report or a one-shot message, or of shares and vector of a cohort."""
    if plan.mechanism in REPORT_MECHANISMS:
        nbytes: int = REPORT_MECHANISMS[plan.mechanism].nbytes(plan)
        return packed_report_bytes(nbytes, plan.registry is not None)
    if plan.terms.is_one_shot:
        return message_bytes(plan)
    holders = choose_parameters(plan.terms.cohort_size, plan.terms.assumptions).holders
    vector: int = SUM_MECHANISMS[plan.question.mechanism].ring(plan).nbytes
    return KeyShares.nbytes(holders) + vector + SIGNATURE_BYTES


def least_tolerated(terms: CommitteeTerms, corrupt: float) -> int:
    """Return the number of operators that may collude, at a fraction `corrupt` of all named."""
    return max(1, math.floor(corrupt * len(terms.members) + _RATE_TOLERANCE))


def noise_events(plan: AnyPlan) -> float:
    """Return the expected number of events in a device's noise, in the smallest cohort."""
    if plan.mechanism in REPORT_MECHANISMS:
        return 0.0
    shares = SUM_MECHANISMS[plan.mechanism].noise_shares(plan, plan.terms.minimum)
    return 0.0 if shares is None else float(shares.share * vector_elements(plan))

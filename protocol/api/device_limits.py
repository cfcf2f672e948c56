"""Sizes and losses of a plan that devices limit, and the plans that default settings refuse.

A device compares the plan of each round with its policy (`client/device/policy.py`). The service
warns of plans that the default policy refuses when their study is created.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from protocol.api.device_messages import packed_report_bytes
from protocol.api.one_shot import message_bytes
from protocol.committee_terms import AnyCommitteeTerms, CommitteeTerms
from protocol.mechanisms.central.release_mechanism import ReleasePlan
from protocol.mechanisms.registry import (
    REPORT_MECHANISMS,
    SUM_MECHANISMS,
    AnyPlan,
    may_show_one_device,
)
from protocol.question_and_plan import (
    DEFAULT_MAX_CONTRIBUTION,
    DEFAULT_MAX_DELTA,
    DEFAULT_MAX_DROPOUT,
    DEFAULT_MAX_EPSILON,
    DEFAULT_MAX_UPLOAD_BYTES,
    DEFAULT_MIN_COMMITTEE,
    DEFAULT_MIN_COMMITTEE_CORRUPT,
    DEFAULT_MIN_CORRUPT,
    DEFAULT_MIN_SIGMA,
    DEFAULT_MIN_SUMMED,
    DEFAULT_MIN_THRESHOLD,
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


@dataclass(frozen=True, slots=True)
class DefaultRefusal:
    """A setting of a study for which devices with default settings refuse it, in words."""

    setting: str
    value: str
    reason: str


def default_refusals(plan: AnyPlan) -> Iterator[DefaultRefusal]:
    """Yield the settings of a study that devices with default settings refuse."""
    if plan.question.contribution > DEFAULT_MAX_CONTRIBUTION:
        reason = f"above {DEFAULT_MAX_CONTRIBUTION}"
        yield DefaultRefusal("Items per device", str(plan.question.contribution), reason)
    needed = max(upload_bytes(plan), vector_elements(plan) * UPLOAD_BYTES_PER_ELEMENT)
    if needed > DEFAULT_MAX_UPLOAD_BYTES:
        reason = f"above {DEFAULT_MAX_UPLOAD_BYTES:,}"
        yield DefaultRefusal("Bytes that a device sends", f"{needed:,}", reason)
    if plan.mechanism in REPORT_MECHANISMS:
        yield from _refused_reports(plan)
        return
    yield from _refused_terms(plan)
    if plan.terms.committee is not None:
        yield from _refused_committee(plan.terms.committee)
    yield from _refused_noise(plan)
    if isinstance(plan, ReleasePlan) and rho_of(plan) is not None:
        return  # noise hides a device behind any threshold
    threshold = reporting_threshold(plan)
    if threshold < DEFAULT_MIN_THRESHOLD:
        yield DefaultRefusal("Threshold", f"{threshold:.3g}", f"below {DEFAULT_MIN_THRESHOLD:g}")


def _refused_reports(plan: AnyPlan) -> Iterator[DefaultRefusal]:
    """Yield the losses of a report that devices with default settings refuse."""
    mechanism = REPORT_MECHANISMS[plan.mechanism]
    epsilon, delta = mechanism.epsilon(plan), mechanism.delta(plan)
    if epsilon > DEFAULT_MAX_EPSILON:
        reason = f"above {DEFAULT_MAX_EPSILON:g} for all reports of a device together"
        yield DefaultRefusal("Epsilon", f"{epsilon:.3g}", reason)
    if delta > DEFAULT_MAX_DELTA:
        yield DefaultRefusal("Delta", f"{delta:.3g}", f"above {DEFAULT_MAX_DELTA:g}")


def _refused_noise(plan: AnyPlan) -> Iterator[DefaultRefusal]:
    """Yield the losses of sums that devices with default settings refuse."""
    rho, is_repeated = rho_of(plan), plan.question.asks_every_round
    if rho is None:
        if is_repeated:
            yield DefaultRefusal("Noise", "none", "repeated sums may show what one device holds")
        if may_show_one_device(plan):
            yield DefaultRefusal("Noise", "none", "the answer may show what one device holds")
        if isinstance(plan, ReleasePlan) and plan.question.delta > DEFAULT_MAX_DELTA:
            reason = f"above {DEFAULT_MAX_DELTA:g}"
            yield DefaultRefusal("Delta", f"{plan.question.delta:.3g}", reason)
    elif is_repeated or isinstance(plan, ReleasePlan) or may_show_one_device(plan):
        epsilon = epsilon_of_rho(rho * (plan.rounds if is_repeated else 1), DEFAULT_MAX_DELTA)
        if epsilon > DEFAULT_MAX_EPSILON:
            reason = f"above {DEFAULT_MAX_EPSILON:g} at delta {DEFAULT_MAX_DELTA:g}"
            yield DefaultRefusal("Epsilon of the noise", f"{epsilon:.3g}", reason)


def _refused_committee(terms: AnyCommitteeTerms) -> Iterator[DefaultRefusal]:
    """Yield the sizes of a committee that devices with default settings refuse."""
    if terms.largest < DEFAULT_MIN_COMMITTEE:
        reason = f"below {DEFAULT_MIN_COMMITTEE}"
        yield DefaultRefusal("Members of the committee", str(terms.largest), reason)
    if isinstance(terms, CommitteeTerms):
        corrupt = terms.parameters.corrupt
        least = least_tolerated(terms, DEFAULT_MIN_COMMITTEE_CORRUPT)
        if corrupt < least:
            yield DefaultRefusal("Members that may collude", str(corrupt), f"below {least}")


def _refused_terms(plan: AnyPlan) -> Iterator[DefaultRefusal]:
    """Yield the terms of a sum that devices with default settings refuse."""
    terms = plan.terms
    if plan.registry is None:
        yield DefaultRefusal("Registrar", "none", "the server could invent devices")
    if terms.min_summed < DEFAULT_MIN_SUMMED:
        reason = f"in the smallest sum, below {DEFAULT_MIN_SUMMED}"
        yield DefaultRefusal("Devices", str(terms.min_summed), reason)
    if terms.mode != "active":
        yield DefaultRefusal("Server", terms.mode, "they do not trust it to follow the protocol")
    if terms.corrupt < DEFAULT_MIN_CORRUPT:
        reason = f"below {DEFAULT_MIN_CORRUPT:g}"
        yield DefaultRefusal("Share of corrupt devices", f"{terms.corrupt:g}", reason)
    if terms.sigma < DEFAULT_MIN_SIGMA:
        yield DefaultRefusal("Sigma", str(terms.sigma), f"below {DEFAULT_MIN_SIGMA}")
    if terms.dropout > DEFAULT_MAX_DROPOUT and not terms.is_one_shot:
        yield DefaultRefusal("Dropout", f"{terms.dropout:g}", f"above {DEFAULT_MAX_DROPOUT:g}")

"""Sizes and losses of a plan, which devices limit by their policy (`plan_check.py`)."""

import math
from collections import Counter
from typing import Final

from protocol.api.messages_outside_sums import packed_report_bytes
from protocol.committee_terms import CommitteeTerms
from protocol.mechanisms.registry import REPORT_MECHANISMS, SUM_MECHANISMS, AnyPlan
from protocol.privacy.noise_loss import CountNoise
from protocol.round_sizes import message_bytes

# An element takes 20 bytes of memory, and each mask its time, even if it is uploaded as one bit.
UPLOAD_BYTES_PER_ELEMENT: Final = 2
_RATE_TOLERANCE: Final = 1e-9  # 0.2 of 35 counts as 7


def noisy_counts(plan: AnyPlan) -> Counter[CountNoise]:
    """Return the number of counts to which a device adds in a sum, by their noise.

    A device that joins by a coin counts its secret coin for a vote, and not the coin that the
    server sees.
    """
    shares = SUM_MECHANISMS[plan.mechanism].noise_shares(plan, plan.terms.cohort_size)
    variance = 0.0 if shares is None else shares.variance
    noise = CountNoise(variance, plan.vote_probability if variance else 1.0)
    return Counter({noise: plan.question.max_votes})


def has_noise(plan: AnyPlan) -> bool:
    """Return whether devices add noise to the counts of a sum."""
    return all(noise.variance for noise in noisy_counts(plan))


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
    return message_bytes(plan.terms, SUM_MECHANISMS[plan.mechanism].ring(plan))


def least_tolerated(terms: CommitteeTerms, corrupt: float) -> int:
    """Return the number of operators that may collude, at a fraction `corrupt` of all named."""
    return max(1, math.floor(corrupt * len(terms.members) + _RATE_TOLERANCE))


def noise_events(plan: AnyPlan) -> float:
    """Return the expected number of events in a device's noise, in the smallest cohort."""
    if plan.mechanism in REPORT_MECHANISMS:
        return 0.0
    shares = SUM_MECHANISMS[plan.mechanism].noise_shares(plan, plan.terms.minimum)
    return 0.0 if shares is None else float(shares.share * vector_elements(plan))

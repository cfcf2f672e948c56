"""Bounds on the loss of sample-and-threshold that an auditor checks with a pocket calculator.

The accounting uses none of them: the ledger has the exact loss. All are for one level with coins of
probability p, add-remove, and hold for any number of devices; L levels cost L times as much at
delta / L each. No form gives a bound for epsilon up to -ln(1 - p), the cost of suppression.

    KL       delta = exp(-(theta / q) D(q | p)),  q = 1 - (1 - p) e^-epsilon: only a count above
             q (k + 1) reveals more than epsilon, which k + 1 coins reach with Chernoff's
             probability. If k + 1 is at most theta / q, they must reach theta itself, and fewer
             coins do so less often
    C_alpha  delta = exp(-C theta),  C = ln(1 / alpha) - 1 / (1 + alpha),  where p is
             alpha (1 - e^-epsilon): KL, as D(q | p) / q is at least ln(q / p) - 1 + p / q
    note     epsilon = -ln(1 - theta p) with theta = 3 + ln(1 / delta), lemmas 1 to 3; its lemma 2
             bounds one direction of the ratio, and the other, -ln(1 - p), is below it

Source: [Cormode21, section 2] for the note, with corrections in docs/privacy.md;
[BharadwajCormode22] for C_alpha.
"""

import math
from collections.abc import Callable

from protocol.numerics.binary_search import boundary
from protocol.privacy.sample_threshold import check_parameters

_MAX_EPSILON = 100.0


def kl_delta(probability: float, threshold: int, epsilon: float) -> float:
    """Return the KL form's delta of one level; 1 if it has no bound."""
    check_parameters(probability, threshold)
    if epsilon <= -math.log1p(-probability):
        return 1.0
    q = -math.expm1(math.log1p(-probability) - epsilon)
    divergence = q * math.log(q / probability) - (1 - q) * epsilon
    return math.exp(-threshold / q * divergence)


def c_alpha_delta(probability: float, threshold: int, epsilon: float) -> float:
    check_parameters(probability, threshold)
    if epsilon <= -math.log1p(-probability):
        return 1.0
    alpha = probability / -math.expm1(-epsilon)
    return min(1.0, math.exp(-threshold * (-math.log(alpha) - 1 / (1 + alpha))))


def kl_epsilon(probability: float, threshold: int, delta: float, levels: int = 1) -> float:
    """Return the KL form's epsilon of all `levels` together; infinity if none is below 100."""
    return _epsilon(lambda x: kl_delta(probability, threshold, x), delta, levels)


def c_alpha_epsilon(probability: float, threshold: int, delta: float, levels: int = 1) -> float:
    """Return the C_alpha form's epsilon of all `levels`; infinity if none is below 100."""
    return _epsilon(lambda x: c_alpha_delta(probability, threshold, x), delta, levels)


def cormode21_epsilon(probability: float, threshold: int, delta: float, levels: int = 1) -> float:
    """Return the note's epsilon of all `levels`; infinity where its lemmas do not apply.

    They need theta >= 3 + ln(L / delta), for which lemma 1 bounds delta, and theta p < 1.
    """
    check_parameters(probability, threshold)
    if threshold < 3 - math.log(delta / levels) or threshold * probability >= 1:
        return math.inf
    return -levels * math.log1p(-threshold * probability)


def _epsilon(delta_at: Callable[[float], float], delta: float, levels: int) -> float:
    """Return `levels` times the smallest epsilon up to 100 whose delta is `delta` / `levels`."""
    if not 0 < delta < 1 or levels < 1:
        raise ValueError(
            f"delta must be between 0 and 1, not {delta}, and levels 1 or more, not {levels}"
        )
    if delta_at(_MAX_EPSILON) > delta / levels:
        return math.inf
    smallest = boundary(lambda x: delta_at(x) <= delta / levels, 0.0, _MAX_EPSILON)
    return levels * smallest

"""The exact privacy loss of sample-and-threshold: a count is shown if enough of it was sampled.

Each device flips a coin of probability p and, on heads, adds one to the cell of its value; a cell
shows its sum X if X >= theta. With k others in the cell and q = 1 - (1 - p) e^-eps, the curve of
`loss_distributions.py` is a difference of two binomial tails, at the worst x >= theta,

    with, without   Pr[Bin(k+1, p) >= x] - e^eps Pr[Bin(k, p) >= x],    x > q (k + 1)
    without, with   Pr[Bin(k, p) < x]    - e^eps Pr[Bin(k+1, p) < x]    with -eps in q

and the loss is the worst over all k, because their number is unknown: x = theta, and k + 1 the
first integer from (theta - 1) / q, never below theta (proof in docs/research/privacy.md). At least
p^theta of the loss is total.

An auditor checks three bounds on it with a pocket calculator. The accounting uses none of them: the
ledger has the exact loss. All are for one level, add-remove, and hold for any number of devices; L
levels cost L times as much at delta / L each. No form gives a bound for epsilon up to -ln(1 - p),
the cost of suppression.

    KL       delta = exp(-(theta / q) D(q | p)):  only a count above q (k + 1) reveals more than
             epsilon, which k + 1 coins reach with Chernoff's probability. If k + 1 is at most
             theta / q, they must reach theta itself, and fewer coins do so less often
    C_alpha  delta = exp(-C theta),  C = ln(1 / alpha) - 1 / (1 + alpha),  where p is
             alpha (1 - e^-epsilon): KL, as D(q | p) / q is at least ln(q / p) - 1 + p / q
    note     epsilon = -ln(1 - theta p) with theta = 3 + ln(1 / delta), lemmas 1 to 3; its lemma 2
             bounds one direction of the ratio, and the other, -ln(1 - p), is below it

Source: [Cormode21, section 2], whose lemmas 2 and 3 bound one direction, for the note, with
corrections in docs/research/privacy.md; [BharadwajCormode22] for C_alpha. The exact curve, the
maximum and its proof are ours.
"""

import math
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from protocol.numerics import special
from protocol.numerics.array_types import Floats
from protocol.numerics.binary_search import boundary
from protocol.privacy.loss_distributions import (
    LOSS_INTERVAL,
    NeighbourRelation,
    between_neighbours,
    connect_the_dots,
    highest_relevant_loss,
)

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

MAX_THRESHOLD = 10_000
_MAX_OTHERS = 2.0**52  # others for which a suppressed cell is impossible
_MAX_EPSILON = 100.0  # of the KL form


def check_parameters(probability: float, threshold: int) -> None:
    """Raise ValueError unless `probability` is in [1e-9, 1) and `threshold` from 1 to 10,000."""
    if not 1e-9 <= probability < 1:  # also refuses NaN
        raise ValueError(f"probability must be from 1e-9 to below 1, not {probability}")
    if not 1 <= threshold <= MAX_THRESHOLD:
        raise ValueError(f"theta must be from 1 to {MAX_THRESHOLD}, not {threshold}")


@lru_cache(maxsize=64)
def privacy_loss(
    probability: float,
    threshold: int,
    relation: NeighbourRelation = "add-remove",
    interval: float = LOSS_INTERVAL,
) -> "PrivacyLossDistribution":
    """Return the loss of one release with coins of `probability` and theta of `threshold`.

    The larger the `interval` of its losses, the faster it is, and the more it overstates them.
    """
    check_parameters(probability, threshold)
    lowest = math.log1p(-probability)
    highest = max(0.0, math.log(threshold) + lowest) + interval  # above, all loss is total
    removed = partial(removal_divergence, probability, threshold)
    added = partial(addition_divergence, probability, threshold)
    highest = highest_relevant_loss(removed, lowest, highest, interval)
    remove = connect_the_dots(removed, lowest, highest, interval)
    add = connect_the_dots(added, -highest, -lowest, interval)
    return between_neighbours(remove, add, relation)


def removal_divergence(probability: float, threshold: int, epsilons: Floats) -> Floats:
    """Return H(with, without) at each of `epsilons`, any reals; the worst over all k."""
    others, heads = _worst_others(probability, threshold, epsilons)
    curve = probability * heads - np.expm1(epsilons) * _binomial_tail(
        others, threshold, probability
    )
    # The ends of the curve are known exactly: theta - 1 others, and arbitrarily many.
    return np.maximum(np.maximum(curve, probability**threshold), -np.expm1(epsilons))


def addition_divergence(probability: float, threshold: int, epsilons: Floats) -> Floats:
    """Return H(without, with) at each of `epsilons`, any reals; the worst over all k."""
    others, heads = _worst_others(probability, threshold, -epsilons)
    suppressed = _binomial_tail(others, threshold, probability, below=True)
    curve = np.exp(epsilons) * probability * heads - np.expm1(epsilons) * suppressed
    curve = np.maximum(curve, np.maximum(0.0, -np.expm1(epsilons)))
    return np.where(epsilons < -math.log1p(-probability), curve, 0.0)


def _worst_others(probability: float, threshold: int, epsilons: Floats) -> tuple[Floats, Floats]:
    """Return the worst k for each of `epsilons`, and the probability of theta - 1 heads among k."""
    q = -np.expm1(math.log1p(-probability) - epsilons)
    with np.errstate(divide="ignore", invalid="ignore"):
        trials = np.where(q > 0, np.ceil((threshold - 1) / q), _MAX_OTHERS)
    others = np.clip(trials, threshold, _MAX_OTHERS) - 1
    # Term by term, because log-gamma functions of large k would lose significant digits.
    tails = others - (threshold - 1)
    logs = tails * math.log1p(-probability)
    for i in range(1, threshold):
        logs += np.log((tails + i) * (probability / i))
    return others, np.exp(logs)


def _binomial_tail(
    trials: Floats, heads: int, probability: float, *, below: bool = False
) -> Floats:
    """Return the probability of at least `heads` >= 1 in `trials`, or of fewer if `below`."""
    tails = trials - heads + 1
    possible = np.maximum(tails, 1.0)
    if below:
        return np.where(tails > 0, special.betainc(possible, heads, 1 - probability), 1.0)
    return np.where(tails > 0, special.betainc(heads, possible, probability), 0.0)


def kl_delta(probability: float, threshold: int, epsilon: float) -> float:
    """Return the KL form's delta of one level; 1 if it has no bound."""
    check_parameters(probability, threshold)
    if epsilon <= -math.log1p(-probability):
        return 1.0
    q = -math.expm1(math.log1p(-probability) - epsilon)
    divergence = q * math.log(q / probability) - (1 - q) * epsilon
    return math.exp(-threshold / q * divergence)


def kl_epsilon(probability: float, threshold: int, delta: float, levels: int = 1) -> float:
    """Return the KL form's epsilon of all `levels` together; infinity if none is below 100."""
    if not 0 < delta < 1 or levels < 1:
        raise ValueError(
            f"delta must be between 0 and 1, not {delta}, and levels 1 or more, not {levels}"
        )
    if kl_delta(probability, threshold, _MAX_EPSILON) > delta / levels:
        return math.inf
    return levels * boundary(
        lambda x: kl_delta(probability, threshold, x) <= delta / levels, 0.0, _MAX_EPSILON
    )


def cormode21_epsilon(probability: float, threshold: int, delta: float, levels: int = 1) -> float:
    """Return the note's epsilon of all `levels`; infinity where its lemmas do not apply.

    They need theta >= 3 + ln(L / delta), for which lemma 1 bounds delta, and theta p < 1.
    """
    check_parameters(probability, threshold)
    if threshold < 3 - math.log(delta / levels) or threshold * probability >= 1:
        return math.inf
    return -levels * math.log1p(-threshold * probability)

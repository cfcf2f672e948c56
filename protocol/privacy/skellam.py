"""The exact privacy loss of Skellam noise on a count, with and without secret sampling.

A device adds one to a count, and noise of variance s hides it: Z, the difference of two Poisson
numbers of mean s / 2, P(Z = z) = e^-s I_z(s). Without the device the count moves by one, and

    loss(z) = ln P(Z = z - 1) / P(Z = z)

grows with z, so the curve of `loss.py` is a difference of two tails. If the device takes part
by a coin of odds p that whoever sees the count does not know, it is p of the moved count and
1 - p of the other. The logarithmic tails of the loss make this noise better than a Gaussian of
the same variance where there is little of it.

The sum of independent Skellam numbers is Skellam, and more noise tells less: what is computed
for the least variance that the honest survivors can add holds for any more of it.

Source: [Agarwal21] for the mechanism; the curves are exact here, where it bounds them.
"""

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ive

from protocol.privacy.loss import Curve, Floats, Relation, between_neighbours, joined, top
from protocol.privacy.noise import reach

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

LEAST_VARIANCE, MOST_VARIANCE = 2.0**-10, 2.0**24
_UNSEEN = 1e-21  # odds of noise beyond what is enumerated


@lru_cache(maxsize=64)
def privacy_loss(
    variance: float, sampled: float = 1.0, relation: Relation = "add-remove"
) -> "PrivacyLossDistribution":
    """Return the loss of one count with noise of `variance`, of which `sampled` take part.

    Raises:
        ValueError: if `variance` is not within 2^-10 and 2^24, or `sampled` not above 0 and at
            most 1.
    """
    check(variance, sampled)
    end = reach(variance, _UNSEEN)
    still = np.asarray(ive(np.abs(np.arange(-end, end + 1)), variance), np.float64)
    without, moved = still[1:], still[:-1]
    with_it = (1 - sampled) * without + sampled * moved
    removed, added = _curve(with_it, without), _curve(without[::-1], with_it[::-1])
    least, most = (math.log(with_it[end] / without[end]) for end in (0, -1))
    most, least = top(removed, least, most), -top(added, -most, -least)
    remove, add = joined(removed, least, most), joined(added, -most, -least)
    return between_neighbours(remove, add, relation)


def check(variance: float, sampled: float) -> None:
    """Check a design.

    Raises:
        ValueError: if `variance` is not within 2^-10 and 2^24, or `sampled` not above 0 and at
            most 1.
    """
    if not LEAST_VARIANCE <= variance <= MOST_VARIANCE:
        raise ValueError(f"variance must be within 2^-10 and 2^24, not {variance}")
    if not 0 < sampled <= 1:
        raise ValueError(f"a share above 0 and at most 1 is sampled, not {sampled}")


def _curve(upper: Floats, lower: Floats) -> Curve:
    """Return the curve of `upper` against `lower`, by outcomes of growing loss."""
    losses = np.log(upper) - np.log(lower)
    losses = np.maximum.accumulate(losses)  # equal ones may be rounded out of order
    # From the top down, so that small odds are added to small odds; what is beyond is lost.
    above = [np.append(np.cumsum(odds[::-1])[::-1], 0.0) for odds in (upper, lower)]

    def curve(x: Floats) -> Floats:
        first = np.searchsorted(losses, x, side="right")
        inside = above[0][first] - np.exp(x) * above[1][first]
        return np.asarray(np.maximum(np.maximum(inside, 0.0) + _UNSEEN, -np.expm1(x)))

    return curve


def least_above(variance: float, odds: float) -> int:
    """Return the least x >= 1 that noise of `variance` reaches with `odds` at most."""
    end = reach(variance, odds)
    above = np.cumsum(np.asarray(ive(np.arange(end + 1), variance), np.float64)[::-1])[::-1]
    enough = np.flatnonzero(above[1:] + _UNSEEN <= odds)
    return int(enough[0]) + 1 if len(enough) else end + 1

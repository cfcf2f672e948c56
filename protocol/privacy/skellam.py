"""The exact privacy loss of Skellam noise on a count, with and without secret sampling.

A device adds one to a count, and noise Z of variance s hides it, P(Z = z) = e^-s I_z(s). Without
the device the count moves by one, and

    loss(z) = ln P(Z = z - 1) / P(Z = z)

grows with z, so the curve of `loss_distributions.py` is a difference of two tails. If the device
takes part by a coin of probability p that the reader of the count does not know, the distribution
is a mixture: p of the moved count and 1 - p of the other. More noise reveals less, so a result for
the smallest variance that the honest survivors can add holds for any larger variance.

Source: [Agarwal21] for the mechanism; the curves are exact here, where it bounds them.
"""

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from protocol.numerics import special
from protocol.numerics.array_types import Floats
from protocol.privacy.loss_distributions import (
    LOSS_INTERVAL,
    DivergenceCurve,
    NeighbourRelation,
    between_neighbours,
    connect_the_dots,
    highest_relevant_loss,
)
from protocol.privacy.noise_shares import tail_bound

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

MIN_VARIANCE, MAX_VARIANCE = 2.0**-10, 2.0**24
_NEGLIGIBLE_TAIL = 1e-21  # of noise beyond the enumerated range


@lru_cache(maxsize=64)
def privacy_loss(
    variance: float,
    probability: float = 1.0,
    relation: NeighbourRelation = "add-remove",
    interval: float = LOSS_INTERVAL,
) -> "PrivacyLossDistribution":
    """Return the loss of one count with noise of `variance`; a vote counts with `probability`.

    The larger the `interval` of its losses, the faster it is, and the more it overstates them.
    """
    check_parameters(variance, probability)
    end = tail_bound(variance, _NEGLIGIBLE_TAIL)
    probabilities = np.asarray(special.ive(np.abs(np.arange(-end, end + 1)), variance), np.float64)
    without, moved = probabilities[1:], probabilities[:-1]
    with_it = (1 - probability) * without + probability * moved
    removed, added = _curve(with_it, without), _curve(without[::-1], with_it[::-1])
    lowest, highest = (math.log(with_it[end] / without[end]) for end in (0, -1))
    highest, lowest = (
        highest_relevant_loss(removed, lowest, highest, interval),
        -highest_relevant_loss(added, -highest, -lowest, interval),
    )
    remove, add = (
        connect_the_dots(removed, lowest, highest, interval),
        connect_the_dots(added, -highest, -lowest, interval),
    )
    return between_neighbours(remove, add, relation)


def check_parameters(variance: float, probability: float) -> None:
    """Raise ValueError unless `variance` is from 2^-10 to 2^24 and `probability` in (0, 1]."""
    if not MIN_VARIANCE <= variance <= MAX_VARIANCE:
        raise ValueError(f"variance must be from 2^-10 to 2^24, not {variance}")
    if not 0 < probability <= 1:
        raise ValueError(f"probability must be above 0 and at most 1, not {probability}")


def _curve(upper: Floats, lower: Floats) -> DivergenceCurve:
    """Return the curve of `upper` against `lower`, for outcomes of growing loss."""
    losses = np.log(upper) - np.log(lower)
    losses = np.maximum.accumulate(losses)  # rounding may change the order of equal losses
    # From the top down, so that small numbers are added to small numbers.
    above = [np.append(np.cumsum(side[::-1])[::-1], 0.0) for side in (upper, lower)]

    def curve(x: Floats) -> Floats:
        first = np.searchsorted(losses, x, side="right")
        inside = above[0][first] - np.exp(x) * above[1][first]
        return np.asarray(np.maximum(np.maximum(inside, 0.0) + _NEGLIGIBLE_TAIL, -np.expm1(x)))

    return curve


def tail_quantile(variance: float, tail: float) -> int:
    """Return the smallest x >= 1 that noise reaches with probability `tail` at most."""
    end = tail_bound(variance, tail)
    above = np.cumsum(np.asarray(special.ive(np.arange(end + 1), variance), np.float64)[::-1])[::-1]
    sufficient = np.flatnonzero(above[1:] + _NEGLIGIBLE_TAIL <= tail)
    return int(sufficient[0]) + 1 if len(sufficient) else end + 1

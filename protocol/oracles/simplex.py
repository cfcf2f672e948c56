"""Estimates made into frequencies: none negative, all together 1. Only if somebody asks for it.

Raw estimates are unbiased, and their errors are what intervals are about. The nearest point of
the simplex is neither: it is nearer to the truth as a whole, in squares, and biased for each
value. So it stands beside the raw estimates, never in their place.

Source: the projection of [Duchi08]; "norm-sub" of [Wang20], which names it best for all values
taken together.
"""

from dataclasses import dataclass, field

import numpy as np

from protocol.oracles.counts import Frequencies


@dataclass(frozen=True, eq=False)
class Projected:
    """`frequencies` (d,) on the simplex, and the `raw` estimates that they were made of."""

    raw: Frequencies = field(repr=False)
    frequencies: Frequencies = field(repr=False)


def project(estimates: Frequencies) -> Projected:
    """Return the point of the simplex nearest to the estimates of a *whole* dictionary.

    Raises:
        ValueError: if there are none, or one is not a finite number.
    """
    if not len(estimates) or not np.isfinite(estimates).all():
        raise ValueError("estimates must be finite numbers, and one at least")
    falling = np.sort(estimates)[::-1]
    shifts = (np.cumsum(falling) - 1) / np.arange(1, len(falling) + 1)
    last = int(np.flatnonzero(falling > shifts)[-1])  # the first always is
    return Projected(estimates, np.maximum(estimates - shifts[last], 0))

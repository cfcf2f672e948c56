"""Projection of estimates to the simplex: no frequency is negative, and their sum is 1.

Raw estimates are unbiased, and intervals describe their errors. The nearest point of the simplex is
nearer to the truth in the sum of squares, but biased for each value. So it is an addition to the
raw estimates and never replaces them.

Source: the projection of [Duchi08]; "norm-sub" of [Wang20], which recommends it for estimates of
all values together.
"""

from dataclasses import dataclass, field

import numpy as np

from protocol.arrays import Frequencies


@dataclass(frozen=True, eq=False)
class SimplexProjection:
    """`frequencies` (d,) on the simplex, and the `raw` estimates that were projected."""

    raw: Frequencies = field(repr=False)
    frequencies: Frequencies = field(repr=False)


def project_to_simplex(estimates: Frequencies) -> SimplexProjection:
    """Return the point of the simplex nearest to the estimates of a *whole* dictionary.

    Raises:
        ValueError: if there is no estimate, or one is not a finite number.
    """
    if not len(estimates) or not np.isfinite(estimates).all():
        raise ValueError("estimates must be finite numbers, at least one")
    falling = np.sort(estimates)[::-1]
    shifts = (np.cumsum(falling) - 1) / np.arange(1, len(falling) + 1)
    last = int(np.flatnonzero(falling > shifts)[-1])  # the first always is
    return SimplexProjection(estimates, np.maximum(estimates - shifts[last], 0))

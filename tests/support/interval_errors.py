"""Errors of estimates in standard errors, and the goals that they miss by more than chance."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from scipy.special import pdtrc

_COVERED_GOAL: Final = (0.93, 0.97)
_RMS_GOAL: Final = (0.9, 1.1)
_OVER_5_GOAL: Final = 1 / 2000
_CHANCE_Z_SCORE: Final = 3.0  # standard errors beyond a goal that chance does not explain
# Standard deviation of the square of an error: the root of 2 if it is normal, and skewed ones more.
_SQUARE_DEVIATION: Final = 2.0


def missed_goals(z_scores: Sequence[float], covered: Sequence[bool]) -> Iterator[str]:
    """Yield each goal that estimates miss by more than chance explains.

    `z_scores` are their errors in standard errors, and `covered` states whose intervals hold.
    """
    items, share = len(covered), float(np.mean(covered))
    low, high = _COVERED_GOAL
    error = _CHANCE_Z_SCORE * math.sqrt(low * (1 - low) / items)
    if not low - error <= share <= high + error:
        yield f"covered {share:.3f}"
    rms, (low, high) = float(np.sqrt(np.mean(np.square(z_scores)))), _RMS_GOAL
    error = _CHANCE_Z_SCORE * _SQUARE_DEVIATION / math.sqrt(items)
    if rms**2 + error < low**2 or rms**2 - error > high**2:
        yield f"rms z {rms:.2f}"
    outliers = int((np.abs(z_scores) > 5).sum())
    if outliers and pdtrc(outliers - 1, items * _OVER_5_GOAL) < 1 / 400:
        yield f"over 5 {outliers} of {items:,}"

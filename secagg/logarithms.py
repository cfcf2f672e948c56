"""Logarithms of factorials and of sums, so that devices compute parameters without scipy.

ln n! is a table up to 4,095, and Stirling's series with three terms beyond, where the next term is
below 10^-21. Sums are taken relative to their largest term, so that none is lost.
"""

import math
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

LogArray: TypeAlias = NDArray[np.float64]

_TABLE: Final = np.array([math.lgamma(n + 1.0) for n in range(4096)])
_HALF_LOG_TWO_PI: Final = math.log(2 * math.pi) / 2


def log_factorial(n: LogArray | float) -> LogArray:
    """Return ln n! for whole numbers `n`; inf below zero."""
    whole = np.asarray(n, np.float64)
    logs: LogArray = _TABLE[np.clip(whole, 0, len(_TABLE) - 1).astype(np.intp)]
    if np.max(whole, initial=0) >= len(_TABLE):
        logs = np.where(whole < len(_TABLE), logs, _stirling(np.maximum(whole, len(_TABLE))))
    if np.min(whole, initial=0) < 0:
        logs = np.where(whole < 0, np.inf, logs)
    return logs


def _stirling(n: LogArray) -> LogArray:
    inverse = 1 / n
    correction = inverse * (1 / 12 - inverse * inverse / 360)
    result: LogArray = (n + 0.5) * np.log(n) - n + _HALF_LOG_TWO_PI + correction
    return result


def log_sum_exp(terms: LogArray, axis: int | None = None) -> LogArray:
    """Return the log of the sum of exp(`terms`) along `axis`, or of all; -inf if each is -inf."""
    largest = np.max(terms, axis=axis, keepdims=True)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):  # the log of zero is -inf
        sums = np.log(np.sum(np.exp(terms - shift), axis=axis, keepdims=True)) + shift
    result: LogArray = np.squeeze(sums, axis=axis)
    return result


def relative_entropy_term(p: LogArray | float, q: LogArray | float) -> LogArray:
    """Return p ln(p / q), which is 0 if p is 0, and inf if only q is 0."""
    p, q = np.broadcast_arrays(np.asarray(p, np.float64), np.asarray(q, np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > 0, p * np.log(p / q), 0.0)

"""Bounds on the parameters and reports of all oracles."""

from numbers import Integral, Real

import numpy as np

from protocol.numerics.array_types import PackedReports

MIN_EPSILON, MAX_EPSILON = 1e-6, 32.0
MAX_DOMAIN = 2**32
MAX_FULLY_DECODED_DOMAIN = 2**26  # values that are counted all together


def check_epsilon(epsilon: float) -> None:
    """Raise ValueError if `epsilon` is not from 1e-6 to 32, as 64-bit probabilities need."""
    is_number = isinstance(epsilon, Real) and not isinstance(epsilon, bool)
    if not is_number or not MIN_EPSILON <= epsilon <= MAX_EPSILON:  # also refuses NaN
        raise ValueError(
            f"epsilon must be from {MIN_EPSILON:g} to {MAX_EPSILON:g}, not {epsilon!r}"
        )


def check_domain(domain: int) -> None:
    """Raise ValueError if a number of values is not a whole number from 2 to 2^32."""
    is_whole = isinstance(domain, Integral) and not isinstance(domain, bool)
    if not is_whole or not 2 <= domain <= MAX_DOMAIN:
        raise ValueError(f"domain must be from 2 to 2^32, a whole number, not {domain!r}")


def check_report_shape(reports: PackedReports, nbytes: int) -> None:
    """Raise ValueError if `reports` is not of uint8 and shape `(n, nbytes)`."""
    if reports.dtype != np.uint8 or reports.ndim != 2 or reports.shape[1] != nbytes:
        raise ValueError(
            f"reports must be uint8 of shape (n, {nbytes}), "
            f"not {reports.dtype} of shape {reports.shape}"
        )

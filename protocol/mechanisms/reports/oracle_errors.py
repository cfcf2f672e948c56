"""Errors of an oracle's estimates: predicted for a study, and measured against the truth.

l1 and l2 are predicted for one value that all devices hold and d - 1 absent ones, which is within
1/n of any other population; l1 for normal errors: sqrt(2/pi) times their deviations. A frequency is
detected by a threshold that with probability 95% no absent value exceeds. Thresholds use the exact
tails of absent values (`tail_bounds.py`).
"""

import math
from math import inf, pi, sqrt

import numpy as np

from protocol.numerics import special
from protocol.numerics.array_types import Floats
from protocol.numerics.binary_search import boundary
from protocol.oracles.oracle import Oracle
from protocol.report_advice import DETECTION_PROBABILITY, Goal


def error_measures(
    oracle: Oracle, devices: int, estimates: Floats, truth: Floats
) -> dict[str, float]:
    """Return the errors of the shares of all items, each with its value in theory.

    `worst_mse` is the largest square, `l1` the sum of absolute errors and `l2` the sum of squares.
    Theory gives the variance of each share. A mean of `worst_mse` over many runs approaches
    `worst_mse_theory`, the largest variance; that of a single run approaches `worst_mse_expected`.
    """
    errors = (estimates - truth) / devices
    shares = np.append(truth, devices - truth.sum()) / devices
    variances = oracle.variances(shares, devices)[:-1]
    return {
        "worst_mse": float((errors**2).max()),
        "worst_mse_theory": float(variances.max()),
        "worst_mse_expected": expected_max_squared_error(variances),
        "l1": float(np.abs(errors).sum()),
        "l1_theory": float(np.sqrt(2 / np.pi) * np.sqrt(variances).sum()),
        "l2": float((errors**2).sum()),
        "l2_theory": float(variances.sum()),
    }


def expected_max_squared_error(variances: Floats) -> float:
    """Return the mean of the largest square of independent normal errors with `variances`."""
    distinct, times = np.unique(variances[variances > 0], return_counts=True)
    if not len(distinct):
        return 0.0
    # The mean is the integral of P(largest > t). P beyond the last t is below 1e-20.
    ends = np.linspace(0, math.sqrt(distinct[-1] * 2 * (math.log(len(variances)) + 46)), 2001)
    below = np.array(
        [np.sum(times * np.log(special.erf(end / np.sqrt(2 * distinct)))) for end in ends[1:]]
    )
    above = np.append(1.0, -np.expm1(below))
    return float(np.trapezoid(above, ends**2))


def predicted_error(oracle: Oracle, users: int, goal: Goal, max_frequency: float = 1.0) -> float:
    """Return the error of `oracle` with `users` reports; infinite if no value is detected."""
    absent, present = (n_variance / users for n_variance in oracle.scaled_variances)
    if goal == "worst-mse":
        return max(absent, absent + (present - absent) * max_frequency)
    if goal == "l2":
        return present + (oracle.domain - 1) * absent
    if goal == "l1":
        return sqrt(2 / pi) * (sqrt(present) + (oracle.domain - 1) * sqrt(absent))
    threshold = oracle.detection_threshold(users, (1 - DETECTION_PROBABILITY) / oracle.domain)

    def is_detected(frequency: float) -> bool:
        variance = absent + (present - absent) * frequency
        return frequency > threshold + float(special.ndtri(DETECTION_PROBABILITY)) * sqrt(variance)

    return boundary(is_detected, 0.0, 1.0, 1e-9) if is_detected(1.0) else inf

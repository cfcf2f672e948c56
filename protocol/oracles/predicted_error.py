"""Predicted error of an oracle, by the goals of `report_advice`.

l1 and l2 are predicted for one value that all devices hold and d - 1 absent ones, which is within
1/n of any other population; l1 for normal errors: sqrt(2/pi) times their deviations. A frequency is
detected by a threshold that with probability 95% no absent value exceeds. Thresholds use the exact
tails of absent values (`tail_bounds.py`).
"""

from math import inf, pi, sqrt

from protocol.numerics import special
from protocol.numerics.binary_search import boundary
from protocol.oracles.oracle import Oracle
from protocol.report_advice import DETECTION_PROBABILITY, Goal


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

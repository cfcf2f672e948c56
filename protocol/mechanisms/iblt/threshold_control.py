"""Two rules by which the sampling threshold t follows the data from round to round.

A table has room for L0 keys, and s distinct keys were sampled at t. The paper's rule goes half of
the way that would be right if s were proportional to 1 / t:

    paper       t'  =  t / 2 + t / 2 * s / L0

If most keys have many holders, s falls more slowly than 1 / t, so this rule takes many rounds to
settle. It also aims at a table that is exactly full, so that half of all fluctuations lose a round.

    steady      ln t'  =  ln t + (ln s - ln(L0 - margin)) / a

takes the slope from the data. If a sample is made slightly smaller, the keys that leave it are
keys that were sampled once. So a = - d ln s / d ln t = (keys sampled once) / s, which every
table that is read gives exactly. One Newton step would suffice without noise and drift; a filter
handles these. The expected s is known before a round. Half of the error changes the forecast; all
of it does in round 1, after a table that was not read, and beyond three standard deviations,
which means drift. The margin is half the root of the mean squared error. So the probability that a
table overflows depends on the quality of the forecast, and not on the size of the table. Devices
count like 1 / t, so s is compared at t per device.

After a table that could not be read, s is estimated, and the slope is the last known one.

A round with far fewer devices than expected (`study_state.py`) changes no forecast.

Source: the update of section 7 of [Gascon23], which leaves better rules open. There s is divided by
the budget C, which cannot be meant in words, 8 of them per key; we read it as L0.
"""

import math
from dataclasses import astuple, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from protocol.study_state import is_small

ThresholdRule = Literal["paper", "steady"]

_FIRST_SLOPE = 0.7  # before a table was read
_MIN_SLOPE = 0.25
_FIRST_ERROR_VARIANCE = 0.1**2
_DRIFT_Z_SCORE = 3.0  # standard deviations; larger errors are drift
_MARGIN_SDS = 0.5  # standard deviations; the best F1 of 0, 0.5 and 1 over nine populations


@dataclass(frozen=True, slots=True)
class TableLoad:
    """Table of one round: `devices` sampled at `t`; `singletons` is None if it was not read."""

    t: float
    devices: int
    distinct_keys: float
    singletons: int | None


@dataclass(frozen=True, slots=True)
class ThresholdController:
    """Forecast from the rounds so far: ln of the keys at `log_t`, the ln of t per device.

    `slope` is a, `error_variance` that of forecasts of ln s.
    """

    log_keys: float
    log_t: float
    slope: float
    error_variance: float

    def next_threshold(self, limit: float, devices: float) -> float:
        """Return the t at which `devices` fill a table for `limit` keys except for the margin."""
        goal = math.log(limit) - _MARGIN_SDS * math.sqrt(self.error_variance)
        return devices * math.exp(self.log_t + (self.log_keys - goal) / self.slope)

    def updated(self, load: TableLoad, expected_devices: float) -> "ThresholdController":
        """Return the forecast after a round for which `expected_devices` were expected."""
        if is_small(load.devices, expected_devices):
            return self
        log_t, log_keys = _log_load(load)
        slope = self.slope if load.singletons is None else _slope(load)
        forecast = self.log_keys - self.slope * (log_t - self.log_t)
        error = log_keys - forecast
        if load.singletons is None:  # `distinct_keys` estimates too few in a table far too full
            error = max(0.0, error)
        total = error + self.slope * math.log(max(1, load.devices) / expected_devices)
        drifts = total * total > _DRIFT_Z_SCORE**2 * self.error_variance
        variance = (
            self.error_variance if drifts else 0.85 * self.error_variance + 0.15 * total * total
        )
        weight = 1.0 if drifts or load.singletons is None else 0.5
        return ThresholdController(forecast + weight * error, log_t, slope, variance)

    def pack(self) -> NDArray[np.float64]:
        return np.array(astuple(self))

    @classmethod
    def unpack(cls, numbers: NDArray[np.float64]) -> "ThresholdController":
        return cls(*numbers.tolist())


def first_controller(load: TableLoad) -> ThresholdController:
    log_t, log_keys = _log_load(load)
    slope = _FIRST_SLOPE if load.singletons is None else _slope(load)
    return ThresholdController(log_keys, log_t, slope, _FIRST_ERROR_VARIANCE)


def paper_threshold(t: float, distinct: float, limit: float) -> float:
    """Return the next t by the paper's rule, for a table with room for `limit` keys."""
    return t / 2 + t / 2 * distinct / limit


def log_change(rule: ThresholdRule, limit: float) -> float:
    """Return the change of ln t by one more key, in a table with room for `limit` keys.

    In a full table it is (d ln s) / a = 1 / (a L0) by the steady rule, with a slope a of one half,
    and 1 / (2 L0) by the paper's.
    """
    return (0.5 if rule == "paper" else 2.0) / limit


def _log_load(load: TableLoad) -> tuple[float, float]:
    """Return ln of t per device, and ln s; an empty table counts as one with a single key."""
    return math.log(load.t / max(1, load.devices)), math.log(max(1.0, load.distinct_keys))


def _slope(load: TableLoad) -> float:
    assert load.singletons is not None
    return min(1.0, max(_MIN_SLOPE, load.singletons / max(1.0, load.distinct_keys)))

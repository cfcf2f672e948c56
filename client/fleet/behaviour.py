"""Behaviour of a fleet's devices in a round: arrivals, pauses and dropouts.

    at-once   all devices arrive when the round opens
    poisson   independent arrivals, uniform over the span
    diurnal   density 1 - cos(2 pi time): the span is one day, quiet at both ends
    bursts    five bursts at random times, each within a hundredth of the span

A slow device pauses before each answer for an exponential time. The fleet's seed, the round and the
device determine all of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client.device.device import STEP_OF_PHASE, DeviceStep, steps_in_sum
from protocol.api.phases import Phase
from protocol.question_and_plan import SumKind

_BURST_COUNT: Final = 5
_BURST_WIDTH: Final = 0.01  # of the span
_CURVE_POINTS: Final = 1001  # of the day's curve
MAX_DROPOUT: Final = 0.9


class Arrivals(StrEnum):
    """Distribution of the arrival times in a round."""

    AT_ONCE = "at-once"
    POISSON = "poisson"
    DIURNAL = "diurnal"
    BURSTS = "bursts"


@dataclass(frozen=True, slots=True)
class FleetBehaviour:
    """Arrivals over a span, the fraction of slow devices, and dropouts.

    `dropout_by_phase` has the fraction of devices that drop out before their message of a phase.
    If it is empty, `FleetConfig.dropout` applies to all phases alike.
    """

    arrivals: Arrivals = Arrivals.AT_ONCE
    span_seconds: float = 0.0
    slow_fraction: float = 0.0
    mean_pause_seconds: float = 2.0  # of a slow device before each answer
    dropout_by_phase: Mapping[Phase, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.arrivals is not Arrivals.AT_ONCE and self.span_seconds <= 0:
            raise ValueError(f"{self.arrivals} arrivals need a span above 0")
        fractions = (self.slow_fraction, *self.dropout_by_phase.values())
        if not all(0 <= fraction <= MAX_DROPOUT for fraction in fractions):
            raise ValueError(f"slow devices and dropouts need fractions from 0 to {MAX_DROPOUT}")
        if sum(self.dropout_by_phase.values()) > MAX_DROPOUT:
            raise ValueError(f"at most {MAX_DROPOUT} of the devices can drop out")


@dataclass(frozen=True, slots=True)
class DeviceBehaviour:
    """Behaviour of one device in one round; `last_step` is None unless it drops out."""

    last_step: DeviceStep | None = None
    arrival_seconds: float = 0.0
    pause_seconds: tuple[float, ...] = ()


def dropouts_by_step(dropouts: Mapping[Phase, float], kind: SumKind) -> dict[DeviceStep, float]:
    """Return the fraction of devices whose last step is each step, for `dropouts` by phase.

    Raises:
        ValueError: if no device can drop out in one of the phases in a sum of this kind.
    """
    steps = steps_in_sum(kind)
    previous_step = dict(zip(steps[1:], steps, strict=False))
    wrong = [phase for phase in dropouts if STEP_OF_PHASE.get(phase) not in previous_step]
    if wrong:
        possible = [phase for phase, step in STEP_OF_PHASE.items() if step in previous_step]
        phases = f"{', '.join(possible) or 'no phase'} of {kind} sums, not in {', '.join(wrong)}"
        raise ValueError(f"devices drop out in {phases}")
    return {previous_step[STEP_OF_PHASE[phase]]: share for phase, share in dropouts.items()}


def draw_arrivals(
    behaviour: FleetBehaviour, count: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the arrival times of `count` devices, in seconds."""
    uniform = rng.random(count)
    if behaviour.arrivals is Arrivals.POISSON:
        return uniform * behaviour.span_seconds
    if behaviour.arrivals is Arrivals.DIURNAL:
        times = np.linspace(0, 1, _CURVE_POINTS)
        cdf = times - np.sin(2 * np.pi * times) / (2 * np.pi)
        return np.interp(uniform, cdf, times) * behaviour.span_seconds
    if behaviour.arrivals is Arrivals.BURSTS:
        bursts = rng.random(_BURST_COUNT) * (1 - _BURST_WIDTH)
        starts = bursts[rng.integers(_BURST_COUNT, size=count)]
        return (starts + uniform * _BURST_WIDTH) * behaviour.span_seconds
    return np.zeros(count)


def draw_behaviours(
    behaviour: FleetBehaviour,
    devices: Sequence[int],
    last_steps: Mapping[int, DeviceStep],
    seed: Sequence[int],
) -> dict[int, DeviceBehaviour]:
    """Return the behaviour of each of `devices` in a round; `last_steps` are those of dropouts."""
    rng = np.random.default_rng(seed)
    arrivals = draw_arrivals(behaviour, len(devices), rng).tolist()
    slow = (rng.random(len(devices)) < behaviour.slow_fraction).tolist()
    shape = len(devices), len(DeviceStep)
    pauses = rng.exponential(behaviour.mean_pause_seconds, shape).tolist()
    return {
        device: DeviceBehaviour(last_steps.get(device), arrival, tuple(pause) if is_slow else ())
        for device, arrival, is_slow, pause in zip(devices, arrivals, slow, pauses, strict=True)
    }

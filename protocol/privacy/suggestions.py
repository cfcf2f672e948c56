"""Suggestions for an exceeded budget: the nearest events of the same kind that keep it.

Each suggestion changes one parameter by as little as possible. More of any change never reveals
more, so bisection finds the smallest.
"""

from collections.abc import Callable, Iterator

from protocol.privacy import sample_threshold, skellam
from protocol.privacy.events import (
    DpEvent,
    ExactSumEvent,
    LocalReportsEvent,
    SampleThresholdEvent,
    SkellamNoiseEvent,
)
from protocol.search import first_true

FitsBudget = Callable[[DpEvent], bool]
_BISECTION_STEPS = 14  # a real parameter to a part in 10^4
_MIN_PROBABILITY = 1e-6
_MIN_EPSILON = 1e-3


def suggestions(event: DpEvent, fits: FitsBudget) -> Iterator[DpEvent]:
    """Yield events that fit and differ from `event` in one parameter, the nearest of each."""
    yield from _fewer_releases(event, fits)
    match event:
        case SampleThresholdEvent():
            yield from _nearest_fitting(event, "probability", _MIN_PROBABILITY, fits)
            yield from _higher_threshold(event, fits)
        case SkellamNoiseEvent():
            yield from _nearest_fitting(event, "variance", skellam.MAX_VARIANCE, fits)
        case LocalReportsEvent():
            yield from _nearest_fitting(event, "epsilon", _MIN_EPSILON, fits)
        case ExactSumEvent():
            return


def _fewer_releases(event: DpEvent, fits: FitsBudget) -> Iterator[DpEvent]:
    def releases(count: int) -> DpEvent:
        return event.model_copy(update={"releases": count})

    count = first_true(lambda n: not fits(releases(n)), 1, event.releases) - 1
    if count:
        yield releases(count)


def _higher_threshold(event: SampleThresholdEvent, fits: FitsBudget) -> Iterator[DpEvent]:
    def threshold(theta: int) -> DpEvent:
        return event.model_copy(update={"threshold": theta})

    low, high = event.threshold, 2 * event.threshold
    # A cell of q (k + 1) reveals -ln(1 - p) for any theta, so more than 16 times is useless.
    highest = min(16 * event.threshold, sample_threshold.MAX_THRESHOLD)
    while high < highest and not fits(threshold(high)):
        low, high = high, 2 * high
    high = min(high, highest)
    if high <= low or not fits(threshold(high)):
        return
    yield threshold(first_true(lambda theta: fits(threshold(theta)), low + 1, high))


def _nearest_fitting(
    event: DpEvent, parameter: str, limit: float, fits: FitsBudget
) -> Iterator[DpEvent]:
    """Yield the event that fits with the nearest value of `parameter`, on the way to `limit`."""

    def with_value(value: float) -> DpEvent:
        return event.model_copy(update={parameter: value})

    value = getattr(event, parameter)
    # Doublings first, because distant values are slow to compute and rarely needed.
    step = 2.0 if limit > value else 0.5
    low, high = value, value * step
    while not fits(with_value(high)):
        low, high = high, high * step
        if (high > limit) == (limit > value):
            return
    for _ in range(_BISECTION_STEPS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if fits(with_value(middle)) else (middle, high)
    yield with_value(high)

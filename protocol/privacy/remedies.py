"""What would meet a budget: the nearest mechanisms of the same kind that fit.

Each remedy changes one parameter, as little as it must: fewer releases, a rarer coin, a higher
theta, more noise, a smaller epsilon of local reports. More of any of them never tells more, so
the least change is found by halving.
"""

from collections.abc import Callable, Iterator

from protocol.privacy import sample_threshold, skellam
from protocol.privacy.entries import ExactSum, LocalReports, Mechanism, Noise, SampleThreshold

Fits = Callable[[Mechanism], bool]
_STEPS = 14  # of halving a real parameter: to a part in 10^4
_LEAST_PROBABILITY = 1e-6
_LEAST_EPSILON = 1e-3


def remedies(asked: Mechanism, fits: Fits) -> Iterator[Mechanism]:
    """Yield what is like `asked` but for one parameter, and fits; the nearest of each."""
    yield from _fewer(asked, fits)
    match asked:
        case SampleThreshold():
            yield from _rarer(asked, fits)
            yield from _higher(asked, fits)
        case Noise():
            yield from _noisier(asked, fits)
        case LocalReports():
            yield from _weaker(asked, fits)
        case ExactSum():
            return


def _fewer(asked: Mechanism, fits: Fits) -> Iterator[Mechanism]:
    def releases(count: int) -> Mechanism:
        return asked.model_copy(update={"releases": count})

    low, high = 0, asked.releases
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(releases(middle)) else (low, middle)
    if low:
        yield releases(low)


def _rarer(asked: SampleThreshold, fits: Fits) -> Iterator[Mechanism]:
    yield from _softened(
        lambda p: asked.model_copy(update={"probability": p}),
        asked.probability,
        _LEAST_PROBABILITY,
        fits,
    )


def _higher(asked: SampleThreshold, fits: Fits) -> Iterator[Mechanism]:
    def threshold(theta: int) -> Mechanism:
        return asked.model_copy(update={"threshold": theta})

    low, high = asked.threshold, 2 * asked.threshold
    # A cell of q (k + 1) tells -ln(1 - p) whatever theta is: sixteen times more is in vain.
    most = min(16 * asked.threshold, sample_threshold.MOST_THRESHOLD)
    while high < most and not fits(threshold(high)):
        low, high = high, 2 * high
    high = min(high, most)
    if high <= low or not fits(threshold(high)):
        return
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(threshold(middle)) else (middle, high)
    yield threshold(high)


def _noisier(asked: Noise, fits: Fits) -> Iterator[Mechanism]:
    yield from _softened(
        lambda variance: asked.model_copy(update={"variance": variance}),
        asked.variance,
        skellam.MOST_VARIANCE,
        fits,
    )


def _weaker(asked: LocalReports, fits: Fits) -> Iterator[Mechanism]:
    yield from _softened(
        lambda epsilon: asked.model_copy(update={"epsilon": epsilon}),
        asked.epsilon,
        _LEAST_EPSILON,
        fits,
    )


def _softened(
    made: Callable[[float], Mechanism], asked: float, softest: float, fits: Fits
) -> Iterator[Mechanism]:
    """Yield `made` of the parameter nearest to `asked` that fits, on the way to `softest`."""
    # Doublings first: what is far away is slow to compute, and is seldom needed.
    step = 2.0 if softest > asked else 0.5
    low, high = asked, asked * step
    while not fits(made(high)):
        low, high = high, high * step
        if (high > softest) == (softest > asked):
            return
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if fits(made(middle)) else (middle, high)
    yield made(high)

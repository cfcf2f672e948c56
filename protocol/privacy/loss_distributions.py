"""Privacy losses on one grid: made from a curve, composed, and converted to epsilon or delta.

Two inputs are neighbours if they differ in one device. An outcome o of a release distinguishes them
by ln P(o) / Q(o), and composition only needs the curve

    H(x) = sum over o of max(0, P(o) - e^x Q(o)),      every real x

where H(epsilon) is the smallest delta. Joined by straight lines (in e^x) at the multiples of
`LOSS_INTERVAL`, the curve is that of a release with losses at these multiples only, and never below
the true curve. So results err to the safe side, by the square of the interval.

    add-remove   P has a device that Q has not, or the other way round: the worse of the two
    replace-one  the device holds another value: it leaves one cell and joins another. In each cell
                 the devices flip separate coins and add separate noise, so the two losses add up

Source: [Doroshenko22] for joining the dots, as in dp-accounting. Its import is slow, so it
waits here until a loss is computed.
"""

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from protocol.numerics.array_types import Floats
from protocol.numerics.binary_search import first_true

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

NeighbourRelation: TypeAlias = Literal["add-remove", "replace-one"]
DivergenceCurve: TypeAlias = Callable[[Floats], Floats]  # of x: the hockey-stick divergence H(x)

LOSS_INTERVAL = 1e-4
MIN_DELTA = 1e-11  # below, rounding errors of Fourier transforms matter
NEGLIGIBLE_PROBABILITY = 1e-16  # not more than the rounding errors of composition
_MAX_LOCAL_EPSILON = 40.0
_TAIL_MASS = 1e-15  # that a composition may count as a total loss, to stay short
_MIN_FINITE_LOSS_PROBABILITY = 1e-12  # below, a loss counts as total
# Few releases are composed by squares. That took a quarter of the time of one self-composition of
# ten releases, which computes 40 bounds on the tails, and more time for 100 releases.
_MAX_SQUARED_RELEASES = 16


def highest_relevant_loss(
    curve: DivergenceCurve, lowest: float, highest: float, interval: float = LOSS_INTERVAL
) -> float:
    """Return the smallest loss where `curve` is, to 1e-16 and 0.1%, what it is at `highest`."""
    rest = 1.001 * _value_at(curve, highest) + NEGLIGIBLE_PROBABILITY
    low, high = math.floor(lowest / interval), math.ceil(highest / interval)
    steps = first_true(lambda step: _value_at(curve, step * interval) <= rest, low + 1, high)
    return steps * interval


def connect_the_dots(
    curve: DivergenceCurve, lowest: float, highest: float, interval: float = LOSS_INTERVAL
) -> "PLDPmf":
    """Return the losses whose curve joins the dots of `curve` from `lowest` to `highest`.

    The dots lie at multiples of `interval`. More loss than `highest` counts as a total loss, less
    than `lowest` as `lowest`.
    """
    from dp_accounting.pld import pld_pmf  # noqa: PLC0415

    # Slightly less, so that an exact multiple is not rounded to the next.
    first = math.floor(lowest / interval + 1e-6)
    last = math.ceil(highest / interval - 1e-6)
    deltas = curve(np.arange(first, last + 1, dtype=np.float64) * interval)
    deltas = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, deltas)


def between_neighbours(
    remove: "PLDPmf", add: "PLDPmf", relation: NeighbourRelation
) -> "PrivacyLossDistribution":
    """Return the loss between neighbours from those of a leaving and of a joining device."""
    from dp_accounting.pld import pld_pmf  # noqa: PLC0415
    from dp_accounting.pld import privacy_loss_distribution as pld  # noqa: PLC0415

    loss = pld.PrivacyLossDistribution(remove, add)
    if relation == "add-remove":
        return loss
    if _is_total([(loss, 2)]):
        return bounded_loss(0.0, 1.0)
    return pld.PrivacyLossDistribution(pld_pmf.compose_pmfs(remove, add, _TAIL_MASS))


def local_loss(epsilon: float, delta: float = 0.0) -> "PrivacyLossDistribution":
    """Return the loss of a report that is `epsilon`, `delta` locally private.

    No such report reveals more than randomized response of `epsilon` that is true with additional
    probability `delta` [Kairouz15, theorem 3.3]. The device's value is replaced; that it reports
    is not secret. Raises ValueError unless `epsilon` is from 0 to 40 and `delta` below 1.
    """
    if not 0 <= epsilon <= _MAX_LOCAL_EPSILON or not 0 <= delta < 1:
        raise ValueError(
            f"epsilon must be from 0 to 40 and delta from 0 to below 1, not {epsilon}, {delta}"
        )

    def curve(x: Floats) -> Floats:
        inside = (np.exp(epsilon) - np.exp(np.minimum(x, epsilon))) / (1 + np.exp(epsilon))
        return np.asarray(np.maximum(delta + (1 - delta) * inside, -np.expm1(x)))

    losses = connect_the_dots(curve, -epsilon - LOSS_INTERVAL, epsilon + LOSS_INTERVAL)
    return between_neighbours(losses, losses, "add-remove")


def bounded_loss(epsilon: float, delta: float = 0.0) -> "PrivacyLossDistribution":
    """Return the worst loss of any (`epsilon`, `delta`) release: total with probability `delta`."""
    from dp_accounting.pld import privacy_loss_distribution as pld  # noqa: PLC0415

    return pld.PrivacyLossDistribution.create_from_rounded_probability(
        {math.ceil(epsilon / LOSS_INTERVAL): 1 - delta}, delta, LOSS_INTERVAL
    )


def compose(
    losses: "Iterable[tuple[PrivacyLossDistribution, int]]", interval: float = LOSS_INTERVAL
) -> "PrivacyLossDistribution":
    """Return the loss of all releases together, each repeated a number of times.

    All losses are multiples of `interval`.
    """
    from dp_accounting.pld.privacy_loss_distribution import identity  # noqa: PLC0415

    total, repeated_losses = identity(interval), list(losses)
    for _, times in repeated_losses:
        if times < 1:
            raise ValueError(f"a release is repeated once or more, not {times} times")
    if _is_total(repeated_losses):
        return bounded_loss(0.0, 1.0)
    for loss, times in repeated_losses:
        total = total.compose(_repeat(loss, times), _TAIL_MASS)
    return total


def _repeat(loss: "PrivacyLossDistribution", times: int) -> "PrivacyLossDistribution":
    """Return the loss of `times` releases with `loss` each."""
    if times > _MAX_SQUARED_RELEASES:
        with np.errstate(over="ignore"):  # infinite bounds on the tails are not used
            return loss.self_compose(times, _TAIL_MASS)
    if times == 1:
        return loss
    half = _repeat(loss, times // 2)
    whole = half.compose(half, _TAIL_MASS)
    return whole.compose(loss, _TAIL_MASS) if times % 2 else whole


def _is_total(losses: "Iterable[tuple[PrivacyLossDistribution, int]]") -> bool:
    """Return whether a total loss is nearly certain, so that it may be assumed."""
    rest = (times * np.log1p(-delta_of(loss, math.inf)) for loss, times in losses)
    with np.errstate(divide="ignore"):
        return math.fsum(rest) < math.log(_MIN_FINITE_LOSS_PROBABILITY)


def epsilon_of(loss: "PrivacyLossDistribution", delta: float) -> float:
    """Return the smallest epsilon of `loss` with `delta` from 1e-11 to 1; infinity if none."""
    if not MIN_DELTA <= delta < 1:  # also refuses NaN
        raise ValueError(f"delta must be from {MIN_DELTA} to below 1, not {delta}")
    return float(loss.get_epsilon_for_delta(delta))


def delta_of(loss: "PrivacyLossDistribution", epsilon: float) -> float:
    """Return the smallest delta of `loss` with `epsilon`, exact to about 1e-13."""
    return float(loss.get_delta_for_epsilon(epsilon))


def _value_at(curve: DivergenceCurve, x: float) -> float:
    return float(curve(np.array([x]))[0])

"""Privacy losses on one grid: made from a curve, composed, and asked for epsilon or delta.

Two inputs are neighbours if they differ in one device. By its outcome o a release tells them
apart by ln P(o) / Q(o), and all that composition needs of it is the curve

    H(x) = sum over o of max(0, P(o) - e^x Q(o)),      every real x

where H(epsilon) is the least delta. Joined by straight lines (in e^x) at the multiples of
`INTERVAL`, the curve is that of a release on those losses only, and never below the true one:
what is computed from it errs to the safe side, by the square of the interval. The curves of
several releases compose if they are of one interval, so there is one.

    add-remove   P has a device that Q has not, or the other way round: the worse of the two
    replace-one  it holds something else: it leaves one cell and joins another. In each cell the
                 devices flip coins and add noise of their own, so the two losses add up

Source: [Doroshenko22] for joining the dots, as in dp-accounting; what it imports is large, so
here that waits until a loss is computed.
"""

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Relation: TypeAlias = Literal["add-remove", "replace-one"]
Floats: TypeAlias = NDArray[np.float64]
Curve: TypeAlias = Callable[[Floats], Floats]  # of x: the hockey-stick divergence H(x)

INTERVAL = 1e-4
LEAST_DELTA = 1e-11  # below, the rounding of Fourier transforms shows
NEGLIGIBLE = 1e-16  # odds, no more than the rounding of what is composed
_MOST_LOSS = 40.0
_TAIL = 1e-15  # what a composition may count as a total loss, to stay short
_REST = 1e-12  # odds of no total loss: with less than that, nothing is left to compose


def top(curve: Curve, lowest: float, highest: float) -> float:
    """Return where `curve` is, but for 1e-16 and a part in a thousand, what it is at `highest`.

    What is left of it there may be taken for a total loss.
    """
    rest = 1.001 * _at(curve, highest) + NEGLIGIBLE
    low, high = math.floor(lowest / INTERVAL), math.ceil(highest / INTERVAL)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _at(curve, middle * INTERVAL) <= rest else (middle, high)
    return high * INTERVAL


def joined(curve: Curve, lowest: float, highest: float) -> "PLDPmf":
    """Return the losses whose curve joins the dots of `curve` from `lowest` to `highest`.

    More loss than `highest` is taken for a total loss, less than `lowest` for `lowest`.
    """
    from dp_accounting.pld.pld_pmf import (  # noqa: PLC0415 (who only plans does without)
        create_pmf_pessimistic_connect_dots_fixed_gap,
    )

    # A hair is given, lest what is a multiple already be rounded to the next.
    first, last = math.floor(lowest / INTERVAL + 1e-6), math.ceil(highest / INTERVAL - 1e-6)
    deltas = curve(np.arange(first, last + 1, dtype=np.float64) * INTERVAL)
    deltas = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    return create_pmf_pessimistic_connect_dots_fixed_gap(INTERVAL, first, last, deltas)


def between_neighbours(
    remove: "PLDPmf", add: "PLDPmf", relation: Relation
) -> "PrivacyLossDistribution":
    """Return the loss between neighbours, by those of a device leaving and of one joining."""
    from dp_accounting.pld import pld_pmf  # noqa: PLC0415
    from dp_accounting.pld.privacy_loss_distribution import (  # noqa: PLC0415
        PrivacyLossDistribution,
    )

    loss = PrivacyLossDistribution(remove, add)
    if relation == "add-remove":
        return loss
    if _is_total([(loss, 2)]):
        return bounded_loss(0.0, 1.0)
    return PrivacyLossDistribution(pld_pmf.compose_pmfs(remove, add, _TAIL))


def local_loss(epsilon: float, delta: float = 0.0) -> "PrivacyLossDistribution":
    """Return the loss of a report that is `epsilon`, `delta` locally private.

    No such report tells more than randomised response of `epsilon` that says the truth with
    odds of `delta` [Kairouz15, theorem 3.3]. What a device held is replaced; that it reports
    is no secret.

    Raises:
        ValueError: if `epsilon` is not within 0 and 40, or `delta` not within 0 and 1.
    """
    if not 0 <= epsilon <= _MOST_LOSS or not 0 <= delta < 1:
        raise ValueError(f"no local privacy has epsilon {epsilon} and delta {delta}")

    def curve(x: Floats) -> Floats:
        inside = (np.exp(epsilon) - np.exp(np.minimum(x, epsilon))) / (1 + np.exp(epsilon))
        return np.asarray(np.maximum(delta + (1 - delta) * inside, -np.expm1(x)))

    losses = joined(curve, -epsilon - INTERVAL, epsilon + INTERVAL)
    return between_neighbours(losses, losses, "add-remove")


def bounded_loss(epsilon: float, delta: float = 0.0) -> "PrivacyLossDistribution":
    """Return a loss of `epsilon` for sure, but total with odds of `delta`: short, and never less.

    It stands for any release that keeps them, of which nothing else is known or worth knowing.
    """
    from dp_accounting.pld.privacy_loss_distribution import (  # noqa: PLC0415
        PrivacyLossDistribution,
    )

    return PrivacyLossDistribution.create_from_rounded_probability(
        {math.ceil(epsilon / INTERVAL): 1 - delta}, delta, INTERVAL
    )


def composed(
    losses: "Iterable[tuple[PrivacyLossDistribution, int]]",
) -> "PrivacyLossDistribution":
    """Return the loss of all releases together, each as many times as is said.

    Raises:
        ValueError: if one is on another interval, or said fewer than one times.
    """
    from dp_accounting.pld.privacy_loss_distribution import identity  # noqa: PLC0415

    total, every = identity(INTERVAL), list(losses)
    for _, times in every:
        if times < 1:
            raise ValueError(f"a release happens once or more, not {times} times")
    if _is_total(every):
        return bounded_loss(0.0, 1.0)
    for loss, times in every:
        with np.errstate(over="ignore"):  # of its bounds on the tails, the infinite are unused
            repeated = loss if times == 1 else loss.self_compose(times, _TAIL)
        total = total.compose(repeated, _TAIL)
    return total


def _is_total(losses: "Iterable[tuple[PrivacyLossDistribution, int]]") -> bool:
    """Return whether a total loss is all but sure: to be told so is to the safe side."""
    rest = (times * np.log1p(-delta_of(loss, math.inf)) for loss, times in losses)
    with np.errstate(divide="ignore"):
        return math.fsum(rest) < math.log(_REST)


def epsilon_of(loss: "PrivacyLossDistribution", delta: float) -> float:
    """Return the least epsilon that `loss` keeps with `delta`; infinity if none.

    Raises:
        ValueError: if `delta` is not within 1e-11 and 1.
    """
    _check_delta(delta)
    return float(loss.get_epsilon_for_delta(delta))


def delta_of(loss: "PrivacyLossDistribution", epsilon: float) -> float:
    """Return the least delta that `loss` keeps with `epsilon`; right to about 1e-13."""
    return float(loss.get_delta_for_epsilon(epsilon))


def _check_delta(delta: float) -> None:
    if not LEAST_DELTA <= delta < 1:  # also refuses NaN
        raise ValueError(f"delta must be within {LEAST_DELTA} and 1, not {delta}")


def _at(curve: Curve, x: float) -> float:
    return float(curve(np.array([x]))[0])

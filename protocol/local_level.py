"""Totals of counts of which only some were seen: a local-level model of each item's rate.

An item's tokens are *seen* in part: all of them in rounds that count it exactly, a share 1/t of
them in rounds that sample it, none in rounds that fail. Rounds are gathered in blocks; block b
has n_b devices, and an item is *exposed* to e_b of them (n_b where it is counted, n_b / t where
it is sampled). Of its tokens, s_b are seen. With x_b its rate, in tokens a device,

    s_b       ~  mean x_b e_b, variance D x_b e_b              (D = 1: Poisson)
    x_(b+1)   =  x_b + v + noise of variance (phi x)^2,  v of variance (trend x)^2
    total     =  sum of s_b + sum of x_b (n_b - e_b)           what was seen, what was not

so a round that sees everything adds no error, and one that sees little borrows from the rounds
around it: from all of them alike if phi and trend are 0 (the population is *stationary*), from the
nearest only if phi is large. A trend v, which each item has for itself and keeps, says what was
before by what came after. phi, trend and D are measured (`drift.py`).

Where items jump together, between two blocks, the population itself has *broken* there: that
step has a phi of its own, and what is behind it tells little of what is before. And where one item
is seen so much more or less than was expected that chance cannot explain it, it has jumped by
itself: its rate is believed to have moved by as much as it takes.

The estimate is exact Bayes for the linear Gaussian model (a Kalman filter whose state is the rate,
its slope and the sum of what was missed), with variances taken at each item's mean rate, or at
rates that are given. The rates of all blocks come from the filter by going back (a fixed-interval
smoother).

Source: the local-level and local linear trend models of [Harvey89, chapters 2 and 3], with a
slope that stays; the sum of the missed in the state is ours. the smoother is
[RauchTungStriebel65]'s.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_VAGUE = 3.0  # sd of the first rate, in multiples of its mean
_SURPRISE = 3.3  # deviations beyond which an item has jumped by itself
_FLAT = 1e-12  # the determinant of a covariance, for the rate's own, that counts as 0
_LEAST_TOKENS = 0.25  # the rate of what was never seen is taken for this many over all exposure


@dataclass(frozen=True, slots=True)
class Drift:
    """How rates move from block to block, and how counts scatter (`dispersion`, D).

    `phi` is a random step and `trend` a constant one, the deviations of both in multiples of an
    item's mean rate. `breaks` are blocks that rates jumped before, with the size of the jump.
    """

    phi: float
    dispersion: float
    breaks: Mapping[int, float] = field(default_factory=dict)
    trend: float = 0.0


STATIONARY = Drift(0.0, 1.0)


@dataclass(frozen=True, slots=True)
class History:
    """What was seen of k items in B blocks: `seen` and `exposed` (k, B), `devices` (B,).

    Of what was not seen, a sketch told so much with such `noise` (k, B), infinite where it told
    nothing; None if there was no sketch.
    """

    seen: Floats
    exposed: Floats
    devices: Floats
    told: Floats | None = None
    noise: Floats | None = None

    @property
    def rates(self) -> Floats:
        """Return each item's mean rate (k,), more than zero."""
        return _mean_rates(self.seen, self.exposed)

    def rates_between(self, breaks: Iterable[int]) -> Floats:
        """Return for each block (k, B) the item's mean rate between the breaks around it.

        Where it was exposed to nothing between them, that is its mean rate in all blocks.
        """
        blocks = len(self.devices)
        ends = [0, *sorted(block for block in breaks if 0 < block < blocks), blocks]
        parts = []
        for start, end in pairwise(ends):
            exposed = self.exposed[:, start:end]
            mean = _mean_rates(self.seen[:, start:end], exposed)
            mean = np.where(exposed.sum(axis=1) > 0, mean, self.rates)
            parts.append(np.repeat(mean[:, np.newaxis], end - start, axis=1))
        return np.concatenate(parts, axis=1)


def _mean_rates(seen: Floats, exposed: Floats) -> Floats:
    tokens, devices = seen.sum(axis=1), exposed.sum(axis=1)
    rates: Floats = np.maximum(tokens, _LEAST_TOKENS) / np.maximum(devices, 1e-9)
    return rates


@dataclass(frozen=True, slots=True)
class Levels:
    """Totals of k items with their variances, and their rates.

    `rates` are those to come, with their variances, and `course` (k, B) those there were.
    """

    totals: Floats
    variances: Floats
    rates: Floats
    rate_variances: Floats
    course: Floats


def filter_levels(history: History, drift: Drift, rates: Floats | None = None) -> Levels:
    """Return what `history` says of each item under `drift`; time is linear in blocks.

    Chance scatters counts by `rates` (k, B), those of `History.rates_between` if they are None.
    """
    means = history.rates_between(drift.breaks)
    rates = means if rates is None else rates
    state, steps = _State.of(means[:, 0], drift), list[_Step]()
    hidden = np.maximum(history.devices - history.exposed, 0)
    for block in range(len(history.devices)):
        scatter = drift.dispersion * rates[:, block]
        if block:
            state.move(drift, block, np.maximum(means[:, block - 1], means[:, block]))
        seen, exposed, missed = (of[:, block] for of in (history.seen, history.exposed, hidden))
        surprise = state.surprise(seen, exposed, scatter)
        before = state.step()
        state.see(surprise, exposed, missed, scatter)
        if history.told is None or history.noise is None:
            state.scatter = state.scatter + missed * rates[:, block]
        else:
            told, noise = history.told[:, block], history.noise[:, block]
            untold = np.where(np.isfinite(noise), 0, missed * rates[:, block])
            state.scatter = state.scatter + untold
            state.hear(told, noise, missed, scatter)
        steps.append(_Step(before, state.step()))
    return state.levels(history.seen.sum(axis=1), drift, _smoothed(steps))


@dataclass(slots=True)
class _State:
    """What is believed of items block after block: `mean` (3, k) and `covariance` (3, 3, k).

    That is of rates, of their slopes a block and of what was missed so far. `scatter` is what
    chance adds to the latter where no sketch told of it, divided by D.
    """

    mean: Floats
    covariance: Floats
    scatter: Floats

    @classmethod
    def of(cls, rates: Floats, drift: Drift) -> "_State":
        """Return what is believed at first of items with these mean rates."""
        zero, covariance = np.zeros(len(rates)), np.zeros((3, 3, len(rates)))
        covariance[0, 0] = (_VAGUE * rates) ** 2
        covariance[1, 1] = (drift.trend * rates) ** 2
        return cls(np.stack([rates, zero, zero]), covariance, zero)

    def move(self, drift: Drift, block: int, rates: Floats) -> None:
        """Let rates move into `block`, by their slopes and by chance."""
        self.mean[0] += self.mean[1]
        self.covariance[0] += self.covariance[1]
        self.covariance[:, 0] += self.covariance[:, 1]
        self.covariance[0, 0] += (drift.breaks.get(block, drift.phi) * rates) ** 2
        if block in drift.breaks:
            self.covariance[1, 1] += (drift.trend * rates) ** 2

    def surprise(self, seen: Floats, exposed: Floats, scatter: Floats) -> Floats:
        """Return how much more was `seen` than expected, and doubt the rate if it is too much."""
        surprise: Floats = seen - exposed * self.mean[0]
        self.covariance[0, 0] += _own_jump(surprise, exposed, self.covariance[0, 0], scatter)
        return surprise

    def see(self, surprise: Floats, exposed: Floats, hidden: Floats, scatter: Floats) -> None:
        """Learn what was seen of a block, and add what was `hidden` to what was missed."""
        self.mean[2] += hidden * self.mean[0]
        self.covariance[2] += hidden * self.covariance[0]
        self.covariance[:, 2] += hidden * self.covariance[:, 0]
        of_rate = self.covariance[0].copy()
        gain = of_rate / (exposed * of_rate[0] + scatter)
        self.mean += gain * surprise
        self.covariance -= gain * exposed * of_rate[:, np.newaxis]

    def hear(self, told: Floats, noise: Floats, hidden: Floats, scatter: Floats) -> None:
        """Learn what a sketch `told` of the block's hidden tokens, where its noise is finite."""
        some = np.isfinite(noise) & (hidden > 0)
        chance = np.where(some, hidden * scatter, 0.0)
        of_hidden = np.where(some, hidden * self.covariance[0], 0.0)
        spread = np.where(some, hidden * of_hidden[0] + chance + noise, 1.0)
        surprise = np.where(some, told - hidden * self.mean[0], 0.0)
        self.covariance[2, 2] += chance
        of_hidden[2] += chance
        gain = of_hidden / spread
        self.mean += gain * surprise
        self.covariance -= gain * of_hidden[:, np.newaxis]

    def step(self) -> tuple[Floats, Floats]:
        """Return rate and slope with their covariance."""
        return self.mean[:2].copy(), self.covariance[:2, :2].copy()

    def levels(self, seen: Floats, drift: Drift, course: Floats) -> Levels:
        """Return what is believed in the end, where so much was `seen`."""
        missed = np.maximum(self.mean[2], 0)
        unseen = drift.dispersion * np.minimum(missed, self.scatter)
        variances = np.maximum(self.covariance[2, 2], 0) + unseen
        rates = np.maximum(self.mean[0] + self.mean[1], 0)
        spread = self.covariance[:2, :2].sum(axis=(0, 1))
        return Levels(seen + missed, variances, rates, spread, course)


_Belief: TypeAlias = tuple[Floats, Floats]  # rate and slope (2, k), their covariance (2, 2, k)


@dataclass(frozen=True, slots=True)
class _Step:
    """What was believed of a block's rates before it was seen, and after."""

    before: _Belief
    after: _Belief


def _smoothed(steps: Sequence[_Step]) -> Floats:
    """Return the rates of each block (k, B), as later blocks have it as well."""
    believed = steps[-1].after[0]
    course = [believed[0]]
    for step, following in zip(steps[-2::-1], steps[:0:-1], strict=True):
        mean, covariance = step.after
        foreseen, (first, second) = following.before[0], following.before[1]
        later = covariance.copy()  # covariance with what follows, whose rate has the slope in it
        later[:, 0] += covariance[:, 1]
        wide = first[0] * second[1] - first[1] * second[0]
        one, other = believed - foreseen
        # Where slopes are known, all are 0, the rate alone tells.
        some = wide > _FLAT * first[0] ** 2
        of_rate = np.where(some, second[1] * one - first[1] * other, one)
        of_slope = np.where(some, first[0] * other - second[0] * one, 0.0)
        scale = np.where(some, wide, first[0])
        believed = mean + (later[:, 0] * of_rate + later[:, 1] * of_slope) / scale
        course.append(believed[0])
    return np.stack(course[::-1], axis=1)


def _own_jump(surprise: Floats, exposed: Floats, rate_var: Floats, scatter: Floats) -> Floats:
    """Return what to add to the variance of each rate, so that its surprise is one deviation.

    Nothing where it is less than `_SURPRISE` of them already.
    """
    usual = exposed * (exposed * rate_var + scatter)
    excess = surprise**2 - usual
    # Few tokens are skew: the variance is taken a third of the way to where they lie.
    jumped = np.abs(surprise) > _SURPRISE * np.sqrt(usual + np.abs(surprise) / 3)
    added: Floats = np.where(jumped, excess / np.maximum(exposed, 1e-9) ** 2, 0.0)
    return added

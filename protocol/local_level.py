"""Totals of counts of which only some were seen: a local-level model of each item's rate.

An item's tokens are *seen* in part: all of them in rounds that count it exactly, a share 1/t of
them in rounds that sample it, none in rounds that fail. Rounds are gathered in blocks; block b
has n_b devices, and an item is *exposed* to e_b of them (n_b where it is counted, n_b / t where
it is sampled). Of its tokens, s_b are seen. With x_b its rate, in tokens a device,

    s_b       ~  mean x_b e_b, variance D x_b e_b              (D = 1: Poisson)
    x_(b+1)   =  x_b + noise of variance (phi x)^2
    total     =  sum of s_b + sum of x_b (n_b - e_b)           what was seen, what was not

so a round that sees everything adds no error, and one that sees little borrows from the rounds
around it: from all of them alike if phi = 0 (the population is *stationary*), from the nearest
only if phi is large. phi and D are measured, from how much the counts of all items that are
counted exactly differ from round to round: neighbours in time differ by D alone, distant ones by
phi as well.

Where most items jump at once, between two blocks, the population itself has *broken* there: that
step has a phi of its own, and what is behind it tells little of what is before. And where one item
is seen so much more or less than was expected that chance cannot explain it, it has jumped by
itself: its rate is believed to have moved by as much as it takes.

The estimate is exact Bayes for the linear Gaussian model (a Kalman filter whose state is the
rate and the sum of what was missed), with variances taken at each item's mean rate.

Source: the local-level model of [Harvey89, chapter 2]; the sum of the missed in the state, and
phi from pooled differences, are ours.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LAGS = (1, 2, 4, 8)
_LEAST_PAIRS = 40  # of counts that are compared; from fewer nothing is concluded
_VAGUE = 3.0  # sd of the first rate, in multiples of its mean
_JUMP = 1.5  # the median square of items beyond which most of them have jumped
_MOST_BREAKS = 8  # of a study
_MOST_JUMP = 3.0  # of a rate at a break, in multiples of its mean
_SURPRISE = 3.3  # deviations beyond which an item has jumped by itself
_LEAST_TOKENS = 0.25  # the rate of what was never seen is taken for this many over all exposure


@dataclass(frozen=True, slots=True)
class Drift:
    """How much rates move from block to block (`phi`, relative), and how counts scatter (D).

    `breaks` are blocks that rates jumped before, each with the relative size of the jump.
    """

    phi: float
    dispersion: float
    breaks: Mapping[int, float] = field(default_factory=dict)


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
        """Return for each block (k, B) the item's mean rate between the breaks around it."""
        blocks = len(self.devices)
        ends = [0, *sorted(block for block in breaks if 0 < block < blocks), blocks]
        parts = []
        for start, end in pairwise(ends):
            mean = _mean_rates(self.seen[:, start:end], self.exposed[:, start:end])
            parts.append(np.repeat(mean[:, np.newaxis], end - start, axis=1))
        return np.concatenate(parts, axis=1)


def _mean_rates(seen: Floats, exposed: Floats) -> Floats:
    tokens, devices = seen.sum(axis=1), exposed.sum(axis=1)
    rates: Floats = np.maximum(tokens, _LEAST_TOKENS) / np.maximum(devices, 1e-9)
    return rates


@dataclass(frozen=True, slots=True)
class Levels:
    """Totals of k items with their variances, and each item's rate at the end with its variance."""

    totals: Floats
    variances: Floats
    rates: Floats
    rate_variances: Floats


def filter_levels(history: History, drift: Drift) -> Levels:
    """Return what `history` says of each item under `drift`; time is linear in blocks."""
    means = history.rates_between(drift.breaks)
    before = means[:, 0]
    state = _State(before.copy(), (_VAGUE * before) ** 2, *np.zeros((4, len(before))))
    for block, devices in enumerate(history.devices):
        seen, exposed, mean = history.seen[:, block], history.exposed[:, block], means[:, block]
        scatter = drift.dispersion * mean
        if block:
            phi = drift.breaks.get(block, drift.phi)
            state.rate_var = state.rate_var + (phi * np.maximum(before, mean)) ** 2
        hidden = np.maximum(devices - exposed, 0)
        state.see(seen, exposed, hidden, scatter)
        if history.told is None or history.noise is None:
            state.scatter = state.scatter + hidden * mean
        else:
            told, noise = history.told[:, block], history.noise[:, block]
            state.scatter = state.scatter + np.where(np.isfinite(noise), 0, hidden * mean)
            state.hear(told, noise, hidden, scatter)
        before = mean
    missed = np.maximum(state.missed, 0)
    unseen = drift.dispersion * np.minimum(missed, state.scatter)
    variances = np.maximum(state.missed_var, 0) + unseen
    totals = history.seen.sum(axis=1) + missed
    return Levels(totals, variances, np.maximum(state.rate, 0), state.rate_var)


@dataclass(slots=True)
class _State:
    """What is believed of rates and of what was missed so far, block after block.

    `scatter` is what chance adds to the latter where no sketch told of it, divided by D.
    """

    rate: Floats
    rate_var: Floats
    missed: Floats
    missed_var: Floats
    covariance: Floats
    scatter: Floats

    def see(self, seen: Floats, exposed: Floats, hidden: Floats, scatter: Floats) -> None:
        """Learn what was `seen` of a block, and add what was `hidden` to what was missed."""
        surprise = seen - exposed * self.rate
        self.rate_var = self.rate_var + _own_jump(surprise, exposed, self.rate_var, scatter)
        self.missed = self.missed + hidden * self.rate
        self.missed_var = self.missed_var + 2 * hidden * self.covariance + hidden**2 * self.rate_var
        self.covariance = self.covariance + hidden * self.rate_var
        spread = exposed * self.rate_var + scatter  # times `exposed`: the variance of `seen`
        gain, missed_gain = self.rate_var / spread, self.covariance / spread
        self.rate = self.rate + gain * surprise
        self.missed = self.missed + missed_gain * surprise
        self.missed_var = self.missed_var - missed_gain * exposed * self.covariance
        self.covariance = self.covariance - gain * exposed * self.covariance
        self.rate_var = self.rate_var - gain * exposed * self.rate_var

    def hear(self, told: Floats, noise: Floats, hidden: Floats, scatter: Floats) -> None:
        """Learn what a sketch `told` of the block's hidden tokens, where its noise is finite."""
        some = np.isfinite(noise) & (hidden > 0)
        chance = np.where(some, hidden * scatter, 0.0)
        of_rate = np.where(some, hidden * self.rate_var, 0.0)
        of_missed = np.where(some, hidden * self.covariance, 0.0) + chance
        spread = np.where(some, hidden * of_rate + chance + noise, 1.0)
        surprise = np.where(some, told - hidden * self.rate, 0.0) / spread
        self.rate = self.rate + of_rate * surprise
        self.missed = self.missed + of_missed * surprise
        self.missed_var = self.missed_var + chance - of_missed**2 / spread
        self.covariance = self.covariance - of_rate * of_missed / spread
        self.rate_var = self.rate_var - of_rate**2 / spread


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


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Two counts each of one item: squared differences, and what phi^2 adds to them on average.

    In units of chance: where rates stand still, a square is D on average. `first` and `last`
    are the blocks of the two.
    """

    squares: Floats
    slopes: Floats
    first: NDArray[np.int64]
    last: NDArray[np.int64]

    def where(self, mask: NDArray[np.bool_]) -> "_Pairs":
        """Return some of the pairs."""
        return _Pairs(self.squares[mask], self.slopes[mask], self.first[mask], self.last[mask])


def measure_drift(history: History) -> Drift:
    """Return the drift by the counts of items that were counted exactly in two blocks each.

    Of two such rates d blocks apart, the squared difference over mean rate (1/n + 1/n') is D
    on average plus phi^2 times d rate / (1/n + 1/n'): a line, fitted by weighted least squares
    to the pairs that no break lies between.
    """
    pairs = _pairs(history)
    drift, breaks = _fit(pairs), dict[int, float]()
    for _ in range(_MOST_BREAKS):
        found = _break(pairs, drift, breaks)
        if found is None:
            break
        breaks |= found
        spans = [(pairs.first < block) & (pairs.last >= block) for block in breaks]
        drift = _fit(pairs.where(~np.any(spans, axis=0)))
    return Drift(drift.phi, drift.dispersion, breaks)


def _pairs(history: History) -> _Pairs:
    found = [(np.zeros(0), np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64))]
    whole = (history.exposed >= history.devices) & (history.devices > 0)
    for lag in _LAGS:
        items, first = np.nonzero(whole[:, lag:] & whole[:, :-lag])
        n, later = history.devices[first], history.devices[first + lag]
        one, other = history.seen[items, first] / n, history.seen[items, first + lag] / later
        mean, width = (one + other) / 2, 1 / n + 1 / later
        some = mean > 0
        squares = (one - other)[some] ** 2 / (mean * width)[some]
        found.append((squares, lag * (mean / width)[some], first[some], first[some] + lag))
    return _Pairs(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _fit(pairs: _Pairs) -> Drift:
    """Return intercept and root of the slope of the line through (slopes, squares)."""
    squares, slopes = pairs.squares, pairs.slopes
    if len(squares) < _LEAST_PAIRS:
        return STATIONARY
    phi_squared, dispersion = 0.0, 1.0
    for _ in range(3):  # weights are those of a chi-square of one degree about the line
        weights = (dispersion + phi_squared * slopes) ** -2
        # Sums, not products of vectors: BLAS would set all cores to work on these few.
        total, first = weights.sum(), (weights * slopes).sum()
        second = (weights * slopes**2).sum()
        top = total * (weights * slopes * squares).sum() - first * (weights * squares).sum()
        bottom = total * second - first**2
        phi_squared = min(1.0, max(0.0, top / bottom)) if bottom > 0 else 0.0
        left = squares - phi_squared * slopes
        dispersion = max(1.0, float((weights * left).sum() / total))
    return Drift(float(np.sqrt(phi_squared)), dispersion)


def _break(pairs: _Pairs, drift: Drift, known: Mapping[int, float]) -> dict[int, float] | None:
    """Return the block, not `known` yet, before which most items jumped furthest; None if none did.

    A square is a chi-square of one degree about the line, with a median of 0.45: of items that
    did not jump, half are below that, whatever a few others did.
    """
    best, worst = None, _JUMP
    neighbours = pairs.where(pairs.last == pairs.first + 1)
    for block in np.unique(neighbours.last).tolist():
        here = neighbours.where(neighbours.last == block)
        if block in known or len(here.squares) < _LEAST_PAIRS:
            continue
        median = float(np.median(here.squares / (drift.dispersion + drift.phi**2 * here.slopes)))
        if median > worst:
            best, worst = (block, here), median
    if best is None:
        return None
    block, here = best
    excess = (here.squares - drift.dispersion).sum() / here.slopes.sum()
    return {block: float(np.sqrt(min(max(excess, 0.0), _MOST_JUMP**2)))}

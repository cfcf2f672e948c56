"""Totals of partly observed items whose rates stay, jump at times, and stay again.

The rate of an item is constant between *change points*, and unrelated before and after one. Each
item has its own change points, at unknown times: an item may appear late, have a burst, or change
together with others. Before block b a rate changes with probability h_b, which is measured from all
items together. So a population that does not change has h near 0, and all its rounds inform each
other; if half of the items change at one time, h is 1/2 there.

With s_b observed tokens and exposure e_b in each block (`rate_filter.py`), the tokens of a segment
of blocks are Poisson at one rate x, whose prior is a gamma distribution of shape a and of the
item's mean rate m over all blocks. So a segment with S tokens and exposure E has

    likelihood   (a/m)^a / Gamma(a)  Gamma(a + S) / (a/m + E)^(a + S),  up to a constant factor
    rate         x ~ Gamma(a + S, a/m + E)
    unobserved   of U devices: mean U E[x], variance U E[x] + U^2 Var[x]

A forward recursion over the end of the first segments, and a backward one over the start of the
last, weigh all 2^(B-1) divisions of B blocks in time B^2. They give
the exact mean and variance of the unobserved tokens, the mean rate of each block, and the
probability of each change, from which h is measured by expectation maximisation.

A sketch that shows the unobserved tokens of a block with variance v (`past_sketch.py`) counts as an
observation of a share p = u / (u + v) of them, where u is their expected number: the variance that
remains is u (1 - p) for both.

If counts scatter D times as much as Poisson counts, D tokens count as one.

Source: the recursions are those of [BarryHartigan92] and [Fearnhead06] for product partition
models; probabilities of changes that all items share, and sketches as partial observations, are
ours.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from protocol.arrays import Floats
from protocol.lazy_scipy import special
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.rate_filter import History

_BATCH_NUMBERS = 2**20  # numbers of segments at once, which bounds the memory
_MIN_PROBABILITY = 1e-12


@dataclass(frozen=True, slots=True)
class SegmentedTotals:
    """Totals of k items with their variances (k,), and mean rates in all blocks (k, B)."""

    totals: Floats
    variances: Floats
    rates: Floats


def with_sketches(history: History, rates: Floats) -> History:
    """Return `history` with the counts of its sketches as observations, expected at `rates`."""
    if history.sketch_counts is None or history.sketch_variances is None:
        return history
    hidden = np.maximum(history.devices - history.exposure, 0)
    expected = np.maximum(rates * hidden, tuning.MIN_EXPECTED_TOKENS)
    is_known = np.isfinite(history.sketch_variances) & (hidden > 0)
    variances = np.where(is_known, history.sketch_variances, 1.0)
    shares = np.where(is_known, expected / (expected + variances), 0.0)
    observed = history.observed + shares * np.where(is_known, history.sketch_counts, 0.0)
    return History(observed, history.exposure + shares * hidden, history.devices)


def measure_change_rates(history: History, dispersion: float) -> Floats:
    """Return the probability of a change before each block (B,), from a sample of the items.

    The probability before block 0 is 0. Each other is drawn to the median of all by a few virtual
    items.
    """
    items, blocks = history.observed.shape
    sample = np.arange(0, items, max(1, items // tuning.CHANGE_RATE_ITEMS))
    part = History(history.observed[sample], history.exposure[sample], history.devices)
    rates = np.full(blocks, tuning.FIRST_CHANGE_RATE)
    rates[0] = 0.0
    virtual = tuning.CHANGE_RATE_VIRTUAL_ITEMS
    for _ in range(tuning.CHANGE_RATE_ITERATIONS if blocks > 1 else 0):
        counts = sum(batch.change_counts() for batch in _batches(part, rates, dispersion))
        usual = float(np.median(counts)) / len(sample)
        rates[1:] = (counts + virtual * usual) / (len(sample) + virtual)
    return rates


def segmented_totals(
    history: History, change_rates: Floats, dispersion: float = 1.0
) -> SegmentedTotals:
    """Return the totals of the items of `history`; time is quadratic in blocks."""
    parts = [batch.totals() for batch in _batches(history, change_rates, dispersion)]
    means, variances, rates = (np.concatenate(column) for column in zip(*parts, strict=True))
    return SegmentedTotals(history.observed.sum(axis=1) + means, variances, rates)


def _batches(history: History, change_rates: Floats, dispersion: float) -> Iterator["_Segments"]:
    items, blocks = history.observed.shape
    size = max(1, _BATCH_NUMBERS // blocks**2)
    for first in range(0, max(1, items), size):
        rows = slice(first, first + size)
        part = History(history.observed[rows], history.exposure[rows], history.devices)
        yield _Segments(part, change_rates, dispersion)


class _Segments:
    """All segments of the blocks of k items, and their weights.

    A segment of the blocks i to j - 1 is element [:, i] of the arrays for j.
    """

    def __init__(self, history: History, change_rates: Floats, dispersion: float) -> None:
        self._dispersion = dispersion
        shape = tuning.SEGMENT_RATE_SHAPE
        tokens = _sums_before(history.observed) / dispersion
        exposures = _sums_before(history.exposure) / dispersion
        hidden = _sums_before(np.maximum(history.devices - history.exposure, 0))
        inverse_scale = (shape / history.rates)[:, np.newaxis]
        prior = shape * np.log(inverse_scale) - special.gammaln(shape)
        self._blocks = history.observed.shape[1]
        self._hidden, self._weights = list[Floats](), list[Floats]()
        self._shapes, self._exposures = list[Floats](), list[Floats]()
        log_change = np.log(np.maximum(change_rates, _MIN_PROBABILITY))
        log_change[0] = 0.0
        log_stay = np.concatenate([[0.0], np.log1p(-np.minimum(change_rates, 1 - 1e-9)).cumsum()])
        for end in range(1, self._blocks + 1):
            # A sketch can make the tokens of a segment slightly negative.
            shapes = shape + np.maximum(tokens[:, end : end + 1] - tokens[:, :end], 0)
            exposed = inverse_scale + exposures[:, end : end + 1] - exposures[:, :end]
            changes = log_change[:end] + log_stay[end] - log_stay[1 : end + 1]
            likelihood = prior + special.gammaln(shapes) - shapes * np.log(exposed)
            self._weights.append(likelihood + changes)
            self._shapes.append(shapes)
            self._exposures.append(exposed)
            self._hidden.append(hidden[:, end : end + 1] - hidden[:, :end])
        self._forward = self._run_forward()

    def _run_forward(self) -> Floats:
        """Return the logarithm of the weight of all divisions of the first j blocks (k, B + 1)."""
        forward = np.zeros((len(self._weights[0]), self._blocks + 1))
        for end, weights in enumerate(self._weights, 1):
            forward[:, end] = np.logaddexp.reduce(forward[:, :end] + weights, axis=1)
        return forward

    def _run_backward(self) -> Floats:
        """Return the logarithm of the weight of all divisions of all but the first i blocks."""
        backward = np.full_like(self._forward, -np.inf)
        backward[:, -1] = 0.0
        for end in range(self._blocks, 0, -1):
            later = self._weights[end - 1] + backward[:, end : end + 1]
            backward[:, :end] = np.logaddexp(backward[:, :end], later)
        return backward

    def change_counts(self) -> Floats:
        """Return the expected number of items that change before each block but the first."""
        inner = self._forward[:, 1:-1] + self._run_backward()[:, 1:-1] - self._forward[:, -1:]
        counts: Floats = np.exp(inner).sum(axis=0)
        return counts

    def totals(self) -> tuple[Floats, Floats, Floats]:
        """Return mean and variance of the unobserved tokens (k,), and the mean rates (k, B)."""
        means, squares = np.zeros_like(self._forward), np.zeros_like(self._forward)
        rates, backward = np.zeros_like(self._forward), self._run_backward()
        for end in range(1, self._blocks + 1):
            hidden, exposed = self._hidden[end - 1], self._exposures[end - 1]
            rate = self._shapes[end - 1] / exposed
            mean, joint = hidden * rate, self._forward[:, :end] + self._weights[end - 1]
            chance = self._dispersion * mean + hidden * mean / exposed
            shares = np.exp(joint - self._forward[:, end : end + 1])
            sums = means[:, :end] + mean
            means[:, end] = (shares * sums).sum(axis=1)
            second = squares[:, :end] + chance + mean * (2 * means[:, :end] + mean)
            squares[:, end] = (shares * second).sum(axis=1)
            probabilities = np.exp(joint + backward[:, end : end + 1] - self._forward[:, -1:])
            rates[:, :end] += probabilities * rate
            rates[:, end] -= (probabilities * rate).sum(axis=1)
        variances = np.maximum(squares[:, -1] - means[:, -1] ** 2, 0)
        return means[:, -1], variances, np.maximum(rates.cumsum(axis=1)[:, :-1], 0)


def _sums_before(columns: Floats) -> Floats:
    """Return the sum of all columns before each, and of all columns (k, B + 1)."""
    return np.concatenate([np.zeros((len(columns), 1)), columns.cumsum(axis=1)], axis=1)

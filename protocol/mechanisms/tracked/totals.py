"""Totals of all items at the end of a study, from counts, samples and sketches.

If rates do not move gradually (`rate_filter.py`), they stay, jump at times, and stay again. The
rate of an item is constant between *change points*, and unrelated before and after one. Each item
has its own change points, at unknown times: an item may appear late, have a burst, or change
together with others. Before block b a rate changes with probability h_b, which is measured from all
items together. So a population that does not change has h near 0, and all its rounds inform each
other; if half of the items change at one time, h is 1/2 there.

With s_b observed tokens and exposure e_b in each block (`rate_filter.py`), the tokens of a segment
of blocks are Poisson at one rate x, whose prior is a gamma distribution of shape a and of the
item's mean rate m over all blocks. So a segment with S tokens and exposure E has

    likelihood   (a/m)^a / Gamma(a)  Gamma(a + S) / (a/m + E)^(a + S),  up to a constant factor
    rate         x ~ Gamma(a + S, a/m + E)
    unobserved   of U devices: mean U E[x], variance U E[x] + U^2 Var[x]

The mean rate of an item that appears late is far below its rate then. So the prior is a mixture of
this gamma distribution and one with a larger mean (`SEGMENT_RATE_FACTORS`): each segment is a sum
of two terms. In the segment of all blocks, the mean m is of the same tokens. So its rate is m, with
the variance m / E, without a prior.

A forward recursion over the end of the first segments, and a backward one over the start of the
last, weigh all 2^(B-1) divisions of B blocks in time B^2. They give the exact mean and variance of
the unobserved tokens, the mean rate of each block, and the probability of each change, from which
h is measured by expectation maximisation.

A sketch that shows the unobserved tokens of a block with variance v (`past_sketch.py`) counts as an
observation of a share p = u / (u + v) of them, where u is their expected number: the variance that
remains is u (1 - p) for both.

If counts scatter D times as much as Poisson counts, D tokens count as one.

Source: the recursions are those of [BarryHartigan92] and [Fearnhead06] for product partition
models; probabilities of changes that all items share, and sketches as partial observations, are
ours.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from protocol.domains import Domain
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.past_sketch import estimate_levels, with_sketch_counts
from protocol.mechanisms.tracked.rate_filter import STATIONARY, Drift, History
from protocol.numerics import special
from protocol.numerics.arrays import Floats, Integers
from protocol.study_state import StudyState

_BATCH_NUMBERS = 2**20  # numbers of segments at once, which bounds the memory
_MIN_PROBABILITY = 1e-12


@dataclass(frozen=True, slots=True)
class SegmentedTotals:
    """Totals of k items with their variances (k,), and mean rates in all blocks (k, B)."""

    totals: Floats
    variances: Floats
    rates: Floats


def estimate_totals(
    domain: Domain, state: StudyState, history: History, drift: Drift | None, threshold: float
) -> tuple[Floats, Floats]:
    """Return the totals of the items of `state`, and their variances.

    Without a drift, or if rates move gradually, the totals are those of `rate_filter.py`. Otherwise
    those that may be relevant for the threshold are from change points, which need more time.
    """
    levels = estimate_levels(domain, state, history, drift or STATIONARY)
    totals, variances = levels.totals.copy(), levels.variances.copy()
    margin = tuning.RELEVANT_Z_SCORE * np.sqrt(variances)
    rows = np.flatnonzero(totals + margin >= threshold * tuning.RELEVANT_THRESHOLD_SHARE)
    if drift is None or drift.trend >= tuning.MIN_TREND or not len(rows):
        return totals, variances
    part = History(history.observed[rows], history.exposure[rows], history.devices)
    change_rates = measure_change_rates(part, drift.dispersion)
    segmented = segmented_totals(part, change_rates, drift.dispersion)
    rates = levels.smoothed_rates.copy()
    rates[rows] = segmented.rates
    sketched = with_sketch_counts(domain, state, history, drift, rates)
    if sketched.sketch_counts is not None:
        sketched = with_sketches(sketched, rates)
        part = replace(part, observed=sketched.observed[rows], exposure=sketched.exposure[rows])
        segmented = segmented_totals(part, change_rates, drift.dispersion)
    totals[rows], variances[rows] = segmented.totals, segmented.variances
    return totals, variances


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
    virtual, batches = tuning.CHANGE_RATE_VIRTUAL_ITEMS, list(_batches(part, dispersion))
    for _ in range(tuning.CHANGE_RATE_ITERATIONS if blocks > 1 else 0):
        counts = sum(_Divisions(batch, rates).change_counts() for batch in batches)
        usual = float(np.median(counts)) / len(sample)
        rates[1:] = (counts + virtual * usual) / (len(sample) + virtual)
    return rates


def segmented_totals(
    history: History, change_rates: Floats, dispersion: float = 1.0
) -> SegmentedTotals:
    """Return the totals of the items of `history`; time is quadratic in blocks."""
    batches = _batches(history, dispersion)
    parts = [_Divisions(batch, change_rates).totals() for batch in batches]
    means, variances, rates = (np.concatenate(column) for column in zip(*parts, strict=True))
    return SegmentedTotals(history.observed.sum(axis=1) + means, variances, rates)


def _batches(history: History, dispersion: float) -> Iterator["_Segments"]:
    items, blocks = history.observed.shape
    size = max(1, _BATCH_NUMBERS // blocks**2)
    for first in range(0, max(1, items), size):
        rows = slice(first, first + size)
        part = History(history.observed[rows], history.exposure[rows], history.devices)
        yield _Segments.of(part, dispersion)


@dataclass(frozen=True, slots=True)
class _Segments:
    """All segments of the B blocks of k items, as columns (k, B (B + 1) / 2).

    The segment of the blocks i to j - 1 is column j (j - 1) / 2 + i: those that end together follow
    each other. `rates` and `rate_variances` are those of its rate, `hidden` its unobserved devices.
    """

    blocks: int
    log_likelihoods: Floats
    rates: Floats
    rate_variances: Floats
    hidden: Floats
    dispersion: float

    @classmethod
    def of(cls, history: History, dispersion: float) -> "_Segments":
        shape, blocks = tuning.SEGMENT_RATE_SHAPE, history.observed.shape[1]
        hidden = np.maximum(history.devices - history.exposure, 0)
        # A sketch can make the tokens of a segment slightly negative.
        tokens = np.maximum(_segment_sums(history.observed) / dispersion, 0)
        exposures = _segment_sums(history.exposure) / dispersion
        usual = history.rates[:, np.newaxis]
        shapes = shape + tokens
        factors, weights = np.array(tuning.SEGMENT_RATE_FACTORS).T[:, :, np.newaxis, np.newaxis]
        inverse_scales = shape / (factors * usual)
        exposed = inverse_scales + exposures
        priors = shape * np.log(inverse_scales) + np.log(weights) - special.gammaln(shape)
        logarithms = priors - shapes * np.log(exposed)
        total = _log_sum(logarithms, axis=0)
        shares = np.exp(logarithms - total)
        rates: Floats = (shares * shapes / exposed).sum(axis=0)
        squares = (shares * shapes * (shapes + 1) / exposed**2).sum(axis=0)
        spread = np.maximum(squares - rates**2, 0)
        # Without a change, the prior's mean is of the same tokens, which would count twice.
        whole = blocks * (blocks - 1) // 2
        rates[:, whole] = history.rates
        spread[:, whole] = history.rates / np.maximum(exposures[:, whole], 1e-9)
        hidden_devices = _segment_sums(hidden)
        return cls(
            blocks, total + special.gammaln(shapes), rates, spread, hidden_devices, dispersion
        )


class _Divisions:
    """All divisions of the blocks into segments, weighed by the probabilities of changes."""

    def __init__(self, segments: _Segments, change_rates: Floats) -> None:
        self._segments = segments
        log_change = np.log(np.maximum(change_rates, _MIN_PROBABILITY))
        log_change[0] = 0.0
        log_stay = np.concatenate([[0.0], np.log1p(-np.minimum(change_rates, 1 - 1e-9)).cumsum()])
        starts, ends = _segment_bounds(segments.blocks)
        changes = log_change[starts] + log_stay[ends] - log_stay[starts + 1]
        self._weights = segments.log_likelihoods + changes
        self._forward = self._run_forward()

    def _run_forward(self) -> Floats:
        """Return the logarithm of the weight of all divisions of the first j blocks (k, B + 1)."""
        forward = np.zeros((len(self._weights), self._segments.blocks + 1))
        for end in range(1, forward.shape[1]):
            forward[:, end] = _log_sum(forward[:, :end] + self._weights[:, _ending_at(end)])
        return forward

    def _run_backward(self) -> Floats:
        """Return the logarithm of the weight of all divisions of all but the first i blocks."""
        backward = np.zeros_like(self._forward)
        for start in range(self._segments.blocks - 1, -1, -1):
            ends = np.arange(start + 1, self._segments.blocks + 1)
            columns = ends * (ends - 1) // 2 + start
            backward[:, start] = _log_sum(self._weights[:, columns] + backward[:, start + 1 :])
        return backward

    def change_counts(self) -> Floats:
        """Return the expected number of items that change before each block but the first."""
        inner = self._forward[:, 1:-1] + self._run_backward()[:, 1:-1] - self._forward[:, -1:]
        counts: Floats = np.exp(inner).sum(axis=0)
        return counts

    def totals(self) -> tuple[Floats, Floats, Floats]:
        """Return mean and variance of the unobserved tokens (k,), and the mean rates (k, B)."""
        segments, forward, backward = self._segments, self._forward, self._run_backward()
        means, squares = np.zeros_like(forward), np.zeros_like(forward)
        rates = np.zeros_like(forward)
        tokens = segments.hidden * segments.rates
        spread = segments.dispersion * tokens + segments.hidden**2 * segments.rate_variances
        for end in range(1, segments.blocks + 1):
            columns = _ending_at(end)
            mean, joint = tokens[:, columns], forward[:, :end] + self._weights[:, columns]
            shares = np.exp(joint - forward[:, end : end + 1])
            means[:, end] = (shares * (means[:, :end] + mean)).sum(axis=1)
            second = squares[:, :end] + spread[:, columns] + mean * (2 * means[:, :end] + mean)
            squares[:, end] = (shares * second).sum(axis=1)
            probabilities = np.exp(joint + backward[:, end : end + 1] - forward[:, -1:])
            weighted = probabilities * segments.rates[:, columns]
            rates[:, :end] += weighted
            rates[:, end] -= weighted.sum(axis=1)
        variances = np.maximum(squares[:, -1] - means[:, -1] ** 2, 0)
        return means[:, -1], variances, np.maximum(rates.cumsum(axis=1)[:, :-1], 0)


def _segment_bounds(blocks: int) -> tuple[Integers, Integers]:
    """Return the first block of each segment, and the block after its last."""
    ends = np.repeat(np.arange(1, blocks + 1), np.arange(1, blocks + 1))
    return np.arange(len(ends)) - ends * (ends - 1) // 2, ends


def _ending_at(end: int) -> slice:
    """Return the columns of the segments that end before block `end`."""
    return slice(end * (end - 1) // 2, end * (end + 1) // 2)


def _segment_sums(columns: Floats) -> Floats:
    """Return the sum of the columns of each segment."""
    before = np.concatenate([np.zeros((len(columns), 1)), columns.cumsum(axis=1)], axis=1)
    starts, ends = _segment_bounds(columns.shape[1])
    sums: Floats = before[:, ends] - before[:, starts]
    return sums


def _log_sum(logarithms: Floats, axis: int = 1) -> Floats:
    """Return the logarithm of a sum; many times as fast as `np.logaddexp.reduce`."""
    largest = logarithms.max(axis=axis, keepdims=True)
    sums = np.exp(logarithms - largest).sum(axis=axis)
    logarithm: Floats = largest.squeeze(axis) + np.log(sums)
    return logarithm

"""Change points: totals of partly observed items whose rates stay, jump at times, and stay again.

The rate of an item is constant between *change points*, and unrelated before and after one. Each
item has its own change points, at unknown times: an item may appear late, have a burst, or change
together with others. Before block b a rate changes with probability h_b, which is measured from all
items together. So a population that does not change has h near 0, and all its rounds inform each
other; if half of the items change at one time, h is 1/2 there.

With s_b observed tokens and exposure e_b in each block (`History`), the tokens of a segment of
blocks are Poisson at one rate x, whose prior is a gamma distribution of shape a and of the
item's mean rate m over all blocks. So a segment with S tokens and exposure E has

    likelihood   (a/m)^a / Gamma(a)  Gamma(a + S) / (a/m + E)^(a + S),  up to a constant factor
    rate         x ~ Gamma(a + S, a/m + E)
    unobserved   of U devices: mean U E[x], variance U E[x] + U^2 Var[x]

The mean rate of an item that has a burst is far below its rate then. So the prior is a mixture of
this gamma distribution and one with a larger mean (`SEGMENT_RATE_FACTORS`): each segment is a sum
of two terms. In the segment of all blocks, the mean m is of the same tokens. So its rate is m, with
the variance m / E, without a prior.

An item may also be absent from the first blocks, and appear before any later block with the same
probability. Most items without early tokens are just sampled rarely, as long as they are unknown;
so the share of items that appear is measured of frequent items, and is larger than their share.

A forward recursion over the end of the first segments, and a backward one over the start of the
last, weigh all 2^(B-1) divisions of B blocks in time B^2. They give the exact mean and variance of
the unobserved tokens, the mean rate of each block, and the probability of each change, from which
h is measured by expectation maximisation.

**Corrections.** The mean m rests on all S tokens of the item, so that its variance is m^2 / S. What
the prior adds to the unobserved tokens is uncertain by as much. And the prior's second part is too
high for an item with few tokens: if the mean rates of the blocks explain more tokens than S, the
unobserved ones are scaled down by this factor.

**Scatter.** A rate may also vary a little from block to block, for instance because other items
have a burst. Where two neighbours of a block have no change, their mean rate predicts its tokens.
The squared errors beyond chance, relative to the squared tokens, are the scatter r, one number for
all items. With exposures e_b of n_b devices and totals of N / E tokens for each observed one, it
adds to the variance

    r  sum of x_b^2 (n_b - e_b N / E)^2

If counts scatter D times as much as Poisson counts, D tokens count as one.

**Common factors.** Rates are shares of all tokens. So if new items appear, or some have a burst,
the rates of all other items fall together by some percent. One item has too few tokens to show
this, but hundreds of items together show it. Without common factors a total is too low where most
blocks in which an item is hidden are early ones. Block b multiplies the rates of all items by its
factor g_b. With the rate x_ib by the change points of item i,

    s_ib  ~  Poisson with mean g_b x_ib e_ib
    g_b   =  (k + sum of s_ib) / (k + sum of x_ib e_ib)         mean 1, k: `FACTOR_PRIOR_TOKENS`

where the sums are over the most frequent items. x_ib is estimated as if g_b e_ib of g_b n_b devices
had been observed, and both estimates alternate. Where all items change, few tokens remain of the
most frequent ones, and the prior of their new rates explains more: then k keeps the factor near 1.

An item that is sampled early by chance is counted early, and has the more observed tokens. So the
most frequent items are those of the highest rates, not those with the most observed tokens, whose
early samples are too many: the first factor would be too high by up to a third.

Source: the recursions are those of [BarryHartigan92] and [Fearnhead06] for product partition
models; alternating estimates of factors are the iterative proportional fitting of
[DemingStephan40]. Probabilities of changes that all items share, factors with change points, the
corrections and the scatter are ours.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from protocol.estimation.segments import (
    APPEARING_SHARE,
    LEAST_APPEARING_SHARE,
    MAX_APPEARING_SHARE,
    RARE_PER_FREQUENT,
    ChangeRates,
    Divisions,
    History,
    Segments,
)
from protocol.numerics.array_types import Floats, Indices

FIRST_CHANGE_RATE = 0.002  # probability of a change before a block, before it is measured
CHANGE_RATE_ITERATIONS = 15  # of expectation maximisation
CHANGE_RATE_ITEMS = 400  # items of which the probability is measured
CHANGE_RATE_VIRTUAL_ITEMS = 100  # whose changes are distributed evenly over the blocks
# Items that may be relevant for the threshold: their total of the filter and this many deviations
# reach this share of it.
RELEVANT_Z_SCORE = 4.0
RELEVANT_THRESHOLD_SHARE = 0.5
_BATCH_NUMBERS = 2**20  # numbers of segments at once, which bounds the memory
# Of the scatter of rates.
_MIN_RATE, _MAX_STEADY_MOVE, _MIN_TOKENS_OF_SCATTER, _SCATTER_ITERATIONS = 1e-12, 0.5, 0.2, 10
# The factor is 1 with a standard deviation of 0.03 before any token is observed. With 100, 0.77 of
# the intervals of the most frequent tenth of items held after five rounds, and with 1,000 0.95.
FACTOR_PRIOR_TOKENS = 1000.0
_ITERATIONS = 4
# With fewer, the items that were sampled early by chance have much of all tokens: in three rounds
# of cities and domains (2,000 words), 89% of the intervals held, and 96% do without factors.
_MIN_BLOCKS = 5


@dataclass(frozen=True, slots=True)
class SegmentedTotals:
    """Totals of k items with variances (k,), and rates in all blocks with variances (k, B)."""

    totals: Floats
    variances: Floats
    rates: Floats
    rate_variances: Floats


def relevant_rows(totals: Floats, variances: Floats, threshold: float) -> Indices:
    """Return the rows of items that may be relevant for `threshold`, by their usual totals."""
    margin = RELEVANT_Z_SCORE * np.sqrt(variances)
    return np.flatnonzero(totals + margin >= threshold * RELEVANT_THRESHOLD_SHARE)


def measure_change_rates(history: History, dispersion: float) -> ChangeRates:
    """Return the probabilities of changes, measured from the most frequent items.

    Each probability of a change is drawn to the median of all by a few virtual items. The share of
    all items that appear late is larger than that of the measured ones (`RARE_PER_FREQUENT`).
    """
    blocks = history.observed.shape[1]
    sample = np.argsort(-history.observed.sum(axis=1), kind="stable")[:CHANGE_RATE_ITEMS]
    part = history.select(sample)
    rates, appearing = np.full(blocks, FIRST_CHANGE_RATE), APPEARING_SHARE
    rates[0] = 0.0
    virtual, batches = CHANGE_RATE_VIRTUAL_ITEMS, list(_batches(part, dispersion))
    for _ in range(CHANGE_RATE_ITERATIONS if blocks > 1 else 0):
        counts, late = np.zeros(blocks - 1), 0.0
        for batch in batches:
            changed, appeared = Divisions(batch, ChangeRates(rates, appearing)).change_counts()
            counts += changed
            late += appeared
        usual = float(np.median(counts)) / len(sample)
        rates[1:] = (counts + virtual * usual) / (len(sample) + virtual)
        appearing = max(_MIN_RATE, min(late / len(sample), MAX_APPEARING_SHARE))
    usual = min(RARE_PER_FREQUENT * appearing, APPEARING_SHARE)
    return ChangeRates(rates, max(appearing, usual, LEAST_APPEARING_SHARE))


def segmented_totals(
    history: History, change_rates: ChangeRates, dispersion: float = 1.0
) -> SegmentedTotals:
    """Return the totals of the items of `history`; time is quadratic in blocks."""
    batches = _batches(history, dispersion)
    parts = [Divisions(batch, change_rates).totals() for batch in batches]
    hidden, variances, rates, rate_variances, prior_rates = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    tokens = history.observed.sum(axis=1)
    expected = (history.exposure * rates).sum(axis=1)
    is_high = (tokens > 0) & (expected > tokens)
    scale = np.where(is_high, tokens / np.maximum(expected, 1e-9), 1.0)
    hidden, variances = scale * hidden, scale * variances
    unseen = np.maximum(history.devices - history.exposure, 0)
    variances += (unseen * prior_rates).sum(axis=1) ** 2 / np.maximum(tokens, 1)
    growth = history.devices.sum() / np.maximum(history.exposure.sum(axis=1, keepdims=True), 1e-9)
    imbalance = rates * (history.devices - growth * history.exposure)
    variances += measure_scatter(history, rates) * (imbalance**2).sum(axis=1)
    return SegmentedTotals(tokens + hidden, variances, rates, rate_variances)


def measure_scatter(history: History, rates: Floats) -> float:
    """Return the variance of the rate of a block in multiples of its square, besides changes.

    `rates` (k, B) are those with change points. It is 0 if it is within two standard errors of 0.
    """
    before, here, after = (slice(0, -2), slice(1, -1), slice(2, None))
    sides = history.exposure[:, before] + history.exposure[:, after]
    is_known = np.minimum(history.exposure[:, before], history.exposure[:, after]) > 0
    is_known &= history.exposure[:, here] > 0
    moves = np.abs(np.diff(np.log(np.maximum(rates, _MIN_RATE)), axis=1)) > _MAX_STEADY_MOVE
    is_known &= ~(moves[:, :-1] | moves[:, 1:])
    tokens = history.observed[:, before] + history.observed[:, after]
    share = history.exposure[:, here] / np.maximum(sides, 1e-9)
    means = np.maximum(tokens * share, 0)
    is_known &= means >= _MIN_TOKENS_OF_SCATTER
    squares = ((history.observed[:, here] - means) ** 2)[is_known]
    by_chance = (means * (1 + share))[is_known]
    both = history.exposure[:, before] ** 2 + history.exposure[:, after] ** 2
    by_scatter = (means**2 * (1 + both / np.maximum(sides, 1e-9) ** 2))[is_known]
    scatter = error = 0.0
    for _ in range(_SCATTER_ITERATIONS if len(squares) else 0):
        weights = by_scatter / (by_chance + scatter * by_scatter) ** 2
        information = float((weights * by_scatter).sum())
        scatter = max(0.0, float((weights * (squares - by_chance)).sum()) / information)
        error = math.sqrt(2 / information)
    return scatter if scatter > 2 * error else 0.0


def _batches(history: History, dispersion: float) -> Iterator["Segments"]:
    items, blocks = history.observed.shape
    size = max(1, _BATCH_NUMBERS // blocks**2)
    for first in range(0, max(1, items), size):
        yield Segments.of(history.select(slice(first, first + size)), dispersion)


def measure_common_factors(history: History, dispersion: float) -> Floats:
    """Return the common factor of each block (B,), measured from the most frequent items."""
    factors = np.ones(len(history.devices))
    if len(factors) < _MIN_BLOCKS:
        return factors
    part = history.select(np.argsort(-history.rates, kind="stable")[:CHANGE_RATE_ITEMS])
    change_rates = measure_change_rates(part, dispersion)
    tokens = FACTOR_PRIOR_TOKENS + np.maximum(part.observed.sum(axis=0), 0) / dispersion
    for _ in range(_ITERATIONS):
        rates = segmented_totals(part.scaled(factors), change_rates, dispersion).rates
        expected = (rates * part.exposure).sum(axis=0) / dispersion
        factors = tokens / (FACTOR_PRIOR_TOKENS + expected)
        factors /= factors.mean()
    return factors

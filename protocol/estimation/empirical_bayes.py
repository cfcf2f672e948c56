"""Probability of each item being heavy, from its estimate and from the distribution of all items.

Of many rare items, some are estimated far too high by chance. One estimate does not show this, all
estimates together do. So the true counts are taken as draws from one unknown distribution, which is
fitted to all estimates (empirical Bayes). An item's count is its posterior, given its own estimate.

An estimate y with variance v is worth as much as a sample that has each token with probability
p = y / (y + v): it has s = p y tokens, and its estimate s / p has the variance y (1 - p) / p = v.
For a prior that is uniform in the logarithm of the count, the other tokens are s (1 - p) / p on
average, with variance s (1 - p) / p^2, and about gamma distributed. So the likelihood of an item is
known in each cell of a grid of counts, which is uniform in their logarithm.

The prior h is a histogram on this grid, fitted by expectation maximisation. It is smoothed in each
step: a distribution of maximum likelihood consists of few points, and errors would seem too small.
The width is a share of the relative error of items near the threshold, which is smaller the more of
them there are, since more items show finer shapes.
Some virtual items with h ~ 1 / count, as in Zipf's law, decide where there are few items. Estimates
that are more precise than the grid stay as they are.

Estimates with normal noise, those of sketches and of private reports, exist for all items of a
domain. Their grid has one more cell for items that nobody holds, and items with nearly equal
estimates and variances share a row of likelihoods. The prior of an item is that of the *others*:
an isolated one would confirm itself, and its error seem too small. A few virtual items at all
counts let it be unlike the others.

Only *shown* items take part. Of a known item with s samples, five devices or more had b or fewer
of them: an item of count c has b samples with probability P(Bin(c, p) >= b). It has one by which it
becomes known with probability 1 - (1 - p0)^c, if a share p0 of all tokens is sampled before items
are counted. The smaller of both is pi, the probability that the item is shown. Where items are
counted once they were sampled, pi is not that of an item's own p: those that were found have the
larger one. Then a mechanism computes pi from its rounds (`ShownChances`). So likelihoods are
conditional (divided by pi), the distribution that is fitted is h pi, that of shown items, and each
shown item stands for (1 - pi) / pi hidden ones of its count. For example, at p = 1/8 an item of 40
tokens has five samples with probability 0.56. The fit starts from Zipf's law, because shown items
reveal little about counts that are rarely shown. An item that takes no part in the fit may still be
listed, by fewer samples. At its counts, power laws continue the fitted prior. So pi is then the
probability that an item is in the fit or listed, and listed items stand for hidden ones, too. Where
all items have about the same count, the expected number of missed items is too small: 17, where 80
of 100 items with 20 tokens were missed at t = 8 to 10.

Source: empirical Bayes is from [Robbins56], smoothing in each step from [Silverman90], and the
number of hidden items from [HorvitzThompson52]; samples that stand for estimates are ours.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from protocol.numerics import special
from protocol.numerics.array_types import Flags, Floats, Integers

CELL_WIDTH = 0.05  # of the grid, in the logarithm of the count
_FEWER_HOLDERS = (0.8, 0.6, 0.4)  # of the five with which an item takes part
_LONG_GRID_CELLS = 600  # up to counts of 5 * 10^12, more than devices can hold together
_MIN_RELATIVE_ERROR = 0.1  # of an estimate that the prior changes
# Smoothing, in relative errors of items near the threshold, times the root of their number, and at
# most one error. 2,000 items of log-normal counts, sampled at 0.1: with 8, 106.5 of the listed ones
# were expected to be heavy, 105.5 were; with 6, 98.1 and 98.9. 5,000 equal items: 1 is listed, and
# 15 with the third root.
_SMOOTHING_PER_ROOT = 8.0
_MAX_SMOOTHING_CELLS = 20
# The same share if errors are normal. 17,576 items by Zipf's law, noise of 40, threshold 50: 71 of
# the listed ones were expected to be heavy, 72 were; with 1, 105 and 90. 60 heavy items of 100,000:
# 12 and 13; with 1, 90 and 35.
NORMAL_SMOOTHING = 0.25
# Where errors are normal, in each e-fold of counts; fewer in a domain that is not larger. Of 200
# items by Zipf's law, 2,000 devices, noise of 40 and the threshold 200, 6% of intervals miss the
# count; without such items and with its own estimate in the prior of an item, 19%.
_ISOLATED_ITEMS, _SMALL_DOMAIN = 3.0, 200
_ITERATIONS = 60
_VIRTUAL_ITEMS = 2.0
MIN_COUNT, _MIN_SHARE, _MIN_SHAPE = 0.5, 1e-4, 1e-6
# Sampled tokens of a known item. With `adaptive-iblt` in growing rounds (web words), items with a
# sample in a small, early round only had an rms error of 2.3 standard errors, and 1.2 with it.
_MIN_SAMPLES = 1.0
# Density of counts on the grid: count^-slope. If the item of rank r is proportional to 1 / r^a, the
# slope is 1 / a: web words have 1.1, and domains 1.7.
_SLOPES = 0.5, 1.0, 1.5, 2.0
_MIN_SHOWN = 0.25  # probability of being firm, below which firm items do not show the density
_MAX_SQUARED_Z_SCORE = 600.0  # beyond, likelihoods would be zero in all cells
_MIN_CHANCE = 1e-9  # of an item being shown
_OUTSIDE_SHARE = 1e-9  # of the likelihood below the grid, which the first cell keeps
_BINS_PER_DEVIATION, _LEVELS_PER_E = 16, 10  # of equal normal estimates, and of their deviations
_LOWEST_BIN = -8 * _BINS_PER_DEVIATION  # nothing is that far below zero
_MAX_COMPETITORS = 10_000
_DRAWS, _SEED = 1000, 1  # of ranks; a probability of 1/2 has a standard error of 0.016


def decision_threshold(threshold: float) -> float:
    """Return the estimate from which a count, an integer, is probably `threshold` or more.

    With tracked items, domains and a sudden change, F1 was 0.951, and 0.948 with the threshold
    itself.
    """
    return math.ceil(threshold) - 0.5


@dataclass(frozen=True, slots=True)
class Posterior:
    """Means and variances of the counts of k items, and probabilities of being heavy (k,).

    `hidden_heavy` is the expected number of heavy items that are not among them.
    """

    means: Floats
    variances: Floats
    heavy: Floats
    hidden_heavy: float = 0.0


@dataclass(frozen=True, slots=True)
class ShownChances:
    """Probability that an item is shown, by its count, the same for all items of a count.

    A known item that was never counted was sampled by a `share`, and is firm with `firm` samples.
    `of` returns the probabilities of counts (c,) where a given number of samples suffices.
    """

    share: float
    firm: float
    of: Callable[[Floats, float], Floats]

    @property
    def bar(self) -> tuple[float, float, float]:
        """Return samples, share and least samples of an item that just is firm."""
        return self.firm, max(self.share, _MIN_SHARE), self.firm


def posterior(
    counts: Floats,
    variances: Floats,
    threshold: float,
    known: "float | ShownChances",
    least_shares: Floats | float = 0.0,
    confidence: float = math.inf,
) -> Posterior:
    """Return the posterior of items with estimated `counts` and their `variances`.

    Each token made its item known with probability `known`, unless these are the probabilities of
    being shown. An item would not be shown with less than `least_shares` (k,) of its samples. Where
    that is above 1, an item takes no part in the fit, and no other result depends on it, unless it
    is heavy with probability `confidence`.
    """
    if not len(counts):
        return Posterior(counts, variances, counts)
    counts, variances = np.maximum(counts, MIN_COUNT), np.maximum(variances, 0)
    shares = np.maximum(counts / (counts + variances), _MIN_SHARE)
    samples = np.maximum(counts * shares, _MIN_SAMPLES)
    columns = np.stack([samples, shares, samples * least_shares]).round(4)
    distinct, rows, sizes = np.unique(columns, axis=1, return_inverse=True, return_counts=True)
    takes_part = np.broadcast_to(np.asarray(least_shares) <= 1, counts.shape)
    fitted = np.where(distinct[2] <= distinct[0], sizes, 0)
    edges = grid_edges(counts[takes_part], threshold)
    grid, likelihoods = grid_middles(edges), _likelihoods(distinct[0], distinct[1], edges)
    bars = distinct if isinstance(known, float) else np.array(known.bar)[:, np.newaxis]
    shown = np.broadcast_to(_shown(known, bars[2], bars[1], grid), likelihoods.shape)
    errors = np.sqrt(variances / counts / threshold)
    width = smoothing_width(counts[takes_part], errors[takes_part], threshold)
    prior = fit_prior(likelihoods, fitted, width, shown=shown)
    weights, is_heavy = weigh(likelihoods, prior), grid >= threshold
    moments = _moments(weights, grid, is_heavy)
    is_firm = fitted > 0
    firm = likelihoods[is_firm], shown[is_firm], fitted[is_firm].astype(np.float64)
    prior = _continued(prior, grid, threshold, *firm)  # also if no item needs it, which shows then
    if not is_firm.all():
        samples, shares = distinct[:2, ~is_firm]
        moments[:, ~is_firm] = _faint_moments(samples, shares, prior, threshold)
    means, spread, heavy = moments[:, rows.reshape(-1)]
    is_precise = variances < (_MIN_RELATIVE_ERROR * counts) ** 2
    least = _seen_bars(bars, prior, edges, is_heavy, confidence)
    shown = _shown(known, least, bars[1], grid)
    seen = np.where((fitted > 0) | (moments[2] >= confidence), sizes, 0)
    hidden = seen[:, np.newaxis] * weights * (1 - shown) / shown
    return Posterior(
        np.where(is_precise, counts, means),
        np.where(is_precise, variances, spread),
        np.where(is_precise, probabilities_of_reaching(counts, variances, threshold), heavy),
        float((hidden * is_heavy).sum()),
    )


def _shown(known: float | ShownChances, least: Floats, shares: Floats, grid: Floats) -> Floats:
    """Return the probabilities (k, c) of being shown with `least` samples (k,)."""
    if isinstance(known, ShownChances):
        chances = known.of(grid, float(least[0]))[np.newaxis]
    else:
        share = min(max(known, _MIN_SHARE), 1 - 1e-12)
        once = -np.expm1(grid * np.log1p(-share))
        chances = np.minimum(once, _chances_of_samples(least, shares, grid))
    return np.maximum(chances, _MIN_CHANCE)


def _seen_bars(
    distinct: Floats, prior: Floats, edges: Floats, is_heavy: Flags, confidence: float
) -> Floats:
    """Return the samples (k,) with which an item of each share is in the fit, or listed alone.

    The latter takes fewer of them, at least two fifths, if they make it heavy by `confidence`.
    """
    pairs, places = np.unique(distinct[1:], axis=1, return_inverse=True)
    bars, left = pairs[1].copy(), np.arange(pairs.shape[1])
    for part in _FEWER_HOLDERS if math.isfinite(confidence) else ():
        samples = np.maximum(pairs[1, left] * part, _MIN_SAMPLES)
        likelihoods = _likelihoods(samples, pairs[0, left], edges)
        suffices = weigh(likelihoods, prior)[:, is_heavy].sum(axis=1) >= confidence
        left = left[suffices]  # still fewer samples make the others no heavier
        bars[left] = np.minimum(samples[suffices], pairs[1, left])
    return np.asarray(bars[places.reshape(-1)], np.float64)


def normal_posterior(counts: Floats, variances: Floats, threshold: float) -> Posterior:
    """Return the posterior of all items of a domain, whose `counts` have normal errors."""
    if not len(counts):
        return Posterior(counts, variances, counts)
    deviations = np.sqrt(np.maximum(variances, 0))
    is_precise = deviations < _MIN_RELATIVE_ERROR * counts
    usual = np.maximum(deviations, np.maximum(_MIN_RELATIVE_ERROR * counts, MIN_COUNT))
    levels = np.rint(_LEVELS_PER_E * np.log(usual)).astype(np.int64)
    bins = np.rint(_BINS_PER_DEVIATION * counts * np.exp(-levels / _LEVELS_PER_E))
    columns = np.stack([levels, np.maximum(bins, _LOWEST_BIN).astype(np.int64)])
    distinct, rows, sizes = np.unique(columns, axis=1, return_inverse=True, return_counts=True)
    spread = np.exp(distinct[0] / _LEVELS_PER_E)
    grid = np.append(0.0, grid_middles(grid_edges(counts, threshold)))
    z_scores = (distinct[1] / _BINS_PER_DEVIATION)[:, np.newaxis] - grid / spread[:, np.newaxis]
    squares = np.minimum(z_scores**2, _MAX_SQUARED_Z_SCORE)
    likelihoods = np.exp(-squares / 2)
    width = smoothing_width(counts, deviations / threshold, threshold, NORMAL_SMOOTHING)
    prior = fit_prior(likelihoods, sizes, width, zero_cells=1)
    own = weigh(likelihoods, prior)
    own[:, 1:] = [_smooth(row, width) for row in own[:, 1:]]
    others = np.maximum((sizes.sum() + _VIRTUAL_ITEMS) * prior - own, 0)
    isolated = _ISOLATED_ITEMS * len(counts) / (len(counts) + _SMALL_DOMAIN)
    others[:, 1:] += isolated * CELL_WIDTH
    weights = weigh(likelihoods, others)
    means, posterior_variances, heavy = _moments(weights, grid, grid >= threshold)[
        :, rows.reshape(-1)
    ]
    errors = np.maximum(deviations, 1e-9)
    return Posterior(
        np.where(is_precise, counts, means),
        np.where(is_precise, variances, posterior_variances),
        np.where(is_precise, special.ndtr((counts - threshold) / errors), heavy),
    )


def grid_edges(counts: Floats, threshold: float) -> Floats:
    """Return the edges of the cells of true counts, which are uniform in their logarithm."""
    largest = 4 * max(float(counts.max(initial=0)), threshold)
    cells = math.ceil(math.log(largest / MIN_COUNT) / CELL_WIDTH)
    edges: Floats = MIN_COUNT * np.exp(CELL_WIDTH * np.arange(cells + 1))
    return edges


def _continued(prior: Floats, grid: Floats, threshold: float, *firm: Floats) -> Floats:
    """Return the prior of items that take no part in the fit.

    Firm items, with their likelihoods, chances of being shown (k, c) and sizes (k,), reveal little
    about counts that are rarely shown. There, and up to four thresholds, a mean of power laws
    continues the fitted `prior`. The weight of a law is its likelihood given all firm items.
    """
    likelihoods, shown, sizes = firm
    usual = np.einsum("kc,k->c", shown, sizes / max(1, int(sizes.sum())))
    start = int(min(np.searchsorted(usual, _MIN_SHOWN), np.searchsorted(grid, 4 * threshold) - 1))
    laws = (grid / grid[start]) ** -np.array(_SLOPES)[:, np.newaxis]
    chances = np.einsum("kc,sc->sk", likelihoods, laws) / np.einsum("kc,sc->sk", shown, laws)
    logs = (sizes * np.log(chances)).sum(axis=1)
    weights = np.exp(logs - logs.max())
    mean = np.einsum("s,sc->c", weights / weights.sum(), laws)
    return np.append(prior[start] * mean[:start], prior[start:])


def _faint_moments(samples: Floats, shares: Floats, prior: Floats, threshold: float) -> Floats:
    """Return the moments (3, k) of items that take no part in the fit.

    The grid ends above the items that were fitted, and these may have larger estimates. So they
    have a grid of a fixed length, on which Zipf's law continues `prior`. It is the same for all of
    them, because no item may change the result of another.
    """
    edges = MIN_COUNT * np.exp(CELL_WIDTH * np.arange(_LONG_GRID_CELLS + 1))
    tail = prior[-1] * np.exp(-CELL_WIDTH * np.arange(1, _LONG_GRID_CELLS + 1 - len(prior)))
    grid = grid_middles(edges)
    weights = weigh(_likelihoods(samples, shares, edges), np.append(prior, tail))
    return _moments(weights, grid, grid >= threshold)


def grid_middles(edges: Floats) -> Floats:
    middles: Floats = np.sqrt(edges[1:] * edges[:-1])
    return middles


def _moments(weights: Floats, grid: Floats, is_heavy: Flags) -> Floats:
    """Return means, variances and probabilities of being heavy, (3, k), of the posterior."""
    means = (weights * grid).sum(axis=1)
    spread = (weights * grid**2).sum(axis=1) - means**2
    return np.stack([means, spread, (weights * is_heavy).sum(axis=1)])


def _likelihoods(samples: Floats, shares: Floats, edges: Floats) -> Floats:
    """Return the likelihood of each item in each cell (k, c)."""
    shapes = np.maximum(samples * (1 - shares), _MIN_SHAPE)[:, np.newaxis]
    unseen = np.maximum(edges - samples[:, np.newaxis], 0)
    below = special.gammainc(shapes, unseen * shares[:, np.newaxis])
    # Counts below the grid are impossible. They decide only for estimates with no count above.
    below[:, 0] -= _OUTSIDE_SHARE * below[:, 0]
    below[:, -1] = 1
    likelihoods: Floats = np.diff(below, axis=1)
    return likelihoods


def _chances_of_samples(least: Floats, shares: Floats, counts: Floats) -> Floats:
    """Return the probability that an item with each of `counts` (k, c) has `least` (k,) samples.

    Each token is sampled with the probability `shares` (k,) of its item. Lower counts than `least`
    are treated as `least`: an exact count may be above the middle of its cell.
    """
    wanted, p = least[:, np.newaxis], shares[:, np.newaxis]
    others = np.maximum(counts - wanted, 0) + 1
    chances = special.betainc(np.maximum(wanted, 1e-9), others, np.minimum(p, 1.0))
    return np.maximum(np.where(wanted > 0, chances, 1.0), _MIN_CHANCE)


def smoothing_width(
    counts: Floats, errors: Floats, threshold: float, share: float | None = None
) -> int:
    """Return the cells of smoothing: a `share` of the usual error of items near the threshold.

    `errors` are relative ones, which the estimates would have at the threshold. Without a `share`
    it is smaller the more items are near it.
    """
    if not len(counts):
        return 1
    is_near = (counts > threshold / 2) & (counts < threshold * 2)
    usual = float(np.median(errors[is_near] if is_near.any() else errors))
    if share is None:
        share = min(1.0, _SMOOTHING_PER_ROOT / math.sqrt(max(1, int(is_near.sum()))))
    return min(max(1, round(share * usual / CELL_WIDTH)), _MAX_SMOOTHING_CELLS)


def fit_prior(
    likelihoods: Floats,
    sizes: Integers,
    width: int,
    zero_cells: int = 0,
    shown: Floats | None = None,
) -> Floats:
    """Return the distribution of the true counts over the cells (c,), given `likelihoods` (k, c).

    The first `zero_cells`, for counts of 0, are not smoothed. `shown` (k, c) are the probabilities
    of each item being among those that are fitted. Then the deviation from Zipf's law is smoothed,
    which would otherwise flatten where shown items reveal little.
    """
    cells = likelihoods.shape[1]
    zipf = np.exp(-CELL_WIDTH * np.arange(cells))
    virtual = _VIRTUAL_ITEMS * zipf / zipf.sum()
    prior, fitted, shape = np.full(cells, 1 / cells), likelihoods, np.ones(cells)
    if shown is not None:
        usual = np.einsum("kc,k->c", shown, sizes / max(1, int(sizes.sum())))
        virtual /= max((usual * zipf).sum() / zipf.sum(), _MIN_CHANCE)
        prior, fitted, shape = zipf / zipf.sum(), likelihoods / shown, zipf
    for _ in range(_ITERATIONS):
        # Sums without vector products, for which BLAS would start threads on all cores.
        chances = np.einsum("kc,c->k", likelihoods, prior)
        histogram = prior * np.einsum("kc,k->c", fitted, sizes / chances)
        histogram += virtual
        histogram[zero_cells:] = _smooth((histogram / shape)[zero_cells:], width)
        histogram[zero_cells:] *= shape[zero_cells:]
        prior = histogram / histogram.sum()
    return prior


def weigh(likelihoods: Floats, prior: Floats) -> Floats:
    """Return the posterior weights of the cells for each item (k, c)."""
    weights = likelihoods * prior
    normalised: Floats = weights / weights.sum(axis=1, keepdims=True)
    return normalised


def _smooth(histogram: Floats, width: int) -> Floats:
    """Return `histogram`, smoothed by a Gaussian of `width` cells, with the same sum."""
    offsets = np.arange(-3 * width, 3 * width + 1)
    kernel = np.exp(-0.5 * (offsets / width) ** 2)
    # Reflected at the ends: what left the grid there would move the rest to its middle.
    padded = np.pad(histogram, 3 * width, mode="symmetric")
    smooth: Floats = np.convolve(padded, kernel / kernel.sum(), mode="valid")
    return smooth


def probabilities_of_reaching(counts: Floats, variances: Floats, threshold: float) -> Floats:
    """Return the probability that each count is `threshold` or more, by a gamma distribution."""
    heavy = (counts >= threshold).astype(np.float64)
    regular = (variances > 0) & (counts > 0)
    mean, variance = counts[regular], variances[regular]
    heavy[regular] = special.gammaincc(mean**2 / variance, threshold * mean / variance)
    return heavy


def probabilities_of_top(counts: Floats, variances: Floats, k: int, missed: float = 0.0) -> Floats:
    """Return the probability that each count is among the `k` largest, from 1,000 draws of all.

    About `missed` other items compete. Their counts are drawn from `counts`, the lower ones more
    often, as 1 / count: those are missed most. Equal arguments give equal results.
    """
    if not len(counts):
        return counts
    rng, weights = np.random.default_rng(_SEED), 1 / np.maximum(counts, MIN_COUNT)
    drawn = counts + rng.normal(size=(_DRAWS, len(counts))) * np.sqrt(np.maximum(variances, 0))
    others = rng.poisson(min(missed, _MAX_COMPETITORS), (_DRAWS, 1))
    competing = rng.choice(counts, (_DRAWS, others.max()), p=weights / weights.sum())
    competing[np.arange(others.max()) >= others] = -np.inf
    drawn = np.concatenate((drawn, competing), axis=1)
    largest = np.argpartition(-drawn, min(k, drawn.shape[1]) - 1, axis=1)[:, :k]
    return np.bincount(largest.ravel(), minlength=len(counts))[: len(counts)] / _DRAWS

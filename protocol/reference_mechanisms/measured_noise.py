"""Posterior of counts whose noise was measured: no normal distribution, but a sample of the noise.

A sketch reads keys that nobody holds as it reads all others, so their scores are a sample of the
noise (`median_estimates.py`). Where a few items hold most of the tokens, this noise has
heavy tails: of 16,384 scores of a study, 20 were above five of their standard deviations, and with
normal errors such keys would be listed. So the likelihood of a score y with deviation d is

    p(y | count g)  =  f((y - g) / d) / d,   averaged over the cell of g

f is the density of the scores of nobody in their own deviations. It is a kernel estimate with
Student's distribution. In the tails a kernel is as wide as the distance to the score of about twice
its rank: this is small if the noise is normal, and grows with the score in a heavy tail. Scores
with a large deviation have another f than those with a small one, so f is estimated in classes of
deviations. The prior of counts is fitted as in `protocol/estimation/empirical_bayes.py`, with one
cell more for items that nobody holds.

Source: adaptive kernels are from [Silverman86]; noise that is measured on such keys is ours.
"""

from dataclasses import dataclass

import numpy as np

from protocol.estimation.empirical_bayes import (
    CELL_WIDTH,
    MIN_COUNT,
    NORMAL_SMOOTHING,
    Posterior,
    fit_prior,
    grid_edges,
    grid_middles,
    smoothing_width,
    weigh,
)
from protocol.numerics import special
from protocol.numerics.array_types import Floats, Indices

# Quantiles of deviations that separate the classes.
_CLASS_QUANTILES = (0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98)
_KERNEL_WIDTH = 0.06  # smallest width of a kernel, in deviations
# Width of a kernel in the tails, by the distance to the score of about twice the rank. In 34
# studies with 11,600 listed items, 14 errors were beyond five standard errors, and 22 with 1.
_SPACING_FACTOR = 1.5
_KERNEL_FREEDOM = 8  # degrees of freedom of the kernel; with 4, normal noise looked heavy-tailed
_RANK_MARGIN = 5  # ranks that steady the distance of the highest scores
_WIDTHS_PER_OCTAVE = 4  # of equal kernels
_STEPS_PER_DEVIATION = 16  # of the tables of f, and of equal scores
_LEVELS_PER_E = 20  # of equal deviations
_MAX_TABLE_Z_SCORE = 60.0  # beyond, f falls like 1 / z^4
_MIN_DENSITY = 1e-12
_COARSE_SHARE = 0.1  # deviations below this share of the score are finer than the grid
_SIGNAL_SHARE = 0.5  # of such a score; counts above it are what the score shows


@dataclass(frozen=True, slots=True)
class MeasuredNoise:
    """Scores of keys that nobody holds, with their variances, both (n,)."""

    scores: Floats
    variances: Floats


def posterior_with_noise(
    counts: Floats, variances: Floats, threshold: float, noise: MeasuredNoise
) -> Posterior:
    """Return the posterior of all items of a domain, whose scores `counts` have such `noise`."""
    if not len(counts):
        return Posterior(counts, variances, counts)
    deviations = np.maximum(np.sqrt(np.maximum(variances, 0)), MIN_COUNT)
    levels = np.rint(_LEVELS_PER_E * np.log(deviations)).astype(np.int64)
    bins = np.rint(_STEPS_PER_DEVIATION * counts / deviations).astype(np.int64)
    densities = _NoiseDensities.of(noise)
    columns = np.stack([levels, bins, densities.classes_of(deviations)])
    distinct, rows, sizes = np.unique(columns, axis=1, return_inverse=True, return_counts=True)
    spread = np.exp(distinct[0] / _LEVELS_PER_E)
    scores = distinct[1] * spread / _STEPS_PER_DEVIATION
    grid = np.append(0.0, grid_middles(grid_edges(counts, threshold)))
    # The likelihood of each count of the grid for each score (k, c).
    column, cells = spread[:, np.newaxis], CELL_WIDTH * grid
    errors = scores[:, np.newaxis] - grid
    outside = np.maximum(np.abs(errors) - np.maximum(cells / 2 - column, 0), 0)
    z_scores = np.sign(errors) * outside / np.hypot(column, np.minimum(cells, column))
    likelihoods = densities.at(z_scores, distinct[2]) * (column / np.hypot(column, cells))
    width = smoothing_width(counts, deviations / threshold, threshold, NORMAL_SMOOTHING)
    weights = weigh(likelihoods, fit_prior(likelihoods, sizes, width, zero_cells=1))
    is_coarse = spread < _COARSE_SHARE * scores
    is_signal = (grid > _SIGNAL_SHARE * scores[:, np.newaxis]) & is_coarse[:, np.newaxis]
    others = np.where(is_signal, 0.0, weights)
    moments = [
        (weights * is_signal).sum(axis=1),
        (others * grid).sum(axis=1),
        (others * grid**2).sum(axis=1),
        (others * (grid >= threshold)).sum(axis=1),
    ]
    signal, mean, square, heavy = np.stack(moments)[:, rows.reshape(-1)]
    # Where the grid is coarse, the score itself is the estimate.
    means = signal * counts + mean
    squares = signal * (counts**2 + deviations**2) + square
    above = special.ndtr((counts - threshold) / deviations)
    return Posterior(means, np.maximum(squares - means**2, 0), signal * above + heavy)


@dataclass(frozen=True, slots=True)
class _NoiseDensities:
    """Tables of f by class of deviations (classes, z-scores), and the ends of classes."""

    tables: Floats
    ends: Floats

    @classmethod
    def of(cls, noise: MeasuredNoise) -> "_NoiseDensities":
        deviations = np.maximum(np.sqrt(np.maximum(noise.variances, 0)), MIN_COUNT)
        z_scores = noise.scores / deviations
        ends = np.unique(np.quantile(deviations, _CLASS_QUANTILES))
        classes = np.searchsorted(ends, deviations, side="right")
        groups = [z_scores[classes == each] for each in range(len(ends) + 1)]
        tables = [_density_table(each if len(each) else z_scores) for each in groups]
        return cls(np.stack(tables), ends)

    def classes_of(self, deviations: Floats) -> Indices:
        return np.searchsorted(self.ends, deviations, side="right")

    def at(self, z_scores: Floats, classes: Indices) -> Floats:
        """Return f of z-scores (k, c) of scores in `classes` (k,)."""
        middle = (self.tables.shape[1] - 1) // 2
        places = np.clip(np.rint(z_scores * _STEPS_PER_DEVIATION).astype(np.int64), -middle, middle)
        beyond = np.maximum(np.abs(z_scores) / _MAX_TABLE_Z_SCORE, 1.0) ** -4
        densities: Floats = self.tables[classes[:, np.newaxis], places + middle] * beyond
        return densities


def _density_table(z_scores: Floats) -> Floats:
    """Return f at all steps from -`_MAX_TABLE_Z_SCORE` to `_MAX_TABLE_Z_SCORE`."""
    ordered = np.sort(z_scores)
    widths = np.maximum(_upper_widths(ordered[::-1])[::-1], _upper_widths(-ordered))
    columns = np.stack([_STEPS_PER_DEVIATION * ordered, _WIDTHS_PER_OCTAVE * np.log2(widths)])
    (centres, levels), sizes = np.unique(columns.round(), axis=1, return_counts=True)
    centres, widths = centres / _STEPS_PER_DEVIATION, 2.0 ** (levels / _WIDTHS_PER_OCTAVE)
    last = int(_MAX_TABLE_Z_SCORE * _STEPS_PER_DEVIATION)
    points = np.arange(-last, last + 1)[:, np.newaxis] / _STEPS_PER_DEVIATION
    squares = ((points - centres) / widths) ** 2
    kernels = (1 + squares / _KERNEL_FREEDOM) ** (-(_KERNEL_FREEDOM + 1) / 2) / widths
    density: Floats = (kernels * sizes).sum(axis=1) / len(z_scores)
    return np.maximum(density, _MIN_DENSITY)


def _upper_widths(descending: Floats) -> Floats:
    """Return the widths of the kernels of scores, the highest first: wide in their upper tail."""
    ranks = np.arange(1, len(descending) + 1)
    others = descending[np.minimum(2 * ranks + _RANK_MARGIN, len(descending) - 1)]
    widths = _SPACING_FACTOR * (descending - others) / np.sqrt(ranks)
    is_tail = ranks <= len(descending) / 4
    return np.where(is_tail, np.maximum(widths, _KERNEL_WIDTH), _KERNEL_WIDTH)

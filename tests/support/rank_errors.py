"""Values of four kinds, their tries and histograms, and the errors of ranks."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from protocol.numerics.array_types import Floats
from protocol.privacy.noise_shares import simulate_skellam_sum
from protocol.quantiles.complete_tree import CompleteTree
from protocol.quantiles.prefix_tree import PrefixTree, integers_to_digits


def uniform_values(rng: np.random.Generator, n: int) -> Floats:
    """Return values spread evenly."""
    return rng.random(n)


def beta_values(rng: np.random.Generator, n: int) -> Floats:
    """Return values that lean to the left."""
    return rng.beta(2, 5, n)


def lognormal_values(rng: np.random.Generator, n: int) -> Floats:
    """Return values of a long tail, cut off below 1."""
    return np.minimum(rng.lognormal(-2.5, 0.8, n), np.nextafter(1.0, 0))


def values_with_atoms(rng: np.random.Generator, n: int) -> Floats:
    """Return values spread evenly, except for 30% in five points."""
    values = rng.random(n)
    where = rng.random(n) < 0.3
    values[where] = rng.choice([0.1, 0.25, 0.5, 0.7, 0.9], int(where.sum()))
    return values


VALUE_KINDS = (uniform_values, beta_values, lognormal_values, values_with_atoms)


def leaf_counts(values: Floats, cells: int) -> NDArray[np.int64]:
    """Return the number of values in each of `cells`."""
    return np.bincount((values * cells).astype(np.int64), minlength=cells)


def sampled_trie(
    leaves: NDArray[np.int64], base: int, depth: int, p: float, theta: int, rng: np.random.Generator
) -> PrefixTree:
    """Return the trie of devices as shares, where `leaves` counts the devices per cell.

    Coins are fresh on each level: it samples the devices whose prefix was published.
    """
    n, rows, depths, counts = int(leaves.sum()), [], [], []
    frontier = np.zeros(1, np.int64)
    for level in range(1, depth + 1):
        codes = (frontier[:, None] * base + np.arange(base)).ravel()
        held = leaves.reshape(base**level, -1).sum(axis=1)[codes]
        votes = rng.binomial(held, p)
        frontier, votes = codes[votes >= theta], votes[votes >= theta]
        wide = np.zeros((len(frontier), depth), np.uint8)
        wide[:, :level] = integers_to_digits(frontier, base, level)
        rows.append(wide)
        depths.append(np.full(len(frontier), level))
        counts.append(np.where(votes == theta, float(theta), votes / p) / n)
    shares = np.concatenate(counts)
    return PrefixTree(
        np.concatenate(rows), np.concatenate(depths), shares, shares * (1 - p) / (p * n)
    )


def noisy_tree(
    leaves: NDArray[np.int64], base: int, depth: int, variance: float, rng: np.random.Generator
) -> CompleteTree:
    """Return the counts of all levels with noise of `variance` in each."""
    levels = []
    for level in range(1, depth + 1):
        held = leaves.reshape(base**level, -1).sum(axis=1)
        levels.append(held.astype(np.float64) + simulate_skellam_sum(rng, variance, len(held)))
    return CompleteTree(base, tuple(levels))


def rank_errors(
    values: Floats, leaves: NDArray[np.int64], rank: Callable[[Floats], Floats]
) -> Floats:
    """Return the errors of `rank` at the 1,998 points; the values of a leaf count as one."""
    parts = np.arange(1, 1000) / 1000
    points = np.concatenate((np.quantile(values, parts), parts))
    before = np.concatenate(([0], np.cumsum(leaves))) / leaves.sum()
    scaled = points * len(leaves)
    low = before[np.floor(scaled).astype(np.int64)]
    high = before[np.floor(scaled).astype(np.int64) + 1]
    ranks = rank(points)
    errors: Floats = np.maximum(np.maximum(low - ranks, ranks - high), 0.0)
    return errors

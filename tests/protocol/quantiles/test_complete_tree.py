"""Consistent counts are those of least squares, with the variances that are stated."""

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.quantiles.complete_tree import (
    CompleteTree,
    leaf_variance,
    rank_variance,
    subtree_variances,
)

SHAPES = [(2, 1), (2, 2), (2, 5), (3, 3), (4, 3), (16, 2), (5, 1)]
shapes = pytest.mark.parametrize(("base", "depth"), SHAPES)


def design(base: int, depth: int) -> NDArray[np.float64]:
    """Return the leaves that each node counts, level after level."""
    leaves = np.arange(base**depth)
    rows = [
        leaves // base ** (depth - level) == node
        for level in range(1, depth + 1)
        for node in range(base**level)
    ]
    return np.array(rows, np.float64)


def covariance(base: int, depth: int) -> NDArray[np.float64]:
    """Return that of the leaves by least squares, in units of a count's variance."""
    nodes = design(base, depth)
    return np.linalg.inv(nodes.T @ nodes)


@shapes
def test_consistent_counts_are_those_of_dense_least_squares(base: int, depth: int) -> None:
    nodes = design(base, depth)
    counts = np.random.default_rng(base).normal(50, 20, len(nodes))
    leaves, *_ = np.linalg.lstsq(nodes, counts, rcond=None)
    tree = CompleteTree.from_counts(base, counts).consistent()
    assert np.concatenate(tree.levels) == pytest.approx(nodes @ leaves, abs=1e-9)


@shapes
def test_a_leaf_has_the_variance_of_least_squares(base: int, depth: int) -> None:
    exact = np.diag(covariance(base, depth))
    assert exact == pytest.approx(leaf_variance(base, depth))
    assert depth == 1 or leaf_variance(base, depth) < 1  # which a count by itself has


@shapes
def test_a_rank_has_the_variance_of_least_squares(base: int, depth: int) -> None:
    spread, leaves = covariance(base, depth), base**depth
    rng = np.random.default_rng(9)
    positions = np.concatenate((rng.random(20), np.arange(base + 1) / base))
    ranks = rng.random(len(positions))
    for position, rank in zip(positions, ranks, strict=True):
        left = np.clip(position * leaves - np.arange(leaves), 0, 1) - rank
        exact = left @ spread @ left
        (variance,) = rank_variance(base, depth, np.array([position]), np.array([rank]))
        assert variance == pytest.approx(exact, abs=1e-9)


def test_ranks_vary_less_than_sums_along_the_path() -> None:
    base, depth = 16, 4
    positions = np.random.default_rng(1).random(1000)
    digits = np.floor(positions[:, None] * base ** np.arange(1, depth + 1)) % base
    variances = rank_variance(base, depth, positions, positions)
    assert variances.mean() < 0.4 * digits.sum(axis=1).mean()
    assert subtree_variances(base, depth)[0] == pytest.approx(1 / (1 + 1 / base), rel=0.01)


@pytest.mark.parametrize("size", [0, 3, 5, 19, 21])
def test_counts_of_half_a_level_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="whole levels to the base 4"):
        CompleteTree.from_counts(4, np.zeros(size))

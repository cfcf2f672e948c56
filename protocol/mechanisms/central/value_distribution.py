"""The distribution of the values that a study has counted.

    trie                               shown nodes, by "ratio" or "plain" (`quantiles/cdf.py`)
    hierarchical histogram in noise    all counts, made consistent (`quantiles/complete_tree.py`)
    hierarchical histogram, sampled    its shown nodes, as for a trie

Only released counts are used, so a distribution costs no privacy.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from protocol.domains.base import Digits
from protocol.mechanisms.central.release_mechanism import ReleasePlan
from protocol.numerics.array_types import Floats
from protocol.quantiles.cdf import EmptyTreeError, Estimator, leaf_cdf, tree_cdf
from protocol.quantiles.complete_tree import CompleteTree
from protocol.quantiles.distribution import (
    ConsistentErrors,
    Distribution,
    PrefixShares,
    PrunedErrors,
)
from protocol.quantiles.prefix_tree import NO_PREFIX, PrefixTree, find_prefixes, integers_to_digits


def complete_distribution(
    digits: Digits, counts: Floats, noise: float, probability: float, beta: float
) -> Distribution:
    """Return the distribution of `counts` of all cells, each with a variance of `noise`.

    A vote was counted with `probability`.
    """
    tree = CompleteTree.from_counts(digits.base, counts).consistent()
    leaves = tree.levels[-1]
    knots, total = leaf_cdf(leaves, tree.depth), float(leaves.sum())
    sampling = (1 - probability) * tree.depth / (probability * total)
    errors = ConsistentErrors(tree.base, tree.depth, noise / total**2, sampling)
    return Distribution(digits, knots, errors, beta=beta)


def pruned_distribution(
    plan: ReleasePlan,
    tree: PrefixTree,
    devices: Floats,
    rounds: int,
    *,
    estimator: Estimator,
    beta: float,
) -> Distribution:
    """Return the distribution of the shown nodes of `tree`.

    `devices` are those of each level, or of all. The threshold of the release was applied in each
    of `rounds` sums of a level.

    Raises:
        ValueError: if the tree is empty (`EmptyTreeError`), or the estimator is "plain" and devices
            have several items.
    """
    question, digits = plan.question, plan.question.digits
    if estimator == "plain" and question.contribution > 1:
        raise ValueError("the estimator plain needs devices with one item each: use ratio")
    depths = np.unique(tree.depths)
    if not len(depths):
        raise EmptyTreeError("the tree is empty: no prefix was shown, so there are no ranks")
    stride = int(depths[0])
    among = devices[np.minimum((tree.depths - 1) // stride, len(devices) - 1)]
    shares = PrefixTree(tree.rows, tree.depths, tree.counts / among, tree.variances / among**2)
    knots = tree_cdf(shares, digits.base, digits.terminator, estimator)
    p, min_devices = plan.release.probability, float(devices.min())
    theta = rounds * plan.release.threshold / p
    cells = knots.levels * (digits.base**stride - 1)
    errors = _trie_errors(plan, theta, min_devices, cells, estimator)
    hidden_share = digits.base**stride * theta / min_devices
    pruned = _max_pruned_share(shares, hidden_share, digits.terminator)
    errors = replace(errors, pruning=errors.pruning + pruned)
    variance = theta * (1 - p) / p + plan.max_noise_variance(int(min_devices)) / p**2
    prefixes = PrefixShares(shares, theta / min_devices, variance / min_devices**2)
    return Distribution(digits, knots, errors, prefixes, beta)


def _trie_errors(
    plan: ReleasePlan, theta: float, devices: float, cells: int, estimator: Estimator
) -> PrunedErrors:
    """Return the errors of a trie of `devices` devices; `PrunedErrors` has the derivation.

    Each of the `cells` next to a path hides fewer than `theta` devices.
    """
    m = plan.release.probability * devices
    coins = (1 - plan.release.probability) / m / (4 if estimator == "ratio" else 1)
    noise = cells * plan.max_noise_variance(int(devices)) / m**2
    return PrunedErrors(cells * theta / devices, coins, noise)


def _max_pruned_share(tree: PrefixTree, hidden: float, terminator: int | None) -> float:
    """Return the largest share of a node that did not fit in the frontier; 0 if all did.

    Such a node has no shown children, though its share is above `hidden`, the largest share that
    cells below theta can hide.
    """
    largest = 0.0
    for depth, following in pairwise(np.unique(tree.depths).tolist()):
        level = tree.level(depth)
        parents = find_prefixes(tree.level(following).rows, level.rows[:, :depth])
        alone = np.bincount(parents[parents != NO_PREFIX], minlength=len(level)) == 0
        if terminator is not None:
            alone &= level.rows[:, depth - 1] != terminator
        pruned = level.counts[alone & (level.counts > hidden)]
        largest = max(largest, float(pruned.max(initial=0.0)))
    return largest


def shown_nodes(digits: Digits, counts: Floats, sampling_variance: float) -> PrefixTree:
    """Return the shown cells among `counts` of all cells without noise, as the nodes of a trie.

    A count of c has a variance of c times `sampling_variance`.
    """
    levels = CompleteTree.from_counts(digits.base, counts).levels
    rows, depths, shown_counts = [], [], []
    for depth, level in enumerate(levels, 1):
        shown = np.flatnonzero(level > 0)
        wide = np.zeros((len(shown), digits.width), np.uint8)
        wide[:, :depth] = integers_to_digits(shown, digits.base, depth)
        rows.append(wide)
        depths.append(np.full(len(shown), depth))
        shown_counts.append(level[shown])
    totals = np.concatenate(shown_counts)
    variances = totals * sampling_variance
    return PrefixTree(np.concatenate(rows), np.concatenate(depths), totals, variances)

"""Questions to what a study has counted: the distribution that its tally tells of.

    trie                               shown nodes, by "ratio" or "plain" (`knots.py`)
    hierarchical histogram in noise    all counts, made consistent (`complete_tree.py`)
    hierarchical histogram, sampled    its shown nodes, as of a trie

All that is made here is made of released counts: it costs no privacy.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from protocol.complete_tree import CompleteTree
from protocol.distribution import Consistent, Distribution, Prefixes, Pruned
from protocol.knots import EmptyTreeError, Estimator, even_knots, tree_knots
from protocol.mechanism import Plan
from protocol.mechanisms.hierarchical_histogram import (
    COINS,
    COUNTS,
    NOISE,
    HierarchicalHistogramPlan,
    HierarchicalHistogramQuestion,
)
from protocol.mechanisms.releasing import ReleasePlan, devices_of
from protocol.mechanisms.triehh import TrieHhPlan
from protocol.tally import Tally
from protocol.tree import NOWHERE, Tree, digits_of, places


def distribution(
    plan: Plan, tally: Tally, *, estimator: Estimator = "ratio", beta: float = 0.05
) -> Distribution:
    """Return what `tally` says of values; `plan` is that of any round of its study.

    The intervals of its numbers hold with odds of 1 - `beta`. `estimator` is of tries.

    Raises:
        ValueError: if the mechanism counts no tree, nothing was found yet (`EmptyTreeError`), or
            "plain" is asked of devices that give several items, whose number nobody knows, or
            nobody may learn among how many devices was counted.
    """
    if isinstance(plan, ReleasePlan) and plan.question.hides_sizes:
        raise ValueError(
            "shares are of how many devices joined, which nobody may learn where they join by "
            "secret coins: counts are in heavy-hitters; or ask with invited 1"
        )
    if isinstance(plan, HierarchicalHistogramPlan):
        if COUNTS not in tally.arrays:
            raise EmptyTreeError("no round has been counted yet")
        if plan.release.variance:
            return _consistent(plan, tally, beta)
        return _pruned(plan, _shown(plan.question, tally), tally, estimator, beta)
    if isinstance(plan, TrieHhPlan):
        return _pruned(plan, Tree.of(tally), tally, estimator, beta)
    raise ValueError(f"{plan.mechanism} counts no prefixes, so it has no distribution to ask")


def _consistent(plan: HierarchicalHistogramPlan, tally: Tally, beta: float) -> Distribution:
    tree = CompleteTree.of(plan.question.digits.base, tally.arrays[COUNTS]).consistent()
    leaves = tree.levels[-1]
    knots = even_knots(leaves, tree.depth)
    total, p = float(leaves.sum()), plan.release.probability
    noise = float(tally.arrays[NOISE][0]) / total**2
    errors = Consistent(tree.base, tree.depth, noise, (1 - p) * tree.depth / (p * total))
    return Distribution(plan.question.digits, knots, errors, beta=beta)


def _pruned(
    plan: HierarchicalHistogramPlan | TrieHhPlan,
    tree: Tree,
    tally: Tally,
    estimator: Estimator,
    beta: float,
) -> Distribution:
    question, digits = plan.question, plan.question.digits
    if estimator == "plain" and question.contribution > 1:
        raise ValueError("plain takes shares of devices, which give one item each: ask for ratio")
    devices, depths = devices_of(tally), np.unique(tree.depths)
    rounds = 1
    if isinstance(plan, HierarchicalHistogramPlan):  # each of its rounds hides what is below theta
        devices, rounds = devices.sum(keepdims=True), len(devices)
    if not len(depths):
        raise EmptyTreeError("the tree is empty: no prefix was shown, so nothing has a rank")
    stride = int(depths[0])
    among = devices[np.minimum((tree.depths - 1) // stride, len(devices) - 1)]
    shares = Tree(tree.rows, tree.depths, tree.counts / among, tree.variances / among**2)
    knots = tree_knots(shares, digits.base, digits.terminator, estimator)
    p, least = plan.release.probability, float(devices.min())
    theta = rounds * plan.release.threshold / p
    errors = _errors(plan, theta, least, knots.levels * (digits.base**stride - 1), estimator)
    unasked = _unasked(shares, digits.base**stride * theta / least, digits.terminator)
    errors = replace(errors, pruning=errors.pruning + unasked)
    hidden = theta * (1 - p) / p + plan.variance(int(least)) / p**2
    prefixes = Prefixes(shares, theta / least, hidden / least**2)
    return Distribution(digits, knots, errors, prefixes, beta)


def _errors(
    plan: ReleasePlan, theta: float, least: float, cells: int, estimator: Estimator
) -> Pruned:
    """Return the errors of a trie of `least` devices; the module of `Pruned` says why.

    Each of the `cells` beside a path hides fewer than `theta` of them.
    """
    m = plan.release.probability * least
    coins = (1 - plan.release.probability) / m / (4 if estimator == "ratio" else 1)
    noise = cells * plan.variance(int(least)) / m**2
    return Pruned(cells * theta / least, coins, noise)


def _unasked(tree: Tree, hidden: float, terminator: int | None) -> float:
    """Return the greatest share of a node that had no place in the frontier, 0 if all had one.

    Nothing that follows it is shown, though it has more than what cells below theta can hide.
    """
    most = 0.0
    for depth, following in pairwise(np.unique(tree.depths).tolist()):
        level = tree.level(depth)
        parents = places(tree.level(following).rows, level.rows[:, :depth])
        alone = np.bincount(parents[parents != NOWHERE], minlength=len(level)) == 0
        if terminator is not None:
            alone &= level.rows[:, depth - 1] != terminator
        most = max(most, float(level.counts[alone & (level.counts > hidden)].max(initial=0.0)))
    return most


def _shown(question: HierarchicalHistogramQuestion, tally: Tally) -> Tree:
    """Return the cells of a histogram without noise that were shown, as the nodes of a trie."""
    digits = question.digits
    levels = CompleteTree.of(digits.base, tally.arrays[COUNTS]).levels
    rows, depths, counts = [], [], []
    for depth, level in enumerate(levels, 1):
        shown = np.flatnonzero(level > 0)
        wide = np.zeros((len(shown), digits.width), np.uint8)
        wide[:, :depth] = digits_of(shown, digits.base, depth)
        rows.append(wide)
        depths.append(np.full(len(shown), depth))
        counts.append(level[shown])
    told = np.concatenate(counts)
    coins = float(tally.arrays[COINS][0])
    return Tree(np.concatenate(rows), np.concatenate(depths), told, told * coins)

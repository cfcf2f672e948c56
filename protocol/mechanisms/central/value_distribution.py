"""The distribution of the values that a study has counted.

    trie                               shown nodes, by "ratio" or "plain" (`quantiles/cdf.py`)
    hierarchical histogram in noise    all counts, made consistent (`quantiles/complete_tree.py`)
    hierarchical histogram, sampled    its shown nodes, as for a trie

Only released counts are used, so a distribution costs no privacy.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from protocol.mechanisms.central.hierarchical_histogram import (
    COUNTS_ARRAY,
    NOISE_ARRAY,
    SAMPLING_VARIANCE_ARRAY,
    HierarchicalHistogramPlan,
    HierarchicalHistogramQuestion,
)
from protocol.mechanisms.central.release_mechanism import ReleasePlan, devices_per_level
from protocol.mechanisms.central.trie_plan import TrieHhPlan
from protocol.quantiles.cdf import EmptyTreeError, Estimator, leaf_cdf, tree_cdf
from protocol.quantiles.complete_tree import CompleteTree
from protocol.quantiles.distribution import (
    ConsistentErrors,
    Distribution,
    PrefixShares,
    PrunedErrors,
)
from protocol.quantiles.prefix_tree import NO_PREFIX, PrefixTree, find_prefixes, integers_to_digits
from protocol.question_and_plan import Plan
from protocol.study_state import StudyState


def distribution(
    plan: Plan, state: StudyState, *, estimator: Estimator = "ratio", beta: float = 0.05
) -> Distribution:
    """Return the distribution of the values in `state`; `plan` is the plan of any round.

    Its confidence intervals hold with probability 1 - `beta`. `estimator` is for tries.

    Raises:
        ValueError: if the mechanism has no tree, the tree is empty so far (`EmptyTreeError`), the
            estimator is "plain" and devices have several items, or the number of devices is secret.
    """
    if isinstance(plan, ReleasePlan) and plan.question.hides_device_counts:
        raise ValueError(
            "shares need the number of devices that joined, which nobody may learn if they join "
            "by secret coins: read counts from heavy-hitters, or use a join_probability of 1"
        )
    if isinstance(plan, HierarchicalHistogramPlan):
        if COUNTS_ARRAY not in state.arrays:
            raise EmptyTreeError("no round has been counted yet")
        if plan.release.variance:
            return _tree_distribution(plan, state, beta)
        return _trie_distribution(plan, _shown_nodes(plan.question, state), state, estimator, beta)
    if isinstance(plan, TrieHhPlan):
        return _trie_distribution(plan, PrefixTree.from_state(state), state, estimator, beta)
    raise ValueError(f"{plan.mechanism} counts no prefixes, so it has no distribution")


def _tree_distribution(
    plan: HierarchicalHistogramPlan, state: StudyState, beta: float
) -> Distribution:
    tree = CompleteTree.from_counts(
        plan.question.digits.base, state.arrays[COUNTS_ARRAY]
    ).consistent()
    leaves = tree.levels[-1]
    knots = leaf_cdf(leaves, tree.depth)
    total, p = float(leaves.sum()), plan.release.probability
    noise = float(state.arrays[NOISE_ARRAY][0]) / total**2
    errors = ConsistentErrors(tree.base, tree.depth, noise, (1 - p) * tree.depth / (p * total))
    return Distribution(plan.question.digits, knots, errors, beta=beta)


def _trie_distribution(
    plan: HierarchicalHistogramPlan | TrieHhPlan,
    tree: PrefixTree,
    state: StudyState,
    estimator: Estimator,
    beta: float,
) -> Distribution:
    question, digits = plan.question, plan.question.digits
    if estimator == "plain" and question.contribution > 1:
        raise ValueError("the estimator plain needs devices with one item each: use ratio")
    devices, depths = devices_per_level(state), np.unique(tree.depths)
    rounds = 1
    if isinstance(plan, HierarchicalHistogramPlan):  # each round hides counts below theta
        devices, rounds = devices.sum(keepdims=True), len(devices)
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


def _shown_nodes(question: HierarchicalHistogramQuestion, state: StudyState) -> PrefixTree:
    """Return the shown cells of a histogram without noise, as the nodes of a trie."""
    digits = question.digits
    levels = CompleteTree.from_counts(digits.base, state.arrays[COUNTS_ARRAY]).levels
    rows, depths, counts = [], [], []
    for depth, level in enumerate(levels, 1):
        shown = np.flatnonzero(level > 0)
        wide = np.zeros((len(shown), digits.width), np.uint8)
        wide[:, :depth] = integers_to_digits(shown, digits.base, depth)
        rows.append(wide)
        depths.append(np.full(len(shown), depth))
        counts.append(level[shown])
    totals = np.concatenate(counts)
    variances = totals * float(state.arrays[SAMPLING_VARIANCE_ARRAY][0])
    return PrefixTree(np.concatenate(rows), np.concatenate(depths), totals, variances)

"""Errors of ranks: tries and hierarchical histograms compared with a peer, on a million values.

    python -m benchmarks.quantiles [--devices N] [--runs R] [--peer PYTHON] [--json PATH]

Four kinds of values in [0, 1): uniform, beta(2, 5), lognormal (cut off) and uniform with 30% in
five atoms. Epsilon is 1 and delta 1e-6 for each whole release. For 1,998 points, 999 quantiles
and a grid of 999, the error is the distance of the estimated rank to [F(r-), F(r)], where F is
that of the cells which devices report (the trie's, or the histogram's): so wider cells forgive
more. `max` and `mean` are over points and means of R runs, `worst` is the worst max of them; the
reference is the goal, and `ratio` value / goal.

Devices flip their coins in arrays of digits, with the counts that `encode_sum` would give.
The histogram's noise is that of one sum; `10 cohorts` has ten sums, each provisioned for
20% dropouts and 10% of the devices that add no noise share.

With --peer, a Python that has the wheel `opendp`, its 4-ary tree of 7 levels is measured on the
same values: pure epsilon 1, one trusted server. Without it a line on stderr reports the omission.
"""

import sys
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import BenchmarkRow, argument_parser, report, run_peer
from protocol.numerics.arrays import Floats
from protocol.privacy.noise_shares import simulate_skellam_sum
from protocol.privacy.parameters_for_budget import best_design, min_variance
from protocol.quantiles.cdf import CumulativeDistribution, Estimator, leaf_cdf, tree_cdf
from protocol.quantiles.complete_tree import CompleteTree
from protocol.quantiles.prefix_tree import PrefixTree, integers_to_digits

EPSILON, DELTA = 1.0, 1e-6
_ERROR_GOALS = {  # for max and mean
    "trie, ratio": (0.003, 0.001),
    "histogram, 16^4 leaves": (2e-4, None),
    "histogram, 4^8 leaves": (2e-4, None),
}
# Program for OpenDP's interpreter: the consistent leaves of a tree of the counts on stdin, to the
# base 4; OpenDP divides the pure epsilon over the levels.
_PEER_PROGRAM = """
import json, sys
import opendp.prelude as dp
dp.enable_features("contrib")
request = json.load(sys.stdin)
leaves, epsilon = request["leaves"], request["epsilon"]
space = dp.vector_domain(dp.atom_domain(T=int), len(leaves)), dp.l1_distance(T=int)
tree = dp.t.make_b_ary_tree(*space, leaf_count=len(leaves), branching_factor=4)
scale = dp.binary_search_param(
    lambda s: tree >> dp.m.then_laplace(s), d_in=1, d_out=epsilon, T=float
)
released = (tree >> dp.m.then_laplace(scale))(leaves)
dp.enable_features("idealized-numerics")
json.dump(dp.t.make_consistent_b_ary_tree(branching_factor=4)(released), sys.stdout)
"""


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
        levels.append(held + simulate_skellam_sum(rng, variance, len(held)).astype(np.float64))
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
    return np.maximum(np.maximum(low - ranks, ranks - high), 0.0)


def trie_knots(
    values: Floats, rng: np.random.Generator, estimators: tuple[Estimator, ...]
) -> tuple[NDArray[np.int64], list[CumulativeDistribution]]:
    """Return leaves and knots of a trie of 10 digits to the base 4, by the exact design."""
    leaves = leaf_counts(values, 4**10)
    design = best_design(10**6, EPSILON, DELTA, 10)
    tree = sampled_trie(leaves, 4, 10, design.m / 10**6, design.theta, rng)
    return leaves, [tree_cdf(tree, 4, None, estimator) for estimator in estimators]


def histogram_knots(
    values: Floats, rng: np.random.Generator, base: int, depth: int, times: float
) -> tuple[NDArray[np.int64], CumulativeDistribution]:
    """Return leaves and knots of a histogram with `times` the smallest noise."""
    leaves = leaf_counts(values, base**depth)
    variance = times * min_variance(EPSILON, DELTA, depth)
    tree = noisy_tree(leaves, base, depth, variance, rng).consistent()
    return leaves, leaf_cdf(tree.levels[-1], depth)


HISTOGRAMS = {  # base, depth, how much noise
    "histogram, 16^4 leaves": (16, 4, 1.0),
    "histogram, 4^8 leaves": (4, 8, 1.0),
    "histogram, 4^7 leaves": (4, 7, 1.0),
    "histogram, 16^4 leaves, 10 cohorts": (16, 4, 10 / (0.8 * 0.9)),
}


def error_rows(n: int, runs: int, peer: str | None) -> Iterator[BenchmarkRow]:
    """Yield the errors of each mechanism on each kind of values."""
    for kind in VALUE_KINDS:
        errors: dict[str, list[Floats]] = {}
        for run in range(runs):
            rng = np.random.default_rng(run)
            values = kind(rng, n)
            leaves, tries = trie_knots(values, rng, ("ratio", "plain"))
            for name, knots in zip(("trie, ratio", "trie, plain"), tries, strict=True):
                errors.setdefault(name, []).append(rank_errors(values, leaves, knots.rank))
            for name, shape in HISTOGRAMS.items():
                leaves, knots = histogram_knots(values, rng, *shape)
                errors.setdefault(name, []).append(rank_errors(values, leaves, knots.rank))
            if peer:
                leaves = leaf_counts(values, 4**7)
                request = {"leaves": leaves.tolist(), "epsilon": EPSILON}
                knots = leaf_cdf(np.array(run_peer(peer, _PEER_PROGRAM, request), np.float64), 7)
                errors.setdefault("OpenDP, 4^7 leaves", []).append(
                    rank_errors(values, leaves, knots.rank)
                )
        for name, errors_of_runs in errors.items():
            largest = [float(error.max()) for error in errors_of_runs]
            mean = float(np.mean([error.mean() for error in errors_of_runs]))
            max_goal, mean_goal = _ERROR_GOALS.get(name, (None, None))
            yield _row(f"{kind.__name__}: {name}, worst", max(largest), max_goal)
            yield _row(f"{kind.__name__}: {name}, max", float(np.mean(largest)), max_goal)
            yield _row(f"{kind.__name__}: {name}, mean", mean, mean_goal)


def _row(name: str, error: float, goal: float | None) -> BenchmarkRow:
    """Return an error in units of 1e-6, so that three digits after the point are enough."""
    return BenchmarkRow(name, error * 1e6, "1e-6", None if goal is None else goal * 1e6)


def main() -> None:
    """Measure, and print a table."""
    parser = argument_parser(__doc__)
    parser.add_argument("--devices", type=int, default=10**6)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peer", metavar="PYTHON", help="An interpreter that has opendp.")
    options = parser.parse_args()
    if not options.peer:
        print("opendp is left out: name an interpreter that has it with --peer", file=sys.stderr)
    rows = list(error_rows(options.devices, options.runs, options.peer))
    report(rows, "goal", options.json)


if __name__ == "__main__":
    main()

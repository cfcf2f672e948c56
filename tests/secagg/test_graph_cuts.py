"""Probability that an active server cuts a group off or splits a cohort: exact and simulated."""

from fractions import Fraction
from itertools import combinations
from math import comb, exp, inf, lgamma, log, sqrt
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import hypergeom

from secagg.parameters import (
    Assumptions,
    choose_parameters,
    log_cut_probability,
    log_sum,
    log_tail,
    log_tail_bound,
)
from tests.vectors import exact

SMALL_COHORTS = [
    (n, c, d) for n in (16, 24, 40, 60) for c, d in ((0.05, 0.05), (0.1, 0.2), (0.2, 0.2))
]


@pytest.mark.parametrize(("n", "corrupt", "dropout"), SMALL_COHORTS)
def test_the_largest_threshold_is_that_of_exact_sums(
    n: int, corrupt: float, dropout: float
) -> None:
    terms = exact.Terms(round(1000 * corrupt), round(1000 * dropout), 40, 30)
    parameters = choose_parameters(n, Assumptions(corrupt, dropout))
    k, greatest = parameters.holders, parameters.threshold + parameters.slack
    if not parameters.is_complete:
        assert exact.keeps_promises(n, k, greatest, terms)
        assert not exact.keeps_promises(n, k, greatest + 1, terms)


@pytest.mark.parametrize(("k", "t"), [(4, 2), (6, 3), (8, 5)])
def test_the_cut_bound_is_the_exact_sum(k: int, t: int) -> None:
    assumptions = Assumptions(0.1, 0.2)
    bound = exp(log_cut_probability(20, k, t, assumptions))
    assert bound == pytest.approx(float(exact.cut_by_an_active_server(20, k, t, 2, 6)), rel=1e-9)


@pytest.mark.parametrize(("draws", "least"), [(1, 1), (6, 1), (6, 4), (6, 6)])
def test_the_bound_of_a_tail_is_tight_for_one_draw_and_never_below(draws: int, least: int) -> None:
    marked = np.arange(31.0)
    bounds = np.exp(log_tail_bound(30, marked, draws, least))
    tails = hypergeom.sf(least - 1, 30, marked.astype(int), draws)
    assert (bounds >= tails - 1e-12).all()
    assert (bounds <= 1).all()
    if draws == 1:
        assert bounds == pytest.approx(tails)
        assert bounds == pytest.approx(np.exp(log_tail(30, marked, 1, 1)))


def test_a_sum_over_sizes_is_of_all_or_stops_above_its_limit() -> None:
    asked = list[int]()

    def terms(size: NDArray[np.float64]) -> NDArray[np.float64]:
        asked.extend(size.astype(int).tolist())
        return np.log(size)

    sizes = np.arange(1.0, 1001)
    assert exp(log_sum(terms, sizes, inf)) == pytest.approx(1000 * 1001 / 2)
    assert asked == sizes.tolist()
    asked.clear()
    assert log_sum(terms, sizes, log(1000)) == pytest.approx(log(sum(asked)))
    assert 1000 < sum(asked) < 1000 * 1001 / 2


def log_cut_of_all_groups(n: int, k: int, t: int, corrupt: int, dropouts: int) -> float:
    """Return the log of the bound by its definition, with a term for each size of a group."""
    terms = []
    for size in range(1, (n - corrupt) // 2 + 1):
        others = n - corrupt - size
        surviving = max(others - dropouts, 0)
        inside = min(hypergeom.logsf(t - 2, n - 1, corrupt + size - 1, k), 0.0)
        avoiding = log_comb(n - 1 - size, k) - log_comb(n - 1, k)
        outside = log_comb(others, min(dropouts, others)) + surviving * avoiding
        groups = log_comb(n - corrupt, size) + size * inside
        terms.append(groups + (min(outside, 0.0) if surviving else 0.0))
    return float(logsumexp(terms))


def log_comb(n: int, k: int) -> float:
    return -inf if k > n else lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


CUT_TERMS = [
    (2951, 0.05, 0.05, 40),
    *(
        (n, c, d, sigma)
        for n in (10, 30, 101, 400)
        for c, d, sigma in ((0.05, 0.05, 40), (0.1, 0.2, 80), (0.05, 0.4, 20), (0.3, 0.1, 40))
    ),
]


@pytest.mark.parametrize(("n", "corrupt", "dropout", "sigma"), CUT_TERMS)
def test_sizes_that_are_left_out_change_no_decision(
    n: int, corrupt: float, dropout: float, sigma: int
) -> None:
    """Parameters come from comparisons with 2^-(sigma + 2), at the bound and close to it."""
    assumptions = Assumptions(corrupt, dropout, sigma)
    parameters = choose_parameters(n, assumptions)
    allowed = -(sigma + 2) * log(2)
    dropouts = max(assumptions.max_dropouts(n), exact.MIN_CUT_DROPOUTS)
    counts = assumptions.max_corrupt(n), dropouts
    k, threshold = parameters.holders, parameters.threshold
    for t in {max(2, threshold - 1), threshold}:
        bound = log_cut_probability(n, k, t, assumptions)
        exact_bound = log_cut_of_all_groups(n, k, t, *counts)
        if exact_bound <= allowed:
            assert bound == pytest.approx(exact_bound, abs=1e-6)
        else:
            assert allowed < bound <= exact_bound + 1e-6


def can_be_cut(selected: list[int], honest: int, corrupt: int, t: int, dropouts: int) -> bool:
    """Return whether the server can name dropouts so that an honest group is cut off.

    Sets are bits of an integer; the first `honest` slots are honest, the others corrupt.
    """
    bad = ((1 << corrupt) - 1) << honest
    for size in range(1, honest // 2 + 1):
        for members in combinations(range(honest), size):
            group = sum(1 << slot for slot in members)
            if any((selected[slot] & (group | bad)).bit_count() < t - 1 for slot in members):
                continue
            around = group
            for slot in members:
                around |= selected[slot]
            for slot in range(honest):
                if selected[slot] & group:
                    around |= 1 << slot
            touched = (around & ~group & ~bad).bit_count()
            if touched <= dropouts and touched < honest - size:
                return True
    return False


@pytest.mark.parametrize(
    ("n", "corrupt", "k", "t", "dropouts"), [(12, 3, 2, 3, 0), (9, 2, 3, 4, 3), (11, 1, 2, 3, 3)]
)
def test_random_graphs_can_be_cut_no_more_often_than_the_bound(
    n: int, corrupt: int, k: int, t: int, dropouts: int
) -> None:
    # 800 graphs, each searched for all groups that can be cut off (the first bound is nearly
    # tight: 83 of 108). If one were tight, more than 4 standard deviations above it would occur
    # with probability 1e-4.
    graphs, bound = 800, float(exact.cut_by_an_active_server(n, k, t, corrupt, dropouts))
    assert bound < 0.2  # otherwise the comparison proves nothing
    chance, cuts = Random(11), 0
    for _ in range(graphs):
        drawn = [chance.sample([o for o in range(n) if o != slot], k) for slot in range(n)]
        selected = [sum(1 << other for other in others) for others in drawn]
        cuts += can_be_cut(selected, n - corrupt, corrupt, t, dropouts)
    assert cuts <= graphs * bound + 4 * sqrt(graphs * bound) + 1


def passing(listed: int, forged: int, checked: int) -> Fraction:
    """Return the probability that no forged signature is among the `checked` of others."""
    return Fraction(comb(max(listed - 1 - forged, 0), checked), comb(listed - 1, checked))


@pytest.mark.parametrize(
    ("n", "corrupt", "dropout", "sigma"),
    [(7, 0.2, 0.2, 40), (20, 0.1, 0.2, 4), (50, 0.1, 0.2, 10), (60, 0.05, 0.4, 5)],
)
def test_two_survivor_sets_do_not_both_pass_spot_checks(
    n: int, corrupt: float, dropout: float, sigma: int
) -> None:
    # The server lists any number of signatures, at least a quorum. Corrupt participants sign both
    # sets and each honest one signs one. However the server splits them, it deceives any pair of
    # honest participants with probability 2^-(sigma + 2) at most.
    assumptions = Assumptions(corrupt, dropout, sigma, 10)
    s, a, q = (
        choose_parameters(n, assumptions).spot_checks,
        assumptions.max_corrupt(n),
        assumptions.quorum(n),
    )
    best = max(
        passing(first, max(first - a - h, 0), min(s, first - 1))
        * passing(second, max(second - a - (n - a - h), 0), min(s, second - 1))
        for first in range(q, n + 1)
        for second in range(q, n + 1)
        for h in range(n - a + 1)
    )
    assert n * n * best <= Fraction(1, 2 ** (sigma + 2))

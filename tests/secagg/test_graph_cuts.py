"""Nobody is cut off, no second story told: the active server's odds, summed exactly and played."""

from fractions import Fraction
from itertools import combinations
from math import comb, exp, sqrt
from random import Random

import pytest

from secagg.parameters import Assumptions, _log_cut_probability, choose_parameters


def tail(population: int, marked: int, draws: int, least: int) -> Fraction:
    """Return Pr[`least` or more of those marked are drawn], exactly."""
    ways = sum(
        comb(marked, x) * comb(population - marked, draws - x)
        for x in range(max(least, 0), min(marked, draws) + 1)
    )
    return Fraction(ways, comb(population, draws))


def cut(n: int, k: int, t: int, corrupt: int, lost: int) -> Fraction:
    """Return the bound on an active server's odds to cut a group off, term by term, exactly.

    For each group of c honest ones, at most half of them: each has t - 1 of its k holders in
    the group or corrupt, and for some choice of the lost, all others honest picked nobody
    in it.
    """
    total = Fraction(0)
    for c in range(1, (n - corrupt) // 2 + 1):
        others = n - corrupt - c
        silent = max(others - lost, 0)
        avoiding = Fraction(comb(n - 1 - c, k), comb(n - 1, k)) ** silent
        crowds = comb(others, lost) if lost <= others else 1
        outside = min(Fraction(1), crowds * avoiding)
        total += comb(n - corrupt, c) * tail(n - 1, corrupt + c - 1, k, t - 1) ** c * outside
    return total


SMALL = [(n, c, d) for n in (16, 24, 40, 60) for c, d in ((0.05, 0.05), (0.1, 0.2), (0.2, 0.2))]


@pytest.mark.parametrize(("n", "corrupt", "dropout"), SMALL)
def test_active_parameters_are_the_least_that_exact_sums_allow(
    n: int, corrupt: float, dropout: float
) -> None:
    assumptions = Assumptions(corrupt, dropout)
    a, d = assumptions.max_corrupt(n), assumptions.max_dropouts(n)
    odds = Fraction(1, 2 ** (assumptions.sigma + 2))

    def keeps(k: int, t: int) -> bool:
        private = n * tail(n - 1, a, k, t) <= odds
        short = 1 - tail(n, n - d, k, t)  # one has fewer than t surviving holders
        correct = n * short <= Fraction(1, 2**assumptions.eta)
        return private and correct and cut(n, k, t, a, d) <= odds

    sparse = ((k, t) for k in range(2, n - 1, 2) for t in range(2, k + 1))
    least = next(((k, t) for k, t in sparse if keeps(k, t)), (n - 1, max(a + 2, 2)))
    found = choose_parameters(n, assumptions)
    assert (found.holders, found.threshold) == least
    assert found.neighbours == found.holders
    if not found.is_complete:
        greatest = found.threshold + found.slack
        assert keeps(found.holders, greatest)
        assert not keeps(found.holders, greatest + 1)


@pytest.mark.parametrize(("k", "t"), [(4, 2), (6, 3), (8, 5)])
def test_the_cut_bound_is_the_exact_sum(k: int, t: int) -> None:
    assumptions = Assumptions(0.1, 0.2)
    found = exp(_log_cut_probability(20, k, t, assumptions))
    assert found == pytest.approx(float(cut(20, k, t, 2, 4)), rel=1e-9)


def can_be_cut(picks: list[int], honest: int, corrupt: int, t: int, lost: int) -> bool:
    """Return whether the server can name `lost` honest ones so that a group stands alone.

    Sets are bits of an integer; slots from `honest` on are corrupt.
    """
    bad = ((1 << corrupt) - 1) << honest
    for size in range(1, honest // 2 + 1):
        for members in combinations(range(honest), size):
            group = sum(1 << slot for slot in members)
            if any((picks[slot] & (group | bad)).bit_count() < t - 1 for slot in members):
                continue
            around = group
            for slot in members:
                around |= picks[slot]
            for slot in range(honest):
                if picks[slot] & group:
                    around |= 1 << slot
            touched = (around & ~group & ~bad).bit_count()
            if touched <= lost and touched < honest - size:
                return True
    return False


@pytest.mark.parametrize(
    ("n", "corrupt", "k", "t", "lost"),
    [(12, 3, 2, 3, 0), (9, 2, 3, 4, 3), (12, 3, 3, 4, 2), (11, 1, 2, 3, 3), (11, 1, 4, 4, 2)],
)
def test_as_many_random_graphs_can_be_cut_as_the_bound_says_or_fewer(
    n: int, corrupt: int, k: int, t: int, lost: int
) -> None:
    # 800 graphs, each searched for all groups that can be cut off (the first bound is nearly
    # tight: 83 of 108). Were one tight, more than 4 standard deviations above it would be
    # found with odds of 1e-4.
    graphs, bound = 800, float(cut(n, k, t, corrupt, lost))
    assert bound < 0.2  # or the comparison says nothing
    chance, found = Random(11), 0
    for _ in range(graphs):
        drawn = [chance.sample([o for o in range(n) if o != slot], k) for slot in range(n)]
        picks = [sum(1 << other for other in others) for others in drawn]
        found += can_be_cut(picks, n - corrupt, corrupt, t, lost)
    assert found <= graphs * bound + 4 * sqrt(graphs * bound) + 1


def passing(listed: int, forged: int, checked: int) -> Fraction:
    """Return the odds that none of `checked` signatures of others is among the forged."""
    return Fraction(comb(max(listed - 1 - forged, 0), checked), comb(listed - 1, checked))


@pytest.mark.parametrize(
    ("n", "corrupt", "dropout", "sigma"),
    [
        (20, 0.1, 0.2, 4),
        (50, 0.1, 0.2, 10),
        (60, 0.2, 0.2, 20),
        (100, 0.05, 0.4, 5),
        (7, 0.2, 0.2, 40),
    ],
)
def test_no_two_survivor_sets_pass_the_witnesses_of_two_participants(
    n: int, corrupt: float, dropout: float, sigma: int
) -> None:
    # The server lists any numbers of signatures from a quorum up, corrupt ones sign both
    # sets and each honest one signs one: whichever way it splits them, all pairs of honest
    # participants together are fooled with odds of 2^-(sigma + 2) at most.
    assumptions = Assumptions(corrupt, dropout, sigma, 10)
    s, a, q = (
        choose_parameters(n, assumptions).spot_checks,
        assumptions.max_corrupt(n),
        assumptions.quorum(n),
    )
    best = max(
        passing(one, max(one - a - h, 0), min(s, one - 1))
        * passing(other, max(other - a - (n - a - h), 0), min(s, other - 1))
        for one in range(q, n + 1)
        for other in range(q, n + 1)
        for h in range(n - a + 1)
    )
    assert n * n * best <= Fraction(1, 2 ** (sigma + 2))


def test_random_losses_cut_nobody_off_from_its_partners_oftener_than_claimed() -> None:
    # Semi-honest, sigma = 5: fewer than 2^-6 of all graphs may fall apart once the corrupt and
    # the lost are taken out. Pr[Binomial(300, 2^-6) > 14] < 1e-3.
    n, assumptions = 60, Assumptions(0.2, 0.2, 5, 5, "semi-honest")
    found = choose_parameters(n, assumptions)
    assert found.neighbours < found.holders
    honest = n - assumptions.max_corrupt(n) - assumptions.max_dropouts(n)
    chance, apart = Random(5), 0
    for _ in range(300):
        edges = [set(chance.sample(range(n - 1), found.neighbours)) for _ in range(n)]
        near = [{o + (o >= slot) for o in drawn} for slot, drawn in enumerate(edges)]
        reached, front = {0}, [0]
        while front:
            slot = front.pop()
            new = {o for o in range(honest) if o in near[slot] or slot in near[o]} - reached
            reached |= new
            front += new
        apart += len(reached) < honest
    assert apart <= 14

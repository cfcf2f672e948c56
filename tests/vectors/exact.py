"""The parameters of a cohort a second time, in whole numbers: slow, and exact."""

from fractions import Fraction
from math import ceil, comb, floor, log2
from typing import NamedTuple

MIN_HOLDERS = 10
MIN_CUT_DROPOUTS = 6


class Terms(NamedTuple):
    """Assumptions of a study; rates are in thousandths, so that they are exact."""

    corrupt: int
    dropout: int
    sigma: int
    eta: int


def tail(population: int, marked: int, draws: int, least: int) -> Fraction:
    """Return Pr[`least` or more of the marked are drawn]."""
    top = min(marked, draws)
    ways = sum(
        comb(marked, x) * comb(population - marked, draws - x)
        for x in range(max(least, 0), top + 1)
    )
    return Fraction(ways, comb(population, draws))


def cut_by_an_active_server(n: int, k: int, t: int, corrupt: int, dropouts: int) -> Fraction:
    """Return the bound on the probability of a cut-off group for the worst dropouts."""
    total = Fraction(0)
    for c in range(1, (n - corrupt) // 2 + 1):
        others = n - corrupt - c
        silent = max(others - dropouts, 0)
        avoiding = Fraction(comb(n - 1 - c, k), comb(n - 1, k)) ** silent
        crowds = comb(others, dropouts) if dropouts <= others else 1
        inside = tail(n - 1, corrupt + c - 1, k, t - 1)
        total += comb(n - corrupt, c) * inside**c * min(Fraction(1), crowds * avoiding)
    return total


def parameters(n: int, terms: Terms) -> tuple[int, int, int] | None:
    """Return k, t and s of a cohort of n, or None if nothing keeps the promises."""
    corrupt, dropouts = n * terms.corrupt // 1000, n * terms.dropout // 1000
    if n < 2 or terms.corrupt + 2 * terms.dropout > 900:
        return None
    s = _spot_checks(n, corrupt, n - dropouts, terms.sigma)
    for k in range(MIN_HOLDERS, n - 1, 2):
        for t in range(2, k + 1):
            if keeps_promises(n, k, t, terms):
                return k, t, s
    return (n - 1, corrupt + 2, s) if corrupt + 2 <= n - dropouts else None


def keeps_promises(n: int, k: int, t: int, terms: Terms) -> bool:
    """Return whether k holders and threshold t keep all promises."""
    corrupt, dropouts = n * terms.corrupt // 1000, n * terms.dropout // 1000
    allowed = Fraction(1, 2 ** (terms.sigma + 2))
    named = max(dropouts, MIN_CUT_DROPOUTS)
    return (
        n * tail(n - 1, corrupt, k, t) <= allowed
        and n * (1 - tail(n, n - dropouts, k, t)) <= Fraction(1, 2**terms.eta)
        and cut_by_an_active_server(n, k, t, corrupt, named) <= allowed
    )


def _spot_checks(n: int, corrupt: int, quorum: int, sigma: int) -> int:
    forged = max(2 * quorum - n - corrupt, 1)
    needed = (sigma + 2 + 2 * log2(n)) / (-2 * log2(1 - forged / (2 * quorum)))
    assert abs(needed - floor(needed + 0.5)) > 1e-9 or needed == ceil(needed)
    return min(ceil(needed), quorum - 1)

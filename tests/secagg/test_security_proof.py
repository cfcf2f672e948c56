"""Every bound of `docs/security-proof.md`, computed a second time, and each figure printed there.

The functions have the names of the page's terms. They share no code with `secagg.parameters`.
Probabilities are natural logarithms.
"""

import math
import re
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp
from scipy.stats import binom, hypergeom

from secagg.errors import InfeasibleError
from secagg.parameters import Assumptions, Parameters, choose_parameters

Logs = NDArray[np.float64]
PAGE = Path(__file__).parents[2] / "docs" / "security-proof.md"
RATES = [(0.05, 0.05), (0.1, 0.1), (0.1, 0.2), (0.2, 0.2), (0.05, 0.3)]
FEW_DROPOUTS = [(0, 0), (0.05, 0), (0.1, 0), (0.1, 0.01), (0.3, 0), (0.2, 0.02)]
CASES = [
    *((n, corrupt, dropout) for n in (12, 40, 100) for corrupt, dropout in RATES),
    *((n, corrupt, dropout) for n in (15, 150, 400) for corrupt, dropout in FEW_DROPOUTS),
    *((10, 0.3, 0.3), (300, 0.1, 0.2), (300, 0.05, 0.05), (700, 0.3, 0.005), (1000, 0.3, 0)),
]
WORD_VALUES = 2**32  # a holder is selected by a 32-bit word


def log_choose(n: Any, k: Any) -> Logs:
    n, k = np.asarray(n, float), np.asarray(k, float)
    logs = gammaln(n + 1) - gammaln(k + 1) - gammaln(np.maximum(n - k, 0) + 1)
    return np.where((k >= 0) & (k <= n), logs, -np.inf)


@dataclass(frozen=True)
class Proof:
    """The quantities of the page for one cohort, with the page's symbols as names."""

    n: int
    corrupt: float
    dropout: float
    sigma: int = 40

    @cached_property
    def parameters(self) -> Parameters:
        return choose_parameters(self.n, Assumptions(self.corrupt, self.dropout, self.sigma))

    @cached_property
    def A(self) -> int:  # noqa: N802 - the page's symbols
        return int(Fraction(str(self.corrupt)) * self.n)

    @cached_property
    def D(self) -> int:  # noqa: N802
        return int(Fraction(str(self.dropout)) * self.n)

    @property
    def q(self) -> int:
        return self.n - self.D

    @property
    def h(self) -> int:
        return self.n - self.A

    @cached_property
    def rho(self) -> float:
        """Log of the factor by which scaled 32-bit words make k holders more likely."""
        k, others = self.parameters.holders, self.n - 1
        if self.parameters.is_complete:
            return 0.0
        error, j = others / WORD_VALUES, np.arange(k)
        return float(k * np.log1p(error) - np.log1p(-j * error / (others - j)).sum())

    @cached_property
    def tau(self) -> Logs:
        """Log of rho Pr[Hyp(n-1, A+c-1, k) >= t-1] for c = 0 .. h."""
        p = self.parameters
        x = np.arange(p.threshold - 1, p.holders + 1.0)[:, np.newaxis]
        marked = np.minimum(self.A - 1 + np.arange(self.h + 1.0), self.n - 1)
        pmf = log_choose(marked, x) + log_choose(self.n - 1 - marked, p.holders - x)
        log_tail = logsumexp(pmf, axis=0) - log_choose(self.n - 1, p.holders)
        return np.minimum(log_tail + self.rho, 0)

    @cached_property
    def nu(self) -> Logs:
        """Log of rho Pr[Hyp(n-1, c, k) = 0] for c = 0 .. h."""
        k, c = self.parameters.holders, np.arange(self.h + 1.0)
        none = log_choose(self.n - 1 - c, k) - log_choose(self.n - 1, k)
        return np.where(c > 0, np.minimum(none + self.rho, 0), 0)

    def passing(self, f: int) -> float:
        """Pr[s spot checks of q - 1 signatures detect none of f forged ones]."""
        s = self.parameters.spot_checks
        return float(np.exp(log_choose(self.q - 1 - f, s) - log_choose(self.q - 1, s)))

    @property
    def small(self) -> float:
        """The bound on each of the two tails of THIN for one f: 2^-(sigma+5) / n^2."""
        return 2.0 ** -(self.sigma + 5) / self.n**2

    def is_thin(self, f: int) -> bool:
        """Return whether f forged signatures let no group above h/2 be opened (THIN)."""
        a = np.arange(self.h // 2 + 1)
        acting = binom.sf(a, self.h, self.passing(f))
        opened = binom.sf(self.h // 2, self.h, np.exp(self.tau[a]))
        return bool(((acting <= self.small) & (opened <= self.small)).any())

    def hold(self) -> float:
        p = self.parameters
        tail = hypergeom.logsf(p.threshold - 1, self.n - 1, self.A, p.holders)
        return math.log(self.n) + self.rho + float(tail)

    def split(self) -> float:
        grid = range(self.h) if self.n <= 100 else [*range(30), *range(30, self.h, 29)]
        return max(self.split_with_invented(e) for e in grid)

    def split_with_invented(self, e: int) -> float:
        """SPLIT for a roster with e invented identities, which honest devices refuse to select."""
        signers, s = np.arange(2, self.h - e + 1.0), self.parameters.spot_checks
        if not len(signers):
            return -math.inf
        forged = 2 * self.q - 2 * self.A - 2 * e - signers
        share = np.clip(forged / (2 * self.q), 0, 1)
        if s == self.q - 1:
            share = np.where(forged >= 1, 1.0, 0.0)
        number = binom.logpmf(signers, self.h - e, np.exp(self.nu[e]))
        with np.errstate(divide="ignore"):
            log_pass = 2 * s * np.log1p(-share)
        return float(logsumexp(number + np.log(signers * (signers - 1)) + log_pass))

    @cached_property
    def w(self) -> int:
        """The fewest forged signatures above which THIN holds for every f."""
        # More forged signatures are detected more often, so that `is_thin` changes once.
        return bisect_left(range(1, self.most_forged + 1), True, key=self.is_thin)

    @property
    def most_forged(self) -> int:
        """The most forged signatures that s spot checks may miss in a list of q."""
        return self.q - 1 - self.parameters.spot_checks

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """First and last f of each block: 0 to 7 alone, 8 to 15, 16 to 31, ..."""
        last = self.most_forged
        firsts = [*range(8), *(2**i for i in range(3, 20))]
        return [(f, min(max(f, 2 * f - 1 if f >= 8 else f), last)) for f in firsts if f <= last]

    def cut(self, e: int = 0) -> float:
        """CUT, with e invented entries in the roster that no device which goes on selected."""
        c = np.arange(1, min(self.h // 2, self.h - e) + 1)
        inside = log_choose(self.h - e, c) + c * np.minimum(self.tau[c], self.nu[e])
        matters = inside > -(self.sigma + 12) * math.log(2) - math.log(self.n)
        for size in c[matters]:
            choices = float(log_choose(self.h - e, size))
            apart_and_opened = choices + self.apart_and_opened(int(size), e)
            inside[size - 1] = min(inside[size - 1], apart_and_opened)
        return float(logsumexp(inside))

    def apart_and_opened(self, c: int, e: int) -> float:
        """Log probability that one group of c is apart and opened, for any f."""
        a = np.arange(1, c + 1)
        holders = np.minimum(self.tau[a], self.nu[e])
        terms = []
        for first, last in self.blocks:
            p = self.passing(first)
            with np.errstate(divide="ignore", invalid="ignore"):
                rest_fails = np.where(a < c, (c - a) * np.log1p(-p), 0)
            acting = log_choose(c, a) + a * math.log(p) + rest_fails
            terms.append(logsumexp(acting + c * holders) + self.apart(c, self.D + last, e))
        return float(logsumexp(terms))

    def apart(self, c: int, lost: int, e: int = 0) -> float:
        """Log of pi: with `lost` devices named as dropouts, no other selected one of c."""
        if c + e > self.h:
            return 0.0
        return float(binom.logcdf(lost, self.h - e - c, -math.expm1(self.nu[c + e])))

    def isolate(self) -> float:
        r = np.arange(self.r + 1, self.h // 2 + 1)
        return float(logsumexp(np.append(self._isolated[r], -np.inf)))

    @cached_property
    def _isolated(self) -> Logs:
        r = np.arange(self.h // 2 + 1)
        selecting = binom.logcdf(self.D + self.w, self.h - r, -np.expm1(self.nu[r]))
        isolated: Logs = log_choose(self.h, r) + selecting
        return isolated

    @cached_property
    def r(self) -> int:
        """The fewest devices of which ISOLATE for larger sets is at most 2^-(sigma+4)."""
        above = np.logaddexp.accumulate(self._isolated[::-1])[::-1]  # sums from r upwards
        return int(np.count_nonzero(above > -(self.sigma + 4) * math.log(2))) - 1

    def minimum(self) -> int:
        return self.q - self.A - self.w - self.r

    def terms(self) -> dict[str, float]:
        """Return the terms by name, and their sum; THIN follows from the choice of w."""
        terms = {"HOLD": self.hold(), "SPLIT": self.split(), "CUT": self.cut()}
        terms |= {"THIN": -(self.sigma + 4) * math.log(2), "ISOLATE": self.isolate()}
        return terms | {"all": float(logsumexp(list(terms.values())))}


@pytest.mark.parametrize(("n", "corrupt", "dropout"), CASES)
def test_all_terms_together_are_at_most_two_to_the_minus_sigma(
    n: int, corrupt: float, dropout: float
) -> None:
    proof = Proof(n, corrupt, dropout)
    assert proof.terms()["all"] <= -proof.sigma * math.log(2)
    assert proof.minimum() >= 2


@pytest.mark.parametrize(("sigma", "corrupt"), [(20, 0.1), (60, 0.1), (80, 0.2)])
def test_the_terms_follow_sigma(sigma: int, corrupt: float) -> None:
    assert Proof(150, corrupt, 0.2, sigma).terms()["all"] <= -sigma * math.log(2)


@pytest.mark.parametrize(
    ("n", "corrupt", "dropout"), [(25, 0.2, 0.2), (40, 0.05, 0.05), (60, 0.1, 0.1), (100, 0.1, 0.1)]
)
def test_invented_entries_keep_cut_within_its_part(n: int, corrupt: float, dropout: float) -> None:
    proof = Proof(n, corrupt, dropout)
    allowed = max(proof.cut(), -(proof.sigma + 2) * math.log(2))
    for e in (1, 2, 3, 5, 8, 13, 21, 34, 55):
        assert e >= proof.h - 1 or proof.cut(e) <= allowed, e


def test_more_dropouts_need_that_forging_stops_devices_from_acting() -> None:
    proof = Proof(200, 0, 0.05)
    sizes = range(1, proof.h // 2 + 1)

    def all_act(lost: int) -> float:
        terms = [
            float(log_choose(proof.h, c)) + c * proof.tau[c] + proof.apart(c, lost) for c in sizes
        ]
        return float(logsumexp(terms)) / math.log(2)

    assert all_act(proof.D) <= -(proof.sigma + 2)
    assert round(all_act(proof.D + proof.w)) == -30
    assert round(proof.cut() / math.log(2)) == -42


def test_all_terms_are_small_at_any_size_and_rates() -> None:
    """All cohorts for which there are parameters, of any two of a size and rates on a grid."""
    corrupt_rates, dropouts = (0, 0.02, 0.1, 0.2, 0.5), (0, 0.02, 0.05, 0.2, 0.3)
    for row, n in enumerate((8, 10, 12, 16, 30, 64, 100, 220)):
        for column, corrupt in enumerate(corrupt_rates):
            dropout = dropouts[(row + column) % 5]
            proof = Proof(n, corrupt, dropout)
            try:
                terms = proof.terms()
            except InfeasibleError:
                continue
            assert terms["all"] <= -proof.sigma * math.log(2), (n, corrupt, dropout, terms)


def test_the_hypergeometric_tails_are_those_of_exact_fractions() -> None:
    proof = Proof(100, 0.1, 0.2)
    k, t, others = proof.parameters.holders, proof.parameters.threshold, proof.n - 1
    for c in (3, 10, 40):
        marked = proof.A + c - 1
        ways = sum(
            math.comb(marked, x) * math.comb(others - marked, k - x) for x in range(t - 1, k + 1)
        )
        exact = Fraction(ways, math.comb(others, k))
        assert math.exp(proof.tau[c]) == pytest.approx(float(exact), rel=1e-5)
        avoiding = Fraction(math.comb(others - c, k), math.comb(others, k))
        assert math.exp(proof.nu[c]) == pytest.approx(float(avoiding), rel=1e-5)


def test_one_device_detects_forged_signatures_as_often_as_the_page_states() -> None:
    proof = Proof(100, 0.1, 0.2)
    s, listed = proof.parameters.spot_checks, proof.q - 1
    exact = Fraction(math.comb(listed - 3, s), math.comb(listed, s))
    assert proof.passing(3) == pytest.approx(float(exact), rel=1e-9)


def test_words_select_holders_almost_uniformly() -> None:
    # The first two of three slots, by enumeration with 4-bit words: scaled words are not
    # uniform, and no pair is more likely than uniform by more than the factor of the page.
    words, others, k = 16, 3, 2
    weights = [
        Fraction(sum(w * others // words == v for w in range(words)), words) for v in (0, 1, 2)
    ]
    largest = max(
        weights[i] * weights[j] / (1 - weights[i]) for i in range(3) for j in range(3) if i != j
    )
    error = Fraction(others, words)
    factor = (1 + error) ** k / math.prod(1 - j * error / (others - j) for j in range(k))
    assert largest * others * (others - 1) <= factor


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below `heading` on the page, without commas."""
    section = PAGE.read_text().split(heading, 1)[1]
    table = re.search(r"((?:^\|.*\n)+)", section, re.MULTILINE)
    assert table, f"no table below {heading!r}"
    lines = table[1].replace(",", "").splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_sizes_on_the_page_are_those_computed() -> None:
    for row in rows("## What the sum covers"):
        n, corrupt, dropout = int(row[0]), float(row[1]), float(row[2])
        proof = Proof(n, corrupt, dropout)
        p = proof.parameters
        computed = [p.holders, p.threshold, p.spot_checks, proof.w, proof.r, proof.minimum()]
        assert [int(cell) for cell in row[3:]] == computed, row


def test_the_terms_on_the_page_are_those_computed() -> None:
    terms = Proof(1_000, 0.1, 0.2).terms()
    table = rows("## The sum of the terms")
    printed = {row[0].strip("*"): float(row[1].replace("−", "-")[2:]) for row in table}
    assert printed == {name: round(value / math.log(2), 1) for name, value in terms.items()}

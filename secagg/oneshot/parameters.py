"""Parameters of a committee: how many members may collude or drop out, and all that follows.

    A   members that may collude with the server, and lie
    D   members that may drop out
    t   sums that interpolate the total: polynomials have degree t - 1, t = m - D - A or less
    rho secrets in one polynomial, t - A: the A other values of a polynomial are random

Requirements are m > A + 2 D and rho >= 1. A member releases its sum after m - D members have signed
the same set of messages, which is more than (m + A) / 2. Two sets with so large a number of
signatures share more than A signers, so that an honest member would have signed both. If operators
are absent, m and D are smaller by their number, and m - D is the same: so this also holds for the
sets of two committees of one sum, which a server may make of different operators.

The rates of operators are of the committee itself. A committee of m members that is drawn at
random from a population of V has more than A colluding members with probability at most 2^-sigma,
and more than D dropouts with probability at most 2^-eta. If K of the V may collude, A is the
smallest number with

    2^sigma x sum over x > A of C(K, x) C(V - K, m - x)  <=  C(V, m)

and D follows alike. Both sides are computed as integers, so that all languages find the same A.

A Reed-Solomon code of R sums corrects (R - t) / 2 wrong ones, but A colluding members can place the
word so close to another code word that such a decoder returns a wrong sum and blames an honest
member. A decoder that corrects e errors is not fooled by A if e + A <= R - t. So it corrects
min(A, R - t - A): with R = t + A sums it only detects, and with all m sums it corrects min(A, D). A
lying member counts as one that drops out.

Source: packed sharing [Franklin92]; proximity gaps of Reed-Solomon codes [BCIKS20].
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from secagg.parameters import Assumptions

MAX_MEMBERS: Final = 1_000
SOUNDNESS_BITS: Final = 48
_RATE_TOLERANCE = 1e-14  # as in `secagg.parameters`: 0.2 of 1,000 counts as 200


@dataclass(frozen=True, slots=True)
class CommitteeParameters:
    """The numbers of a committee: m members, A corrupt, D dropouts, threshold t.

    A sum with range proofs needs a smaller threshold than m - D - A, so that t is a field.

    Raises:
        ValueError: if a requirement of the module's docstring is violated.
    """

    members: int
    corrupt: int
    dropouts: int
    threshold: int

    def __post_init__(self) -> None:
        m, a, d, t = self.members, self.corrupt, self.dropouts, self.threshold
        if not 1 <= m <= MAX_MEMBERS:
            raise ValueError(f"a committee has 1 to {MAX_MEMBERS} members, got {m}")
        if min(a, d) < 0:
            raise ValueError(f"numbers of members are 0 or more, got A = {a} and D = {d}")
        if m <= a + 2 * d:
            raise ValueError(
                f"{m} members with A = {a} and D = {d} cannot agree on one set: more than "
                f"A + 2 D = {a + 2 * d} are needed"
            )
        if t > m - d - a:
            raise ValueError(f"threshold {t} is above m - D - A = {m - d - a}: sums may not open")
        if t <= a:
            raise ValueError(
                f"threshold {t} of {m} members leaves no room for a secret among A = {a} random "
                "values: assume lower rates, or ask for more members"
            )

    @property
    def packed_secrets(self) -> int:
        """Return the number of secrets in one polynomial (rho)."""
        return self.threshold - self.corrupt

    @property
    def needed_sums(self) -> int:
        """Return the number of members' sums without which nothing opens (t + A)."""
        return self.threshold + self.corrupt

    @property
    def needed_signatures(self) -> int:
        """Return the number of signatures of one set without which no member sends its sum."""
        return self.members - self.dropouts

    def droppable(self, checked: int) -> int:
        """Return how many of `checked` members may be dropped within the bound of `degree_tests`.

        It is half of those beyond t + A, rounded down, or one.
        """
        surplus = max(0, checked - self.needed_sums)
        return max(surplus // 2, min(surplus, 1))

    def correctable(self, received: int) -> int:
        """Return the number of wrong sums among `received` that can be corrected safely."""
        return max(0, min(self.corrupt, received - self.needed_sums))


def committee_parameters(
    members: int, corrupt: float, dropout: float, threshold: int | None = None
) -> CommitteeParameters:
    """Return the parameters of a committee whose own rates are at most `corrupt` and `dropout`.

    Raises:
        ValueError: if a rate is not from 0 to below 1, or no parameters exist.
    """
    a = floor_of_rate(corrupt, members, "corrupt")
    d = floor_of_rate(dropout, members, "dropout")
    return CommitteeParameters(members, a, d, members - d - a if threshold is None else threshold)


@lru_cache(maxsize=256)
def drawn_committee_parameters(
    members: int, corrupt: float, dropout: float, population: int, sigma: int = 40, eta: int = 30
) -> CommitteeParameters:
    """Return the parameters of a committee that is drawn at random from `population`.

    `corrupt` and `dropout` are rates of the population.

    Raises:
        ValueError: if a rate or an exponent is out of range, the population is smaller than the
            committee, or no parameters exist.
    """
    if population < members:
        raise ValueError(f"{members} members cannot be drawn from a population of {population}")
    assumptions = Assumptions(corrupt, dropout, sigma, eta)
    a = _largest_draw(members, assumptions.max_corrupt(population), population, sigma)
    d = _largest_draw(members, assumptions.max_dropouts(population), population, eta)
    return CommitteeParameters(members, a, d, members - d - a)


def floor_of_rate(rate: float, count: int, name: str) -> int:
    """Return a fraction of `count`, rounded down; raises ValueError for 1 and above."""
    if not 0 <= rate < 1:
        raise ValueError(f"{name} is a fraction from 0 to below 1, got {rate}")
    return math.floor((rate + _RATE_TOLERANCE) * count)


def _largest_draw(members: int, marked: int, population: int, exponent: int) -> int:
    """Return the smallest number that a draw exceeds with probability at most 2^-exponent."""
    number, above, draws = min(marked, members), 0, math.comb(population, members)
    # The number of draws with exactly `number` of the marked; each step derives the one below.
    exactly = math.comb(marked, number) * math.comb(population - marked, members - number)
    while number and (above + exactly) << exponent <= draws:
        above += exactly
        undrawn = population - marked - members + number
        exactly = exactly * number * undrawn // ((marked - number + 1) * (members - number + 1))
        number -= 1
    return number


def degree_tests(p: int, parameters: CommitteeParameters) -> int:
    """Return the least number of blinded combinations (r) with p^r >= 2^48 (2 (m - A) + 1).

    Any t points lie on a polynomial of degree t - 1. So a device can give shares on none, and
    choose after the coins which honest members its proof suits; the others complain. Say n honest
    members check, and at most d = (n - t) / 2 of them are dropped. Then, but for a fraction n p^-r
    of the coins, all columns are polynomials on one set of n - d members or more that was fixed
    before the coins [BCIKS20, Theorem 1.6 for unique decoding]. Each member outside it passes with
    probability p^-r. So the members that pass have shares on no polynomial with probability at most
    (n + d) p^-r for each attempt. If one of n = t + 1 is dropped, the others are always on one, and
    the device has chosen one of n vectors.

    A member that the device keeps from checking after the coins counts as dropped. If more than
    `CommitteeParameters.droppable` are, the factor is the number of sets of t honest members: 2^42
    for m = 100 and A = D = 10. Coins are hashes of the message, so that a device may try as often
    as it can hash. It wins only that members count as liars, or that the sum does not open. No
    secret of another device depends on this test.
    """
    tests, needed = 1, (2 * (parameters.members - parameters.corrupt) + 1) << SOUNDNESS_BITS
    while p**tests < needed:
        tests += 1
    return tests

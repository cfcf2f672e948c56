"""The numbers of a committee, against exact fractions."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.oneshot.parameters import (
    CommitteeParameters,
    committee_parameters,
    degree_tests,
    drawn_committee_parameters,
)
from tests.vectors.exact import tail

ROWS = [  # m, rates, and A, D, t, rho
    (100, 0.1, 0.1, (10, 10, 80, 70)),
    (100, 0.2, 0.2, (20, 20, 60, 40)),
    (200, 0.1, 0.3, (20, 60, 120, 100)),
    (7, 0.15, 0.15, (1, 1, 5, 4)),
    (3, 0.0, 0.34, (0, 1, 2, 2)),
    (1000, 0.2, 0.2, (200, 200, 600, 400)),
]


@pytest.mark.parametrize(("m", "corrupt", "dropout", "numbers"), ROWS)
def test_a_committee_follows_from_its_rates(
    m: int, corrupt: float, dropout: float, numbers: tuple[int, ...]
) -> None:
    p = committee_parameters(m, corrupt, dropout)
    assert (p.corrupt, p.dropouts, p.threshold, p.packed_secrets) == numbers
    assert p.needed_sums == m - p.dropouts  # all that do not drop out
    assert p.needed_signatures == m - p.dropouts


@given(m=st.integers(1, 60), a=st.integers(0, 60), d=st.integers(0, 60), t=st.integers(0, 60))
def test_parameters_exist_exactly_if_the_requirements_hold(m: int, a: int, d: int, t: int) -> None:
    feasible = m > a + 2 * d and a < t <= m - d - a
    try:
        p = CommitteeParameters(m, a, d, t)
    except ValueError:
        assert not feasible
        return
    assert feasible
    # Two sets with enough signatures share an honest member, and those present can sign one.
    assert 2 * p.needed_signatures - m > a
    assert p.needed_signatures <= m - d
    # A decoder that corrects e errors, of words with a false ones, is right or fails.
    for received in range(m + 1):
        e = p.correctable(received)
        assert e == 0 or e + a <= received - t
        assert 2 * e <= max(received - t, 0)
        assert received < p.needed_sums or e == min(a, received - t - a)


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ((0, 0, 0, 1), "1 to 1000 members"),
        ((1001, 0, 0, 1), "1 to 1000 members"),
        ((7, -1, 1, 5), "0 or more"),
        ((7, 1, -1, 5), "0 or more"),
        ((7, 3, 2, 4), r"cannot agree on one set: more than A \+ 2 D = 7"),
        ((7, 1, 1, 6), "above m - D - A = 5"),
        ((7, 2, 1, 2), "no room for a secret"),
    ],
)
def test_a_violated_requirement_is_named(numbers: tuple[int, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        CommitteeParameters(*numbers)


@pytest.mark.parametrize("rates", [(-0.1, 0.1), (0.1, 1.0)])
def test_rates_are_fractions(rates: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="a fraction from 0 to below 1"):
        committee_parameters(100, *rates)
    with pytest.raises(ValueError, match="a fraction from 0 to below 1"):
        drawn_committee_parameters(100, *rates, 1000)


@pytest.mark.parametrize(("population", "sigma", "eta"), [(1000, 40, 30), (301, 20, 10)])
def test_a_drawn_committee_exceeds_its_numbers_with_the_stated_probability(
    population: int, sigma: int, eta: int
) -> None:
    p = drawn_committee_parameters(300, 0.1, 0.1, population, sigma, eta)
    for number, exponent in ((p.corrupt, sigma), (p.dropouts, eta)):
        exceeded, below = (tail(population, population // 10, 300, number + i) for i in (1, 0))
        assert exceeded <= Fraction(1, 2**exponent) < below
    assert p.threshold == 300 - p.corrupt - p.dropouts


@pytest.mark.parametrize("sigma", range(1, 9))
def test_a_probability_of_exactly_two_to_the_minus_sigma_is_allowed(sigma: int) -> None:
    """One of V devices colludes, and is among the 4 members with probability 4 / V."""
    population = 4 * 2**sigma
    p = drawn_committee_parameters(4, 1 / population, 0.0, population, sigma)
    assert p.corrupt == 0


def test_a_population_of_the_committees_size_is_drawn_whole() -> None:
    assert drawn_committee_parameters(100, 0.1, 0.2, 100) == committee_parameters(100, 0.1, 0.2)
    with pytest.raises(ValueError, match="cannot be drawn from a population of 99"):
        drawn_committee_parameters(100, 0.1, 0.1, 99)


def test_an_exponent_has_a_range() -> None:
    with pytest.raises(ValueError, match="sigma and eta are 1 to 128, got 40 and 1000000000000"):
        drawn_committee_parameters(300, 0.1, 0.1, 1000, eta=10**12)


def test_a_committee_that_is_too_small_to_draw_has_a_reason() -> None:
    with pytest.raises(ValueError, match="cannot agree on one set"):
        drawn_committee_parameters(30, 0.1, 0.1, 5000)


@pytest.mark.parametrize(
    ("p", "tests"), [(13, 14), (257, 7), (521, 6), (4093, 5), (65537, 4), (2**61 - 1, 1)]
)
def test_degree_tests_of_seven_operators_have_48_bits(p: int, tests: int) -> None:
    assert degree_tests(p, CommitteeParameters(7, 1, 1, 5)) == tests
    assert p**tests >= 13 * 2**48 > p ** (tests - 1)  # 13 = 2 (m - A) + 1


def test_degree_tests_follow_the_number_of_honest_members() -> None:
    assert degree_tests(521, CommitteeParameters(100, 10, 10, 80)) == 7


@given(a=st.integers(0, 30), d=st.integers(0, 30), t=st.integers(1, 60), absent=st.integers(0, 60))
def test_dropped_members_are_at_most_half_of_the_honest_ones_beyond_t(
    a: int, d: int, t: int, absent: int
) -> None:
    """However many of the colluding members check; or one of t + 1 is dropped."""
    parameters = CommitteeParameters(a + 2 * d + t + a + 1, a, d, t + a)
    checked = parameters.members - absent
    dropped = parameters.droppable(checked)
    for honest in range(max(0, checked - a), checked + 1):
        assert 2 * dropped <= max(0, honest - parameters.threshold) or dropped == 1
    assert dropped <= max(0, checked - parameters.needed_sums)

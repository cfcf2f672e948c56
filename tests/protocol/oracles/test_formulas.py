"""Formulas against figures that were derived and measured without this code."""

from math import exp, sqrt

import numpy as np
import pytest

from protocol.oracles.hadamard import Hadamard
from protocol.oracles.krr import KaryRandomizedResponse
from protocol.oracles.ocms.hash_range import (
    m_for_l2,
    m_for_mse,
    pair_for_mse,
    real_m_for_l2,
    real_m_for_mse,
    total_variance,
    worst_variance,
)
from protocol.oracles.ocms.hash_range_mixture import OcmsMixture
from protocol.oracles.ocms.hashed import Ocms
from protocol.oracles.ocms.ocms_gf import OcmsGf, adjacent_field_orders
from protocol.oracles.oracle import Oracle
from protocol.oracles.rappor import Rappor
from protocol.oracles.subset_selection import SubsetSelection
from protocol.reference_mechanisms.oracles.apple_cms import HadamardCountMeanSketch
from protocol.reference_mechanisms.oracles.local_hashing import LocalHashing
from protocol.reference_mechanisms.oracles.recursive_hadamard import RecursiveHadamard

D = 100_000

# epsilon: m of the smallest worst case (real), its bound, at the better integer, HE, OLH and
# asymmetric RAPPOR, m of the smallest sum of squares, n l2 / d
TABLE = {
    0.5: (2.28, 15.917, 16.671, 16.671, 16.671, 3, 15.817),
    1.0: (2.65, 3.918, 4.143, 4.683, 4.683, 4, 3.692),
    2.0: (3.72, 0.9207, 0.9654, 1.7241, 1.7241, 8, 0.7246),
    3.0: (5.48, 0.3697, 0.3970, 1.2206, 1.2206, 21, 0.2206),
    4.0: (8.39, 0.1810, 0.1887, 1.0760, 1.0760, 56, 0.0760),
    5.0: (13.18, 0.0974, 0.0987, 1.0273, 1.0273, 149, 0.0273),
}
every_epsilon = pytest.mark.parametrize("epsilon", TABLE)


def at_worst(oracle: Oracle) -> float:
    return max(oracle.scaled_variances)


def l2(oracle: Oracle) -> float:
    low, high = oracle.scaled_variances
    return high + (oracle.domain - 1) * low


@every_epsilon
def test_worst_cases_are_those_of_the_table(epsilon: float) -> None:
    m, bound, ours, hadamard, hashing, _, _ = TABLE[epsilon]
    assert real_m_for_mse(epsilon) == pytest.approx(m, abs=0.005)
    assert worst_variance(epsilon, real_m_for_mse(epsilon)) == pytest.approx(bound, rel=5e-4)
    assert exp(epsilon / 2) / (exp(epsilon / 2) - 1) ** 2 == pytest.approx(bound, rel=5e-4)
    for oracle, expected in (
        (Ocms.for_mse(epsilon, D), ours),
        (Hadamard(epsilon, D), hadamard),
        (HadamardCountMeanSketch(epsilon, D, functions=2**17), hadamard),
        (Rappor(epsilon, D, symmetric=True), bound),
        (Rappor(epsilon, D, symmetric=False), hashing),
        (SubsetSelection.standard(epsilon, D), hashing),
        (SubsetSelection.for_mse(epsilon, D), bound),
    ):
        assert at_worst(oracle) == pytest.approx(expected, rel=2e-3), oracle
    hashed = at_worst(LocalHashing.for_l2(epsilon, D))
    assert hashed == pytest.approx(worst_variance(epsilon, m_for_l2(epsilon, D)))
    assert hashed == pytest.approx(hashing, rel=0.06)  # g is an integer


@every_epsilon
def test_sums_of_squares_are_those_of_the_table(epsilon: float) -> None:
    *_, m, per_value = TABLE[epsilon]
    assert m_for_l2(epsilon, D) == m
    assert l2(Ocms.for_l2(epsilon, D)) / D == pytest.approx(per_value, rel=4e-3)
    assert l2(OcmsGf.for_l2(epsilon, D)) / D == pytest.approx(per_value, rel=0.021)
    e = exp(epsilon)
    bound = 2 * D * e / (e - 1) ** 2
    bound += 2 / (e - 1) ** 2 * sqrt((e + D - 1) * (e + (D - 1) * e**2))
    assert total_variance(epsilon, real_m_for_l2(epsilon, D), D) == pytest.approx(bound, rel=1e-9)
    assert bound / D == pytest.approx(4 * e / (e - 1) ** 2, rel=2e-3)


@pytest.mark.parametrize("epsilon", [0.3, 0.75, 1.0, 2.0, 3.0, 4.3, 6.0])
@pytest.mark.parametrize("most", [0.0, 0.01, 0.3, 0.7, 1.0])
def test_no_integer_is_better_than_the_chosen(epsilon: float, most: float) -> None:
    every = range(2, 1500)
    assert m_for_mse(epsilon, most) == min(every, key=lambda m: worst_variance(epsilon, m, most))
    for domain in (5, 50, 10**6):
        assert m_for_l2(epsilon, domain) == min(
            every, key=lambda m: total_variance(epsilon, m, domain)
        )
    real = worst_variance(epsilon, real_m_for_mse(epsilon, most), most)
    assert all(worst_variance(epsilon, m, most) >= real * (1 - 1e-12) for m in every)


def test_a_known_bound_on_frequencies_has_its_own_optimum() -> None:
    for most in (0.0, 0.01, 0.2, 0.5):
        for epsilon in (1.0, 3.0, 5.0):
            e = exp(epsilon)
            bound = (most * e + 1 - most) * (most / e + 1 - most)
            mse = 2 * e / (e - 1) ** 2 * (1 + sqrt(bound))
            real = real_m_for_mse(epsilon, most)
            assert worst_variance(epsilon, real, most) == pytest.approx(mse, rel=1e-9)
    assert real_m_for_mse(3.0, 0.0) == pytest.approx(1 + exp(3.0))
    assert Ocms.for_mse(5.0, 10_000, 0.01).m == 95  # as the Gaussian experiment has it
    with pytest.raises(ValueError, match="max_frequency must be from 0 to 1"):
        Ocms.for_mse(1.0, 10, 1.5)


def test_two_ranges_together_reach_what_no_integer_does() -> None:
    pair = pair_for_mse(3.0, (5, 6))
    assert pair.share == pytest.approx(0.49, abs=0.005)
    assert pair.loss == pytest.approx(0.3713, abs=1e-4)
    for hashing in ("prime", "gf"):
        for epsilon, (_, bound, ours, *_) in TABLE.items():
            mixed = OcmsMixture.for_mse(epsilon, D, hashing=hashing)  # type: ignore[arg-type]
            assert at_worst(mixed) < 1.03 * bound
            assert at_worst(mixed) <= ours * (1 + 1e-9)
    low, high = KaryRandomizedResponse(1.0, 7).scaled_variances
    assert low == pytest.approx((exp(1) + 5) / (exp(1) - 1) ** 2)
    assert high == pytest.approx(6 * exp(1) / (exp(1) - 1) ** 2)


@pytest.mark.parametrize(("prime", "m"), [(101, 3), (101, 13), (103, 7), (1009, 13)])
def test_the_collision_constant_is_the_share_of_hash_functions(prime: int, m: int) -> None:
    """All b, and a in place of a (x - x'): the difference before `mod m` is any of F."""
    symbols = np.arange(prime) % m
    meet = sum(int((symbols == np.roll(symbols, shift)).sum()) for shift in range(prime))
    oracle = Ocms(1.0, 100, m, prime)
    assert oracle.collision_probability == pytest.approx(meet / prime**2, rel=1e-12)
    assert 1 / m < oracle.collision_probability <= 1 / m + m / (4 * prime**2)
    assert 0 < at_worst(oracle) / worst_variance(1.0, m) - 1 < 3e-3


def test_recursive_hadamard_has_the_variances_of_its_derivation() -> None:
    known = {1.0: (4, 7.20), 2.0: (8, 2.956), 3.0: (32, 2.956), 4.0: (64, 2.275), 5.0: (256, 2.772)}
    for epsilon, (symbols, alike) in known.items():
        oracle = RecursiveHadamard.for_epsilon(epsilon, D)
        assert 2 * oracle.residues == symbols
        # The Zipf experiment: all have the same residue, none the others'.
        assert oracle.scaled_variances[0] == pytest.approx(alike, rel=2e-3)
        apart = oracle.variance_given_residue(np.zeros(1), np.zeros(1), 1)
        assert float(apart[0]) < oracle.scaled_variances[0]


def test_inner_products_halve_the_bits() -> None:
    assert [Hadamard(3.0, D).bits, RecursiveHadamard.for_epsilon(3.0, D).bits] == [18, 18]
    assert [OcmsGf(epsilon, D, q).bits for epsilon, q in ((1, 3), (3, 5), (5, 13))] == [20, 21, 23]
    assert [Ocms.for_mse(epsilon, D).bits for epsilon in (1, 3, 5)] == [35, 36, 37]


def test_orders_of_fields_are_primes_and_powers_of_two() -> None:
    assert adjacent_field_orders(2.65) == [2, 3]
    assert adjacent_field_orders(3.72) == [3, 4]
    assert adjacent_field_orders(5.48) == [5, 7]
    assert adjacent_field_orders(8) == [8]
    assert adjacent_field_orders(149.4) == [149, 151]
    assert adjacent_field_orders(1021.5) == [1021, 1024]
    assert adjacent_field_orders(3000) == [1024]  # the largest field
    with pytest.raises(ValueError, match=r"domain must be more than m = 1024, not 500.*krr"):
        OcmsGf.for_l2(8.0, 500)
    with pytest.raises(ValueError, match="take ocms-gf"):
        OcmsMixture.for_mse(15.0, 100_000)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0, 5.0, 9.0])
def test_no_size_of_set_has_a_better_worst_case(epsilon: float) -> None:
    for domain in (2, 3, 4, 17, 60):
        every = [SubsetSelection(epsilon, domain, w) for w in range(1, domain)]
        best = min(at_worst(oracle) for oracle in every)
        assert at_worst(SubsetSelection.for_mse(epsilon, domain)) == pytest.approx(best)

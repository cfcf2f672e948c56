"""Seating of a round: what the registrar signs, and how many of the joiners may collude."""

from dataclasses import replace
from fractions import Fraction
from math import comb, exp, log

import numpy as np
import pytest

from secagg.keys import Identity
from secagg.parameters import Assumptions
from secagg.seating import (
    MAX_DRAWS,
    CohortSeating,
    SeatedRound,
    cohort_sizes,
    log_unsafe_probability,
    max_colluders,
    promised_colluders,
    seating_fault,
    split_identities,
)

REGISTRAR, SERVER = Identity.of(bytes(32)), Identity.of(bytes(range(32)))
JOINERS = [Identity.of(number.to_bytes(32, "big")).public for number in range(100, 111)]
ROUND = SeatedRound(b"p" * 32, REGISTRAR.public, len(JOINERS), 3)
COHORT = JOINERS[4:8]  # the second of 4, 4 and 3
SEATING = ROUND.sign(REGISTRAR, 1, b"".join(COHORT))
ASSUMPTIONS = Assumptions(0.1, 0.2)


def test_a_round_is_divided_evenly() -> None:
    assert cohort_sizes(11, 3) == (4, 4, 3)
    assert cohort_sizes(12, 3) == (4, 4, 4)
    assert split_identities(JOINERS, 3)[1] == b"".join(COHORT)


def test_a_cohort_that_the_registrar_seated_has_no_fault() -> None:
    assert seating_fault(ROUND, SEATING, COHORT, minimum=3) is None


@pytest.mark.parametrize(
    ("changes", "seating", "cohort"),
    [
        ({}, ROUND.sign(SERVER, 1, b"".join(COHORT)), COHORT),
        ({}, replace(SEATING, signature=bytes(64)), COHORT),
        ({"plan_digest": b"q" * 32}, SEATING, COHORT),  # the seating of another round
        ({}, replace(SEATING, cohort=0), COHORT),  # of another cohort
        ({}, SEATING, COHORT[::-1]),  # other slots
        ({}, SEATING, [*COHORT[:3], JOINERS[0]]),  # a device that moved
        ({"joiners": 12}, SEATING, COHORT),
        ({"cohorts": 2, "joiners": 8}, SEATING, COHORT),
    ],
)
def test_a_signature_holds_for_one_cohort_of_one_round(
    changes: dict[str, object], seating: CohortSeating, cohort: list[bytes]
) -> None:
    changed = replace(ROUND, **changes)  # type: ignore[arg-type]
    fault = seating_fault(changed, seating, cohort, minimum=3)
    assert fault == "shows a cohort that the study's registrar did not seat"


def test_a_small_round_or_an_uneven_part_is_refused_although_it_is_signed() -> None:
    assert "promised 3 cohorts of 4" in str(seating_fault(ROUND, SEATING, COHORT, minimum=4))
    for number, cohort in ((2, COHORT), (1, COHORT[:3]), (3, COHORT)):
        signed = ROUND.sign(REGISTRAR, number, b"".join(cohort))
        assert "not an even part" in str(seating_fault(ROUND, signed, cohort, minimum=3))


@pytest.mark.parametrize("numbers", [(0, 0), (1, 11), (2**32 - 1, 2**32 - 1)])
def test_a_seating_is_restored_from_its_bytes(numbers: tuple[int, int]) -> None:
    seating = CohortSeating(*numbers, bytes(range(64)))
    assert CohortSeating.split(seating.pack()) == (seating, b"")


def test_malformed_seatings_are_refused() -> None:
    packed = SEATING.pack()
    with pytest.raises(ValueError, match="72 bytes"):
        CohortSeating.split(packed[:-1])
    for numbers, signature, fault in (
        ((2**32, 1), bytes(64), "not 32 bits"),
        ((1, 2**32), bytes(64), "not 32 bits"),
        ((-1, 0), bytes(64), "not 32 bits"),
        ((0, -1), bytes(64), "not 32 bits"),
        ((0, 1), bytes(63), "64 bytes"),
    ):
        with pytest.raises(ValueError, match=fault):
            CohortSeating(*numbers, signature)


@pytest.mark.parametrize(("joiners", "cohorts", "colluders"), [(60, 2, 9), (61, 4, 12), (40, 1, 5)])
def test_the_bound_is_the_exact_sum_of_all_tails(
    joiners: int, cohorts: int, colluders: int
) -> None:
    exact = Fraction(0)
    for n in cohort_sizes(joiners, cohorts):
        above = range(ASSUMPTIONS.max_corrupt(n) + 1, n + 1)
        ways = sum(comb(colluders, x) * comb(joiners - colluders, n - x) for x in above)
        exact += MAX_DRAWS * Fraction(ways, comb(joiners, n))
    bound = log_unsafe_probability(joiners, cohorts, colluders, ASSUMPTIONS)
    assert exp(bound) == pytest.approx(float(exact), rel=1e-9, abs=1e-30)


def test_the_bound_holds_in_simulated_rounds() -> None:
    """Fails for 1 of 10^9 seeds: 4,000 draws, and six standard deviations."""
    joiners, cohorts, colluders, draws = 400, 8, 12, 4_000
    rng, unsafe = np.random.default_rng(5), 0
    limit = ASSUMPTIONS.max_corrupt(joiners // cohorts)
    for _ in range(draws):
        cohort_of_colluder = rng.permutation(joiners)[:colluders] % cohorts
        unsafe += bool(np.bincount(cohort_of_colluder).max() > limit)
    bound = exp(log_unsafe_probability(joiners, cohorts, colluders, ASSUMPTIONS)) / MAX_DRAWS
    deviation = (bound * (1 - bound) / draws) ** 0.5
    assert 0.8 * bound - 6 * deviation < unsafe / draws < bound + 6 * deviation


def test_the_largest_number_of_colluders_is_the_last_that_is_safe() -> None:
    for joiners, cohorts in ((5_000, 10), (5_007, 10), (100_000, 100)):
        most = max_colluders(joiners, cohorts, ASSUMPTIONS)
        allowed = -ASSUMPTIONS.sigma * log(2)
        probabilities = [
            log_unsafe_probability(joiners, cohorts, count, ASSUMPTIONS)
            for count in (most, most + 1)
        ]
        assert probabilities[0] <= allowed < probabilities[1]


def test_one_cohort_withstands_its_own_fraction_and_many_withstand_more() -> None:
    assert max_colluders(1_000, 1, ASSUMPTIONS) == 100
    assert max_colluders(100_000, 100, ASSUMPTIONS) == 4_279
    assert max_colluders(100_000, 100, Assumptions(0.2, 0.2)) == 11_527
    with_half = [promised_colluders(500, 1_000, count, ASSUMPTIONS) for count in (10, 100, 1_000)]
    assert with_half == [165, 1_399, 13_033]
    full = [max_colluders(1_000 * count, count, ASSUMPTIONS) for count in (10, 1_000)]
    assert full == [470, 40_994]
    assert max_colluders(10_000, 100, ASSUMPTIONS) == 30
    # Cohorts so small that a handful is their fraction gain nothing.
    assert max_colluders(5_000, 100, ASSUMPTIONS) == 5


@pytest.mark.parametrize(
    ("minimum", "size", "cohorts"), [(95, 115, 5), (50, 55, 12), (300, 301, 2)]
)
def test_the_promise_holds_for_every_round_that_the_terms_allow(
    minimum: int, size: int, cohorts: int
) -> None:
    rounds = range(minimum * cohorts, size * cohorts + 1)
    fewest = min(max_colluders(joiners, cohorts, ASSUMPTIONS) for joiners in rounds)
    assert promised_colluders(minimum, size, cohorts, ASSUMPTIONS) == fewest

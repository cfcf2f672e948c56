"""Numbers of holders and spot checks: an independent table, promises, refusals."""

import math
import tracemalloc
from fractions import Fraction
from math import comb
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

from secagg.errors import InfeasibleError
from secagg.parameters import (
    MAX_FAULT_FRACTION,
    Assumptions,
    Parameters,
    choose_parameters,
    threshold_range,
)
from tests.vectors import exact

# k / t (greatest valid t) for n = 100, 1,000, 10,000 and 100,000 at sigma = 40, computed
# independently from the log-pmfs of scipy, with the bound on cuts by its definition;
# corrupt = dropout = rate.
TABLE = {
    (20, 0.05): "14/8(9) 32/19(20) 36/21(22) 40/23(24)",
    (20, 0.2): "42/22(23) 102/57(57) 126/69(69) 138/75(76)",
    (20, 0.25): "52/27(28) 150/82(82) 192/104(104) 210/113(113)",
    (30, 0.05): "14/8(9) 34/19(19) 40/22(22) 44/24(25)",
    (30, 0.2): "42/22(22) 116/61(62) 140/74(74) 152/80(80)",
    (30, 0.25): "52/27(27) 166/87(87) 218/113(114) 238/124(124)",
}
CASES = [
    (eta, rate, n, entry)
    for (eta, rate), row in TABLE.items()
    for n, entry in zip((100, 1_000, 10_000, 100_000), row.split(), strict=True)
]
COHORTS = [
    (n, Assumptions(corrupt, dropout, sigma, eta))
    for n in (12, 25, 40, 100, 1_000, 10_000, 100_000)
    for corrupt, dropout, sigma, eta in (
        (0.05, 0.05, 40, 30),
        (0.1, 0.2, 40, 30),
        (0.2, 0.2, 40, 20),
        (0.05, 0.3, 60, 10),
    )
]


@pytest.mark.parametrize(("eta", "rate", "n", "entry"), CASES)
def test_holders_and_thresholds_are_those_computed_independently(
    eta: int, rate: float, n: int, entry: str
) -> None:
    parameters = choose_parameters(n, Assumptions(rate, rate, 40, eta))
    greatest = parameters.threshold + parameters.slack
    assert f"{parameters.holders}/{parameters.threshold}({greatest})" == entry


@pytest.mark.parametrize("exponents", [(1, 1), (4, 2), (9, 5)])
@pytest.mark.parametrize("rates", [(0, 0), (50, 50), (100, 200), (200, 100), (30, 400)])
def test_small_cohorts_have_the_parameters_of_exact_sums(
    rates: tuple[int, int], exponents: tuple[int, int]
) -> None:
    corrupt, dropout = (rate / 1000 for rate in rates)
    for n in range(2, 33):
        try:
            result = choose_parameters(n, Assumptions(corrupt, dropout, *exponents))
        except InfeasibleError:
            chosen = None
        else:
            chosen = result.holders, result.threshold, result.spot_checks
        assert chosen == exact.parameters(n, exact.Terms(*rates, *exponents))


@pytest.mark.parametrize(("n", "holders"), [(111, 11), (142, 15), (155, 18)])
def test_the_smallest_threshold_is_that_of_holders_drawn_from_the_others(
    n: int, holders: int
) -> None:
    """Compare with exact fractions, where a participant more or less would change it."""
    assumptions = Assumptions(0.1, 0.1)
    corrupt, ways = assumptions.max_corrupt(n), comb(n - 1, holders)
    allowed = Fraction(1, 2 ** (assumptions.sigma + 2) * n)

    def too_many(t: int) -> Fraction:
        drawn = (
            comb(corrupt, x) * comb(n - 1 - corrupt, holders - x) for x in range(t, holders + 1)
        )
        return Fraction(sum(drawn), ways)

    smallest, _ = threshold_range(n, holders, assumptions)
    assert too_many(smallest) <= allowed < too_many(smallest - 1)


@pytest.mark.parametrize(("n", "assumptions"), COHORTS)
def test_thresholds_lie_between_the_tails(n: int, assumptions: Assumptions) -> None:
    parameters = choose_parameters(n, assumptions)
    if parameters.is_complete:
        return
    corrupt, kept = assumptions.max_corrupt(n), assumptions.quorum(n)
    greatest = parameters.threshold + parameters.slack

    def stolen(threshold: int) -> float:  # Pr[a participant has this many corrupt holders or more]
        return float(n * hypergeom.sf(threshold - 1, n - 1, corrupt, parameters.holders))

    def short(threshold: int) -> float:  # Pr[a participant has fewer surviving holders]
        return float(n * hypergeom.cdf(threshold - 1, n, kept, parameters.holders))

    assert stolen(parameters.threshold) <= 2.0 ** -(assumptions.sigma + 2) * 1.0001
    assert short(greatest) <= 2.0**-assumptions.eta * 1.0001
    assert short(greatest + 1) > 2.0**-assumptions.eta * 0.9999


@pytest.mark.parametrize("n", [20, 60, 1_000])
def test_a_participant_lacks_shares_no_more_often_than_the_tail(n: int) -> None:
    # The tail counts survivors among k of n. A survivor keeps one share, and selects k of n - 1.
    assumptions = Assumptions(0.1, 0.2)
    parameters, kept = choose_parameters(n, assumptions), assumptions.quorum(n)
    greatest = parameters.threshold + parameters.slack
    own = hypergeom.cdf(greatest - 2, n - 1, kept - 1, parameters.holders)
    assert own <= hypergeom.cdf(greatest - 1, n, kept, parameters.holders)
    dropout = hypergeom.cdf(greatest - 1, n - 1, kept, parameters.holders)  # which keeps none
    assert dropout <= hypergeom.cdf(greatest - 1, n, kept, parameters.holders)


@pytest.mark.parametrize(("n", "assumptions"), COHORTS)
def test_spot_checks_are_the_fewest_that_detect_forged_signatures(
    n: int, assumptions: Assumptions
) -> None:
    q = assumptions.quorum(n)
    forged = Fraction(2 * q - n - assumptions.max_corrupt(n), 2 * q)
    s = choose_parameters(n, assumptions).spot_checks
    allowed = -(assumptions.sigma + 2 + 2 * math.log2(n))
    if s < q - 1:
        assert 2 * s * math.log2(1 - forged) <= allowed + 1e-6
        assert 2 * (s - 1) * math.log2(1 - forged) > allowed - 1e-6
    else:
        assert s == q - 1


def test_random_holders_keep_both_promises() -> None:
    # At sigma = 9 and eta = 7 the probabilities are large enough to measure: over 200 draws of
    # 200, the fraction with a breach must stay below 2^-9 and 2^-7. Probability of a false alarm
    # with tight bounds: Pr[Binomial(200, 2^-9) > 3] < 1e-3, Pr[Binomial(200, 2^-7) > 7] < 1e-3.
    n, assumptions = 200, Assumptions(0.15, 0.15, 9, 7)
    parameters = choose_parameters(n, assumptions)
    assert not parameters.is_complete
    bad, gone = (
        set(range(assumptions.max_corrupt(n))),
        set(range(n - assumptions.max_dropouts(n), n)),
    )
    chance, private, correct = Random(7), 0, 0
    for _ in range(200):
        drawn = [set(chance.sample(range(n), parameters.holders)) for _ in range(n)]
        private += any(len(holders & bad) >= parameters.threshold for holders in drawn)
        correct += any(len(holders - gone) < parameters.threshold for holders in drawn)
    assert private <= 3
    assert correct <= 7


@settings(deadline=None)
@given(st.integers(2, 60), st.floats(0, 0.45), st.floats(0, 0.5))
def test_parameters_leave_the_corrupt_short_and_the_survivors_enough(
    n: int, corrupt: float, dropout: float
) -> None:
    assumptions = Assumptions(corrupt, dropout)
    smallest = assumptions.max_corrupt(n) + 2
    try:
        parameters = choose_parameters(n, assumptions)
    except InfeasibleError:
        load = corrupt + 2 * dropout
        assert assumptions.quorum(n) < smallest or load > MAX_FAULT_FRACTION
        return
    assert 2 <= parameters.threshold <= parameters.holders + 1 <= n
    if parameters.is_complete:
        assert parameters.threshold == smallest <= assumptions.quorum(n)
    assert 1 <= parameters.spot_checks <= max(assumptions.quorum(n) - 1, 1)


@pytest.mark.parametrize(
    ("n", "assumptions", "match"),
    [
        (0, Assumptions(0, 0), "hides nothing"),
        (1, Assumptions(0, 0), "hides nothing"),
        (1_000, Assumptions(1 / 3, 1 / 3), r"corrupt \+ 2 dropout is 1.00, above 0.9"),
        (5, Assumptions(0.8, 0.05), "but with 4 corrupt participants the threshold is 6"),
        (4, Assumptions(0.5, 0.2), None),  # feasible with two corrupt of four
        (100_000, Assumptions(0.7, 0.1, 128, 128), "2,000 holders each"),
    ],
)
def test_promises_that_cannot_be_kept_are_infeasible(
    n: int, assumptions: Assumptions, match: str | None
) -> None:
    if match is None:
        assert choose_parameters(n, assumptions) == Parameters(4, 3, 4, 3, 0)
        return
    with pytest.raises(InfeasibleError, match=match):
        choose_parameters(n, assumptions)


@pytest.mark.parametrize(
    ("n", "assumptions", "parameters"),
    [
        (2, Assumptions(0, 0, 1, 1), Parameters(2, 1, 2, 1, 0)),
        (2, Assumptions(0, 0, 128, 128), Parameters(2, 1, 2, 1, 0)),
        (20, Assumptions(MAX_FAULT_FRACTION, 0), Parameters(20, 19, 20, 19, 0)),
    ],
)
def test_the_last_assumptions_before_a_limit_are_feasible(
    n: int, assumptions: Assumptions, parameters: Parameters
) -> None:
    assert choose_parameters(n, assumptions) == parameters


@pytest.mark.parametrize(
    "assumptions",
    [
        Assumptions(0.05, 0.4, 128, 128),
        Assumptions(0.1, 0.35, 128, 128),
        Assumptions(0.6, 0.05, 128, 128),
    ],
)
def test_the_largest_terms_take_little_memory(assumptions: Assumptions) -> None:
    """A server computes the parameters of any terms it is sent, and a device of any it is shown."""
    tracemalloc.start()
    choose_parameters.__wrapped__(100_000, assumptions)  # without the cache
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6


@pytest.mark.parametrize(
    ("match", "changed"),
    [
        *(
            ("fraction", {name: r})
            for name in ("corrupt", "dropout")
            for r in (-0.1, 1.0, math.nan)
        ),
        *(("sigma and eta", {name: bits}) for name in ("sigma", "eta") for bits in (0, 129)),
    ],
)
def test_rates_and_exponents_outside_their_range_are_refused(
    match: str, changed: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=match):
        Assumptions(**{"corrupt": 0.1, "dropout": 0.1, **changed})


def test_by_default_privacy_fails_once_in_2_to_the_40() -> None:
    assert Assumptions(0.1, 0.2) == Assumptions(0.1, 0.2, sigma=40, eta=30)


def test_rates_count_whole_participants() -> None:
    assumptions = Assumptions(0.2, 0.2)
    assert [assumptions.max_corrupt(n) for n in (4, 5, 1_000)] == [0, 1, 200]
    assert [assumptions.max_dropouts(n) for n in (4, 5, 1_000)] == [0, 1, 200]
    assert assumptions.quorum(1_000) == 800

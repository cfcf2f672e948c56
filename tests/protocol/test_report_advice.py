"""The recommended oracle errs least, as predicted, and is refused where a guess is as good."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from protocol.mechanisms.registry import REPORT_MECHANISMS
from protocol.mechanisms.reports.oracle_errors import predicted_error
from protocol.oracles.hadamard import Hadamard
from protocol.oracles.krr import KaryRandomizedResponse
from protocol.oracles.ocms.hashed import Ocms
from protocol.oracles.ocms.ocms_gf import OcmsGf
from protocol.oracles.oracle import Oracle
from protocol.oracles.registry import oracle_from_parameters
from protocol.randomness import seeded_words
from protocol.reference_mechanisms.oracles.local_hashing import LocalHashing
from protocol.report_advice import GUESS_ERRORS, Goal, ReportWish, best_candidate, users_needed
from tests.protocol.chance import seeded


@dataclass(frozen=True)
class Advice:
    """The recommended oracle of `domain` values, one of them for no item, and its costs."""

    oracle: Oracle
    error: float
    nbytes: int
    seconds: float
    users_needed: int | None


def recommend(users: int, domain: int, epsilon: float, goal: Goal, **more: Any) -> Advice:
    wish = ReportWish(users, goal, epsilon, domain - 1, **more)
    candidates = [each for some in REPORT_MECHANISMS.values() for each in some.candidates(wish)]
    best = best_candidate(candidates, wish)
    return Advice(
        oracle_from_parameters(best.parameters),  # type: ignore[arg-type]
        best.error(users),
        best.nbytes,
        best.seconds(users),
        users_needed(best, wish),
    )


@pytest.mark.parametrize("goal", GUESS_ERRORS)
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 5.0])
@pytest.mark.parametrize("domain", [3, 6, 300, 100_000])
def test_nothing_else_errs_much_less(goal: Goal, epsilon: float, domain: int) -> None:
    choice = recommend(10**6, domain, epsilon, goal)
    others = [KaryRandomizedResponse(epsilon, domain), Hadamard(epsilon, domain)]
    if domain > 300:
        others += [Ocms.for_mse(epsilon, domain), LocalHashing.for_l2(epsilon, domain)]
        others += [OcmsGf.for_mse(epsilon, domain), OcmsGf.for_l2(epsilon, domain)]
    for other in others:
        assert choice.error <= 1.03 * predicted_error(other, 10**6, goal)
    assert choice.nbytes == choice.oracle.nbytes <= 64
    assert choice.seconds > 0


def test_small_dictionaries_take_randomised_response_and_large_ones_a_sketch() -> None:
    assert recommend(1000, 4, 2.0, "worst-mse").oracle == KaryRandomizedResponse(2.0, 4)
    large = recommend(100_000, 100_000, 3.0, "l2")
    assert isinstance(large.oracle, OcmsGf)
    assert large.nbytes == 3
    few = recommend(100_000, 200, 1.0, "worst-mse", max_report_bytes=25)
    assert few.error == pytest.approx(3.918 / 100_000, rel=0.03)


@pytest.mark.parametrize("goal", GUESS_ERRORS)
def test_it_states_the_number_of_users_that_an_oracle_needs(goal: Goal) -> None:
    poor = recommend(100, 10**6, 0.5, goal)
    if goal == "worst-mse":
        assert poor.error < GUESS_ERRORS[goal]
        poor = recommend(50, 10**6, 0.5, goal)
    assert poor.error >= GUESS_ERRORS[goal]
    assert poor.users_needed is not None
    assert poor.users_needed > 50
    enough = predicted_error(poor.oracle, poor.users_needed, goal)
    assert enough < GUESS_ERRORS[goal]
    assert (
        not predicted_error(poor.oracle, int(0.98 * poor.users_needed), goal) < GUESS_ERRORS[goal]
    )
    assert recommend(2 * poor.users_needed, 10**6, 0.5, goal).error < GUESS_ERRORS[goal]


def test_frequencies_that_are_predicted_to_stand_out_do() -> None:
    """Estimates of the predicted frequency exceed the bar in 95% of runs, empty values in 5%.

    In 200 runs each of these has a deviation of 3; both are 4 of them away, or more.
    """
    n, domain = 20_000, 500
    choice = recommend(n, domain, 2.0, "heavy")
    low, _ = choice.oracle.scaled_variances
    bar = choice.oracle.detection_threshold(n, 0.05 / domain)
    assert bar == pytest.approx(3.7190 * np.sqrt(low / n), rel=0.05)  # the normal quantile
    values = np.random.default_rng(3).integers(250, domain, n).astype(np.uint64)
    values[: int(choice.error * n)] = 7
    seen = wrong = 0
    for run in range(200):
        reports = choice.oracle.perturb(values, seeded(run))
        estimates = choice.oracle.estimate(reports)
        seen += int(estimates[7] > bar)
        wrong += int((np.delete(estimates[:250], 7) > bar).any())
    assert seen >= 190 - 13
    assert wrong <= 5 + 10


def test_the_bar_holds_where_few_reports_support_a_value() -> None:
    """7 of 1,000 reports support each of 100,000 values: nearly all runs pass a normal bar.

    2 of 40 runs are expected to pass the bar that is stated; 9 pass it with probability 1e-4.
    """
    n, domain, runs = 1000, 100_000, 40
    oracle = recommend(n, domain, 5.0, "heavy").oracle
    bar = oracle.detection_threshold(n, 0.05 / domain)
    normal = 4.8917 * np.sqrt(oracle.scaled_variances[0] / n)  # the quantile of 1 - 0.05 / 100,000
    above = normal_above = 0
    for run in range(runs):
        values, rng = np.zeros(n, np.uint64), np.random.default_rng(run)
        rest = oracle.estimate(oracle.perturb(values, seeded_words(rng)))[1:]
        above += int((rest > bar).any())
        normal_above += int((rest > normal).any())
    assert above <= 8
    assert normal_above > 30


def test_the_oracle_is_one_that_decodes_in_time() -> None:
    """The oracle of the smallest error, with 100 symbols, takes an hour to decode 1e6 values."""
    slow, quick = recommend(10**7, 2**20, 4.6, "l2"), recommend(10**5, 2**20, 4.6, "l2")
    assert slow.seconds <= 600
    assert quick.seconds <= 600


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(ValueError, match="users must be 1 or more"):
        recommend(0, 10, 1.0, "l2")
    with pytest.raises(ValueError, match="epsilon must be from"):
        recommend(10, 10, 0.0, "l2")
    with pytest.raises(ValueError, match="a dictionary has 2 to"):
        recommend(10, 2, 1.0, "l2")
    with pytest.raises(ValueError, match="max_frequency must be from"):
        recommend(10, 9, 1.0, "l2", max_frequency=2)
    with pytest.raises(ValueError, match="no report has 1 bytes or fewer"):
        recommend(10, 10**6, 1.0, "l2", max_report_bytes=1)

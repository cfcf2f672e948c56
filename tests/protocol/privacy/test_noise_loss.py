"""Noise on counts has one number: never below the exact loss, and that of planner and ledger."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import skellam as law

from protocol.privacy.events import SkellamNoiseEvent
from protocol.privacy.ledger import Ledger, LedgerEntry
from protocol.privacy.noise_loss import CountNoise, noise_epsilon
from protocol.privacy.noise_shares import NoiseShares, tail_bound
from protocol.privacy.parameters_for_budget import min_variance


def least_epsilon(counts: dict[CountNoise, int], delta: float) -> float:
    """Return a number that the exact epsilon is not below, by another implementation.

    The interval of losses grows with epsilon, so that small ones are exact, too.
    """
    interval = 1e-4 if noise_epsilon(counts, delta) > 0.5 else 1e-6
    whole = None
    for noise, number in counts.items():
        end = tail_bound(noise.variance, 1e-18)
        z = np.arange(-end, end + 2)
        without = law.pmf(z, noise.variance / 2, noise.variance / 2)
        moved = law.pmf(z - 1, noise.variance / 2, noise.variance / 2)
        with_it = (1 - noise.probability) * without + noise.probability * moved
        logs = [dict(enumerate(np.log(each).tolist())) for each in (without, with_it)]
        loss = pld.from_two_probability_mass_functions(
            *logs, pessimistic_estimate=False, value_discretization_interval=interval
        ).self_compose(number)
        whole = loss if whole is None else whole.compose(loss)
    assert whole is not None
    return float(whole.get_epsilon_for_delta(delta))


@pytest.mark.parametrize(
    ("counts", "epsilon", "delta", "probability"),
    [
        (1, 3.0, 1e-5, 1.0),
        (1, 8.0, 1e-9, 0.25),
        (2, 0.1, 1e-5, 0.25),
        (7, 3.0, 1e-9, 0.25),
        (7, 0.1, 1e-9, 1.0),
        (50, 8.0, 1e-5, 1.0),
    ],
)
def test_the_planner_the_ledger_and_a_device_have_one_number(
    counts: int, epsilon: float, delta: float, probability: float
) -> None:
    variance = min_variance(epsilon, delta, counts, probability)
    noise = {CountNoise(variance, probability): counts}
    event = SkellamNoiseEvent(
        variance=variance, probability=probability, join_probability=1.0, items=counts
    )
    ledger = Ledger(entries=(LedgerEntry(name="study", event=event),))
    assert ledger.epsilon(delta) == noise_epsilon(noise, delta)
    if variance > 0.01:  # otherwise all of it is less than the budget
        assert noise_epsilon(noise, delta) == pytest.approx(epsilon, rel=5e-4)
    assert noise_epsilon(noise, delta) <= epsilon
    assert least_epsilon(noise, delta) * (1 - 1e-9) <= noise_epsilon(noise, delta)


@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_sums_of_other_noise_are_composed_exactly(delta: float) -> None:
    """The rounds of a study, and studies of other noise, in one number."""
    counts = {CountNoise(9.0): 3, CountNoise(30.0): 7, CountNoise(2.0, 0.1): 2}
    together = noise_epsilon(counts, delta)
    least = least_epsilon(counts, delta)
    assert least * (1 - 1e-9) <= together <= least * 1.001
    apart = [noise_epsilon({noise: number}, delta) for noise, number in counts.items()]
    assert max(apart) < together < sum(apart)
    event = [
        SkellamNoiseEvent(
            variance=noise.variance,
            probability=noise.probability,
            join_probability=1.0,
            releases=number,
        )
        for noise, number in counts.items()
    ]
    entries = tuple(LedgerEntry(name=str(n), event=each) for n, each in enumerate(event))
    assert Ledger(entries=entries).epsilon(delta) == together


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("away", [0, 20])
def test_the_noise_that_is_left_after_dropouts_is_what_was_counted(
    dropout: float, away: int
) -> None:
    """Up to the assumed rate, the survivors' shares have the counted variance or more."""
    shares = NoiseShares(9.0, 100, dropout)
    left = float(shares.share * (100 - away))
    promised, real = (noise_epsilon({CountNoise(each): 10}, 1e-5) for each in (9.0, left))
    assert (real <= promised * (1 + 1e-9)) is (away <= 100 * dropout)


def test_no_noise_and_no_delta_have_an_infinite_or_finite_number() -> None:
    assert noise_epsilon({}, 1e-5) == 0
    assert noise_epsilon({CountNoise(1.0): 1}, 0.0) == math.inf
    assert noise_epsilon({CountNoise(0.0): 1, CountNoise(1.0): 1}, 1e-5) == math.inf
    assert 500 < noise_epsilon({CountNoise(2.0**-20): 4096}, 1e-5) < math.inf
    assert 0 < noise_epsilon({CountNoise(2.0**24): 4096}, 1e-5) < 0.05
    assert noise_epsilon({CountNoise(1.0): 1}, 0.999) == 0


@pytest.mark.parametrize(
    ("variance", "probability"),
    [(-1.0, 1.0), (math.nan, 1.0), (math.inf, 1.0), (1.0, 0.0), (1.0, 2.0)],
)
def test_impossible_noise_is_refused(variance: float, probability: float) -> None:
    with pytest.raises(ValueError, match="not noise on a count"):
        CountNoise(variance, probability)

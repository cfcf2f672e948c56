"""Seats for devices that join by their own coins."""

import numpy as np
import pytest
from scipy.stats import binom

from protocol.round_sizes import seats_for


@pytest.mark.parametrize(("devices", "probability"), [(1000, 0.2), (10**6, 0.15), (50, 0.9)])
def test_there_are_seats_for_all_that_join(devices: int, probability: float) -> None:
    seats = seats_for(devices, probability)
    joined = np.random.default_rng(1).binomial(devices, probability, 10**6)
    assert joined.max() <= seats <= devices
    assert seats_for(devices, 1.0) == devices


@pytest.mark.parametrize("devices", [20, 100, 1000, 10**6, 10**8])
def test_seats_are_too_few_with_a_probability_below_the_documented_one(devices: int) -> None:
    probabilities = np.geomspace(1e-7, 0.999, 60)
    seats = np.array([seats_for(devices, float(p)) for p in probabilities])
    assert binom.sf(seats, devices, probabilities).max() < 1e-20

"""The auditor's bounds compared with the exact loss: a table of parameters, row by row."""

import math

import numpy as np
import pytest

from protocol.privacy.loss_distributions import compose, epsilon_of
from protocol.privacy.sample_threshold import addition_divergence, privacy_loss, removal_divergence
from protocol.privacy.sample_threshold_bounds import (
    c_alpha_delta,
    c_alpha_epsilon,
    cormode21_epsilon,
    kl_delta,
    kl_epsilon,
)

NO_BOUND = math.inf
ROWS = [  # theta, m; note, C_alpha, KL, exact level times ten, exact, of n = 10^6, delta = 10^-6
    (20, 2_438, 0.50, 0.127, 0.097, 0.034, 0.006),
    (20, 4_758, 1.00, 0.249, 0.190, 0.074, 0.013),
    (20, 5_000, 1.054, 0.262, 0.199, 0.078, 0.014),
    (20, 9_063, 2.00, 0.480, 0.362, 0.153, 0.027),
    (20, 12_959, 3.00, 0.694, 0.519, 0.229, 0.040),
    (15, 12_000, NO_BOUND, 0.881, 0.711, 0.293, 0.046),
    (10, 30_000, NO_BOUND, 4.78, 3.55, 1.53, 0.192),
    (20, 50_000, NO_BOUND, 3.00, 2.05, 1.06, 0.179),
    (20, 100_000, NO_BOUND, 7.29, 4.24, 2.38, 0.391),
    (20, 200_000, NO_BOUND, NO_BOUND, 9.38, 5.67, 0.894),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}, {row[1]}")
def test_same_parameters_different_bounds(row: tuple[float, ...]) -> None:
    theta, p = int(row[0]), row[1] / 1e6
    loss = privacy_loss(p, theta)
    epsilons = (
        cormode21_epsilon(p, theta, 1e-6, 10),
        c_alpha_epsilon(p, theta, 1e-6, 10),
        kl_epsilon(p, theta, 1e-6, 10),
        10 * epsilon_of(loss, 1e-7),
        epsilon_of(compose([(loss, 10)]), 1e-6),
    )
    assert epsilons == pytest.approx(row[2:], abs=0.0015, rel=0.003)
    assert list(epsilons) == sorted(epsilons, reverse=True)  # each is a bound on the next


def test_closed_forms_are_bounds() -> None:
    rng = np.random.default_rng(1)
    for _ in range(2000):
        p, theta = float(rng.uniform(0.001, 0.6)), int(rng.integers(2, 40))
        epsilon = -math.log1p(-p) + float(rng.exponential(0.5))
        at = np.array([epsilon])
        exact = max(removal_divergence(p, theta, at)[0], addition_divergence(p, theta, at)[0])
        kl = kl_delta(p, theta, epsilon)
        assert exact <= kl * (1 + 1e-12)
        assert kl <= c_alpha_delta(p, theta, epsilon) * (1 + 1e-12)


def test_the_bound_of_the_note_begins_at_its_theta() -> None:
    """The note requires theta of 3 + ln(1/delta) or more, 19.118 at delta = 1e-7."""
    assert cormode21_epsilon(0.01, 19, 1e-7, 1) == math.inf
    assert cormode21_epsilon(0.01, 20, 1e-7, 1) < 1


def test_there_is_no_bound_below_the_cost_of_suppression() -> None:
    assert kl_delta(0.2, 20, 0.2) == c_alpha_delta(0.2, 20, 0.2) == 1.0
    assert kl_epsilon(0.9, 1, 1e-6) == math.inf
    with pytest.raises(ValueError, match="delta must be between"):
        kl_epsilon(0.1, 10, 0.0)

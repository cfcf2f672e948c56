"""The best parameters for a budget: as good as is demanded, and never above it."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from protocol.privacy.loss_distributions import compose, delta_of, epsilon_of
from protocol.privacy.parameters_for_budget import best_design, budget_boundary, min_variance
from protocol.privacy.sample_threshold import privacy_loss
from protocol.privacy.skellam import privacy_loss as noise_loss

MILLION = 10**6


def test_the_smallest_thetas_of_sampled_tables() -> None:
    """An independent table has all but four, where p is above 1 - e^-epsilon and it has none."""
    rows = {
        2: (797, 72, 35, 23),
        5: (110, 18, 12, 9),
        10: (38, 10, 8, 7),
        20: (17, 7, 6, 5),
        50: (8, 5, 4, 4),
        100: (6, 4, 4, 4),
        500: (3, 3, 3, 3),
    }
    epsilons = (0.1, 0.5, 1, 2)
    thetas = [(t, *pair) for t, row in rows.items() for pair in zip(epsilons, row, strict=True)]
    for t, epsilon, theta in thetas:
        below, spent = (epsilon_of(privacy_loss(1 / t, x), 1e-6) for x in (theta - 1, theta))
        assert spent <= epsilon < below
        for others in {theta - 1, *np.linspace(theta - 1, 4 * theta * t, 15).astype(int).tolist()}:
            mine, theirs = (binom.pmf(np.arange(k + 1), k, 1 / t) for k in (others + 1, others))
            mine, theirs = (np.append(x[:theta].sum(), x[theta:]) for x in (mine, theirs))
            theirs = np.append(theirs, np.zeros(len(mine) - len(theirs)))
            for upper, lower in ((mine, theirs), (theirs, mine)):
                assert np.maximum(0, upper - math.exp(epsilon) * lower).sum() <= 1.001e-6


def test_no_theta_is_better_than_the_one_found() -> None:
    design = best_design(MILLION, 1.0, 1e-6, 10)
    assert design.theta / design.m <= 8.3e-5
    loss = compose([(privacy_loss(design.m / MILLION, design.theta), 10)])
    assert 0.999 < design.epsilon <= 1
    assert design.epsilon == pytest.approx(epsilon_of(loss, 1e-6))
    for theta in (8, 11, 12, 13, 17):
        m = theta * design.m / design.theta * 1.0005
        loss = compose([(privacy_loss.__wrapped__(m / MILLION, theta), 10)])
        assert delta_of(loss, 1.0) > 1e-6


def test_the_edge_of_a_jump_is_found() -> None:
    asked = []

    def cost(x: float) -> float:
        asked.append(x)
        return 0.3 if x < 777.0 else math.inf

    assert budget_boundary(cost, 1.0, 1.0, 1e6) == pytest.approx(777.0, rel=1e-5)
    assert len(asked) < 120


def test_the_smallest_variance_keeps_the_budget_and_less_does_not() -> None:
    variance = min_variance(1.0, 1e-6, 10)
    assert variance**0.5 == pytest.approx(13.40, abs=0.08)
    assert delta_of(compose([(noise_loss(variance), 10)]), 1.0) <= 1e-6
    assert delta_of(compose([(noise_loss(0.999 * variance), 10)]), 1.0) > 1e-6
    assert variance == float(f"{variance:.6g}")  # the same on every processor


@pytest.mark.parametrize(("sampled", "deviation"), [(0.05, 1.022), (0.1456, 2.379), (0.3, 4.412)])
def test_secret_coins_save_noise(sampled: float, deviation: float) -> None:
    assert min_variance(1.0, 1e-6, 10, sampled) ** 0.5 == pytest.approx(deviation, rel=0.006)


@pytest.mark.parametrize(
    ("n", "epsilon", "delta", "levels", "message"),
    [
        (1, 1.0, 1e-6, 10, "2 to 10"),
        (MILLION, 0.0, 1e-6, 10, "epsilon must be"),
        (MILLION, float("nan"), 1e-6, 10, "epsilon must be"),
        (MILLION, 1.0, 0.0, 10, "delta must be"),
        (MILLION, 1.0, 1e-6, 0, "releases must be 1 or more"),
        (3, 0.001, 1e-11, 10, "no sample of 3 devices"),
    ],
)
def test_budgets_that_cannot_be_met_are_refused(
    n: int, epsilon: float, delta: float, levels: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        best_design(n, epsilon, delta, levels)


def test_noise_that_would_fill_the_cells_is_refused() -> None:
    with pytest.raises(ValueError, match="increase the budget, or release less often"):
        min_variance(1e-4, 1e-11, 1000)

"""The exact loss of Skellam noise, against enumeration, and the numbers it is held to."""

import math

import numpy as np
import pytest
from scipy.stats import skellam as law

from protocol.privacy.loss_distributions import compose, delta_of, epsilon_of
from protocol.privacy.skellam import privacy_loss


def rounds(variance: float, sampled: float = 1.0, times: int = 10) -> float:
    return epsilon_of(compose([(privacy_loss(variance, sampled), times)]), 1e-6)


@pytest.mark.parametrize("sampled", [1.0, 0.3, 0.01])
@pytest.mark.parametrize("variance", [0.05, 1.0, 20.0, 180.0])
def test_the_curve_is_what_enumeration_gives(variance: float, sampled: float) -> None:
    z = np.arange(-400, 401)
    still = law.pmf(z, variance / 2, variance / 2)
    moved = law.pmf(z - 1, variance / 2, variance / 2)
    taking = (1 - sampled) * still + sampled * moved
    loss = privacy_loss(variance, sampled)
    for step in (0, 37, 500, 2000, 9000):
        epsilon = step * 1e-4  # on the dots, where nothing is lost by joining them
        removal = np.maximum(0, taking - math.exp(epsilon) * still).sum()
        addition = np.maximum(0, still - math.exp(epsilon) * taking).sum()
        assert delta_of(loss, epsilon) == pytest.approx(max(removal, addition), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(
    ("deviation", "sampled", "epsilon"), [(13.40, 1.0, 1.0), (2.52, 0.1456, 0.927)]
)
def test_ten_rounds_cost_what_is_expected(deviation: float, sampled: float, epsilon: float) -> None:
    assert rounds(deviation**2, sampled) == pytest.approx(epsilon, abs=0.005)


def test_replacing_is_leaving_one_cell_and_joining_another() -> None:
    twice = compose([(privacy_loss(180.0), 2)])
    assert epsilon_of(privacy_loss(180.0, 1.0, "replace-one"), 1e-6) == pytest.approx(
        epsilon_of(twice, 1e-6), rel=1e-6
    )


@pytest.mark.parametrize("wrong", [0.0, 2.0**25, float("nan")])
def test_parameters_out_of_range_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="variance must be from"):
        privacy_loss(wrong)
    with pytest.raises(ValueError, match="probability must be above 0"):
        privacy_loss(180.0, wrong)

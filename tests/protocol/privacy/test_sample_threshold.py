"""The exact loss of sample-and-threshold against enumeration, and against the auditor's bounds."""

import math
from functools import cache

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as dp
from scipy.special import ive
from scipy.stats import nbinom

from protocol.numerics.array_types import Floats
from protocol.numerics.binary_search import boundary
from protocol.privacy import skellam
from protocol.privacy.loss_distributions import (
    NeighbourRelation,
    compose,
    delta_of,
    epsilon_of,
    local_loss,
)
from protocol.privacy.sample_threshold import (
    addition_divergence,
    cormode21_epsilon,
    kl_delta,
    kl_epsilon,
    privacy_loss,
    removal_divergence,
)


@cache
def combinations(k: int) -> Floats:
    return np.array([float(math.comb(k, x)) for x in range(k + 1)])


def outcome(k: int, p: float, threshold: int, size: int) -> Floats:
    """Return the probability of each published count, at 0 that of none, by the definition."""
    x = np.arange(k + 1)
    probabilities = np.zeros(size)
    probabilities[: k + 1] = combinations(k) * p**x * (1 - p) ** (k - x)
    probabilities[0] = probabilities[:threshold].sum()
    probabilities[1:threshold] = 0
    return probabilities


def enumerated(upper: Floats, lower: Floats, epsilon: float) -> float:
    return float(np.maximum(0, upper - math.exp(epsilon) * lower).sum())


def divergence(p: float, threshold: int, others: int, epsilon: float, sign: int) -> float:
    """Return H(with, without) for `others` in the cell, or H(without, with) if `sign` is -1."""
    neighbours = [outcome(k, p, threshold, others + 2) for k in (others + 1, others)]
    return enumerated(*neighbours[::sign], epsilon)


def test_the_worst_of_all_k_is_what_enumeration_of_all_k_gives() -> None:
    """No k of 0 to 400 is above the closed form, and if the worst is among them it is met."""
    rng = np.random.default_rng(2)
    met = 0
    for _ in range(200):
        p, threshold = float(rng.uniform(0.005, 0.95)), int(rng.integers(1, 20))
        epsilon, some = float(rng.normal(0, 1)), np.arange(0, 400)
        for curve, sign in ((removal_divergence, 1), (addition_divergence, -1)):
            claimed = float(curve(p, threshold, np.array([epsilon]))[0])
            q = 1 - (1 - p) * math.exp(-sign * epsilon)
            star = math.ceil((threshold - 1) / q) - 1 if q > 0 else 10**6
            near = some[np.abs(some - star) < 6] if rng.random() < 0.9 else some
            worst = max(
                (divergence(p, threshold, int(k), epsilon, sign) for k in near), default=0.0
            )
            assert worst <= claimed + 1e-12
            if 0 <= star < 400:
                met += 1
                assert worst == pytest.approx(claimed, abs=1e-12)
    assert met > 200


@pytest.mark.parametrize(("p", "threshold"), [(0.145593, 12), (0.004758, 20), (0.5, 3), (0.9, 1)])
def test_the_loss_is_that_of_waiting_for_theta_heads(p: float, threshold: int) -> None:
    """The worst curve is that of the trial of the theta-th heads against the one before it."""
    trials = np.arange(threshold, threshold + int(60 * threshold / p))
    later = nbinom.pmf(trials - threshold, threshold, p)
    sooner = nbinom.pmf(trials + 1 - threshold, threshold, p)
    for epsilon in (-0.05, 0.001, 0.05, 0.3, 1.0):
        total = p**threshold  # the first heads at once: the one trial that only one side has
        removal = total + enumerated(sooner, later, epsilon)
        assert removal_divergence(p, threshold, np.array([epsilon]))[0] == pytest.approx(
            removal, abs=1e-12
        )
        addition = enumerated(later, sooner, epsilon) + max(0, -math.exp(epsilon) * total)
        claimed = addition_divergence(p, threshold, np.array([epsilon]))[0]
        assert claimed == pytest.approx(addition, abs=1e-12)


def test_joined_dots_are_never_below_the_curve_and_close_to_it() -> None:
    loss = privacy_loss(0.145593, 12)
    epsilons = np.linspace(0.0, 1.2, 61) + 3.3e-5  # between the dots
    exact = np.maximum(
        removal_divergence(0.145593, 12, epsilons), addition_divergence(0.145593, 12, epsilons)
    )
    joined = np.array([delta_of(loss, epsilon) for epsilon in epsilons])
    assert (joined >= exact - 1e-15).all()
    assert (joined <= exact * (1 + 1e-5) + 1e-12).all()


def ten_levels(theta: int, m: int, relation: NeighbourRelation = "add-remove") -> float:
    return epsilon_of(compose([(privacy_loss(m / 1e6, theta, relation), 10)]), 1e-6)


@pytest.mark.parametrize(
    ("theta", "m", "removal", "least", "addition"),
    [
        (12, 145_593, 0.996, 0.803, 1.120),
        (12, 82_777, 0.500, 0.0, 0.570),
        (18, 16_586, 0.0572, 0.047, 0.070),
        (20, 4_758, 0.0133, 0.011, 0.0),
    ],
)
def test_ten_levels_cost_what_is_expected_and_replacing_costs_more(
    theta: int, m: int, removal: float, least: float, addition: float
) -> None:
    spent = ten_levels(theta, m)
    assert spent == pytest.approx(removal, abs=0.0005)
    assert spent > least  # that of neighbours found by search
    if addition:
        assert ten_levels(theta, m, "replace-one") == pytest.approx(addition, abs=0.001)


def test_a_mixed_ledger_lies_between_two_roundings() -> None:
    """Five levels of sample-and-threshold, thirty counts with noise: rounded down, and up."""
    p, threshold = 0.145593, 12
    trials = np.arange(threshold, 2000)
    probabilities = nbinom.logpmf(trials - threshold, threshold, p)
    z = np.arange(-300, 301)
    still = np.log(np.maximum(ive(abs(np.append(z[0] - 1, z)), 400.0), 1e-300))
    bounds = []
    for up in (False, True):
        waits = dp.from_two_probability_mass_functions(
            dict(zip(trials.tolist(), probabilities.tolist(), strict=True)),
            dict(zip((trials - 1).tolist(), probabilities.tolist(), strict=True)),
            pessimistic_estimate=up,
            symmetric=False,
        )
        noise = dp.from_two_probability_mass_functions(
            dict(zip(z.tolist(), still[1:].tolist(), strict=True)),
            dict(zip(z.tolist(), still[:-1].tolist(), strict=True)),
            pessimistic_estimate=up,
            symmetric=False,
        )
        whole = waits.self_compose(5).compose(noise.self_compose(30))
        bounds.append(float(whole.get_epsilon_for_delta(1e-6)))
    ledger = compose([(privacy_loss(p, threshold), 5), (skellam.privacy_loss(400.0), 30)])
    spent = epsilon_of(ledger, 1e-6)
    assert bounds[0] < spent < bounds[1]
    assert bounds[1] - bounds[0] < 0.004


def test_composition_by_transforms_is_right_at_small_deltas() -> None:
    """Randomised response composes to a binomial distribution, which needs no transform."""
    epsilon, times = 0.1, 40
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    x = np.arange(times + 1)
    probabilities = combinations(times) * truth**x * (1 - truth) ** (times - x)
    losses = epsilon * (2 * x - times)
    loss = compose([(local_loss(epsilon), times)])
    for total in (1.0, 2.0, 3.0, 3.5):
        over = losses > total
        exact = float(probabilities[over] @ -np.expm1(total - losses[over]))
        assert delta_of(loss, total) == pytest.approx(exact, rel=1e-6, abs=1e-13)


def test_parameters_out_of_range_are_refused() -> None:
    for probability in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="probability must be from"):
            privacy_loss(probability, 5)
    for threshold in (0, 10_001):
        with pytest.raises(ValueError, match="theta must be"):
            privacy_loss(0.1, threshold)
    with pytest.raises(ValueError, match="delta must be from"):
        epsilon_of(local_loss(1.0), 1e-14)
    with pytest.raises(ValueError, match="not 0 times"):
        compose([(local_loss(1.0), 0)])
    with pytest.raises(ValueError, match="epsilon must be from 0 to 40"):
        local_loss(-1.0)


def test_a_total_loss_has_no_epsilon() -> None:
    assert epsilon_of(privacy_loss(0.1, 3), 1e-4) == math.inf  # 0.1^3 is above it
    assert epsilon_of(local_loss(1.0, 1e-3), 1e-4) == math.inf


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


def c_alpha_delta(p: float, theta: int, epsilon: float) -> float:
    """Return the delta of the C_alpha form, which an auditor computes by hand."""
    if epsilon <= -math.log1p(-p):
        return 1.0
    alpha = p / -math.expm1(-epsilon)
    return math.exp(-theta * (math.log(1 / alpha) - 1 / (1 + alpha)))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}, {row[1]}")
def test_same_parameters_different_bounds(row: tuple[float, ...]) -> None:
    theta, p = int(row[0]), row[1] / 1e6
    loss = privacy_loss(p, theta)
    c_alpha = 10 * boundary(lambda x: c_alpha_delta(p, theta, x) <= 1e-7, 0.0, 100.0)
    epsilons = (
        cormode21_epsilon(p, theta, 1e-6, 10),
        math.inf if c_alpha_delta(p, theta, 100.0) > 1e-7 else c_alpha,
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
    assert kl_delta(0.2, 20, 0.2) == 1.0
    assert kl_epsilon(0.9, 1, 1e-6) == math.inf
    with pytest.raises(ValueError, match="delta must be between"):
        kl_epsilon(0.1, 10, 0.0)

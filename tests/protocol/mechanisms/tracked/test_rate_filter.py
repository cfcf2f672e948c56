"""Totals of partly observed counts are unbiased, with the right variance."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.mechanisms.tracked.drift_measurement import measure_drift
from protocol.mechanisms.tracked.rate_filter import (
    STATIONARY,
    Drift,
    History,
    Levels,
    estimate_levels,
    filter_levels,
)
from protocol.numerics.array_types import Floats

DEVICES = np.full(20, 10_000.0)
DRIFTS = [
    STATIONARY,
    Drift(0.2, 1.0),
    Drift(0.5, 2.5),
    Drift(0.0, 1.0, {}, 0.3),
    Drift(0.2, 2.0, {}, 0.1),
]


def observed(
    rng: np.random.Generator, counts: NDArray[Any], since: NDArray[np.int64]
) -> tuple[History, Floats]:
    """Return a history of `counts` that are sampled before the block `since`, and their totals."""
    is_counted = np.arange(len(DEVICES)) >= since
    seen = np.where(is_counted, counts, rng.binomial(counts, 0.05)).astype(np.float64)
    return History(seen, np.where(is_counted, 1.0, 0.05) * DEVICES, DEVICES), counts.sum(axis=1)


def z_scores(levels: Levels, truth: Floats) -> Floats:
    some = levels.variances > 0
    return (levels.totals - truth)[some] / np.sqrt(levels.variances[some])


def draw(seed: int, phi: float, tokens: int = 1, items: int = 3000) -> tuple[History, Floats]:
    """Return a history of items that are found late and counted from then on, and their counts."""
    rng = np.random.default_rng(seed)
    rates = 10 ** rng.uniform(-4, -2, items)
    steps = np.cumsum(rng.normal(0, phi, (items, len(DEVICES))), axis=1) * rates[:, np.newaxis]
    paths = np.maximum(rates[:, np.newaxis] + steps, 0)
    counts = tokens * rng.poisson(paths * DEVICES / tokens)
    return observed(rng, counts, rng.integers(0, 15, (items, 1)))


def test_what_was_seen_whole_is_exact() -> None:
    counts = np.array([[3.0, 0.0, 5.0], [0.0, 0.0, 0.0]])
    devices = np.array([10.0, 20.0, 30.0])
    history = History(counts, np.broadcast_to(devices, (2, 3)), devices)
    for drift in (STATIONARY, Drift(0.3, 2.0)):
        levels = filter_levels(history, drift)
        assert levels.totals.tolist() == [8, 0]
        assert levels.variances.tolist() == [0, 0]


def test_without_drift_what_was_missed_follows_from_all_rounds_alike() -> None:
    devices = np.full(4, 100.0)
    exposed = np.array([[0.0, 100.0, 50.0, 100.0]])
    levels = filter_levels(History(np.array([[0.0, 12.0, 5.0, 8.0]]), exposed, devices), STATIONARY)
    # 25 tokens in 250 devices, and 150 devices are missing; the wide prior adds a little.
    assert levels.totals[0] == pytest.approx(25 + 15, abs=0.1)
    assert levels.variances[0] == pytest.approx(15 + 150**2 * 25 / 250**2, rel=0.02)


@pytest.mark.parametrize("drift", DRIFTS)
def test_the_filter_is_bayes_rule_with_the_whole_covariance(drift: Drift) -> None:
    """The same posterior from one dense Gaussian: prior of all levels, rows of observations."""
    rng = np.random.default_rng(1)
    devices = rng.uniform(50, 150, 7)
    exposed = np.array([[0, 0.1, 0, 1, 1, 0.3, 1]]) * devices
    seen = np.array([[0.0, 2.0, 0.0, 14.0, 9.0, 6.0, 30.0]])
    history = History(seen, exposed, devices)
    mean = history.rates[0]
    blocks = np.arange(8)  # and what the slope alone makes of the next
    walk = np.minimum(np.minimum.outer(blocks, blocks), 6) * (drift.phi * mean) ** 2
    prior = (3 * mean) ** 2 + walk + np.outer(blocks, blocks) * (drift.trend * mean) ** 2
    rows = np.flatnonzero(exposed[0])
    design = np.diag([*exposed[0], 0.0])[rows]
    noise = np.diag(drift.dispersion * mean * exposed[0][rows])
    gain = prior @ design.T @ np.linalg.inv(design @ prior @ design.T + noise)
    level = mean + gain @ (seen[0][rows] - design @ np.full(8, mean))
    left = prior - gain @ design @ prior
    hidden = np.array([*(devices - exposed[0]), 0.0])
    levels = filter_levels(history, drift)
    missed = hidden @ level
    assert levels.totals[0] == pytest.approx(seen.sum() + missed)
    scatter = drift.dispersion * min(missed, hidden.sum() * mean)
    assert levels.variances[0] == pytest.approx(hidden @ left @ hidden + scatter)
    assert levels.rates[0] == pytest.approx(level[-1])
    assert levels.rate_variances[0] == pytest.approx(left[-1, -1])
    assert levels.smoothed_rates[0] == pytest.approx(level[:7])


def test_falling_rates_have_the_errors_of_their_early_rounds() -> None:
    """Their mean rate has half the variance of their first round, in which they are sampled.

    Over seeds, the rms error has mean 1.03 and deviation 0.03; five deviations are allowed.
    """
    blocks, exposure = 30, 0.07
    rng = np.random.default_rng(1)
    devices = np.full(blocks, 10_000.0)
    fall = 2 * (1 - (np.arange(blocks) + 0.5) / blocks)
    counts = rng.poisson(10 ** rng.uniform(0.4, 1.5, (600, 1)) * fall)
    seen = counts.astype(np.float64)
    seen[:, 0] = rng.binomial(counts[:, 0], exposure)
    exposed = np.broadcast_to(devices, counts.shape).copy()
    exposed[:, 0] *= exposure
    levels = estimate_levels(History(seen, exposed, devices), Drift(0.0, 1.0, {}, 1 / 15))
    errors = z_scores(levels, counts.sum(axis=1))
    assert np.sqrt((errors**2).mean()) == pytest.approx(1.03, abs=0.15)


@pytest.mark.parametrize(("phi", "tokens"), [(0.0, 1), (0.05, 1), (0.1, 1), (0.0, 4), (0.1, 4)])
def test_drift_and_dispersion_are_measured(phi: float, tokens: int) -> None:
    """Over 4 seeds phi stayed within 10% (0.026 at 0), the dispersion within 7%."""
    drift_found = measure_drift(draw(5, phi, tokens)[0])
    assert drift_found.phi == pytest.approx(phi, rel=0.2, abs=0.04)
    assert drift_found.dispersion == pytest.approx(tokens, rel=0.12)


@pytest.mark.parametrize("phi", [0.001, 0.05])
def test_drift_is_measured_among_a_billion_devices(phi: float) -> None:
    """Within 5% over 4 seeds: slopes are 10^9 times ones, and must not hide them."""
    rng = np.random.default_rng(8)
    devices, rates = np.full(20, 1e9), 10 ** rng.uniform(-3, -1, (300, 1))
    walks = 1 + np.cumsum(rng.normal(0, phi, (300, 20)), axis=1)
    seen = rng.poisson(rates * walks * devices).astype(np.float64)
    drift_found = measure_drift(History(seen, np.broadcast_to(devices, seen.shape), devices))
    assert drift_found.phi == pytest.approx(phi, rel=0.2)


@pytest.mark.parametrize("tokens", [1, 4])
def test_a_trend_is_distinguished_from_steps(tokens: int) -> None:
    """Over 5 seeds the trend stayed within 6% of its size; rates that step had 0.027 at most."""
    history, _ = turned(5, 0.04, tokens)
    drift_found = measure_drift(history)
    assert drift_found.trend == pytest.approx(0.04, rel=0.2)
    assert drift_found.phi < 0.06
    assert drift_found.dispersion == pytest.approx(tokens, rel=0.12)
    assert measure_drift(draw(5, 0.1, tokens)[0]).trend < 0.035


def turned(seed: int, trend: float, tokens: int = 1) -> tuple[History, Floats]:
    """Return a history of items whose rates rise or fall steadily, and their counts."""
    rng = np.random.default_rng(seed)
    middle = 10 ** rng.uniform(-4, -2, (3000, 1))
    slopes = np.clip(rng.normal(0, trend, (3000, 1)), -0.1, 0.1) * middle
    paths = middle + slopes * (np.arange(len(DEVICES)) - (len(DEVICES) - 1) / 2)
    counts = tokens * rng.poisson(paths * DEVICES / tokens)
    return observed(rng, counts, rng.integers(0, 15, (3000, 1)))


def test_what_came_before_follows_from_the_trend_of_what_came_after() -> None:
    """Over 5 seeds frequent items had 14% to 18% less error than by steps alone."""
    history, truth = turned(6, 0.04)
    drift = measure_drift(history)
    steps = Drift(0.15, drift.dispersion)  # the result without a trend in the model
    errors = [filter_levels(history, how).totals - truth for how in (drift, steps)]
    many = truth > 500
    counts, guessed = (float(np.sqrt((error[many] ** 2).mean())) for error in errors)
    assert counts < 0.9 * guessed
    assert 0.88 <= (np.abs(z_scores(filter_levels(history, drift), truth)) <= 1.96).mean() <= 0.98


def test_blocks_of_many_rounds_are_compared_although_their_exposures_are_rounded() -> None:
    """A block of two rounds, whose sampled and other parts add up to slightly less."""
    history, _ = draw(1, 0.1)
    rounded = replace(history, exposure=history.exposure * (1 - 2**-52))
    assert (rounded.exposure < DEVICES).all()
    assert measure_drift(rounded) == measure_drift(history) != STATIONARY


def test_from_few_counts_nothing_is_concluded() -> None:
    history, _ = draw(1, 0.2, items=1)
    late = History(history.observed[:, -8:], history.exposure[:, -8:], DEVICES[-8:])
    assert measure_drift(late) == STATIONARY


@pytest.mark.parametrize(("phi", "tokens"), [(0.0, 1), (0.05, 1), (0.1, 1), (0.05, 4)])
def test_intervals_cover_with_their_level(phi: float, tokens: int) -> None:
    """The 95% intervals of 3,000 items covered 90% to 96% in 4 seeds.

    Rates stop at 0, which the model does not know: the more they drift, the fewer cover.
    """
    history, truth = draw(7, phi, tokens)
    error = z_scores(filter_levels(history, measure_drift(history)), truth)
    assert 0.88 <= (np.abs(error) <= 1.96).mean() <= 0.98
    assert abs(error.mean()) < 0.5


def broken(
    seed: int, items: int = 2000, share: float = 1.0, rates: tuple[float, float] = (-4, -2)
) -> tuple[History, Floats]:
    """Return a history in which a share of the items change their rates before block 10.

    The logarithms of rates lie between the two of `rates`.
    """
    rng = np.random.default_rng(seed)
    before, after = 10 ** rng.uniform(*rates, (2, items))
    after = np.where(rng.random(items) < share, after, before)
    late = np.arange(len(DEVICES)) >= 10
    counts = rng.poisson(np.where(late, *np.array([after, before])[:, :, np.newaxis]) * DEVICES)
    since = rng.integers(0, 8, (items, 1)) + 9 * (rng.random((items, 1)) < 0.5)
    return observed(rng, counts, since)


def test_a_population_that_changes_at_once_is_broken_there() -> None:
    history, truth = broken(3)
    drift = measure_drift(history)
    assert set(drift.breaks) == {10}
    assert drift.breaks[10] > 0.5
    assert drift.phi < 0.05
    levels = filter_levels(history, drift)
    assert (np.abs(z_scores(levels, truth)) <= 1.96).mean() > 0.88
    plain, some = filter_levels(history, Drift(0.05, 1.0)).totals, levels.variances > 0
    assert np.abs(levels.totals - truth)[some].mean() < 0.7 * np.abs(plain - truth)[some].mean()


@pytest.mark.parametrize("seed", range(3))
def test_a_break_shows_in_items_of_a_token_a_block(seed: int) -> None:
    """Few tokens are integers, so that half of the squares contain no information on them."""
    drift = measure_drift(broken(seed, rates=(-4.5, -3.5))[0])
    assert set(drift.breaks) == {10}
    assert 0.5 < drift.breaks[10] < 2
    assert drift.phi < 0.1
    assert drift.trend < 0.05


@pytest.mark.parametrize("seed", range(2))
def test_items_kept_for_their_first_counts_after_a_break_make_no_second_one(seed: int) -> None:
    """All fall to half a token at block 10; who has one or none then is counted no more."""
    rng, blocks = np.random.default_rng(seed), np.arange(len(DEVICES))
    before = 10 ** rng.uniform(-4.5, -3.5, (20_000, 1))
    counts = rng.poisson(np.where(blocks < 10, before, 5e-5) * DEVICES).astype(np.float64)
    is_counted = (blocks >= 7) & ((counts[:, 10:11] > 1) | (blocks <= 10))
    history = History(counts * is_counted, is_counted * DEVICES, DEVICES)
    drift = measure_drift(history)
    assert set(drift.breaks) == {10}
    assert drift.phi < 0.1
    assert drift.trend < 0.03


@pytest.mark.parametrize("rates", [(-4.5, -3.5), (-4, -2)])
@pytest.mark.parametrize("seed", range(3))
def test_one_exceptional_block_does_not_make_a_break(seed: int, rates: tuple[float, float]) -> None:
    """Rates are others in block 10 only: what came before it goes on after it."""
    rng, blocks = np.random.default_rng(seed), np.arange(len(DEVICES))
    usual, odd = 10 ** rng.uniform(*rates, (2, 2000, 1))
    counts = rng.poisson(np.where(blocks == 10, odd, usual) * DEVICES).astype(np.float64)
    is_counted = blocks >= rng.integers(0, 8, (2000, 1))
    history = History(counts * is_counted, is_counted * DEVICES, DEVICES)
    assert measure_drift(history).breaks == {}


def test_blocks_between_two_breaks_may_have_shown_nothing() -> None:
    """Tables could not be read while the population changed."""
    exposed = np.array([[1.0, 1.0, 0.0, 0.0, 1.0, 1.0]]) * 100
    seen, devices = np.array([[9.0, 7.0, 0.0, 0.0, 8.0, 9.0]]), np.full(6, 100.0)
    history = History(seen, exposed, devices)
    assert history.rates_between([2, 4])[0] == pytest.approx(
        [0.08, 0.08, *[0.0825] * 2, *[0.085] * 2]
    )
    levels = filter_levels(history, Drift(0.1, 1.0, {2: 1.0, 4: 1.0}))
    assert 33 <= levels.totals[0] <= 33 + 40


def test_a_few_items_do_not_make_a_break() -> None:
    assert measure_drift(broken(4, share=0.1)[0]).breaks == {}
    history, _ = draw(2, 0.1)
    assert measure_drift(history).breaks == {}


@pytest.mark.parametrize("start", [5, 15, 22])
@pytest.mark.parametrize("share", [1 / 15, 1 / 5, 1 / 2])
@pytest.mark.parametrize("rate", [100, 1000])
def test_an_item_that_comes_up_late_is_not_put_back_in_time(
    start: int, share: float, rate: int
) -> None:
    """Sampled until it is seen, then counted: of 60 runs nine in ten are within 4 deviations."""
    rng, blocks, devices = np.random.default_rng([start, rate]), 30, 10_000.0
    counts = np.where(np.arange(blocks) >= start, rng.poisson(rate, (60, blocks)), 0)
    sampled = rng.binomial(counts, share)
    first = (sampled > 0).argmax(axis=1)
    counted = np.arange(blocks) > first[:, np.newaxis]
    history = History(
        np.where(counted, counts, sampled).astype(float),
        np.where(counted, devices, devices * share),
        np.full(blocks, devices),
    )
    levels = filter_levels(history, Drift(0.02, 1.0))
    errors = levels.totals - counts.sum(axis=1)
    assert (np.abs(errors) < 4 * np.sqrt(levels.variances)).mean() >= 0.9
    assert abs(errors.mean()) < 0.03 * counts.sum(axis=1).mean()

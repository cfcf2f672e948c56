"""Rates by round, and how often changes are found where there is one and where there is none."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.estimation.rate_changes import (
    RateHistory,
    RateSample,
    benjamini_hochberg,
    compare_rates,
    listed_bound,
    rate_variances,
)
from protocol.study_state import MAX_BLOCKS, block_ends, block_of

ROUNDS, DEVICES = 20, 3000.0
HALVES = (1, 10), (11, 20)


def history(
    rng: np.random.Generator, rates: NDArray[np.float64], t: float = 15, held: int = 1
) -> RateHistory:
    """Return a study of items at `rates` (k, B), in which a sampled item is counted from then on.

    Devices that hold an item hold it `held` times.
    """
    tokens = held * rng.poisson(rates * DEVICES / held).astype(float)
    sampled = rng.binomial(tokens.astype(int), 1 / t).astype(float)
    seen_before = np.cumsum(sampled, axis=1) - sampled > 0
    exposure = np.where(seen_before, DEVICES, DEVICES / t)
    observed = np.where(seen_before, tokens, sampled)
    devices = np.full(ROUNDS, DEVICES)
    return RateHistory(observed, exposure, devices, block_ends(ROUNDS))


def flat(rates: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.repeat(rates[:, np.newaxis], ROUNDS, axis=1)


def test_equal_rates_have_small_p_values_as_rarely_as_they_state() -> None:
    """Among 8,000 p-values of equal rates, shares exceed the level by five deviations at most."""
    rng = np.random.default_rng(1)
    known = history(rng, flat(np.geomspace(1e-3, 3e-2, 8000)))
    before, after = (known.sample(*half) for half in HALVES)
    changes = compare_rates(before, after)
    for level in (0.001, 0.01, 0.05, 0.2):
        deviation = math.sqrt(level * (1 - level) / 8000)
        assert (changes.p_values <= level).mean() < level + 5 * deviation
    assert (changes.p_values <= 0.2).mean() > 0.08  # tests of few tokens are coarse, not blind
    # An item that is counted after it was sampled does not seem to rise.
    rises = [np.nanmean(sample.rates()[0] * DEVICES) for sample in (before, after)]
    assert rises[0] == pytest.approx(rises[1], rel=0.01)


@pytest.mark.parametrize("planted", [0, 20])
def test_false_discoveries_are_rare_and_planted_changes_are_found(planted: int) -> None:
    """The mean share of false ones in 60 studies is 0.05 at most, with a deviation of 0.012."""
    rng, shares, powers = np.random.default_rng(2), [], []
    for _ in range(60):
        rates = flat(rng.permutation(np.geomspace(1e-3, 3e-2, 200)))
        rates[:planted, 10:] *= np.resize([3, 1 / 3], planted)[:, np.newaxis]
        known = history(rng, rates)
        changes = compare_rates(*(known.sample(*half) for half in HALVES))
        is_changed = np.array([kind is not None for kind in changes.kinds])
        shares.append(is_changed[planted:].sum() / max(1, is_changed.sum()))
        powers.append(is_changed[:planted].mean() if planted else 1.0)
    assert np.mean(shares) < 0.05 + 4 * 0.012
    assert np.mean(powers) > 0.75


def test_tokens_that_come_several_at_a_time_make_no_changes() -> None:
    """Devices that hold an item 6 times: without dispersions, a quarter of p-values is below 0.01.

    With them it is 0.01 plus what their own noise adds; 100 of 2,000 are 18 deviations beyond.
    """
    known = history(np.random.default_rng(3), flat(np.full(2000, 0.02)), t=1, held=6)
    assert known.dispersions().mean() == pytest.approx(4.3, abs=0.5)  # shrunk towards 1
    changes = compare_rates(*(known.sample(*half) for half in HALVES))
    assert (changes.p_values <= 0.01).sum() < 100
    plain = RateSample(known.tokens[:, :10].sum(axis=1), known.exposure[:, :10].sum(axis=1))
    other = RateSample(known.tokens[:, 10:].sum(axis=1), known.exposure[:, 10:].sum(axis=1))
    assert (compare_rates(plain, other).p_values <= 0.01).sum() > 400


def test_totals_have_the_chances_of_bursts_and_of_samples() -> None:
    """Check tokens that come in sixes, tokens sampled at 10 or at 3, and in part sampled at 10."""
    totals, dispersions = np.full(4, 90.0), np.array([6, 1, 2, 6])
    spreads = 1 + rate_variances(totals, totals * [0, 9, 2, 4.5], dispersions) / 90
    assert spreads.tolist() == [6, 10, 4, 10.5]


def test_intervals_of_rates_and_factors_cover_the_truth() -> None:
    """Among 4,000 intervals at 95% at least 94% cover; the deviation is 0.35%."""
    rng = np.random.default_rng(4)
    exposure = np.full(4000, 1000.0)
    rates = np.geomspace(2e-3, 0.1, 4000)
    before = RateSample(rng.poisson(rates * 1000).astype(float), exposure)
    after = RateSample(rng.poisson(2 * rates * 500).astype(float), exposure / 2)
    _, low, high = before.rates()
    assert ((low <= rates) & (rates <= high)).mean() > 0.94
    changes = compare_rates(before, after)
    is_tested = before.tokens + after.tokens > 0
    assert changes.tested == is_tested.sum()
    covers = (changes.low <= 2) & (changes.high >= 2)
    assert changes.level > 0.94
    assert covers[is_tested].mean() > 0.94
    is_changed = np.array([kind is not None for kind in changes.kinds])
    assert is_changed.any()
    assert not is_changed.all()
    excluded = (changes.low > 1 + 1e-9) | (changes.high < 1 - 1e-9)
    assert (excluded == is_changed).all()


def test_the_p_value_is_that_of_the_binomial_test() -> None:
    changes = compare_rates(_sample(3), _sample(11))
    assert changes.p_values[0] == pytest.approx(2 * 470 / 2**14)  # C(14, 0) + ... + C(14, 3)
    assert changes.factors[0] == pytest.approx(11 / 3)


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [(20, 60, "rising"), (60, 20, "falling"), (0, 30, "new"), (30, 0, "gone"), (20, 22, None)],
)
def test_changes_are_named_by_what_was_observed(before: int, after: int, kind: str | None) -> None:
    changes = compare_rates(_sample(before), _sample(after))
    assert changes.kinds == [kind]
    assert (changes.high[0] == math.inf) == (before == 0)
    assert np.isnan(changes.factors[0]) == (before == 0)


def test_an_item_that_is_not_listed_has_a_bound_and_can_only_be_rarer() -> None:
    bound = _sample(20, is_bound=True)
    rate, low, high = (column[0] for column in bound.rates())
    assert math.isnan(rate)
    assert low == 0
    assert high > 0.02
    assert compare_rates(bound, _sample(60)).kinds == ["new"]
    assert compare_rates(_sample(60), bound).kinds == ["gone"]
    for sample in (_sample(21), _sample(1)):  # nothing is known to be below the bound
        for pair in ((bound, sample), (sample, bound)):
            changes = compare_rates(*pair)
            assert changes.kinds == [None]
            assert changes.low[0] < 1 < changes.high[0]
    assert listed_bound(50, 100, 0.5) == 50
    assert listed_bound(50, 100, 0.975) == pytest.approx(50 + 19.6, abs=0.1)


@pytest.mark.parametrize("t", [1, 5])
def test_totals_of_two_studies_differ_as_rarely_as_p_values_state(t: int) -> None:
    """Totals are sampled at 1 / t, the other study has half the devices; 4,000 items of each."""
    rng = np.random.default_rng(5)
    rates, samples = np.geomspace(0.02, 0.5, 4000), []
    for devices in (4000, 2000):
        totals = t * rng.binomial(rng.poisson(rates * devices), 1 / t).astype(float)
        samples.append(RateSample.of_totals(totals, totals * (t - 1), devices))
    p_values = compare_rates(*samples).p_values
    for level in (0.01, 0.05, 0.2):
        deviation = math.sqrt(level * (1 - level) / 4000)
        assert 0.4 * level < (p_values <= level).mean() < level + 5 * deviation


def test_what_was_not_read_is_not_tested() -> None:
    unread = RateSample(np.array([0.0]), np.array([0.0]))
    changes = compare_rates(unread, _sample(1000))
    assert (changes.tested, changes.kinds, changes.p_values.tolist()) == (0, [None], [1])
    assert np.isnan([column[0] for column in unread.rates()]).all()


def test_benjamini_and_hochberg_report_up_to_the_last_p_value_below_its_limit() -> None:
    p_values = np.array([0.9, 0.02, 0.001, 0.03, 0.04])
    assert benjamini_hochberg(p_values, 0.05, 5).tolist() == [False, True, True, True, True]
    assert benjamini_hochberg(p_values, 0.02, 5).tolist() == [False, False, True, False, False]
    assert not benjamini_hochberg(p_values, 1e-4, 5).any()


@pytest.mark.parametrize("rounds", [1, 2, 63, 64, 65, 100, 1000])
def test_blocks_end_where_the_next_one_begins(rounds: int) -> None:
    blocks = [block_of(number, rounds) for number in range(1, rounds + 1)]
    ends = [n for n in range(1, rounds + 1) if n == rounds or blocks[n] != blocks[n - 1]]
    assert block_ends(rounds).tolist() == ends
    assert len(ends) == min(rounds, MAX_BLOCKS)


def test_halves_are_those_of_the_rounds_so_far() -> None:
    known = RateHistory(np.ones((1, 5)), np.ones((1, 5)), np.ones(5), block_ends(9)[:5])
    assert known.halves() == ((1, 2), (3, 5))
    single = RateHistory(np.ones((1, 1)), np.ones((1, 1)), np.ones(1), block_ends(1))
    with pytest.raises(ValueError, match="two rounds"):
        single.halves()


@pytest.mark.parametrize("items", [0, 1])
def test_halves_are_of_rounds_that_were_read(items: int) -> None:
    devices = np.array([0.0, 0, 5, 5, 5, 0])
    known = RateHistory(np.zeros((items, 6)), np.tile(devices, (items, 1)), devices, block_ends(6))
    assert known.halves() == ((1, 3), (4, 6))
    with pytest.raises(ValueError, match="no round of 1-2 was read"):
        known.sample(1, 2)


def test_rounds_without_a_closed_block_have_no_sample() -> None:
    single, pairs = (
        RateHistory(np.ones((1, 4)), np.ones((1, 4)), np.ones(4), block_ends(rounds)[:4])
        for rounds in (64, 128)
    )
    assert single.sample(4, 4).tokens.tolist() == [1]
    assert pairs.sample(3, 6).tokens.tolist() == [2]
    with pytest.raises(ValueError, match="no round of 5-9 was read"):
        single.sample(5, 9)
    with pytest.raises(ValueError, match="rounds 2-3 contain no block of 2 rounds that was read"):
        pairs.sample(2, 3)


def test_selected_items_keep_their_observations() -> None:
    tokens = np.arange(6.0).reshape(3, 2)
    known = RateHistory(tokens, np.ones((3, 2)), np.ones(2), block_ends(2), 9.0)
    chosen = known.select([2, 1])
    assert chosen.tokens.tolist() == [[4, 5], [2, 3]]
    assert chosen.dispersions().tolist() == known.dispersions()[[2, 1]].tolist()
    assert known.select([]).by_block().rates()[0].shape == (0, 2)


def _sample(tokens: float, *, is_bound: bool = False) -> RateSample:
    return RateSample(np.array([float(tokens)]), np.array([1000.0]), np.array([is_bound]))

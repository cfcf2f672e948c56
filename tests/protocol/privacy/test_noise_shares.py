"""Noise in shares: the distribution of draws, the variance of sums, and the privacy loss."""

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import skellam

from protocol.privacy import noise_shares
from protocol.privacy.noise_shares import NoiseShares, signed_residues, tail_bound
from protocol.randomness import RandomWords
from tests.protocol.chance import fit, seeded

DRAWS = 100_000
POINTS = np.arange(-150, 151)


# Each of these fails with probability 1e-4 under another seed.
@pytest.mark.parametrize("variance", [Fraction(1, 1000), 0.1, Fraction(1, 2), 1, 30.25])
def test_skellam_numbers_have_their_distribution(variance: Fraction | float) -> None:
    half = float(variance) / 2
    drawn = noise_shares.draw_skellam(seeded(2), variance, DRAWS)
    assert fit(drawn, POINTS, skellam.pmf(POINTS, half, half)) > 1e-4


def test_the_chi_square_test_notices_three_percent() -> None:
    drawn = noise_shares.draw_skellam(seeded(1), 1.03, DRAWS)
    assert fit(drawn, POINTS, skellam.pmf(POINTS, 0.5, 0.5)) < 1e-4


@pytest.mark.parametrize(
    ("shares", "cells", "most"),
    [
        (NoiseShares(1.0, 1), 10_000, 70_000),
        (NoiseShares(179.6, contacted=10**6), 30_000, 200),  # 5.4 events are expected
    ],
)
def test_the_work_of_a_share_grows_with_its_events(
    shares: NoiseShares, cells: int, most: int
) -> None:
    asked = []

    def counted(count: int) -> NDArray[np.uint64]:
        asked.append(count)
        return seeded(len(asked))(count)

    assert shares.draw(counted, cells).shape == (cells,)
    assert sum(asked) < most


def words(*values: int) -> RandomWords:
    """Return a source of random words that yields `values` in turn."""
    rest = iter(values)
    return lambda count: np.array([next(rest) for _ in range(count)], np.uint64)


@pytest.mark.parametrize(
    ("drawn", "happened"),
    [
        ((2**64 // 3 - 1,), 1),
        ((2**64 // 3 + 1,), 0),
        ((2**64 // 3, 2**64 // 3, 5), 1),  # equal for 128 bits, then less
        ((2**64 // 3, 2**64 // 3, 2**63), 0),
    ],
)
def test_probabilities_are_compared_to_the_last_bit(drawn: tuple[int, ...], happened: int) -> None:
    assert noise_shares.thinned_count(words(*drawn), 1, Fraction(1, 3)) == happened


def test_a_word_without_heads_is_followed_by_another() -> None:
    assert noise_shares.tails_before_heads(words(0, 8), 1).tolist() == [67]
    assert noise_shares.tails_before_heads(words(2**63, 1), 2).tolist() == [63, 0]


@pytest.mark.parametrize("survivors", [40, 45, 50])
def test_sums_of_shares_have_the_variance_that_is_left(survivors: int) -> None:
    shares = NoiseShares(variance=20.0, contacted=50, dropout=0.2)
    cells = 40_000
    total = np.zeros(cells, np.int64)
    source = seeded(survivors)
    for _ in range(survivors):
        total += shares.draw(source, cells)
    left = float(shares.share * survivors)
    assert left == pytest.approx(20.0 * survivors / 40)
    assert left >= 20.0
    error = left * np.sqrt((2 + 1 / left) / cells)  # of a variance, kurtosis and all
    assert abs(total.var() - left) < 4 * error  # fails with probability 6e-5
    assert abs(total.mean()) < 4 * np.sqrt(left / cells)
    half = left / 2
    assert fit(total, POINTS, skellam.pmf(POINTS, half, half)) > 1e-4  # and the law is the same


def test_dishonest_survivors_take_their_shares_and_no_more() -> None:
    shares = NoiseShares(variance=20.0, contacted=100, dropout=0.1, honest_share=0.5)
    assert float(shares.share) == pytest.approx(20 / (0.9 * 0.5 * 100))


@pytest.mark.parametrize("q", [512, 509])
def test_sums_come_back_through_the_ring(q: int) -> None:
    shares = NoiseShares(variance=180.0, contacted=60)
    votes = np.zeros(500, np.int64)
    votes[7] = 60
    total, source = votes.copy(), seeded(5)
    ring = votes.astype(np.uint64)
    for _ in range(60):
        share = shares.draw(source, 500)
        total += share
        ring = (ring + (share % q).astype(np.uint64)) % np.uint64(q)
    assert total.min() < 0
    assert signed_residues(ring, q).tolist() == total.tolist()


def test_noise_rarely_exceeds_its_bound() -> None:
    widest = tail_bound(180.0, 2.0**-64)
    assert 2 * skellam.sf(widest, 90, 90) < 2.0**-64
    assert widest < 11 * np.sqrt(180)


def test_simulated_sums_have_the_law_of_shares() -> None:
    drawn = noise_shares.simulate_skellam_sum(np.random.default_rng(4), 9.0, DRAWS)
    assert fit(drawn, POINTS, skellam.pmf(POINTS, 4.5, 4.5)) > 1e-4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"variance": 0.0}, "variance must be above 0"),
        ({"variance": float("nan")}, "variance must be above 0"),
        ({"contacted": 0}, "contacted must be 1 or more"),
        ({"dropout": 1.0}, "dropout must be from 0"),
        ({"honest_share": 0.0}, "dropout must be from 0"),
    ],
)
def test_shares_that_make_no_noise_are_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NoiseShares(**({"variance": 1.0, "contacted": 10} | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("mean", [-1.0, float("nan"), float("inf")])
def test_means_out_of_range_are_refused(mean: float) -> None:
    with pytest.raises(ValueError, match="a mean must be"):
        noise_shares.draw_skellam(seeded(1), mean, 3)


def test_draws_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at most 2\^27"):
        noise_shares.draw_skellam(seeded(1), 1e9, 3)
    with pytest.raises(ValueError, match=r"fewer than 2\^32"):
        noise_shares.draw_skellam(seeded(1), 1e-12, 2**32)
    with pytest.raises(ValueError, match=r"2 to 2\^62"):
        signed_residues(np.zeros(3, np.uint64), 2**63)
    with pytest.raises(ValueError, match="below 16"):
        signed_residues(np.array([16], np.uint64), 16)


def test_much_noise_is_drawn_some_cells_at_a_time() -> None:
    """No plan takes gigabytes of a device: 2^22 events take 2^20 of memory."""
    most, whole = 0, seeded(3)

    def watched(count: int) -> NDArray[np.uint64]:
        nonlocal most
        most = max(most, count)
        return whole(count)

    drawn = NoiseShares(2.0**10, 1).draw(watched, 2**12)
    assert drawn.shape == (2**12,)
    assert drawn.var() == pytest.approx(2**10, rel=0.15)
    assert most < 1.1 * 2**20
    assert NoiseShares(1.0, 1).draw(watched, 0).shape == (0,)
    with pytest.raises(ValueError, match=r"at most 2\^27 events"):
        NoiseShares(2.0**20, 1).draw(watched, 2**10)

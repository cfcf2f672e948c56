"""JL-HH: exact without noise, and with the errors of expected/ if there is noise."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.reference_mechanisms.hsu2012_oracles.johnson_lindenstrauss import JohnsonLindenstrauss
from protocol.reference_mechanisms.hsu2012_oracles.randomizers import AdditiveNoise

SEED = bytes(32)


def counts_without_noise(mechanism: JohnsonLindenstrauss, values: NDArray[np.uint64]) -> float:
    rng = np.random.default_rng(0)
    ones = np.ones(len(values), np.int64)
    sums = mechanism.randomizer.simulate(mechanism.symbols(values), ones, rng).astype(float)
    return float(mechanism.estimates(sums, values[:1])[0])


def test_own_signs_cancel_exactly_and_others_nearly() -> None:
    mechanism = JohnsonLindenstrauss(
        epsilon=1, delta=1e-6, noise="laplace", size=10_000, seed=SEED, rows=512
    )
    values = np.arange(10_000, dtype=np.uint64)
    assert counts_without_noise(mechanism, np.full(100, 7, np.uint64)) == 100
    assert counts_without_noise(mechanism, values[:1]) == 1
    # The others' signs add up to a normal of deviation sqrt(9,999 / 512): within 5 of it.
    assert abs(counts_without_noise(mechanism, values) - 1) < 5 * math.sqrt(9_999 / 512)


def test_the_noise_on_a_count_barely_depends_on_the_rows() -> None:
    # The scale grows as the root of the rows, and averaging over them takes it off again.
    deviations = [
        math.sqrt(
            JohnsonLindenstrauss(
                epsilon=1, delta=1e-6, noise="gaussian", size=1000, seed=SEED, rows=rows
            ).variance(10**6, 0, 0)
        )
        for rows in (64, 512, 4096)
    ]
    assert deviations == pytest.approx([deviations[0]] * 3, rel=1e-3)


def test_the_papers_noise_on_a_count_is_as_expected() -> None:
    mechanism = JohnsonLindenstrauss(epsilon=1, delta=1e-6, noise="paper", size=1000, seed=SEED)
    deviation = math.sqrt(mechanism.variance(10**6, 0, 0) / 10**6)
    assert deviation == pytest.approx(14.9, rel=0.01)  # in sqrt(n), of expected/


def test_a_message_has_the_bits_that_are_stated() -> None:
    sampled = JohnsonLindenstrauss(epsilon=1, size=1000, seed=SEED)
    assert sampled.bits == 9 + 1
    paper = JohnsonLindenstrauss(epsilon=1, delta=1e-6, noise="paper", size=1000, seed=SEED)
    assert isinstance(paper.randomizer, AdditiveNoise)
    assert paper.bits == 512 * 15  # integers of 475.8 ln(2^50) = 16,500 to each side, but one


def test_rows_out_of_range_and_a_domain_that_cannot_be_enumerated_are_refused() -> None:
    for rows in (0, -1, 2**14 + 1):
        with pytest.raises(ValueError, match="rows must be from 1 to 16,384"):
            JohnsonLindenstrauss(epsilon=1, size=1000, seed=SEED, rows=rows)
    with pytest.raises(ValueError, match="size must be from 2 to 16,777,216"):
        JohnsonLindenstrauss(epsilon=1, size=2**25, seed=SEED)

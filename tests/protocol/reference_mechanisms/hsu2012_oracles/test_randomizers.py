"""Reports of a device about its signs: exact probabilities of all of them, and their bytes."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol.reference_mechanisms.hsu2012_oracles.bucket import BucketProjection
from protocol.reference_mechanisms.hsu2012_oracles.glps import SparseRecovery
from protocol.reference_mechanisms.hsu2012_oracles.johnson_lindenstrauss import JohnsonLindenstrauss
from protocol.reference_mechanisms.hsu2012_oracles.noise_calibration import (
    gaussian_delta,
    laplace_delta,
)
from protocol.reference_mechanisms.hsu2012_oracles.projection_oracle import Projection
from protocol.reference_mechanisms.hsu2012_oracles.randomizers import (
    AdditiveNoise,
    BitFields,
    SampledResponse,
)

SEED = bytes(range(32))
SMALL_MECHANISMS: dict[str, Projection] = {
    "jl": JohnsonLindenstrauss(epsilon=1, size=4, seed=SEED, rows=24),
    "glps": SparseRecovery(epsilon=1, size=4, seed=SEED, buckets=3),
    "bucket": BucketProjection(epsilon=1, size=4, seed=SEED, beta=0.6),
}


def words_for(bound: int, wanted: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return words of which `chance.below` makes `wanted`."""
    upper = (wanted * 2**32 + bound - 1) // bound + (wanted * 2**32 % bound != 0)
    return np.minimum(upper + 1, 2**32 - 1).astype(np.uint64) << np.uint64(32)


def distribution(mechanism: Projection, value: int) -> Counter[bytes]:
    """Return each report's exact probability, by the real code on every outcome of its chance."""
    randomizer = mechanism.randomizer
    assert isinstance(randomizer, SampledResponse)
    symbols = 2 * randomizer.cells
    outcomes = list(itertools.product(range(randomizer.queries), range(symbols), (1, 0)))
    query, other, kept = np.array(outcomes).T
    threshold = np.array([randomizer.keep_of_2_64 - k for k in kept.tolist()], np.uint64)
    script = iter([words_for(randomizer.queries, query), words_for(symbols, other), threshold])
    values = np.full(len(outcomes), value, np.uint64)
    reports = mechanism.perturb(values, lambda count: next(script)[:count])
    probabilities = Counter[bytes]()
    for report, keeps in zip(reports, kept.tolist(), strict=True):
        share = Fraction(
            randomizer.keep_of_2_64 if keeps else 2**64 - randomizer.keep_of_2_64, 2**64
        )
        probabilities[report.tobytes()] += share / randomizer.queries / symbols  # type: ignore[assignment]
    return probabilities


def worst_ratio(mechanism: Projection) -> Fraction:
    each = [distribution(mechanism, value) for value in range(mechanism.size)]
    assert all(sum(probabilities.values()) == 1 for probabilities in each)
    assert len({frozenset(probabilities) for probabilities in each}) == 1
    return max(
        Fraction(first[report], second[report])
        for first, second in itertools.permutations(each, 2)
        for report in first
    )


def exp(epsilon: float) -> Fraction:
    """Return a little less than the exponential: Taylor's terms are all positive."""
    return sum((Fraction(epsilon) ** k / math.factorial(k) for k in range(60)), Fraction())


@pytest.mark.parametrize("name", SMALL_MECHANISMS)
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 5.0])
def test_sampled_reports_distinguish_values_by_no_more_than_epsilon(
    name: str, epsilon: float
) -> None:
    worst = worst_ratio(replace(SMALL_MECHANISMS[name], epsilon=epsilon))
    assert worst <= exp(epsilon)
    assert float(worst / exp(epsilon)) == pytest.approx(1, abs=1e-9)  # and it is used up


@pytest.mark.parametrize("name", SMALL_MECHANISMS)
def test_randomised_response_that_keeps_too_much_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = SMALL_MECHANISMS[name].randomizer
    assert isinstance(true, SampledResponse)
    more = true.keep_of_2_64 + 2**24
    monkeypatch.setattr(SampledResponse, "keep_of_2_64", property(lambda _: more))
    assert worst_ratio(SMALL_MECHANISMS[name]) > exp(1)


@pytest.mark.parametrize("name", SMALL_MECHANISMS)
@pytest.mark.parametrize("noise", ["laplace", "gaussian", "pure"])
@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
def test_noised_messages_tell_no_neighbours_apart(name: str, noise: str, relation: str) -> None:
    # The noise of each coordinate is symmetric and independent: only how far each moves matters.
    delta = 0.0 if noise == "pure" else 1e-5
    mechanism = replace(
        SMALL_MECHANISMS[name], size=20, noise=noise, delta=delta, relation=relation
    )
    randomizer = mechanism.randomizer
    assert isinstance(randomizer, AdditiveNoise)
    values = np.arange(20, dtype=np.uint64)
    rng = np.random.default_rng(0)
    single_count = np.array([1], np.int64)
    vectors = [
        randomizer.simulate(mechanism.symbols(v[np.newaxis]), single_count, rng) for v in values
    ]
    pairs = itertools.combinations(vectors, 2)
    if relation == "add-remove":
        pairs = ((vector, np.zeros_like(vector)) for vector in vectors)  # type: ignore[assignment]
    worst = 0.0
    for first, second in pairs:
        apart = tuple(sorted(Counter(np.abs(first - second).reshape(-1).tolist()).items()))
        profile = tuple((shift, times) for shift, times in apart if shift)
        if noise == "gaussian":
            assert randomizer.gaussian_variance is not None
            worst = max(
                worst, gaussian_delta(profile, randomizer.gaussian_variance, mechanism.epsilon)
            )
        else:
            assert randomizer.laplace_scale is not None
            worst = max(worst, laplace_delta(profile, randomizer.laplace_scale, mechanism.epsilon))
    assert worst <= mechanism.delta
    if relation == "add-remove" and noise != "pure":
        assert worst > 0.5 * mechanism.delta  # the worst case is met, so the noise is not wider


@given(st.lists(st.integers(1, 2**20), min_size=1, max_size=4), st.integers(1, 5), st.data())
def test_fields_come_back_from_their_bytes(
    bounds: list[int], count: int, data: st.DataObject
) -> None:
    layout = BitFields(bounds, count)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    fields = [rng.integers(0, bound, (3, count)) for bound in bounds]
    reports = layout.pack(fields)
    assert reports.shape == (3, layout.nbytes)
    assert layout.bits == count * sum((bound - 1).bit_length() for bound in bounds)
    if layout.bits:
        assert all((a == b).all() for a, b in zip(fields, layout.unpack(reports), strict=True))


def test_the_lowest_bit_of_the_first_field_is_the_lowest_of_the_first_byte() -> None:
    layout = BitFields((6, 3))
    reports = layout.pack([np.array([[5]]), np.array([[2]])])
    assert reports.tolist() == [[0b10_101]]


@pytest.mark.parametrize(
    ("reports", "message"),
    [
        (np.zeros((2, 2), np.uint8), r"shape \(n, 1\)"),
        (np.zeros((2, 0), np.uint8), r"shape \(n, 1\)"),
        (np.zeros(1, np.uint8), r"shape \(n, 1\)"),
        (np.zeros((2, 1), np.int64), "must be uint8"),
        (np.zeros((0, 1), np.uint8), "reports are empty"),
        (np.array([[0], [6]], np.uint8), "report 1 has a field of 6 or more"),
        (np.array([[0], [0b11_000]], np.uint8), "report 1 has a field of 3 or more"),
        (np.array([[0b100000]], np.uint8), "bits after the first 5"),
    ],
)
def test_other_reports_are_refused(reports: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BitFields((6, 3)).unpack(reports)

"""Laws of all three of hsu2012's mechanisms, under every noise: statistics and refusals."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import ks_2samp

from protocol.randomness import system_words
from protocol.reference_mechanisms.hsu2012_oracles.bucket import BucketProjection
from protocol.reference_mechanisms.hsu2012_oracles.glps import SparseRecovery
from protocol.reference_mechanisms.hsu2012_oracles.johnson_lindenstrauss import JohnsonLindenstrauss
from protocol.reference_mechanisms.hsu2012_oracles.projection_oracle import Projection
from protocol.reference_mechanisms.hsu2012_oracles.randomizers import AdditiveNoise
from secagg.ring import Lane
from tests.protocol.chance import seeded

SEED = bytes(range(32))
NOISES = ["laplace", "gaussian", "sampled"]
SMALL_MECHANISMS: dict[str, Projection] = {
    "jl": JohnsonLindenstrauss(epsilon=1, size=20, seed=SEED, rows=24),
    "glps": SparseRecovery(epsilon=1, size=20, seed=SEED, buckets=3),
    "bucket": BucketProjection(epsilon=1, size=20, seed=SEED, beta=0.6),
}
FORMS = [pytest.param(n, z, id=f"{n}-{z}") for n in SMALL_MECHANISMS for z in NOISES]


def made(name: str, noise: str, **other: Any) -> Projection:
    delta = 0.0 if noise in ("pure", "sampled") else 1e-5
    return replace(SMALL_MECHANISMS[name], noise=noise, delta=delta, **other)


@pytest.mark.parametrize(("name", "noise"), FORMS)
def test_simulated_states_are_distributed_as_real_ones(name: str, noise: str) -> None:
    # 700 runs of 20 devices: each mean within 4.5 errors, each variance ratio within 4.5 of its
    # error of 8% (heavier tails: 10%); fails with probability 1e-3 under another seed.
    runs, values, counts = 700, np.array([3, 8, 19], np.uint64), np.array([9, 5, 6])
    small = {"jl": {"rows": 6}, "glps": {"repetitions": 1}, "bucket": {"beta": 0.9}}
    mechanism = made(name, noise, **small[name])
    devices = np.tile(np.repeat(values, counts), runs)
    reports = mechanism.perturb(devices, seeded(1))
    batches = reports.reshape(runs, 20, -1)
    real = np.array([mechanism.aggregate(batch).reshape(-1) for batch in batches], float)
    rng = np.random.default_rng(2)
    simulated = np.array(
        [mechanism.simulate_state(values, counts, rng).reshape(-1) for _ in range(runs)], float
    )
    error = np.sqrt((real.var(axis=0) + simulated.var(axis=0)) / runs)
    assert (np.abs(real.mean(axis=0) - simulated.mean(axis=0)) <= 4.5 * error).all()
    ratio = real.var(axis=0) / simulated.var(axis=0)
    assert (np.abs(np.log(ratio)) < 0.45).all()
    assert ks_2samp(real[:, 0], simulated[:, 0]).pvalue > 1e-3
    assert ks_2samp(real[:, :2].sum(axis=1), simulated[:, :2].sum(axis=1)).pvalue > 1e-3


@pytest.mark.parametrize("name", SMALL_MECHANISMS)
def test_a_secure_sum_carries_the_messages(name: str) -> None:
    mechanism, rng = made(name, "gaussian"), np.random.default_rng(4)
    values = rng.integers(0, 20, 30).astype(np.uint64)
    randomizer = mechanism.randomizer
    assert isinstance(randomizer, AdditiveNoise)
    words = rng.integers(0, 2**63)
    messages = randomizer.encode(mechanism.symbols(values), seeded(words))
    lane = Lane(2 ** (2 * 30 * randomizer.max_integer).bit_length(), messages.shape[1])
    total = (messages % lane.q).sum(axis=0) % lane.q
    centred = np.where(total >= lane.q // 2, total - lane.q, total)
    reports = mechanism.perturb(values, seeded(words))
    assert (mechanism.aggregate(reports).reshape(-1) == centred).all()


@pytest.mark.parametrize(
    "make",
    [
        partial(JohnsonLindenstrauss, epsilon=1, rows=64),
        partial(SparseRecovery, epsilon=1, buckets=4),
        partial(SparseRecovery, epsilon=3, noise="pure"),
        partial(BucketProjection, epsilon=2, delta=1e-6, noise="laplace", beta=0.5),
    ],
    ids=["jl", "glps", "glps, pure", "bucket"],
)
def test_counts_are_unbiased_and_of_the_variance_that_is_claimed(
    make: Callable[..., Projection],
) -> None:
    # 500 seeds: the variance's error is 6.3%, so another seed fails with probability 1%.
    rng, errors, claims = np.random.default_rng(5), list[float](), list[float]()
    for _ in range(500):
        values = rng.choice(10**6, 41, replace=False).astype(np.uint64)
        counts = np.concatenate(([3000], rng.multinomial(20_000, np.full(40, 1 / 40))))
        mechanism, n = make(size=10**6, seed=rng.bytes(32)), int(counts.sum())
        state = mechanism.simulate_state(values, counts, rng)
        estimate = mechanism.estimates(mechanism.randomizer.sums(state, n), values[:1])
        errors.append(float(estimate[0]) - 3000)
        claims.append(mechanism.variance(n, 3000, float((counts[1:] ** 2).sum())))
    spread = np.std(errors)
    assert abs(np.mean(errors)) < 4.5 * spread / math.sqrt(500)
    assert 0.83 < spread**2 / np.mean(claims) < 1.17


def test_the_variance_of_a_heavy_hitters_count_is_measured_from_the_sums() -> None:
    # The squared counts of all others are not known, but the sums' mean square has them.
    rng, ratios = np.random.default_rng(6), list[float]()
    values = np.arange(1, 1001, dtype=np.uint64)
    counts = np.concatenate(([60_000], np.full(999, 50)))
    for _ in range(20):
        mechanism = JohnsonLindenstrauss(epsilon=2, size=2000, seed=rng.bytes(32))
        state = mechanism.simulate_state(values, counts, rng)
        (heavy_hitter,) = mechanism.identify(state, int(counts.sum()), 1)
        claim = mechanism.variance(int(counts.sum()), 60_000, 999 * 50.0**2)
        ratios.append(heavy_hitter.variance / claim)
        assert heavy_hitter.value == 1
        assert abs(heavy_hitter.count - 60_000) < 5 * math.sqrt(heavy_hitter.variance)
    assert 0.9 < np.mean(ratios) < 1.1


@pytest.mark.parametrize("name", SMALL_MECHANISMS)
def test_the_papers_scale_leaves_some_of_its_budget_over(name: str) -> None:
    mechanism = made(name, "paper", epsilon=1.0)
    assert mechanism.epsilon_spent < 0.9
    assert made(name, "laplace", epsilon=1.0).epsilon_spent == 1
    spent = made(name, "laplace", epsilon=mechanism.epsilon_spent)
    solved, paper = spent.randomizer, mechanism.randomizer
    assert isinstance(solved, AdditiveNoise)
    assert isinstance(paper, AdditiveNoise)
    assert float(solved.laplace_scale or 0) == pytest.approx(
        float(paper.laplace_scale or 0), rel=2e-2
    )


def refusals() -> Iterator[tuple[dict[str, Any], str]]:
    for epsilon in (0, -1, math.inf, math.nan, 100):
        yield {"epsilon": epsilon}, r"epsilon must be from 0\.01 to 50"
    for size in (1, 0, 2**64 + 1):
        yield {"size": size}, "size must be from 2 to"
    yield {"seed": b"short"}, "seed must have 32 bytes, not 5"
    yield {"noise": "white"}, "noise must be one of"
    yield {"relation": "friends"}, "relation must be one of"
    yield {"delta": 1e-6}, "delta must be 0"
    for delta in (0.0, 0.7, math.nan):
        yield {"noise": "laplace", "delta": delta}, "delta must be from 1e-30"


@pytest.mark.parametrize("name", SMALL_MECHANISMS)
@pytest.mark.parametrize(("parameters", "message"), list(refusals()))
def test_parameters_out_of_range_are_refused(
    name: str, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL_MECHANISMS[name], **parameters)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([20], np.uint64), "values must be below size = 20, not 20"),
        (np.array([1], np.int64), "values must be uint64"),
        (np.zeros((1, 1), np.uint64), r"values must be uint64 of shape \(n,\)"),
        (np.zeros(0, np.uint64), "n >= 1"),
    ],
)
@pytest.mark.parametrize("name", SMALL_MECHANISMS)
def test_values_out_of_the_domain_are_refused(
    name: str, values: NDArray[Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SMALL_MECHANISMS[name].perturb(values, system_words)
    with pytest.raises(ValueError, match=message):
        SMALL_MECHANISMS[name].simulate_state(
            values, np.ones(1, np.int64), np.random.default_rng(0)
        )


def test_counts_that_fit_no_values_are_refused() -> None:
    rng, value = np.random.default_rng(0), np.zeros(1, np.uint64)
    for counts in ([1, 2], [-1], [0]):
        with pytest.raises(ValueError, match="counts must have one number"):
            SMALL_MECHANISMS["jl"].simulate_state(value, np.array(counts), rng)


@pytest.mark.parametrize("name", SMALL_MECHANISMS)
def test_states_of_another_form_are_refused(name: str) -> None:
    mechanism = SMALL_MECHANISMS[name]
    state = mechanism.aggregate(mechanism.perturb(np.zeros(3, np.uint64), system_words))
    with pytest.raises(ValueError, match="n and max_results must be 1 or more"):
        mechanism.identify(state, 0)
    with pytest.raises(ValueError, match="n and max_results must be 1 or more"):
        mechanism.identify(state, 3, max_results=0)
    with pytest.raises(ValueError, match="state must have shape"):
        mechanism.identify(state[1:], 3)
    with pytest.raises(ValueError, match="n must be the number of reports, 3, not 4"):
        mechanism.identify(state, 4)


def test_the_page_shows_code_that_works() -> None:
    page = (Path(__file__).parents[4] / "docs/research/hsu2012.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(code, "hsu2012.md", "exec"), {})  # noqa: S102

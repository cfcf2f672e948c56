"""Populations with one heavy hitter, and how often a mechanism identifies it, at any n."""

import math
from collections.abc import Callable

import numpy as np

from protocol.numerics.array_types import Integers, ItemValues
from protocol.reference_mechanisms.hsu2012_oracles.glps import SparseRecovery, paper_sparsity
from protocol.reference_mechanisms.hsu2012_oracles.projection_oracle import Projection

PopulationSampler = Callable[[np.random.Generator], tuple[ItemValues, Integers]]


def with_runner_up(n: int, share: float, size: int = 1000) -> PopulationSampler:
    """Return a heavy hitter of `share`, a runner-up of half of it, and the rest uniform."""

    def draw(rng: np.random.Generator) -> tuple[ItemValues, Integers]:
        first = int(n * share)
        second = min(first // 2, n - first)
        rest = rng.multinomial(n - first - second, np.full(size - 2, 1 / (size - 2)))
        return rng.permutation(size).astype(np.uint64), np.concatenate(([first, second], rest))

    return draw


def with_uniform_tail(n: int, share: float, bits: int, tail: int) -> PopulationSampler:
    """Return a heavy hitter of `share` and a uniform tail of `tail` values."""

    def draw(rng: np.random.Generator) -> tuple[ItemValues, Integers]:
        values = np.unique(rng.integers(0, 2**bits, 2 * tail + 2, np.uint64))
        rng.shuffle(values)
        values = values[: tail + 1]
        others = len(values) - 1
        rest = rng.multinomial(n - int(n * share), np.full(others, 1 / others))
        return values, np.concatenate(([int(n * share)], rest))

    return draw


def count_recoveries(
    make: Callable[[bytes], Projection], draw: PopulationSampler, runs: int = 10
) -> int:
    """Return the number of `runs` in which the heavy hitter is identified first."""
    recoveries = 0
    for run in range(runs):
        rng = np.random.default_rng(1000 + run)
        mechanism = make(rng.bytes(32))
        values, counts = draw(rng)
        state = mechanism.simulate_state(values, counts, rng)
        identified = mechanism.identify(state, int(counts.sum()), 1)
        recoveries += bool(identified) and identified[0].value == int(values[0])
    return recoveries


def glps_error(n: int, epsilon: float = 1.0, delta: float = 1e-6, beta: float = 0.1) -> float:
    """Return GLPS-HH's error at n devices, in n^(5/6) times the logarithms of theorem 4.2.

    It is the largest count on a grid that is missed in more than 2 of 8 runs, (alpha, 1/4) of
    the paper; buckets are its s, rounded up.
    """
    buckets = max(2, math.ceil(paper_sparsity(n, 2**20, epsilon, delta, beta)))

    def make(seed: bytes) -> SparseRecovery:
        return SparseRecovery(
            epsilon=epsilon, delta=delta, noise="paper", size=2**20, seed=seed, buckets=buckets
        )

    grid = [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9]
    missed = [
        share
        for share in grid
        if count_recoveries(make, with_uniform_tail(n, share, 20, 500), 8) < 6
    ]
    logarithms = math.log(1 / beta) ** (1 / 3) * (math.log(2**20) * math.log(1 / delta)) ** (1 / 6)
    return float(n * max(missed, default=0.0) / (logarithms * n ** (5 / 6)))

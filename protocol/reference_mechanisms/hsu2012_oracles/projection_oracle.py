"""Base class of JL-HH, GLPS-HH and the Bucket mechanism: a public random linear map of one value.

A device's value becomes `queries` signed cells, which a randomizer reports (`randomizers.py`). The
server adds reports up, and a mechanism reads the heavy hitters from the sums. `noise` is

    "paper"      discrete Laplace of the paper's scale: theorem 2.5, for the paper's neighbours
    "laplace"    discrete Laplace of the smallest scale that is (epsilon, delta), exactly
    "gaussian"   discrete Gaussian of the smallest variance that is (epsilon, delta), exactly
    "pure"       discrete Laplace of scale L1 sensitivity / epsilon; delta = 0
    "sampled"    one query, under randomized response; delta = 0. The recommended one

and `relation` defines neighbours: "replace-one", a device with another value, which changes signs
by 2, or "add-remove", a device without a value, as in definition 2.2 of the paper, by 1.

Source: [hsu2012], sections 2.1, 3.1 and 4. The noise is on integers, where the paper adds real
Laplace noise, so that no floating-point residue leaks, and any sum modulo q can carry it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from protocol.numerics.array_types import Floats, Integers, ItemValues, PackedReports
from protocol.privacy.loss_distributions import NeighbourRelation
from protocol.randomness import RandomWords
from protocol.reference_mechanisms.hsu2012_oracles.noise_calibration import (
    ShiftProfile,
    check_privacy_parameters,
    gaussian_variance,
    laplace_epsilon,
    laplace_scale,
    pure_scale,
)
from protocol.reference_mechanisms.hsu2012_oracles.randomizers import (
    AdditiveNoise,
    Randomizer,
    SampledResponse,
    Symbols,
)

NoiseKind = Literal["paper", "laplace", "gaussian", "pure", "sampled"]
MAX_MESSAGE_INTEGERS = 2**20
_CELLS_PER_BATCH = 2**20

S = TypeVar("S", np.uint8, np.uint64)


@dataclass(frozen=True, slots=True)
class HeavyValue:
    """A value, the estimated number of devices that hold it, and the variance of the estimate."""

    value: int
    count: float
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection(ABC):
    """A public random map of the values below `size`, with hash functions of `seed`."""

    epsilon: float
    delta: float = 0.0
    size: int
    seed: bytes = field(repr=False)
    noise: NoiseKind = "sampled"
    relation: NeighbourRelation = "replace-one"
    randomizer: Randomizer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.noise not in get_args(NoiseKind):
            raise ValueError(f"noise must be one of {get_args(NoiseKind)}, not {self.noise!r}")
        if self.relation not in get_args(NeighbourRelation):
            raise ValueError(f"relation must be one of {get_args(NeighbourRelation)}")
        check_privacy_parameters(self.epsilon, self.delta, pure=self.noise in ("pure", "sampled"))
        if not 2 <= self.size <= self.max_values:
            raise ValueError(f"size must be from 2 to {self.max_values:,}, not {self.size}")
        if len(self.seed) != 32:
            raise ValueError(f"seed must have 32 bytes, not {len(self.seed)}")
        if self.queries * self.cells > MAX_MESSAGE_INTEGERS:
            raise ValueError(
                f"messages must have at most {MAX_MESSAGE_INTEGERS:,} integers, "
                f"not {self.queries} queries of {self.cells} cells"
            )
        object.__setattr__(self, "randomizer", self._make_randomizer())

    @property
    def max_values(self) -> int:
        return 2**64

    @property
    @abstractmethod
    def queries(self) -> int:
        """Return T, the number of signs of a value."""

    @property
    @abstractmethod
    def cells(self) -> int: ...

    @property
    @abstractmethod
    def paper_scale(self) -> Fraction:
        """Return the paper's Laplace scale, for integers that are signs."""

    @property
    def profiles(self) -> tuple[ShiftProfile, ...]:
        """Return the worst shifts between the integers of neighbours."""
        return (((2 if self.relation == "replace-one" else 1, self.queries),),)

    @property
    def averaged_queries(self) -> int:
        return self.queries

    @property
    def bits(self) -> int:
        return self.randomizer.report_fields.bits

    @property
    def epsilon_spent(self) -> float:
        """Return the smallest epsilon of the guarantee at `delta`; it is lower only for "paper"."""
        if self.noise != "paper":
            return self.epsilon
        return laplace_epsilon(self.profiles, self.paper_scale, self.delta)

    @abstractmethod
    def symbols(self, values: ItemValues) -> Symbols:
        """Return 2 cell + (sign < 0) of each of `values` in each query, shape `(n, queries)`."""

    @abstractmethod
    def estimates(self, sums: Floats, values: ItemValues) -> Floats: ...

    @abstractmethod
    def candidates(self, sums: Floats, max_results: int) -> ItemValues:
        """Return distinct values that may be heavy, the most likely first."""

    def perturb(self, values: ItemValues, chance: RandomWords) -> PackedReports:
        """Return a report for each of `values`, uint64 below `size`: `(n, ceil(bits / 8))`."""
        self._check_values(values)
        parts = [self.randomizer.perturb(self.symbols(p), chance) for p in self._batches(values)]
        return np.concatenate(parts)

    def aggregate(self, reports: PackedReports) -> Integers:
        """Return the state of `reports`, (n, nbytes) of uint8; states of several batches add up."""
        self.randomizer.report_fields.check(reports)
        states = [self.randomizer.aggregate(part) for part in self._batches(reports)]
        return np.asarray(np.sum(states, axis=0), np.int64)

    def simulate_state(
        self, values: ItemValues, counts: Integers, rng: np.random.Generator
    ) -> Integers:
        """Return a state with the distribution of `counts` devices that hold each of `values`."""
        self._check_values(values)
        if counts.shape != values.shape or (counts < 0).any() or not counts.any():
            raise ValueError("counts must have one number >= 0 for each value, and not all 0")
        state, at = np.zeros(self.randomizer.state_shape, np.int64), 0
        for part in self._batches(values):
            part_counts = counts[at : at + len(part)]
            state += self.randomizer.simulate(self.symbols(part), part_counts, rng)
            at += len(part)
        return self.randomizer.add_missing_noise(state, int(counts.sum()), rng)

    def identify(self, state: Integers, n: int, max_results: int = 10) -> list[HeavyValue]:
        """Return up to `max_results` values that may be heavy among `n` devices, best first.

        None of them need be heavy: compare counts with the root of their variance.
        """
        if n < 1 or max_results < 1:
            raise ValueError(f"n and max_results must be 1 or more, not {n} and {max_results}")
        if state.shape != self.randomizer.state_shape:
            raise ValueError(
                f"state must have shape {self.randomizer.state_shape}, not {state.shape}"
            )
        sums = self.randomizer.sums(state, n)
        values = self.candidates(sums, max_results)[:max_results]
        counts = self.estimates(sums, values)
        noise = self.randomizer.variance(n, 0, 1)
        squares = self.cells * float((sums**2).mean() - noise)  # of all counts, F2
        return [
            HeavyValue(value, count, self.variance(n, count, max(0.0, squares - count**2)))
            for value, count in zip(values.tolist(), counts.tolist(), strict=True)
        ]

    def variance(self, n: int, count: float, others: float) -> float:
        """Return the variance of the estimate of a value that `count` of `n` devices hold.

        `others` is the sum of the squared counts of all other values. The variance is over all
        draws of the seed, taken as random signs, and of the noise.
        """
        noise = self.randomizer.variance(n, min(max(count, 0.0), n), self.averaged_queries)
        return noise + others / self.cells / self.averaged_queries

    def _make_randomizer(self) -> Randomizer:
        shape = self.queries, self.cells
        if self.noise == "sampled":
            return SampledResponse(*shape, self.epsilon)
        if self.noise == "gaussian":
            variance = gaussian_variance(self.profiles, self.epsilon, self.delta)
            return AdditiveNoise(*shape, None, variance)
        if self.noise == "pure":
            return AdditiveNoise(*shape, pure_scale(self.profiles, self.epsilon), None)
        if self.noise == "paper":
            return AdditiveNoise(*shape, self.paper_scale, None)
        return AdditiveNoise(*shape, laplace_scale(self.profiles, self.epsilon, self.delta), None)

    def _check_values(self, values: ItemValues) -> None:
        if values.dtype != np.uint64 or values.ndim != 1 or not len(values):
            raise ValueError(
                f"values must be uint64 of shape (n,), n >= 1, not {values.dtype} {values.shape}"
            )
        if (over := int(values.max())) >= self.size:
            raise ValueError(f"values must be below size = {self.size:,}, not {over:,}")

    def _batches(self, rows: NDArray[S]) -> Iterator[NDArray[S]]:
        step = max(1, _CELLS_PER_BATCH // (self.queries * self.cells))
        yield from (rows[at : at + step] for at in range(0, len(rows), step))


def value_bits(size: int) -> int:
    return (size - 1).bit_length()


def key_chunks(values: ItemValues) -> ItemValues:
    """Return `values` as keys of two chunks below 2^32, for a `HashFamily`."""
    halves: ItemValues = np.stack((values >> np.uint64(32), values & np.uint64(2**32 - 1)), axis=1)
    return halves

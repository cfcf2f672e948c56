"""What JL-HH, GLPS-HH and the Bucket mechanism share: a public random linear map of one value.

A device's value becomes `queries` signed cells (`randomizers.py` says how they are told), the
server adds reports up, and a mechanism names the heavy hitters from the sums. `noise` is

    "paper"      discrete Laplace of the paper's scale: theorem 2.5, for the paper's neighbours
    "laplace"    discrete Laplace of the least scale that is (epsilon, delta), exactly
    "gaussian"   discrete Gaussian of the least variance that is (epsilon, delta), exactly
    "pure"       discrete Laplace of scale L1 sensitivity / epsilon; delta = 0
    "sampled"    one query, under randomised response; delta = 0. The one to use

and `relation` says who neighbours are: "replacement", a device with another value, which is
what local privacy means elsewhere, or "deletion", one with none, which is how definition 2.2
of the paper reads (||v - v'||_1 <= 1). Signs move by 2 under the one and by 1 under the other.

Source: [hsu2012], sections 2.1, 3.1 and 4. The noise is on integers, where the paper adds real
Laplace noise, so that no floating-point residue tells, and any sum modulo q can carry it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from protocol.chance import Chance
from protocol.oracles.composition import (
    Profile,
    check_budget,
    gaussian_variance,
    laplace_epsilon,
    laplace_scale,
    pure_scale,
)
from protocol.oracles.discrete_noise import Integers
from protocol.oracles.randomizers import Additive, Floats, Randomizer, Sampled, Symbols
from protocol.oracles.wire import Reports

Noise = Literal["paper", "laplace", "gaussian", "pure", "sampled"]
Relation = Literal["replacement", "deletion"]
Values = NDArray[np.uint64]
MOST_INTEGERS = 2**20
_AT_ONCE = 2**20  # cells that are held in memory

S = TypeVar("S", np.uint8, np.uint64)


@dataclass(frozen=True, slots=True)
class HeavyHitter:
    """A value, how many devices are estimated to hold it, and the variance of that."""

    value: int
    count: float
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection(ABC):
    """A public random map of the values below `size`; its hash functions grow from `seed`.

    Raises:
        ValueError: if a parameter is out of its range; the message says which, and the range.
    """

    epsilon: float
    delta: float = 0.0
    size: int
    seed: bytes = field(repr=False)
    noise: Noise = "sampled"
    relation: Relation = "replacement"
    randomizer: Randomizer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.noise not in get_args(Noise):
            raise ValueError(f"noise must be one of {get_args(Noise)}, not {self.noise!r}")
        if self.relation not in get_args(Relation):
            raise ValueError(f"relation must be one of {get_args(Relation)}")
        check_budget(self.epsilon, self.delta, pure=self.noise in ("pure", "sampled"))
        if not 2 <= self.size <= self.most_values:
            raise ValueError(f"size must be within 2 and {self.most_values:,}, not {self.size}")
        if len(self.seed) != 32:
            raise ValueError(f"seed must have 32 bytes, not {len(self.seed)}")
        if self.queries * self.cells > MOST_INTEGERS:
            raise ValueError(
                f"messages must have {MOST_INTEGERS:,} integers at most, "
                f"not {self.queries} queries of {self.cells} cells"
            )
        object.__setattr__(self, "randomizer", self._randomizer())

    @property
    def most_values(self) -> int:
        """Return the largest `size`."""
        return 2**64

    @property
    @abstractmethod
    def queries(self) -> int:
        """Return T, how many signs a value has."""

    @property
    @abstractmethod
    def cells(self) -> int:
        """Return in how many cells a query's sign may be."""

    @property
    @abstractmethod
    def paper_scale(self) -> Fraction:
        """Return the paper's Laplace scale, for integers that are signs."""

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Return how far neighbours' integers may be apart, at worst."""
        return (((2 if self.relation == "replacement" else 1, self.queries),),)

    @property
    def answers(self) -> int:
        """Return over how many queries an estimate averages."""
        return self.queries

    @property
    def bits(self) -> int:
        """Return the bits of a report."""
        return self.randomizer.fields.bits

    @property
    def epsilon_spent(self) -> float:
        """Return the least epsilon of the guarantee at `delta`; only "paper" leaves any over."""
        if self.noise != "paper":
            return self.epsilon
        return laplace_epsilon(self.profiles, self.paper_scale, self.delta)

    @abstractmethod
    def symbols(self, values: Values) -> Symbols:
        """Return 2 cell + (sign < 0) of each of `values` in each query, shape `(n, queries)`."""

    @abstractmethod
    def estimates(self, sums: Floats, values: Values) -> Floats:
        """Return the estimated count of each of `values`."""

    @abstractmethod
    def candidates(self, sums: Floats, most: int) -> Values:
        """Return distinct values that may be heavy, the likeliest first."""

    def perturb(self, values: Values, chance: Chance) -> Reports:
        """Return a report for each of `values`, shape `(n, ceil(bits / 8))`.

        Raises:
            ValueError: if `values` is not of uint64 and shape `(n,)`, n >= 1, or not below `size`.
        """
        self._check_values(values)
        parts = [self.randomizer.perturb(self.symbols(p), chance) for p in self._parts(values)]
        return np.concatenate(parts)

    def aggregate(self, reports: Reports) -> Integers:
        """Return the state of `reports`; states of several batches add up.

        Raises:
            ValueError: if `reports` is empty, of another shape or type, or out of range.
        """
        self.randomizer.fields.check(reports)
        states = [self.randomizer.aggregate(part) for part in self._parts(reports)]
        return np.asarray(np.sum(states, axis=0), np.int64)

    def simulate_state(
        self, values: Values, counts: Integers, rng: np.random.Generator
    ) -> Integers:
        """Return a state as of `counts` devices holding each of `values`, distributed alike.

        Raises:
            ValueError: if `values` cannot be perturbed, or `counts` has not one for each of them.
        """
        self._check_values(values)
        if counts.shape != values.shape or (counts < 0).any() or not counts.any():
            raise ValueError("counts must have one number >= 0 for each value, and not all 0")
        state, at = np.zeros(self.randomizer.shape, np.int64), 0
        for part in self._parts(values):
            held = counts[at : at + len(part)]
            state += self.randomizer.simulate(self.symbols(part), held, rng)
            at += len(part)
        return self.randomizer.finish(state, int(counts.sum()), rng)

    def identify(self, state: Integers, n: int, most: int = 10) -> list[HeavyHitter]:
        """Return up to `most` values that may be heavy among `n` devices, best first.

        None of them need be: compare counts with the root of their variance.

        Raises:
            ValueError: if `state` is of another shape, or not of `n` >= 1 reports, or `most` < 1.
        """
        if n < 1 or most < 1:
            raise ValueError(f"n and most must be 1 or more, not {n} and {most}")
        if state.shape != self.randomizer.shape:
            raise ValueError(f"state must have shape {self.randomizer.shape}, not {state.shape}")
        sums = self.randomizer.sums(state, n)
        values = self.candidates(sums, most)[:most]
        counts = self.estimates(sums, values)
        noise = self.randomizer.variance(n, 0, 1)
        squares = self.cells * float((sums**2).mean() - noise)  # of all counts, F2
        return [
            HeavyHitter(value, count, self.variance(n, count, max(0.0, squares - count**2)))
            for value, count in zip(values.tolist(), counts.tolist(), strict=True)
        ]

    def variance(self, n: int, count: float, others: float) -> float:
        """Return the variance of the estimate of a value that `count` of `n` devices hold.

        `others` is the sum of the squared counts of all other values, whose signs are as good
        as random; over all draws of the seed and of the noise.
        """
        noise = self.randomizer.variance(n, min(max(count, 0.0), n), self.answers)
        return noise + others / self.cells / self.answers

    def _randomizer(self) -> Randomizer:
        shape = self.queries, self.cells
        if self.noise == "sampled":
            return Sampled(*shape, self.epsilon)
        if self.noise == "gaussian":
            variance = gaussian_variance(self.profiles, self.epsilon, self.delta)
            return Additive(*shape, None, variance)
        if self.noise == "pure":
            return Additive(*shape, pure_scale(self.profiles, self.epsilon), None)
        if self.noise == "paper":
            return Additive(*shape, self.paper_scale, None)
        return Additive(*shape, laplace_scale(self.profiles, self.epsilon, self.delta), None)

    def _check_values(self, values: Values) -> None:
        if values.dtype != np.uint64 or values.ndim != 1 or not len(values):
            raise ValueError(
                f"values must be uint64 of shape (n,), n >= 1, not {values.dtype} {values.shape}"
            )
        if (over := int(values.max())) >= self.size:
            raise ValueError(f"values must be below size = {self.size:,}, not {over:,}")

    def _parts(self, rows: NDArray[S]) -> Iterator[NDArray[S]]:
        most = max(1, _AT_ONCE // (self.queries * self.cells))
        yield from (rows[at : at + most] for at in range(0, len(rows), most))


def bits_of(size: int) -> int:
    """Return the bits of a value below `size`."""
    return (size - 1).bit_length()


def chunks(values: Values) -> Values:
    """Return `values` as keys of two chunks below 2^32, for `hashing.Family`."""
    halves: Values = np.stack((values >> np.uint64(32), values & np.uint64(2**32 - 1)), axis=1)
    return halves

"""Local randomizers of linear messages: noise on all integers, or one query's randomized response.

A device's data are `queries` symbols. In each query s it has one of `cells` cells c and a sign, the
symbol 2 c + (sign < 0). They stand for the integer vector with the sign at (s, c) and 0 in the
query's other cells. The server estimates the sum of these vectors over devices, u_sc, from

    AdditiveNoise      the whole vector, with discrete noise on each integer, as in the paper;
                       u = the sum of the messages, each cell with variance n s
    SampledResponse    one query, drawn uniformly, and its symbol under randomized response over
                       K = 2 cells symbols: p = e / (e + K - 1), q = 1 / (e + K - 1),
                       e = exp(epsilon), and u_sc = queries / (p - q) (#{(s, c, +)} - #{(s, c, -)}),
                       unbiased; a pure epsilon

A report is a row of bytes: unsigned fields of fixed widths, bit by bit, the lowest bit first. The
bits after the last field are zero, so that a report has one form only.

A simulated state costs the same for any number of devices, and has the distribution of the state
of real reports.

Source: definition 2.6 and algorithms 1 to 3 of [hsu2012]; sampling is ours, after the one-bit
reports of [BassilySmith15].
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from protocol.numerics.array_types import Floats, Integers, PackedReports
from protocol.oracles.limits import check_report_shape
from protocol.randomness import RandomWords, bernoulli, uniform_below
from protocol.reference_mechanisms.hsu2012_oracles.discrete_noise import (
    discrete_gaussian,
    discrete_laplace,
    gaussian_sum,
    laplace_sum,
    laplace_variance,
)

Symbols = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class BitFields:
    """Fields of a report: `count` for each of `bounds` in this order, each below its bound."""

    bounds: Sequence[int]
    count: int = 1

    @property
    def bits(self) -> int:
        return self.count * sum(self._widths)

    @property
    def nbytes(self) -> int:
        return -(-self.bits // 8)

    def pack(self, fields: Sequence[NDArray[np.int64]]) -> PackedReports:
        """Return the reports, shape `(n, nbytes)`, of one array of shape `(n, count)` per bound."""
        rows = list[PackedReports]()
        for field, width in zip(fields, self._widths, strict=True):
            bits = np.empty((*field.shape, width), np.uint8)
            for bit in range(width):
                bits[:, :, bit] = field >> bit & 1
            rows.append(bits.reshape(len(field), -1))
        return np.packbits(np.concatenate(rows, axis=1), axis=1, bitorder="little")

    def unpack(self, reports: PackedReports) -> list[NDArray[np.int64]]:
        """Return the fields of `reports`, one array of shape `(n, count)` per bound.

        Raises ValueError if `reports` is malformed, or bits after the last field are not zero.
        """
        self.check(reports)
        bits = np.unpackbits(reports, axis=1, bitorder="little")
        if bits[:, self.bits :].any():
            raise ValueError(f"reports have bits after the first {self.bits}, which must be 0")
        fields, at = list[NDArray[np.int64]](), 0
        for bound, width in zip(self.bounds, self._widths, strict=True):
            group = bits[:, at : at + self.count * width].reshape(len(bits), self.count, width)
            at += self.count * width
            field = np.zeros(group.shape[:2], np.int64)
            for bit in range(width):
                field |= group[:, :, bit].astype(np.int64) << bit
            if (field >= bound).any():
                row = int(np.flatnonzero((field >= bound).any(axis=1))[0])
                raise ValueError(f"report {row} has a field of {bound} or more, out of range")
            fields.append(field)
        return fields

    def check(self, reports: PackedReports) -> None:
        """Raise ValueError if `reports` is not of uint8 and shape `(n, nbytes)`, n >= 1."""
        check_report_shape(reports, self.nbytes)
        if not len(reports):
            raise ValueError("reports are empty: one or more are needed")

    @property
    def _widths(self) -> list[int]:
        return [(bound - 1).bit_length() for bound in self.bounds]


@dataclass(frozen=True, slots=True)
class Randomizer(ABC):
    """Randomizer of symbols, shape `(n, queries)`, each below 2 `cells`."""

    queries: int
    cells: int

    @property
    @abstractmethod
    def report_fields(self) -> BitFields: ...

    @property
    @abstractmethod
    def state_shape(self) -> tuple[int, int]: ...

    @abstractmethod
    def perturb(self, symbols: Symbols, chance: RandomWords) -> PackedReports: ...

    @abstractmethod
    def aggregate(self, reports: PackedReports) -> Integers: ...

    @abstractmethod
    def simulate(self, symbols: Symbols, counts: Integers, rng: np.random.Generator) -> Integers:
        """Return a state of `counts` devices of each row of `symbols`, without additive noise."""

    def add_missing_noise(self, state: Integers, n: int, rng: np.random.Generator) -> Integers:
        """Return `state` of `n` simulated devices with the noise that it still lacks: none here."""
        del n, rng
        return state

    def sums(self, state: Integers, n: int) -> Floats:
        """Return unbiased u, shape `(queries, cells)`: here the state itself."""
        del n
        return state.astype(np.float64)

    @abstractmethod
    def variance(self, n: int, count: float, answers: int) -> float:
        """Return the noise variance of a value's signed sums, averaged over `answers` queries."""


@dataclass(frozen=True, slots=True)
class AdditiveNoise(Randomizer):
    """Noise on each integer: discrete Laplace of a scale, or discrete Gaussian of a variance."""

    laplace_scale: Fraction | None
    gaussian_variance: int | None

    @property
    def max_integer(self) -> int:
        """Return the largest absolute value of an integer in a message.

        Larger integers, of probability below 2^-40, are clipped to it. This costs no privacy, as
        it only depends on the noisy integers.
        """
        log_tail = math.log(2 * self.queries * self.cells) + 40 * math.log(2)
        if self.gaussian_variance is not None:
            return 2 + math.ceil(math.sqrt(2 * self.gaussian_variance * log_tail))
        assert self.laplace_scale is not None  # exactly one of both is given
        return 2 + math.ceil(self.laplace_scale * log_tail)

    @property
    def report_fields(self) -> BitFields:
        return BitFields((2 * self.max_integer + 1,), self.queries * self.cells)

    @property
    def state_shape(self) -> tuple[int, int]:
        return self.queries, self.cells

    def encode(self, symbols: Symbols, chance: RandomWords) -> Integers:
        """Return the messages as integers, shape `(n, queries cells)`."""
        n, size = len(symbols), self.queries * self.cells
        if self.gaussian_variance is not None:
            messages = discrete_gaussian(chance, self.gaussian_variance, n * size)
        else:
            assert self.laplace_scale is not None
            messages = discrete_laplace(chance, self.laplace_scale, n * size)
        rows = np.arange(n)[:, np.newaxis] * size
        messages[rows + self._positions(symbols)] += _signs_of(symbols)
        np.clip(messages, -self.max_integer, self.max_integer, out=messages)
        return messages.reshape(n, size)

    def perturb(self, symbols: Symbols, chance: RandomWords) -> PackedReports:
        return self.report_fields.pack([self.encode(symbols, chance) + self.max_integer])

    def aggregate(self, reports: PackedReports) -> Integers:
        (messages,) = self.report_fields.unpack(reports)
        return np.reshape(messages.sum(axis=0) - len(reports) * self.max_integer, self.state_shape)

    def simulate(self, symbols: Symbols, counts: Integers, rng: np.random.Generator) -> Integers:
        del rng
        weights = (_signs_of(symbols) * counts[:, np.newaxis]).reshape(-1)  # exact: below 2^53
        positions = self._positions(symbols).reshape(-1)
        sums = np.bincount(positions, weights, minlength=self.queries * self.cells)
        return sums.astype(np.int64).reshape(self.state_shape)

    def add_missing_noise(self, state: Integers, n: int, rng: np.random.Generator) -> Integers:
        if self.gaussian_variance is not None:
            return state + gaussian_sum(rng, self.gaussian_variance, n, state.size).reshape(
                self.state_shape
            )
        assert self.laplace_scale is not None
        return state + laplace_sum(rng, self.laplace_scale, n, state.size).reshape(self.state_shape)

    def variance(self, n: int, count: float, answers: int) -> float:
        del count
        if self.gaussian_variance is not None:
            return n * self.gaussian_variance / answers
        assert self.laplace_scale is not None
        return n * laplace_variance(self.laplace_scale) / answers

    def _positions(self, symbols: Symbols) -> NDArray[np.intp]:
        return (symbols >> 1).astype(np.intp) + np.arange(self.queries) * self.cells


@dataclass(frozen=True, slots=True)
class SampledResponse(Randomizer):
    """One query's symbol, true or drawn uniformly: randomized response of pure `epsilon`."""

    epsilon: float

    @property
    def keep_of_2_64(self) -> int:
        """Return (e - 1) / (e + K - 1) of 2^64, rounded down so that the claim holds exactly."""
        keep = -math.expm1(-self.epsilon) / (1 + (2 * self.cells - 1) * math.exp(-self.epsilon))
        return max(0, int(keep * 2**64) - 2**13)

    @property
    def report_fields(self) -> BitFields:
        return BitFields((self.queries, 2 * self.cells))

    @property
    def state_shape(self) -> tuple[int, int]:
        return self.queries, 2 * self.cells

    def perturb(self, symbols: Symbols, chance: RandomWords) -> PackedReports:
        n = len(symbols)
        queries = uniform_below(chance, self.queries, n).astype(np.int64)
        true = symbols[np.arange(n), queries].astype(np.int64)
        other = uniform_below(chance, 2 * self.cells, n).astype(np.int64)
        reported = np.where(bernoulli(chance, self.keep_of_2_64, n), true, other)
        return self.report_fields.pack([queries[:, np.newaxis], reported[:, np.newaxis]])

    def aggregate(self, reports: PackedReports) -> Integers:
        queries, symbols = self.report_fields.unpack(reports)
        positions = (queries * 2 * self.cells + symbols).reshape(-1)
        return np.bincount(positions, minlength=math.prod(self.state_shape)).reshape(
            self.state_shape
        )

    def simulate(self, symbols: Symbols, counts: Integers, rng: np.random.Generator) -> Integers:
        answers = rng.multinomial(counts, np.full(self.queries, 1 / self.queries))
        positions = symbols + np.arange(self.queries) * (2 * self.cells)
        true = np.bincount(positions.reshape(-1), answers.reshape(-1), math.prod(self.state_shape))
        true_counts = true.astype(np.int64).reshape(self.state_shape)  # exact as floats: below 2^53
        kept = rng.binomial(true_counts, self.keep_of_2_64 / 2**64)
        uniform = np.full(2 * self.cells, 1 / (2 * self.cells))
        return np.asarray(
            kept + rng.multinomial((true_counts - kept).sum(axis=1), uniform), np.int64
        )

    def sums(self, state: Integers, n: int) -> Floats:
        if state.sum() != n:
            raise ValueError(f"n must be the number of reports, {state.sum():,}, not {n:,}")
        signed = (state[:, ::2] - state[:, 1::2]).astype(np.float64)
        return signed * (self.queries / self._keep_probability)

    def variance(self, n: int, count: float, answers: int) -> float:
        other = (1 - self._keep_probability) / (2 * self.cells)  # q
        same_cell = self._keep_probability + 2 * other  # p + q
        any_cell = same_cell / self.cells + 2 * other * (1 - 1 / self.cells)
        squares = count * same_cell + (n - count) * any_cell
        return squares * self.queries / answers / self._keep_probability**2 - count

    @property
    def _keep_probability(self) -> float:
        return self.keep_of_2_64 / 2**64  # p - q


def _signs_of(symbols: Symbols) -> Integers:
    return 1 - 2 * (symbols & 1).astype(np.int64)

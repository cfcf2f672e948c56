"""Local randomizers of hsu2012's linear messages: noise on all of them, or one under RR.

A device's data are `queries` symbols: in each query s one of `cells` cells c and a sign, the
symbol 2 c + (sign < 0). They stand for the integer vector that is the sign at (s, c) and 0 in the
query's other cells. What a server wants is the sum of these vectors over devices,
u_sc = sum of the signs of those in cell c. Two ways to tell it:

    Additive   the whole vector, plus discrete noise on each integer, faithful to the paper;
               u = the sum of the messages, each cell with variance n s
    Sampled    one query, drawn uniformly, and its symbol under randomised response over the
               K = 2 cells symbols: p = e / (e + K - 1), q = 1 / (e + K - 1), e = exp(epsilon), and
               u_sc = queries / (p - q) (#{(s, c, +)} - #{(s, c, -)}), unbiased; a pure epsilon

States are integers, and add up. A simulated state costs as much for any number of devices, and
is distributed as the one of real reports.

Source: definition 2.6 and algorithms 1 to 3 of [hsu2012]; sampling is ours, after the one-bit
reports of [BassilySmith15].
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from protocol.chance import Chance, below, happens
from protocol.oracles.discrete_noise import (
    Integers,
    discrete_gaussian,
    discrete_laplace,
    gaussian_sum,
    laplace_sum,
    laplace_variance,
)
from protocol.oracles.wire import Fields, Reports

Symbols = NDArray[np.uint32]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Randomizer(ABC):
    """What a device says of its symbols, shape `(n, queries)`, each below 2 `cells`."""

    queries: int
    cells: int

    @property
    @abstractmethod
    def fields(self) -> Fields:
        """Return the wire format of a report."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Return the shape of a state."""

    @abstractmethod
    def perturb(self, symbols: Symbols, chance: Chance) -> Reports:
        """Return a report for each row of `symbols`."""

    @abstractmethod
    def aggregate(self, reports: Reports) -> Integers:
        """Return the state of `reports`."""

    @abstractmethod
    def simulate(self, symbols: Symbols, counts: Integers, rng: np.random.Generator) -> Integers:
        """Return a state of `counts` devices of each row of `symbols`, without noise if additive.

        States of several calls add up to what `finish` makes one of all their devices.
        """

    @abstractmethod
    def finish(self, state: Integers, n: int, rng: np.random.Generator) -> Integers:
        """Return `state` of `n` simulated devices with what noise it still lacks."""

    @abstractmethod
    def sums(self, state: Integers, n: int) -> Floats:
        """Return unbiased u, shape `(queries, cells)`."""

    @abstractmethod
    def variance(self, n: int, count: float, answers: int) -> float:
        """Return the variance of a value's signed sums, averaged over `answers` queries.

        Over the noise alone, for a value that `count` of `n` devices hold.
        """


@dataclass(frozen=True, slots=True)
class Additive(Randomizer):
    """Noise on each integer: discrete Laplace of a scale, or discrete Gaussian of a variance."""

    scale: Fraction | None
    gaussian: int | None

    @property
    def most(self) -> int:
        """Return the largest integer that a message has.

        A report with one beyond, odds below 2^-40, says this in its place: which costs no
        privacy, being computed from what was private already.
        """
        log_odds = math.log(2 * self.queries * self.cells) + 40 * math.log(2)
        if self.gaussian is not None:
            return 2 + math.ceil(math.sqrt(2 * self.gaussian * log_odds))
        assert self.scale is not None  # one of both is given
        return 2 + math.ceil(self.scale * log_odds)

    @property
    def fields(self) -> Fields:
        """Return one field for each integer, from -`most` up."""
        return Fields((2 * self.most + 1,), self.queries * self.cells)

    @property
    def shape(self) -> tuple[int, int]:
        """Return a sum for each cell of each query."""
        return self.queries, self.cells

    def encode(self, symbols: Symbols, chance: Chance) -> Integers:
        """Return the messages as integers, shape `(n, queries cells)`: what a sum may carry."""
        n, size = len(symbols), self.queries * self.cells
        if self.gaussian is not None:
            messages = discrete_gaussian(chance, self.gaussian, n * size)
        else:
            assert self.scale is not None
            messages = discrete_laplace(chance, self.scale, n * size)
        rows = np.arange(n)[:, np.newaxis] * size
        messages[rows + self._places(symbols)] += _signs(symbols)
        np.clip(messages, -self.most, self.most, out=messages)
        return messages.reshape(n, size)

    def perturb(self, symbols: Symbols, chance: Chance) -> Reports:
        """Return the messages, packed."""
        return self.fields.pack([self.encode(symbols, chance) + self.most])

    def aggregate(self, reports: Reports) -> Integers:
        """Return the sum of the messages."""
        (messages,) = self.fields.unpack(reports)
        return np.reshape(messages.sum(axis=0) - len(reports) * self.most, self.shape)

    def simulate(self, symbols: Symbols, counts: Integers, rng: np.random.Generator) -> Integers:
        """Return the exact sum of the vectors."""
        del rng
        weights = (_signs(symbols) * counts[:, np.newaxis]).reshape(-1)  # exact: below 2^53
        places = self._places(symbols).reshape(-1)
        sums = np.bincount(places, weights, minlength=self.queries * self.cells)
        return sums.astype(np.int64).reshape(self.shape)

    def finish(self, state: Integers, n: int, rng: np.random.Generator) -> Integers:
        """Return `state` with the sum of everybody's noise."""
        if self.gaussian is not None:
            return state + gaussian_sum(rng, self.gaussian, n, state.size).reshape(self.shape)
        assert self.scale is not None
        return state + laplace_sum(rng, self.scale, n, state.size).reshape(self.shape)

    def sums(self, state: Integers, n: int) -> Floats:
        """Return the state as it is."""
        del n
        return state.astype(np.float64)

    def variance(self, n: int, count: float, answers: int) -> float:
        """Return n s / `answers`, whatever the count."""
        del count
        if self.gaussian is not None:
            return n * self.gaussian / answers
        assert self.scale is not None
        return n * laplace_variance(self.scale) / answers

    def _places(self, symbols: Symbols) -> NDArray[np.intp]:
        return (symbols >> 1).astype(np.intp) + np.arange(self.queries) * self.cells


@dataclass(frozen=True, slots=True)
class Sampled(Randomizer):
    """One query's symbol, kept or else drawn uniformly: pure `epsilon` of randomised response."""

    epsilon: float

    @property
    def odds(self) -> int:
        """Return the odds, of 2^64, that the symbol is kept: (e - 1) / (e + K - 1), rounded down.

        By more than the float's error, so that the claim holds exactly.
        """
        kept = -math.expm1(-self.epsilon) / (1 + (2 * self.cells - 1) * math.exp(-self.epsilon))
        return max(0, int(kept * 2**64) - 2**13)

    @property
    def fields(self) -> Fields:
        """Return a query and a symbol."""
        return Fields((self.queries, 2 * self.cells))

    @property
    def shape(self) -> tuple[int, int]:
        """Return a count for each symbol of each query."""
        return self.queries, 2 * self.cells

    def perturb(self, symbols: Symbols, chance: Chance) -> Reports:
        """Return a query and its symbol under randomised response, packed."""
        n = len(symbols)
        queries = below(chance, self.queries, n).astype(np.int64)
        true = symbols[np.arange(n), queries].astype(np.int64)
        other = below(chance, 2 * self.cells, n).astype(np.int64)
        said = np.where(happens(chance, self.odds, n), true, other)
        return self.fields.pack([queries[:, np.newaxis], said[:, np.newaxis]])

    def aggregate(self, reports: Reports) -> Integers:
        """Return how often each symbol was said of each query."""
        queries, symbols = self.fields.unpack(reports)
        places = (queries * 2 * self.cells + symbols).reshape(-1)
        return np.bincount(places, minlength=math.prod(self.shape)).reshape(self.shape)

    def simulate(self, symbols: Symbols, counts: Integers, rng: np.random.Generator) -> Integers:
        """Return what is said if everybody draws a query and randomises its symbol."""
        asked = rng.multinomial(counts, np.full(self.queries, 1 / self.queries))
        places = symbols + np.arange(self.queries) * (2 * self.cells)
        true = np.bincount(places.reshape(-1), asked.reshape(-1), math.prod(self.shape))
        held = true.astype(np.int64).reshape(self.shape)  # exact as floats: below 2^53
        kept = rng.binomial(held, self.odds / 2**64)
        uniform = np.full(2 * self.cells, 1 / (2 * self.cells))
        return np.asarray(kept + rng.multinomial((held - kept).sum(axis=1), uniform), np.int64)

    def finish(self, state: Integers, n: int, rng: np.random.Generator) -> Integers:
        """Return `state`: nothing is missing."""
        del n, rng
        return state

    def sums(self, state: Integers, n: int) -> Floats:
        """Return queries / (p - q) (#+ - #-).

        Raises:
            ValueError: if `state` is not of `n` reports.
        """
        if state.sum() != n:
            raise ValueError(f"n must be the number of reports, {state.sum():,}, not {n:,}")
        signed = (state[:, ::2] - state[:, 1::2]).astype(np.float64)
        return signed * (self.queries / self._contrast)

    def variance(self, n: int, count: float, answers: int) -> float:
        """Return the variance if the other devices' cells are independent of the value's."""
        other = (1 - self._contrast) / (2 * self.cells)  # q
        both = self._contrast + 2 * other  # p + q
        apart = both / self.cells + 2 * other * (1 - 1 / self.cells)
        squares = count * both + (n - count) * apart
        return squares * self.queries / answers / self._contrast**2 - count

    @property
    def _contrast(self) -> float:
        return self.odds / 2**64  # p - q


def _signs(symbols: Symbols) -> Integers:
    return 1 - 2 * (symbols & 1).astype(np.int64)

"""Noise in shares: every device adds a little, exactly drawn, and the sum hides each device.

A Skellam number is the difference of two independent Poisson numbers of mean s / 2: an integer
of mean 0 and variance s. Sums of Skellam numbers are Skellam and their variances add up, so

    share = s / ((1 - d) h n)

gives s or more if a part d of the n contacted devices drops out, and a part h of the survivors is
honest. With fewer survivors than that, a sum must not be opened. Each contacted device adds its
share to every cell, also if it has no vote.

Draws are exact: all decisions compare uniform integers, so no probability is rounded.

    Poisson of 1     k from fair coins, P = 2^-(k+1), is accepted with probability 2^k / (2 k!):
                     one half for k = 0, and for others if events of probability 2/3, 2/4, .. 2/k
                     all happen
    Poisson of a/b   each event of ceil(a/b) Poisson numbers of 1 is accepted with the probability
                     that gives a/b, compared bit by bit as far as needed
    many cells       one Poisson number for all, each event assigned to a cell and a sign

Source: [Agarwal21] for Skellam noise in secure sums; [Canonne20] for the way of drawing.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from protocol.numerics.array_types import Integers
from protocol.numerics.binary_search import first_true
from protocol.randomness import RandomWords, uniform_below

MAX_EVENTS = 2**27  # of one draw, for memory
_EVENTS_PER_BATCH = 2**20  # about 60 MB
MAX_CELLS = 2**32  # the range of `uniform_below`


@dataclass(frozen=True, slots=True)
class NoiseShares:
    """Noise of `variance` in each cell, from shares of `contacted` devices.

    A part of at most `dropout` drops out, and a part of at least `honest_share` of the survivors
    adds its share and keeps it secret. `share` is the variance of one device's noise.
    """

    variance: float
    contacted: int
    dropout: float = 0.0
    honest_share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.variance < math.inf:
            raise ValueError(f"variance must be above 0, not {self.variance}")
        if self.contacted < 1:
            raise ValueError(f"contacted must be 1 or more, not {self.contacted}")
        if not 0 <= self.dropout < 1 or not 0 < self.honest_share <= 1:
            raise ValueError(
                "dropout must be from 0 to below 1 and honest_share above 0 and at most 1, "
                f"not {self.dropout} and {self.honest_share}"
            )

    @property
    def share(self) -> Fraction:
        """Return the exact variance of one device's noise."""
        contributing = (1 - Fraction(self.dropout)) * Fraction(self.honest_share)
        return Fraction(self.variance) / (contributing * self.contacted)

    def draw(self, chance: RandomWords, cells: int) -> Integers:
        """Return one device's share, (`cells`,); ValueError if over 2^27 events are expected."""
        if self.share * cells > MAX_EVENTS:
            events = float(self.share * cells)
            raise ValueError(f"at most 2^27 events are drawn, not {events:.3g}")
        batch = max(1, math.floor(_EVENTS_PER_BATCH / self.share))
        parts = [min(batch, cells - start) for start in range(0, cells, batch)]
        drawn = [draw_skellam(chance, self.share, part) for part in parts]
        return np.concatenate(drawn) if drawn else np.zeros(0, np.int64)


def signed_residues(sums: NDArray[np.integer], q: int) -> Integers:
    """Return the integers, (cells,), whose residues modulo `q` are `sums`; half are negative.

    Raises ValueError if `q` is not from 2 to 2^62, or a sum is not from 0 to below `q`.
    """
    if not 2 <= q <= 2**62:
        raise ValueError(f"cells modulo 2 to 2^62 are decoded, not modulo {q}")
    if len(sums) and not 0 <= int(sums.min()) <= int(sums.max()) < q:
        raise ValueError(f"sums must be from 0 to below {q}")
    whole = sums.astype(np.int64)
    return np.where(whole >= (q + 1) // 2, whole - q, whole)


def draw_skellam(chance: RandomWords, variance: Fraction | float, count: int) -> Integers:
    """Return `count` Skellam numbers of mean 0 and `variance`, exactly; ValueError if too large."""
    if not 0 <= variance < math.inf:  # also refuses NaN
        raise ValueError(f"a mean must be 0 or more and finite, not {variance}")
    if not 0 <= count < MAX_CELLS:
        raise ValueError(f"cells must be fewer than 2^32, not {count}")
    whole = Fraction(variance) * count
    if whole > MAX_EVENTS:
        raise ValueError(f"at most 2^27 events are drawn, not {float(whole):.3g}")
    ones = math.ceil(whole)
    if not ones:
        return np.zeros(count, np.int64)
    proposed = int(_poisson_of_one(chance, ones).sum())
    events = thinned_count(chance, proposed, whole / ones)
    if not events:
        return np.zeros(count, np.int64)
    cells = uniform_below(chance, count, events).astype(np.int64)
    up = chance(events) & np.uint64(1) == 1
    counts = [np.bincount(cells[sign], minlength=count) for sign in (up, ~up)]
    return np.asarray(counts[0] - counts[1], np.int64)


def simulate_skellam_sum(rng: np.random.Generator, variance: float, count: int) -> Integers:
    """Return `count` sums of shares that add up to `variance`, for simulations: in floats."""
    up, down = rng.poisson(variance / 2, (2, count))
    return np.asarray(up - down, np.int64)


def tail_bound(variance: float, tail: float) -> int:
    """Return an integer that Skellam noise exceeds in absolute value with probability `tail`.

    By Chernoff, P(|Z| >= x) <= 2 exp(s (sqrt(1 + u^2) - 1 - u asinh u)), u = x / s.
    """

    def suffices(x: int) -> bool:
        u = x / variance
        return variance * (u * math.asinh(u) - (math.hypot(1, u) - 1)) >= math.log(2 / tail)

    high = 1
    while not suffices(high):
        high *= 2
    return first_true(suffices, high // 2 + 1, high)


def _poisson_of_one(chance: RandomWords, count: int) -> Integers:
    drawn = np.empty(count, np.int64)
    pending = np.arange(count)
    while len(pending):
        proposed = tails_before_heads(chance, len(pending))
        accepted = (proposed > 0) | (chance(len(pending)) & np.uint64(1) == 1)
        factor, running = 3, np.flatnonzero(proposed >= 3)
        while len(running):
            accepted[running] &= uniform_below(chance, factor, len(running)) < 2
            factor += 1
            running = running[accepted[running] & (proposed[running] >= factor)]
        drawn[pending[accepted]] = proposed[accepted]
        pending = pending[~accepted]
    return drawn


def tails_before_heads(chance: RandomWords, count: int) -> Integers:
    """Return `count` numbers of tails of a fair coin before heads: P(k) = 2^-(k+1)."""
    tails = np.zeros(count, np.int64)
    running = np.arange(count)
    while len(running):
        words = chance(len(running))
        lowest = words & (~words + np.uint64(1))  # the lowest set bit, a power of two
        zeros = np.where(words == 0, 64, np.log2(np.maximum(lowest, 1)).astype(np.int64))
        tails[running] += zeros
        running = running[words == 0]
    return tails


def thinned_count(chance: RandomWords, events: int, probability: Fraction) -> int:
    """Return the number of `events` that happen, each with exactly `probability`."""
    happened, undecided = 0, events
    while undecided and probability:
        whole, rest = divmod(probability.numerator << 64, probability.denominator)
        if whole == 2**64:  # the probability is 1
            return happened + undecided
        words = chance(undecided)
        happened += int((words < np.uint64(whole)).sum())
        # For equal words, the next 64 bits of the probability decide.
        undecided = int((words == np.uint64(whole)).sum())
        probability = Fraction(rest, probability.denominator)
    return happened

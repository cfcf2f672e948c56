"""Noise in shares: every device adds a little, exactly drawn, and the sum hides each of them.

A Skellam number is the difference of two independent Poisson numbers of mean s / 2: an integer
of mean 0 and variance s. Sums of Skellam numbers are Skellam and their variances add up, so n
devices that each add a share of s / n make noise of variance s, whoever they are. If devices
are lost, or keep their shares to themselves, the sum loses their variance and nothing else. So

    share = s / ((1 - d) h n)

gives s or more if a part d of the n contacted is lost, and a part h of those left is honest;
below the survivors that were provisioned for, a sum must not be opened. Each device contacted
adds its share to every cell, whether or not it has anything to say.

Draws are exact: all is decided by comparing uniform integers, so no odds are rounded.

    Poisson of 1     k from fair coins, P = 2^-(k+1), is kept with odds 2^k / (2 k!): one half
                     for k = 0, and for others if events of odds 2/3, 2/4, .. 2/k all happen
    Poisson of a/b   each event of ceil(a/b) Poisson numbers of 1 is kept with odds that give
                     a/b, compared bit by bit as far as needed
    many cells       one Poisson number for all, each event thrown into a cell and given a sign

so the work grows with the events, not with the cells: a share has few.

Source: [Agarwal21] for Skellam noise in secure sums; [Canonne20] for the way of drawing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from protocol.chance import Chance, below

MOST_EVENTS = 2**27  # of one draw: memory
_AT_ONCE = 2**20  # of these: some 60 MB
MOST_CELLS = 2**32  # what `below` reaches
_WRAPPED = 2.0**-64  # odds that a noisy sum leaves the range it is decoded in

Integers = NDArray[np.int64]


class TooFewSharesError(ValueError):
    """Fewer devices survived than the noise was provisioned for: nothing may be opened."""


@dataclass(frozen=True, slots=True)
class NoiseShares:
    """Noise of `variance` in each cell, from shares of `contacted` devices.

    A part of at most `dropout` is lost, and of those left a part `honest` at least adds its
    share and tells nobody. `share` is the variance of one device's noise.

    Raises:
        ValueError: if `variance` is not above 0, `contacted` not 1 or more, `dropout` not from 0
            to below 1, or `honest` not above 0 and at most 1.
    """

    variance: float
    contacted: int
    dropout: float = 0.0
    honest: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.variance < math.inf:
            raise ValueError(f"variance must be above 0, not {self.variance}")
        if self.contacted < 1:
            raise ValueError(f"one device or more must be contacted, not {self.contacted}")
        if not 0 <= self.dropout < 1 or not 0 < self.honest <= 1:
            raise ValueError(f"no noise is left of dropout {self.dropout} and {self.honest} honest")

    @property
    def share(self) -> Fraction:
        """The variance of one device's noise, exactly."""
        kept = (1 - Fraction(self.dropout)) * Fraction(self.honest)
        return Fraction(self.variance) / (kept * self.contacted)

    @property
    def least_survivors(self) -> int:
        """How many devices must survive for the noise to be all there."""
        return math.ceil((1 - Fraction(self.dropout)) * self.contacted)

    def left(self, survivors: int) -> float:
        """Return the variance that `survivors` give, of whom a part `honest` adds its share.

        Raises:
            TooFewSharesError: if they are fewer than `least_survivors`.
        """
        if survivors < self.least_survivors:
            raise TooFewSharesError(
                f"{survivors} survivors carry too little noise: {self.least_survivors} are needed"
            )
        return float(self.share * Fraction(self.honest) * survivors)

    def together(self, devices: int) -> "NoiseShares":
        """Return the share of one device that is as those of `devices`, 1 or more, together."""
        return NoiseShares(float(self.share * devices), 1)

    def draw(self, chance: Chance, cells: int) -> Integers:
        """Return one device's share, (`cells`,), some cells at a time: memory is bounded.

        Raises:
            ValueError: if more than 2^27 events are expected.
        """
        if self.share * cells > MOST_EVENTS:
            events = float(self.share * cells)
            raise ValueError(f"at most 2^27 events are drawn, not {events:.3g}")
        some = max(1, math.floor(_AT_ONCE / self.share))
        parts = [min(some, cells - start) for start in range(0, cells, some)]
        drawn = [skellam(chance, self.share, part) for part in parts]
        return np.concatenate(drawn) if drawn else np.zeros(0, np.int64)

    def bits(self, most: int) -> int:
        """Return the width of cells in which sums from 0 to `most` and all noise fit.

        The noise of a cell leaves it with odds of 2^-64 at most.
        """
        widest = reach(float(self.share * self.contacted), _WRAPPED)
        return (2 * (most + widest) + 1).bit_length()


def centred(sums: NDArray[np.integer], bits: int) -> Integers:
    """Return the integers, (cells,), of which `sums` are the remainders mod 2^`bits`.

    They lie from -2^(`bits` - 1) to below 2^(`bits` - 1): with noise, a sum may be negative.

    Raises:
        ValueError: if `bits` is not within 1 and 62, or a sum is not from 0 to below 2^`bits`.
    """
    if not 1 <= bits <= 62:
        raise ValueError(f"cells of 1 to 62 bits are decoded, not of {bits}")
    if len(sums) and not 0 <= int(sums.min()) <= int(sums.max()) < 2**bits:
        raise ValueError(f"sums must be from 0 to below 2^{bits}")
    whole = sums.astype(np.int64)
    return np.where(whole >= 2 ** (bits - 1), whole - 2**bits, whole)


def poisson(chance: Chance, mean: Fraction | float, count: int) -> Integers:
    """Return `count` independent Poisson numbers of `mean`, exactly.

    Raises:
        ValueError: if `mean` is negative or not finite, or more than 2^27 events are expected.
    """
    return _scatter(chance, _events(chance, mean, count), count, signed=False)


def skellam(chance: Chance, variance: Fraction | float, count: int) -> Integers:
    """Return `count` independent Skellam numbers of mean 0 and `variance`, exactly.

    Raises:
        ValueError: if `variance` is negative or not finite, or more than 2^27 events are
            expected.
    """
    return _scatter(chance, _events(chance, variance, count), count, signed=True)


def skellam_sum(rng: np.random.Generator, variance: float, count: int) -> Integers:
    """Return `count` sums of shares that add up to `variance`, for simulations: in floats."""
    up, down = rng.poisson(variance / 2, (2, count))
    return np.asarray(up - down, np.int64)


def reach(variance: float, odds: float) -> int:
    """Return an integer that Skellam noise of `variance` exceeds in size with `odds` at most.

    By Chernoff, P(|Z| >= x) <= 2 exp(s (sqrt(1 + u^2) - 1 - u asinh u)), u = x / s.
    """

    def suffices(x: int) -> bool:
        u = x / variance
        return variance * (u * math.asinh(u) - (math.hypot(1, u) - 1)) >= math.log(2 / odds)

    high = 1
    while not suffices(high):
        high *= 2
    return _first(suffices, high // 2, high)


def _first(suffices: Callable[[int], bool], low: int, high: int) -> int:
    """Return the first integer above `low` that suffices; `high` does."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def _events(chance: Chance, mean: Fraction | float, cells: int) -> int:
    """Return how many events of `mean` each there are in all of `cells`."""
    if not 0 <= mean < math.inf:  # also refuses NaN
        raise ValueError(f"a mean must be 0 or more and finite, not {mean}")
    if not 0 <= cells < MOST_CELLS:
        raise ValueError(f"cells must be fewer than 2^32, not {cells}")
    whole = Fraction(mean) * cells
    if whole > MOST_EVENTS:
        raise ValueError(f"at most 2^27 events are drawn, not {float(whole):.3g}")
    if whole == 0:
        return 0
    ones = math.ceil(whole)
    return _thinned(chance, int(_poisson_of_one(chance, ones).sum()), whole / ones)


def _poisson_of_one(chance: Chance, count: int) -> Integers:
    """Return `count` independent Poisson numbers of mean 1."""
    drawn = np.empty(count, np.int64)
    missing = np.arange(count)
    while len(missing):
        proposed = _tails_before_heads(chance, len(missing))
        kept = (proposed > 0) | (chance(len(missing)) & np.uint64(1) == 1)
        factor, running = 3, np.flatnonzero(proposed >= 3)
        while len(running):
            kept[running] &= below(chance, factor, len(running)) < 2
            factor += 1
            running = running[kept[running] & (proposed[running] >= factor)]
        drawn[missing[kept]] = proposed[kept]
        missing = missing[~kept]
    return drawn


def _tails_before_heads(chance: Chance, count: int) -> Integers:
    """Return `count` times how often a fair coin fell tails before heads: P(k) = 2^-(k+1)."""
    tails = np.zeros(count, np.int64)
    running = np.arange(count)
    while len(running):
        words = chance(len(running))
        lowest = words & (~words + np.uint64(1))  # the lowest set bit, a power of two
        zeros = np.where(words == 0, 64, np.log2(np.maximum(lowest, 1)).astype(np.int64))
        tails[running] += zeros
        running = running[words == 0]
    return tails


def _thinned(chance: Chance, events: int, odds: Fraction) -> int:
    """Return how many of `events` happen, each with exactly `odds`."""
    happened, undecided = 0, events
    while undecided and odds:
        whole, rest = divmod(odds.numerator << 64, odds.denominator)
        if whole == 2**64:  # odds of 1
            return happened + undecided
        words = chance(undecided)
        happened += int((words < np.uint64(whole)).sum())
        # Equal so far: the next 64 bits of the odds decide.
        undecided, odds = int((words == np.uint64(whole)).sum()), Fraction(rest, odds.denominator)
    return happened


def _scatter(chance: Chance, events: int, cells: int, *, signed: bool) -> Integers:
    """Return what is in each of `cells` when so many `events` fall into any of them."""
    if not events:
        return np.zeros(cells, np.int64)
    where = below(chance, cells, events).astype(np.int64)
    if not signed:
        return np.bincount(where, minlength=cells)
    up = chance(events) & np.uint64(1) == 1
    found = [np.bincount(where[sign], minlength=cells) for sign in (up, ~up)]
    return np.asarray(found[0] - found[1], np.int64)

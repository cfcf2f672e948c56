"""A past that can be asked later: a sketch of what a round does not track.

An item that is tracked from round r on was sampled at 1 / t before, c tokens with a variance of
c (t - 1). So each round adds what it does not track into a signed sketch as well, unsampled: one
row of w small cells (`sketches/count_sketch.py`), with places and signs of the round's own. It
finds nothing, but once an item is known, what it was in each earlier round is read off its cell:

    sign x cell  =  c + noise of variance F2 / w        F2: the sum of the others' squared counts

unbiased, whoever else is there. What is known by now of the others is taken off their cells first,
what was sampled of them and what their rates at that time make of the rest; so that F2 falls to
about the tokens of the round. The noise is measured by what is left in the cells: it is the same
for all.

A cell counts modulo 2^b: of the counts that leave its remainder the one in a window is taken, from
`_BELOW` deviations of noise below 0 up, or around what is expected if that is beyond. A device
that lies about a cell is not seen, and moves one round of the items of that cell by 2^b at most.

Sketch and table share a round's bytes: at a share of s an item of the threshold, with tau / R
tokens a round, is first sampled after about 1 + t R / tau rounds, and each of them leaves a
variance V, from the sample, from the sketch, and from what other rounds say. The share is the one
with the least (1 + t R / tau)^2 V: the square because an item that is found late may not be found
at all. Where the words are few, that is none.

Source: sketch and variance are [Charikar02]'s; to keep them for items that are not known yet is
ours.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.domain import Domain
from protocol.local_level import Drift, Floats, History, Levels, filter_levels
from protocol.mechanism import SumQuestion
from protocol.public import Public
from protocol.sketches.count_sketch import CountSketch
from protocol.tally import Tally
from secagg.ring import Vector

_BELOW = 3.0  # deviations of noise below 0 at which the window of a cell begins
_SHARES = tuple(step / 20 for step in range(1, 11))  # of the bytes, that are tried
_LEAST_CELLS, _LEAST_BITS = 64, 3
_MOST_BITS = 16
_MOST_NOISE = 2.5  # times its tokens: less is told of an item than to see few rounds takes
_MOST_T = 0.25  # of the threshold: an item of so many is never sampled with odds of e^-4
_FIRST_T = 1 / 3  # in a first round, whose t is that of as many devices as may come
_LATE = 2.0  # the exponent that rounds before the first sample have
_OTHERS = 4.0  # times its tokens: the variance that other rounds leave of an item in one
_LEAST_NOISE = 0.1  # of a sketch, in which hardly anything is left
_NOTHING = 1e-9
_LEAST_RATE = 0.05  # of an item's mean, in any block
_CELLS, _ABOUT = "past {}", "past of {}"  # arrays of the tally, a block: cells; bits and seed


class Past(Public):
    """The sketch of a round: its cells, of so many bits."""

    cells: int = Field(ge=2, le=2**24)
    bits: int = Field(ge=_LEAST_BITS, le=_MOST_BITS)

    @property
    def nbytes(self) -> int:
        """Return its bytes in a vector."""
        return -(-self.cells * self.bits // 8)

    def sketch(self, chunks: int, seed: bytes) -> CountSketch:
        """Return the sketch for keys of `chunks` chunks, of a round with this `seed`."""
        most = 2**self.bits - 1  # which is not how much there may be: cells may wrap
        return CountSketch(1, self.cells, chunks, most, seed, seed, self.bits)


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the rounds of a study share bytes between sketch and table, which takes `least`."""

    question: SumQuestion
    rounds: int
    least: int = 0

    def past(
        self, tokens: float, nbytes: int, t_in: Callable[[int], float], first: bool = False
    ) -> Past | None:
        """Return the sketch for so many untracked `tokens`, None if it is not worth its bytes.

        `nbytes` are for it and a table; in what it leaves, they are sampled at `t_in`.
        """
        most_t = self.question.threshold * (_FIRST_T if first else _MOST_T)
        best, least = None, _cost(self._own, t_in(nbytes), 0.0)
        for past in self._sizes(tokens, nbytes):
            left = nbytes - past.nbytes
            t = t_in(left)
            if left < self.least or t > most_t:
                break
            hidden = max(1.0, tokens * (1 - 1 / t))
            cost = _cost(self._own, t, past.cells / hidden)
            if cost < least:
                best, least = past, cost
        return best

    def _sizes(self, tokens: float, nbytes: int) -> Iterator[Past]:
        for share in _SHARES:
            for bits in range(_LEAST_BITS, _MOST_BITS + 1):
                cells = int(8 * share * nbytes) // bits
                if cells < _LEAST_CELLS or tokens > _MOST_NOISE * self._own * cells:
                    break
                if 2**bits >= _window(self._own, tokens / cells) / math.sqrt(2):
                    yield Past(cells=cells, bits=bits)
                    break

    @property
    def _own(self) -> float:
        """Return the tokens that an item of the threshold has in a round."""
        return self.question.threshold / self.rounds


def _window(own: float, variance: float) -> float:
    """Return how many values a cell should tell apart: twice an item's count, in noise."""
    return 2 * _BELOW * math.sqrt(variance) + 2 * own + 3 * math.sqrt(2 * own)


def _cost(own: float, t: float, precision: float) -> float:
    """Return the logarithm of (1 + t / own)^2 V, with a sketch's 1 / variance; see the module."""
    alone = min(own * (t - 1), _OTHERS * own)
    if alone <= 0:
        return -math.inf
    return _LATE * math.log1p(t / own) - math.log(1 / alone + precision)


def keep_past(tally: Tally, block: int, past: Past, seed: bytes, cells: Vector) -> Tally:
    """Return `tally` with the sketch of a block's one round."""
    about = np.frombuffer(bytes([past.bits]) + seed, np.uint8)
    tally = tally.keep(_CELLS.format(block), cells[0].astype(np.uint16))
    return tally.keep(_ABOUT.format(block), about)


def levels_of(domain: Domain, tally: Tally, history: History, drift: Drift) -> Levels:
    """Return what `history` and the sketches of `tally` say of its items."""
    pasts = list(_pasts(domain, tally, len(history.devices)))
    if not pasts:
        return filter_levels(history, drift)
    unseen = history.devices - history.exposed
    unseen = np.where(unseen > _NOTHING * history.devices, unseen, 0.0)
    expected = unseen * history.rates_between(drift.breaks)
    told = _told(history, pasts, unseen, expected)
    levels = filter_levels(told, drift)
    # Once more, with the others' tokens as the first time says: that takes off some of what is
    # the item's own as well, so the noise stays that of the first time.
    rates = np.maximum(levels.course, _LEAST_RATE * history.rates[:, np.newaxis])
    again = _told(history, pasts, unseen, unseen * rates)
    return filter_levels(replace(again, noise=told.noise), drift, rates)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The sketch of a block, with the cell and sign of each item of a tally."""

    block: int
    values: int
    cells: Floats
    where: NDArray[np.int64]
    signs: NDArray[np.int64]

    def ask(self, seen: Floats, hidden: Floats) -> tuple[Floats, Floats]:
        """Return the count of each item beyond what was `seen` of it, and its noise's variance.

        So many `hidden` tokens are expected of it. What was not in the sketch is 0 in both.
        """
        expected, half = seen + hidden, self.values / 2
        others = np.bincount(self.where, self.signs * expected, len(self.cells))
        left = np.mod(self.cells - others + half, self.values) - half
        # Chance moves what is expected in a cell by as much; the rest is of items nobody knows.
        crowd = np.bincount(self.where, hidden, len(self.cells))
        unknown = max(_LEAST_NOISE, float((left**2).mean() - crowd.mean()))
        noise = unknown + crowd[self.where] - hidden
        below = _BELOW * math.sqrt(unknown + crowd.mean())
        is_beyond = expected > self.values - 2 * below - 2
        low = np.where(is_beyond, expected - half, -below)
        read = left[self.where] * self.signs + expected
        return low + np.mod(read - low, self.values) - seen, noise


def _pasts(domain: Domain, tally: Tally, blocks: int) -> Iterator[_Asked]:
    found = [block for block in range(blocks) if _CELLS.format(block) in tally.arrays]
    keys = domain.keys_of(tally.items) if found else np.zeros((0, domain.chunks), np.uint64)
    for block in found:
        cells, about = tally.arrays[_CELLS.format(block)], tally.arrays[_ABOUT.format(block)]
        past = Past(cells=len(cells), bits=int(about[0]))
        where, signs = past.sketch(domain.chunks, about[1:].tobytes()).edges(keys)
        yield _Asked(block, 2**past.bits, cells.astype(np.float64), where[0], signs[0])


def _told(history: History, pasts: Sequence[_Asked], unseen: Floats, expected: Floats) -> History:
    told, noise = np.zeros_like(unseen), np.full_like(unseen, np.inf)
    for one in pasts:
        inside = unseen[:, one.block] > 0
        seen, hidden = (np.where(inside, of[:, one.block], 0.0) for of in (history.seen, expected))
        told[:, one.block], variances = one.ask(seen, hidden)
        noise[:, one.block] = np.where(inside, variances, np.inf)
    return replace(history, told=told, noise=noise)

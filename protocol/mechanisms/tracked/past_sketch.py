"""Past sketches: a sketch of the items that a round does not track, which is read later.

An item that is tracked from round r on was only sampled before, so that its estimate of c tokens
has a variance of c (t - 1). Each round therefore also adds all untracked items, unsampled, to a
signed sketch: one row of w small cells (`protocol/sketches/count_sketch.py`), with locations and
signs of the round. It cannot list items, but once an item is known, its count in each earlier round
is read from its cell:

    sign x cell  =  c + noise of variance F2 / w        F2: the sum of the others' squared counts

This is unbiased for any other items. Known tokens of other items are subtracted from
their cells first: the sampled ones, and the rest as their rates at that time predict. This
reduces F2 to about the number of tokens of the round. The noise is measured from the remaining
values of the cells; it is the same for all items.

A cell counts modulo 2^b. Of the counts with its remainder, the one in a window is used, which
begins `WINDOW_NOISE_SDS` standard deviations of noise below 0, or is around the expected count if
that is beyond. A device that lies about a cell is not detected; it moves one round of the items of
that cell by at most 2^b.

Sketch and table share the bytes of a round. At a given share, an item of the threshold, with tau /
R tokens per round, is first sampled after about 1 + t R / tau rounds, and each of these rounds
leaves a variance V, given its sample, its sketch and the other rounds. The share minimises
(1 + t R / tau)^2 V, with the square because an item that is discovered late may never be
discovered. With few words, the best share is none.

Source: the sketch and its variance are from [Charikar02]; keeping it for items that are not known
yet is ours.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.arrays import Floats
from protocol.domains.strings import Domain
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.rates import Drift, History, Levels, filter_levels
from protocol.model import PublicModel
from protocol.sketches.count_sketch import CountSketch
from protocol.study import StudyState, SumQuestion
from secagg.ring import Vector

MIN_SKETCH_CELL_BITS, MAX_SKETCH_CELL_BITS = 3, 16
_ROUNDING_TOLERANCE = 1e-9
_CELLS_ARRAY, _HEADER_ARRAY = "sketch {}", "sketch header {}"  # by block: cells; bits and seed


class PastSketch(PublicModel):
    """Size of the sketch of a round: its number of cells, and the bits of a cell."""

    cells: int = Field(ge=2, le=2**24)
    bits: int = Field(ge=MIN_SKETCH_CELL_BITS, le=MAX_SKETCH_CELL_BITS)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the sketch in a vector."""
        return -(-self.cells * self.bits // 8)

    def sketch(self, chunks: int, seed: bytes) -> CountSketch:
        """Return the sketch of a round with this `seed`, for keys of `chunks` chunks."""
        max_count = 2**self.bits - 1  # no bound on the counts: cells may wrap
        return CountSketch(1, self.cells, chunks, max_count, seed, seed, self.bits)


@dataclass(frozen=True, slots=True)
class SketchAllocation:
    """Division of a round's bytes between sketch and table."""

    question: SumQuestion
    rounds: int
    min_table_bytes: int = 0

    def best_sketch(
        self, tokens: float, nbytes: int, t_in: Callable[[int], float], first: bool = False
    ) -> PastSketch | None:
        """Return the best sketch for untracked `tokens`; None if it is not worth its bytes.

        `nbytes` are for sketch and table. The tokens are sampled at t = `t_in(bytes of the table)`.
        """
        ratio = tuning.MAX_FIRST_T_PER_THRESHOLD if first else tuning.MAX_T_PER_THRESHOLD
        max_t = self.question.threshold * ratio
        best, best_cost = None, _cost(self._tokens_per_round, t_in(nbytes), 0.0)
        for sketch in self._candidates(tokens, nbytes):
            table_bytes = nbytes - sketch.nbytes
            t = t_in(table_bytes)
            if table_bytes < self.min_table_bytes or t > max_t:
                break
            unsampled = max(1.0, tokens * (1 - 1 / t))
            cost = _cost(self._tokens_per_round, t, sketch.cells / unsampled)
            if cost < best_cost:
                best, best_cost = sketch, cost
        return best

    def _candidates(self, tokens: float, nbytes: int) -> Iterator[PastSketch]:
        for share in tuning.SKETCH_BYTE_SHARES:
            for bits in range(MIN_SKETCH_CELL_BITS, MAX_SKETCH_CELL_BITS + 1):
                cells = int(8 * share * nbytes) // bits
                variance = tuning.MAX_SKETCH_VARIANCE_PER_TOKEN * self._tokens_per_round
                if cells < tuning.MIN_SKETCH_CELLS or tokens > variance * cells:
                    break
                values = _cell_range(self._tokens_per_round, tokens / cells)
                if 2**bits >= values / tuning.CELL_RANGE_SLACK:
                    yield PastSketch(cells=cells, bits=bits)
                    break

    @property
    def _tokens_per_round(self) -> float:
        """Return the tokens per round of an item whose total is the threshold."""
        return self.question.threshold / self.rounds


def _cell_range(own: float, variance: float) -> float:
    """Return the number of values of a cell: twice an item's count, in noise."""
    noise = 2 * tuning.WINDOW_NOISE_SDS * math.sqrt(variance)
    count = tuning.OWN_COUNT_FACTOR * own
    return noise + count + tuning.OWN_COUNT_SDS * math.sqrt(count)


def _cost(own: float, t: float, precision: float) -> float:
    """Return the logarithm of (1 + t / own)^2 V; `precision` is 1 / variance of the sketch."""
    alone = min(own * (t - 1), tuning.OTHER_ROUNDS_VARIANCE_PER_TOKEN * own)
    if alone <= 0:
        return -math.inf
    return tuning.LATE_DISCOVERY_EXPONENT * math.log1p(t / own) - math.log(1 / alone + precision)


def store_sketch(
    state: StudyState, block: int, past: PastSketch, seed: bytes, cells: Vector
) -> StudyState:
    """Return `state` with the sketch of the one round of a block."""
    header = np.frombuffer(bytes([past.bits]) + seed, np.uint8)
    state = state.with_array(_CELLS_ARRAY.format(block), cells[0].astype(np.uint16))
    return state.with_array(_HEADER_ARRAY.format(block), header)


def estimate_levels(domain: Domain, state: StudyState, history: History, drift: Drift) -> Levels:
    """Return totals and rates of the items of `state`, from `history` and its sketches."""
    readers = list(_stored_sketches(domain, state, len(history.devices)))
    if not readers:
        return filter_levels(history, drift)
    unseen = _unseen_devices(history)
    expected = unseen * history.rates_between(drift.breaks)
    first = _with_sketch_counts(history, readers, unseen, expected)
    levels = filter_levels(first, drift)
    # The second pass subtracts the tokens of other items by the rates of the first pass. This also
    # removes some noise of the item itself, so the noise of the first pass is kept.
    min_rates = tuning.MIN_RATE_PER_MEAN * history.rates[:, np.newaxis]
    rates = np.maximum(levels.smoothed_rates, min_rates)
    second = _with_sketch_counts(history, readers, unseen, unseen * rates)
    return filter_levels(replace(second, sketch_variances=first.sketch_variances), drift, rates)


def with_sketch_counts(
    domain: Domain, state: StudyState, history: History, rates: Floats
) -> History:
    """Return `history` with the counts of the sketches of `state`, expected at `rates` (k, B)."""
    readers = list(_stored_sketches(domain, state, len(history.devices)))
    unseen = _unseen_devices(history)
    return _with_sketch_counts(history, readers, unseen, unseen * rates) if readers else history


def _unseen_devices(history: History) -> Floats:
    unseen = history.devices - history.exposure
    return np.where(unseen > _ROUNDING_TOLERANCE * history.devices, unseen, 0.0)


@dataclass(frozen=True, slots=True)
class _SketchReader:
    """The sketch of a block, with the cell and sign of each item of a study state."""

    block: int
    cell_values: int
    cells: Floats
    item_cells: NDArray[np.int64]
    signs: NDArray[np.int64]

    def read(self, observed: Floats, unseen: Floats) -> tuple[Floats, Floats]:
        """Return the count of each item beyond its `observed` tokens, and its variance.

        `unseen` are the expected tokens beyond them. Both inputs are 0 for items that are not in
        the sketch.
        """
        expected, half = observed + unseen, self.cell_values / 2
        known = np.bincount(self.item_cells, self.signs * expected, len(self.cells))
        residuals = np.mod(self.cells - known + half, self.cell_values) - half
        # Expected tokens have a variance as large as their number. The rest is of unknown items.
        known_variances = np.bincount(self.item_cells, unseen, len(self.cells))
        unknown_variance = float((residuals**2).mean() - known_variances.mean())
        unknown_variance = max(tuning.MIN_SKETCH_VARIANCE, unknown_variance)
        noise = unknown_variance + known_variances[self.item_cells] - unseen
        spread = math.sqrt(unknown_variance + known_variances.mean())
        below = tuning.WINDOW_NOISE_SDS * spread
        is_beyond = expected > self.cell_values - 2 * below - 2
        low = np.where(is_beyond, expected - half, -below)
        counts = residuals[self.item_cells] * self.signs + expected
        return low + np.mod(counts - low, self.cell_values) - observed, noise


def _stored_sketches(domain: Domain, state: StudyState, blocks: int) -> Iterator[_SketchReader]:
    stored = [block for block in range(blocks) if _CELLS_ARRAY.format(block) in state.arrays]
    keys = domain.keys_of(state.items) if stored else np.zeros((0, domain.chunks), np.uint64)
    for block in stored:
        cells = state.arrays[_CELLS_ARRAY.format(block)]
        header = state.arrays[_HEADER_ARRAY.format(block)]
        past = PastSketch(cells=len(cells), bits=int(header[0]))
        positions, signs = past.sketch(domain.chunks, header[1:].tobytes()).edges(keys)
        yield _SketchReader(block, 2**past.bits, cells.astype(np.float64), positions[0], signs[0])


def _with_sketch_counts(
    history: History, readers: Sequence[_SketchReader], unseen: Floats, expected: Floats
) -> History:
    counts, noise = np.zeros_like(unseen), np.full_like(unseen, np.inf)
    for reader in readers:
        block = reader.block
        inside = unseen[:, block] > 0
        observed, hidden = (
            np.where(inside, array[:, block], 0.0) for array in (history.observed, expected)
        )
        counts[:, block], variances = reader.read(observed, hidden)
        noise[:, block] = np.where(inside, variances, np.inf)
    return replace(history, sketch_counts=counts, sketch_variances=noise)

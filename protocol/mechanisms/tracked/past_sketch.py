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

A cell counts modulo q, so that it shows a count or one of its *aliases*, q or more away. q is 2^b,
or in a one-shot sum the smallest prime of 2^b or more that the committee can share. Of the two
counts that are nearest to the expected one, the more likely one is read, given how far the count
may be from its expectation, by chance and by drift, and given the noise. Where the other one has a
probability of more than `MAX_ALIAS_PROBABILITY`, or both are unlikely, the cell reveals nothing of
this item. A device that lies about a cell is not detected; it moves one round of the items of that
cell by at most q.

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

from protocol.domains import Domain
from protocol.estimation.history import History
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.rate_filter import Drift, Levels, filter_levels
from protocol.numerics.arrays import Flags, Floats
from protocol.public_model import PublicModel
from protocol.question_and_plan import SumQuestion
from protocol.sketches.count_sketch import CountSketch
from protocol.study_state import StudyState
from secagg.oneshot.moduli import PAIRWISE, Moduli
from secagg.ring import Lane, Vector

MIN_SKETCH_CELL_BITS, MAX_SKETCH_CELL_BITS = 3, 16
_ROUNDING_TOLERANCE = 1e-9
_CELLS_ARRAY, _HEADER_ARRAY = "sketch {}", "sketch header {}"  # by block: cells; q and seed
_MODULUS_BYTES, _SEED_BYTES = 4, 32


class PastSketch(PublicModel):
    """Size of the sketch of a round: its number of cells, and the bits b that q has at least."""

    cells: int = Field(ge=2, le=2**24)
    bits: int = Field(ge=MIN_SKETCH_CELL_BITS, le=MAX_SKETCH_CELL_BITS)

    def nbytes(self, moduli: Moduli) -> int:
        """Return the bytes of the sketch in a vector."""
        return moduli.lane_bytes(Lane(self.modulus(moduli), self.cells))

    def modulus(self, moduli: Moduli) -> int:
        """Return the modulus q of the cells."""
        return moduli.above(2**self.bits - 1)


def past_count_sketch(cells: int, q: int, chunks: int, seed: bytes) -> CountSketch:
    """Return the sketch of a round with this `seed`, for keys of `chunks` chunks."""
    max_count = q - 1  # no bound on the counts: cells may wrap
    return CountSketch(1, cells, chunks, max_count, seed, seed, q=q)


@dataclass(frozen=True, slots=True)
class SketchAllocation:
    """Division of a round's bytes between sketch and table, in lanes with `moduli` of the sum."""

    question: SumQuestion
    rounds: int
    moduli: Moduli = PAIRWISE
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
            table_bytes = nbytes - sketch.nbytes(self.moduli)
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
                q = self.moduli.above(2**bits - 1)
                cells = int(int(8 * share * nbytes) // self.moduli.element_bits(q))
                variance = tuning.MAX_SKETCH_VARIANCE_PER_TOKEN * self._tokens_per_round
                if cells < tuning.MIN_SKETCH_CELLS or tokens > variance * cells:
                    break
                values = _cell_range(self._tokens_per_round, tokens / cells)
                if q >= values / tuning.CELL_RANGE_SLACK:
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


def store_sketch(state: StudyState, block: int, q: int, seed: bytes, cells: Vector) -> StudyState:
    """Return `state` with the sketch of the one round of a block, whose cells are modulo `q`."""
    header = np.frombuffer(q.to_bytes(_MODULUS_BYTES, "big") + seed, np.uint8)
    state = state.with_array(_CELLS_ARRAY.format(block), cells[0].astype(np.min_scalar_type(q - 1)))
    return state.with_array(_HEADER_ARRAY.format(block), header)


def estimate_levels(domain: Domain, state: StudyState, history: History, drift: Drift) -> Levels:
    """Return totals and rates of the items of `state`, from `history` and its sketches.

    The variances of counts are those at the rates of a first pass. At the mean rate, items whose
    rates fall had rms errors of 1.5 standard errors, since they were sampled when they were common.
    """
    readers = list(_stored_sketches(domain, state, len(history.devices)))
    levels = filter_levels(history, drift)
    if not readers:
        return filter_levels(history, drift, limited_rates(history, levels.smoothed_rates))
    rates = limited_rates(history, levels.smoothed_rates)
    variances = drift.dispersion, filtered_rate_variances(history, drift, rates)
    first = _read_sketches(history, readers, rates, *variances)
    rates = limited_rates(history, filter_levels(first, drift).smoothed_rates)
    second = _read_sketches(history, readers, rates, *variances)
    # The second pass subtracts the tokens of other items by the rates of the first pass. This also
    # removes some noise of the item itself, so the noise of the first pass is kept.
    assert first.sketch_variances is not None
    assert second.sketch_variances is not None
    noise = np.where(np.isfinite(second.sketch_variances), first.sketch_variances, np.inf)
    return filter_levels(replace(second, sketch_variances=noise), drift, rates)


def with_sketch_counts(
    domain: Domain,
    state: StudyState,
    history: History,
    drift: Drift,
    rates: Floats,
    rate_variances: Floats,
) -> History:
    """Return `history` with the counts of the sketches of `state`, expected at `rates` (k, B).

    `rate_variances` (k, B) decide which counts are possible: a cell has the remainder of a count.
    """
    readers = list(_stored_sketches(domain, state, len(history.devices)))
    if not readers:
        return history
    rates = limited_rates(history, rates)
    return _read_sketches(history, readers, rates, drift.dispersion, rate_variances)


def limited_rates(history: History, rates: Floats) -> Floats:
    """Return `rates` (k, B), none of which is far below the mean rate of its item."""
    return np.maximum(rates, tuning.MIN_RATE_PER_MEAN * history.rates[:, np.newaxis])


def filtered_rate_variances(history: History, drift: Drift, rates: Floats) -> Floats:
    """Return the variances of `rates` (k, B), given the observed tokens of all blocks.

    Precisions add up: those by the blocks before, by the block itself, and by those after.
    """
    blocks = rates.shape[1]
    steps = [drift.breaks.get(block, math.hypot(drift.phi, drift.trend)) for block in range(blocks)]
    step_variances = (rates * steps) ** 2
    own = history.exposure / (drift.dispersion * rates)
    before, after = np.zeros_like(rates), np.zeros_like(rates)
    for block in range(1, blocks):
        known = before[:, block - 1] + own[:, block - 1]
        before[:, block] = known / (1 + known * step_variances[:, block])
        later = blocks - block
        known = after[:, later] + own[:, later]
        after[:, later - 1] = known / (1 + known * step_variances[:, later])
    variances: Floats = 1 / (before + own + after + 1 / (tuning.FIRST_RATE_SD * rates) ** 2)
    return variances


@dataclass(frozen=True, slots=True)
class _SketchReader:
    """The sketch of a block, with the cell and sign of each item of a study state."""

    block: int
    cell_values: int
    cells: Floats
    item_cells: NDArray[np.int64]
    signs: NDArray[np.int64]

    def read(self, observed: Floats, unseen: Floats, scatter: Floats) -> tuple[Floats, Floats]:
        """Return the count of each item beyond its `observed` tokens, and its variance.

        `unseen` are the expected tokens beyond them, with the variances `scatter`. All inputs are 0
        for items that are not in the sketch.
        """
        half = self.cell_values / 2
        known = np.bincount(self.item_cells, self.signs * (observed + unseen), len(self.cells))
        residuals = np.mod(self.cells - known + half, self.cell_values) - half
        # Expected tokens have a variance as large as their number. The rest is of unknown items.
        known_variances = np.bincount(self.item_cells, unseen, len(self.cells))
        wrapped = np.minimum(known_variances, self.cell_values**2 / 12)
        unknown_variance = float((residuals**2).mean() - wrapped.mean())
        unknown_variance = max(tuning.MIN_SKETCH_VARIANCE, unknown_variance)
        noise = unknown_variance + known_variances[self.item_cells] - unseen
        surprises = residuals[self.item_cells] * self.signs
        surprises, is_clear = _unwrapped(surprises, self.cell_values, unseen, scatter, noise)
        return unseen + surprises, np.where(is_clear, noise, np.inf)


def _unwrapped(
    surprises: Floats, cell_values: int, expected: Floats, scatter: Floats, noise: Floats
) -> tuple[Floats, Flags]:
    """Return the more likely of two counts, less `expected`, and whether it is clear."""
    others = surprises - np.copysign(cell_values, surprises)
    first, second = (
        np.exp(_log_likelihood(each, expected, scatter, noise)) for each in (surprises, others)
    )
    doubt = np.minimum(first, second) + tuning.FALSE_CELL_LIKELIHOOD
    is_clear = doubt < tuning.MAX_ALIAS_PROBABILITY * (first + second)
    return np.where(first >= second, surprises, others), is_clear


def _log_likelihood(surprises: Floats, expected: Floats, scatter: Floats, noise: Floats) -> Floats:
    """Return the logarithm of the likelihood of the `surprises` of cells, up to a constant.

    Above 0 it is that of a shifted gamma distribution with their variance and skewness, below that
    of the most likely normal count of 0 or more and normal noise.
    """
    scatter = np.maximum(scatter, _ROUNDING_TOLERANCE)
    variances = scatter + noise
    third_moments = scatter * np.maximum(
        2 * scatter / np.maximum(expected, _ROUNDING_TOLERANCE) - 1, 0
    )
    shapes = 4 / np.clip(third_moments / variances**1.5, *tuning.LIKELIHOOD_SKEWNESS) ** 2
    scaled = np.maximum(surprises, 0) / np.sqrt(variances / shapes)
    above = (shapes - 1) * np.log1p(scaled / shapes) - scaled
    at_zero = expected**2 / scatter + (surprises + expected) ** 2 / noise
    is_at_zero = surprises * scatter < -expected * variances
    below = np.where(is_at_zero, at_zero, surprises**2 / variances) / 2
    return np.where(surprises > 0, above, -below)


def _stored_sketches(domain: Domain, state: StudyState, blocks: int) -> Iterator[_SketchReader]:
    stored = [block for block in range(blocks) if _CELLS_ARRAY.format(block) in state.arrays]
    keys = domain.keys_of(state.items) if stored else np.zeros((0, domain.chunks), np.uint64)
    for block in stored:
        cells = state.arrays[_CELLS_ARRAY.format(block)]
        header = state.arrays[_HEADER_ARRAY.format(block)]
        head = header.tobytes()
        own, seed = head[:-_SEED_BYTES], head[-_SEED_BYTES:]
        # A study of an earlier version has the bits of q, a power of two, in one byte.
        q = 2 ** own[0] if len(own) == 1 else int.from_bytes(own, "big")
        positions, signs = past_count_sketch(len(cells), q, domain.chunks, seed).edges(keys)
        yield _SketchReader(block, q, cells.astype(np.float64), positions[0], signs[0])


def _read_sketches(
    history: History,
    readers: Sequence[_SketchReader],
    rates: Floats,
    dispersion: float,
    rate_variances: Floats,
) -> History:
    """Return `history` with the counts of the sketches, expected at `rates` (k, B)."""
    unseen = history.devices - history.exposure
    unseen = np.where(unseen > _ROUNDING_TOLERANCE * history.devices, unseen, 0.0)
    counts, noise = np.zeros_like(unseen), np.full_like(unseen, np.inf)
    for reader in readers:
        block = reader.block
        hidden = unseen[:, block]
        expected = hidden * rates[:, block]
        scatter = dispersion * expected + hidden**2 * rate_variances[:, block]
        observed = np.where(hidden > 0, history.observed[:, block], 0.0)
        counts[:, block], variances = reader.read(observed, expected, scatter)
        noise[:, block] = np.where(hidden > 0, variances, np.inf)
    return replace(history, sketch_counts=counts, sketch_variances=noise)

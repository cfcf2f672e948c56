"""Question and plan of `tracked`, and the sampling of untracked items at a t that follows the data.

The next t is the one at which the table would be nearly full. The table keeps a margin free, since
the number of keys varies around its expectation. t follows the expected number of devices; besides,
it changes by a factor of `MAX_T_FACTOR` at most. It stays below twice the t at which any data of
devices fits.

A table is sized for values up to `max_value`. At first this is a bound on what all tokens together
may reach (`iblt/sampled_table.py`). Once samples are known it is smaller: several times the
expected sum of all values, and enough for an item that was unknown so far.

The first t assumes that all tokens are different. A t that is 1.3 times lower raises F1 from 0.57
to 0.60 in one round of web words, but of 10,000 equal items, 1 of 6 tables is not read at 1.05.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, TypeAlias

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from protocol.domains import Domain
from protocol.domains.hashed import Hashed
from protocol.mechanisms.iblt.sampled_table import (
    MAX_CELLS,
    SampledTable,
    TableQuestion,
    cell_of_table,
    cells_in_bytes,
    check_size,
    likely_cell,
    likely_max_value,
    worst_case_threshold,
)
from protocol.mechanisms.iblt.threshold_sampling import ThresholdSampler, coarse_threshold
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.counters import CounterGroup, Counters
from protocol.mechanisms.tracked.phrases import StringCode
from protocol.mechanisms.tracked.split_counters import SplitCounters, SplitGroup
from protocol.mechanisms.tracked.string_fetching import FetchSchedule, StringPiece, StringPieces
from protocol.mechanisms.tracked.thinned_counts import LEVELS, table_class_limit, thin, window_doubt
from protocol.numerics.array_types import Indices, Integers, Keys
from protocol.question_and_plan import AUTO_BYTES, MAX_MESSAGE_BYTES, Plan, Terms
from protocol.randomness import RandomWords
from protocol.round_sizes import message_bytes
from protocol.sketches.iblt.layout import capacity, cells_for
from protocol.sketches.iblt.table import CellFormat, DecodedTable, Iblt
from secagg.oneshot.field import MAX_PRIME
from secagg.oneshot.moduli import Moduli
from secagg.ring import Lane, Ring, Vector

AnyCounters: TypeAlias = Counters | SplitCounters
PieceOfRow: TypeAlias = tuple[
    Annotated[int, Field(ge=0, lt=2**21)],
    Annotated[int, Field(ge=0, lt=4096)],
    Annotated[int, Field(ge=1, le=4096 + tuning.ESCAPE_DIGITS - 1)],
]
Phrase: TypeAlias = Annotated[str, Field(min_length=1, max_length=tuning.MAX_PHRASE_LENGTH)]


@dataclass(frozen=True, slots=True)
class ResidualSampling:
    """Sampling at threshold `t` into a table of values up to `max_value`.

    `moduli` are those of the round: in a one-shot sum they have its prime. All values of the table
    add up to about `expected_units`.
    """

    question: TableQuestion
    terms: Terms
    t: float
    max_value: int
    moduli: Moduli
    expected_units: float = 0.0

    @classmethod
    def first(cls, question: TableQuestion, terms: Terms) -> "ResidualSampling":
        """Return the sampling before the first round."""
        t, moduli = worst_case_threshold(question, terms), terms.moduli
        if moduli.min_prime:
            largest = likely_max_value(question, terms, t)
            moduli = moduli.fixed(likely_cell(question, moduli, largest).p)
        return cls(question, terms, t, 1, moduli).for_largest_values()

    @property
    def sampler(self) -> ThresholdSampler:
        return ThresholdSampler(self.t, self.question.contribution)

    def cells(self, nbytes: int) -> int:
        """Return the cells that fit in `nbytes`, or that one key needs if that is more."""
        return max(cells_for(1), cells_in_bytes(self._cell, nbytes))

    def table(self, cells: int, seed: bytes) -> SampledTable:
        return SampledTable(Iblt(cell_of_table(self._cell, cells), cells, seed), self.sampler)

    def for_largest_values(self) -> "ResidualSampling":
        """Return the sampling at the same t for the largest values, as after a failed round."""
        max_value = likely_max_value(self.question, self.terms, self.t)
        return replace(self, max_value=max_value, expected_units=float(max_value))

    @property
    def classes(self) -> int:
        """Return the classes of the table's keys with which a one-shot sum thins its values."""
        prime = self.moduli.prime
        return max(1, math.ceil(self.expected_units / table_class_limit(prime))) if prime else 0

    def has_room(self, nbytes: int) -> bool:
        """Return whether one key fits in `nbytes` beside the thinned values."""
        return cells_in_bytes(self._cell, nbytes - self._thinned_bytes) >= cells_for(1)

    def cells_and_classes(self, nbytes: int) -> int:
        """Return the cells that fit in `nbytes` beside the thinned values."""
        return self.cells(nbytes - self._thinned_bytes)

    @property
    def _thinned_bytes(self) -> int:
        if not self.classes:
            return 0
        return self.moduli.lane_bytes(Lane(self.moduli.prime, len(LEVELS) * self.classes))

    def next_round(
        self, keys: float, values: float, nbytes: int, devices_factor: float = 1.0
    ) -> "ResidualSampling":
        """Return the sampling into `nbytes`, given expected `keys` and `values` at this t.

        The expected number of devices has changed by `devices_factor`, and t may follow it.
        """
        limit = capacity(self.cells(nbytes))
        margin = tuning.TABLE_MARGIN_SDS * math.sqrt(limit)
        factor = keys / max(1.0, limit - margin) / devices_factor
        factor = float(np.clip(factor, 1 / tuning.MAX_T_FACTOR, tuning.MAX_T_FACTOR))
        t = self.t * devices_factor * factor
        t = min(coarse_threshold(max(1.0, t)), self._max_t)
        sampling = ThresholdSampler(t, self.question.contribution)
        units = values * self.sampler.unit / sampling.unit
        headroom = tuning.MIN_VALUE_HEADROOM * sampling.max_item_units
        expected = tuning.VALUE_HEADROOM * units + headroom
        all_tokens = likely_max_value(self.question, self.terms, t)
        max_value = int(min(all_tokens, max(expected, tuning.NEW_ITEM_TOKEN_SHARE * all_tokens)))
        return replace(self, t=t, max_value=max_value, expected_units=min(units, all_tokens))

    def readable_bytes(self, nbytes: int, last_t: float) -> int:
        """Return the bytes to which this table of `nbytes` may shrink while t follows."""
        most = min(tuning.MAX_T_FACTOR_FOR_STRINGS * last_t, self._max_t)
        limit, margin = capacity(self.cells_and_classes(nbytes)), tuning.TABLE_MARGIN_SDS
        keys = (limit - margin * math.sqrt(limit)) * min(1.0, self.t / most)
        cells = cells_for(math.ceil(max(1.0, keys + margin * math.sqrt(keys))))
        return cell_of_table(self._cell, cells).nbytes(cells) + self._thinned_bytes

    @property
    def _max_t(self) -> float:
        return tuning.MAX_T_PER_WORST_CASE * worst_case_threshold(self.question, self.terms)

    @property
    def _cell(self) -> CellFormat:
        largest = self.moduli.prime - 1 if self.moduli.prime else self.max_value
        return likely_cell(self.question, self.moduli, min(self.max_value, largest))


def _number_of_bytes(size: object) -> object:
    return AUTO_BYTES if size == "auto" else size


class TrackedQuestion(TableQuestion):
    """Question of `tracked`.

    Tables are used only if they are read whole, so hash bits would be useless. With `message_bytes`
    "auto", which are `AUTO_BYTES`, the analyst's program chooses them when it creates the study.
    """

    if TYPE_CHECKING:  # pydantic's own constructor takes the bytes as a number only

        def __init__(
            self,
            *,
            threshold: float,
            contribution: int,
            domain: Domain,
            message_bytes: int | Literal["auto"],
            confidence: float = 0.5,
            hash_bits: int = 0,
            mechanism: Literal["tracked"] = "tracked",
        ) -> None: ...

    fetches_strings: ClassVar[bool] = True

    mechanism: Literal["tracked"] = "tracked"
    message_bytes: Annotated[int, BeforeValidator(_number_of_bytes)] = Field(
        ge=AUTO_BYTES, le=MAX_MESSAGE_BYTES
    )
    hash_bits: int = Field(default=0, ge=0, le=24)


class TrackedPlan(Plan):
    """Plan of a round: count some items exactly, and sample the others at t into a table.

    `counter_groups` has the counted items, by the names of their domain. The table has `cells`
    cells, for values up to `max_value`. `string_pieces` are the pieces of strings to fetch, each by
    the row of its counted item, its first byte and the number of its digits, in the code of
    `phrases` (`phrases.py`). In a one-shot sum all elements are modulo `prime`, `counter_classes`
    has the number of counters of each class (`split_counters.py`), and the keys of the table are in
    `table_classes` classes (`thinned_counts.py`). A pairwise sum has none of them.
    """

    mechanism: Literal["tracked"] = "tracked"
    question: TrackedQuestion
    counter_groups: tuple[CounterGroup | SplitGroup, ...] = Field(default=(), max_length=64)
    counter_classes: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(), max_length=2**16)
    table_classes: int = Field(default=0, ge=0, le=2**16)
    prime: int = Field(default=0, ge=0, lt=MAX_PRIME)
    string_pieces: tuple[PieceOfRow, ...] = Field(default=(), max_length=2**16)
    phrases: tuple[Phrase, ...] = Field(default=(), max_length=tuning.MAX_PHRASES)
    cells: int = Field(ge=1, le=MAX_CELLS)
    max_value: int = Field(ge=1, le=2**31 - 1)

    @model_validator(mode="after")
    def _has_phrases_of_a_code(self) -> Self:
        are_enough = tuning.MIN_PHRASES <= len(self.phrases) == len(set(self.phrases))
        if self.phrases and not (self.string_pieces and are_enough):
            raise ValueError(
                f"phrases are for string_pieces, {tuning.MIN_PHRASES} different ones or more"
            )
        return self

    @model_validator(mode="after")
    def _fits_the_message(self) -> Self:
        kind = SplitGroup if self.terms.is_one_shot else CounterGroup
        if not all(isinstance(group, kind) for group in self.counter_groups):
            raise ValueError("counter_groups are those of another kind of sums")
        if bool(self.prime) != self.terms.is_one_shot:
            raise ValueError("a one-shot sum has a prime, and a pairwise sum has none")
        if bool(self.prime) != bool(self.table_classes):
            raise ValueError("a one-shot sum has table_classes, and a pairwise sum has none")
        counters = self.counters
        sizes = counters.counters if isinstance(counters, SplitCounters) else 0
        if sum(self.counter_classes) != sizes:
            raise ValueError(f"counter_classes of {sizes} counters expected")
        if self.prime and self.max_value >= self.prime:
            raise ValueError(f"values up to {self.max_value} wrap modulo the prime {self.prime}")
        rows = {row for row, *_ in self.string_pieces}
        if len(rows) < len(self.string_pieces) or max(rows, default=-1) >= len(counters.items):
            raise ValueError("string_pieces must name different items that are tracked")
        check_size(self.question, message_bytes(self.terms, self.ring))
        if len(set(self.counters.items)) < len(self.counters.items):
            raise ValueError("an item is tracked twice")
        return self

    def history_faults(self) -> Iterator[str]:
        """Yield each request that no earlier rounds can explain: items, fetches, or their number.

        Only the server knows the counts, so that a string may be fetched of any key that an honest
        study could fetch.
        """
        yield from super().history_faults()
        if self.round == 1 and self.counter_groups:
            yield "tracks items in the first round"
        if self.string_pieces:
            yield from self._fetch_faults()

    def _fetch_faults(self) -> Iterator[str]:
        domain, question = self.question.domain, self.question
        if not isinstance(domain, Hashed):
            yield "fetches strings of a domain without hashes"
            return
        end = max(start + size for _, start, size in self.string_pieces)
        if end > domain.max_bytes + tuning.ESCAPE_DIGITS - 1:
            yield f"fetches byte {end} of strings of {domain.max_bytes} bytes"
        if self.fetch_schedule.may_show_one_device:
            yield "fetches strings that one device alone may make heavy"
        tokens = self.rounds * self.terms.max_devices * question.contribution
        heavy = math.floor(tokens / question.threshold)
        if len(self.string_pieces) > 2 * heavy:  # twice, because honest counts are estimates
            yield f"fetches {len(self.string_pieces)} strings, and {heavy} items can be heavy"

    @property
    def sampler(self) -> ThresholdSampler:
        return self.residual.sampler

    @property
    def residual(self) -> ResidualSampling:
        units = self.table_classes * table_class_limit(self.prime)
        bounds = self.t, self.max_value
        return ResidualSampling(self.question, self.terms, *bounds, self.moduli, units)

    @property
    def moduli(self) -> Moduli:
        """Return the moduli of this round's lanes."""
        return self.terms.moduli.fixed(self.prime) if self.prime else self.terms.moduli

    @property
    def counters(self) -> AnyCounters:
        if self.terms.is_one_shot:
            split = [each for each in self.counter_groups if isinstance(each, SplitGroup)]
            return SplitCounters(tuple(split), self.counter_classes, self.moduli)
        groups = [each for each in self.counter_groups if isinstance(each, CounterGroup)]
        max_total = self.terms.max_devices * self.question.contribution
        return Counters(tuple(groups), max_total, bytes.fromhex(self.seed))

    @property
    def pieces(self) -> StringPieces:
        items = self.counters.items
        wanted = (StringPiece(items[row], *place) for row, *place in self.string_pieces)
        return self.fetch_schedule.pieces_of(tuple(wanted), self.moduli, StringCode(self.phrases))

    @property
    def fetch_schedule(self) -> FetchSchedule:
        return FetchSchedule(self.question, self.terms, self.rounds)

    @property
    def table(self) -> SampledTable:
        return self.residual.table(self.cells, bytes.fromhex(self.seed))

    @property
    def ring(self) -> Ring:
        """Return the ring: counters, strings if any, table, thinned values of a one-shot sum."""
        strings = (self.pieces.lane,) if self.string_pieces else ()
        classes = self.table_classes
        thinned = (Lane(self.prime, len(LEVELS) * classes),) if classes else ()
        return Ring((*self.counters.lanes, *strings, *self.table.iblt.ring.lanes, *thinned))

    def thin_table(self, keys: Keys, values: Integers, chance: RandomWords) -> Vector:
        """Return the thinned values of the table's keys by class, nothing in a pairwise sum."""
        if not self.table_classes:
            return ()
        classes = np.repeat(self._classes_of(keys), values)
        kept = thin(classes, chance(len(classes)), self.table_classes).ravel() % self.prime
        return (kept.astype(self.ring.lanes[-1].dtype),)

    def is_table_doubtful(self, listing: DecodedTable, total: Vector, participants: int) -> bool:
        """Return whether values that were read disagree with the thinned ones of the sum.

        Values above the prime look smaller by a multiple of it, or are missing. Devices that hold
        fewer values than the prime leave no doubt.
        """
        if not self.table_classes:
            return False
        sums = np.bincount(
            self._classes_of(listing.keys), listing.values, minlength=self.table_classes
        )
        most = self.sampler.max_units(participants * self.question.contribution)
        thinned = total[-1].astype(np.int64).reshape(len(LEVELS), -1).T
        for each, kept in zip(sums, thinned, strict=True):
            surprise, odds = window_doubt(int(each), self.prime, kept, most=most)
            if surprise > tuning.TABLE_SURPRISE or odds < tuning.TABLE_LOG_ODDS:
                return True
        return False

    def _classes_of(self, keys: Keys) -> Indices:
        fingerprints = self.table.iblt.family.fingerprint(keys)
        classes: Indices = (fingerprints % np.uint64(self.table_classes)).astype(np.int64)
        return classes

    def split(self, total: Vector) -> tuple[Vector, Vector, Vector]:
        """Return the lanes of counters, strings and table; the first two may be empty."""
        counters = len(self.counters.lanes)
        strings = counters + (1 if self.string_pieces else 0)
        return total[:counters], total[counters:strings], total[strings : strings + 2]

"""Question and plan of `tracked`, and the order of the lanes in its vectors."""

from typing import Literal, Self

from pydantic import Field, model_validator

from protocol.mechanisms.iblt.sampled_table import MAX_CELLS, SampledTable, TableQuestion
from protocol.mechanisms.tracked.counters import CounterGroup, Counters
from protocol.mechanisms.tracked.fetch_schedule import FetchSchedule
from protocol.mechanisms.tracked.past_sketch import PastSketch
from protocol.mechanisms.tracked.residual import ResidualSampling
from protocol.mechanisms.tracked.string_fetching import StringPiece, StringPieces
from protocol.sampling import ThresholdSampler
from protocol.sketches.count_sketch import CountSketch
from protocol.study import Plan
from secagg.ring import Ring, Vector


class TrackedQuestion(TableQuestion):
    """Question of `tracked`; `assume` is the model of the rounds that did not count an item.

    Tables are used only if they are read whole, so hash bits would be useless.
    """

    mechanism: Literal["tracked"] = "tracked"
    hash_bits: int = Field(default=0, ge=0, le=24)
    assume: Literal["drift", "stationary", "nothing"] = "drift"


class TrackedPlan(Plan):
    """Plan of a round: count some items exactly, and sample the others at t into a table.

    `counter_groups` has the counted items, by the names of their domain. The table has `cells`
    cells, for values up to `max_value`. `string_pieces` are the pieces of strings to fetch.
    """

    mechanism: Literal["tracked"] = "tracked"
    question: TrackedQuestion
    counter_groups: tuple[CounterGroup, ...] = Field(default=(), max_length=64)
    string_pieces: tuple[StringPiece, ...] = Field(default=(), max_length=2**16)
    past_sketch: PastSketch | None = None
    cells: int = Field(ge=1, le=MAX_CELLS)
    max_value: int = Field(ge=1, le=2**31 - 1)

    @model_validator(mode="after")
    def _fits_the_words(self) -> Self:
        nbytes = self.ring.nbytes
        if nbytes > self.question.nbytes:
            raise ValueError(f"{nbytes} bytes do not fit in {self.question.words} words")
        if len(set(self.counters.items)) < len(self.counters.items):
            raise ValueError("an item is tracked twice")
        names = [piece.name for piece in self.string_pieces]
        if len(set(names)) < len(names) or not set(names) <= self.counters.rows.keys():
            raise ValueError("string_pieces must name different items that are tracked")
        return self

    @property
    def sampler(self) -> ThresholdSampler:
        """Return the sampler of untracked items."""
        return self.residual.sampler

    @property
    def residual(self) -> ResidualSampling:
        """Return the sampling of untracked items into the table."""
        return ResidualSampling(self.question, self.terms, self.t, self.max_value)

    @property
    def counters(self) -> Counters:
        """Return the counters of the tracked items."""
        max_total = self.terms.max_devices * self.question.contribution
        return Counters(self.counter_groups, max_total, bytes.fromhex(self.seed))

    @property
    def pieces(self) -> StringPieces:
        """Return the pieces of strings that the round fetches."""
        return self.fetch_schedule.pieces_of(self.string_pieces)

    @property
    def fetch_schedule(self) -> FetchSchedule:
        """Return the schedule of the strings of the study."""
        return FetchSchedule(self.question, self.terms, self.rounds)

    @property
    def sketch(self) -> CountSketch | None:
        """Return the sketch of untracked items, if there is one."""
        seed = bytes.fromhex(self.seed)
        return (
            self.past_sketch.sketch(self.question.domain.chunks, seed) if self.past_sketch else None
        )

    @property
    def table(self) -> SampledTable:
        """Return the table of untracked items."""
        return self.residual.table(self.cells, bytes.fromhex(self.seed))

    @property
    def ring(self) -> Ring:
        """Return the ring: counters, strings and sketch if any, table."""
        strings = (self.pieces.lane,) if self.string_pieces else ()
        sketch = self.sketch
        sketch_lanes = sketch.ring.lanes if sketch else ()
        return Ring((*self.counters.lanes, *strings, *sketch_lanes, *self.table.iblt.ring.lanes))

    def split(self, total: Vector) -> tuple[Vector, Vector, Vector, Vector]:
        """Return the lanes of counters, strings, sketch and table; some may be empty."""
        counters = 3 * len(self.counter_groups)
        strings = counters + (1 if self.string_pieces else 0)
        sketch = strings + (1 if self.past_sketch else 0)
        return total[:counters], total[counters:strings], total[strings:sketch], total[sketch:]

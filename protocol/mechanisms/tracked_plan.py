"""What a round of `tracked` asks, and the lanes of its vectors, in their order (`tracked.py`)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from protocol.mechanism import Plan
from protocol.mechanisms.counters import Counters, Group
from protocol.mechanisms.fetching import Fetching
from protocol.mechanisms.hindsight import Past
from protocol.mechanisms.strings import Fetch, Fetches
from protocol.mechanisms.tables import MOST_CELLS, Table, TableQuestion
from protocol.mechanisms.untracked import Untracked
from protocol.sampling import Threshold
from protocol.sketches.count_sketch import CountSketch
from secagg.ring import Ring, Vector


class TrackedQuestion(TableQuestion):
    """Which items of `domain` are heavy; `assume` says what of the rounds that did not count.

    Tables count only if they are read whole, so that hash bits would be paid for in vain.
    """

    mechanism: Literal["tracked"] = "tracked"
    hash_bits: int = Field(default=0, ge=0, le=24)
    assume: Literal["drift", "stationary", "nothing"] = "drift"


class TrackedPlan(Plan):
    """Count the items of `groups`; sample the others at t into `cells`, of values to `most`.

    Items are named as their domain names them; `fetches` are pieces of strings to fetch.
    """

    mechanism: Literal["tracked"] = "tracked"
    question: TrackedQuestion
    groups: tuple[Group, ...] = Field(default=(), max_length=64)
    fetches: tuple[Fetch, ...] = Field(default=(), max_length=2**16)
    past: Past | None = Field(default=None, exclude_if=lambda past: past is None)
    cells: int = Field(ge=1, le=MOST_CELLS)
    most: int = Field(ge=1, le=2**31 - 1)

    @model_validator(mode="after")
    def _keeps_to_the_words(self) -> Self:
        nbytes = self.ring.nbytes
        if nbytes > self.question.nbytes:
            raise ValueError(f"{nbytes} bytes are more than {self.question.words} words")
        if len(set(self.counters.items)) < len(self.counters.items):
            raise ValueError("an item is tracked twice")
        names = [fetch.name for fetch in self.fetches]
        if len(set(names)) < len(names) or not set(names) <= self.counters.rows.keys():
            raise ValueError("strings are fetched once each, of items that are tracked")
        return self

    @property
    def threshold(self) -> Threshold:
        """Return how devices sample what is not tracked."""
        return self.untracked.threshold

    @property
    def untracked(self) -> Untracked:
        """Return how the table is filled."""
        return Untracked(self.question, self.terms, self.t, self.most)

    @property
    def counters(self) -> Counters:
        """Return the counters of what is tracked."""
        most = self.terms.devices * self.question.contribution
        return Counters(self.groups, most, bytes.fromhex(self.seed))

    @property
    def strings(self) -> Fetches:
        """Return the pieces of strings that are fetched."""
        return self.fetching.pieces(self.fetches)

    @property
    def fetching(self) -> Fetching:
        """Return how the study's strings are fetched."""
        return Fetching(self.question, self.terms, self.rounds)

    @property
    def sketch(self) -> CountSketch | None:
        """Return the sketch of what is not tracked, if there is one."""
        seed = bytes.fromhex(self.seed)
        return self.past.sketch(self.question.domain.chunks, seed) if self.past else None

    @property
    def table(self) -> Table:
        """Return the table of what is not."""
        return self.untracked.table(self.cells, bytes.fromhex(self.seed))

    @property
    def ring(self) -> Ring:
        """Return the ring of counters, strings and sketch if any, and table."""
        strings = (self.strings.lane,) if self.fetches else ()
        sketch = self.sketch
        past = sketch.ring.lanes if sketch else ()
        return Ring((*self.counters.lanes, *strings, *past, *self.table.iblt.ring.lanes))

    def split(self, total: Vector) -> tuple[Vector, Vector, Vector, Vector]:
        """Return the lanes of the counters, of strings and sketch if any, and of the table."""
        counters = 3 * len(self.groups)
        strings = counters + (1 if self.fetches else 0)
        past = strings + (1 if self.past else 0)
        return total[:counters], total[counters:strings], total[strings:past], total[past:]

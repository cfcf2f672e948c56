"""Track and discover: known items are counted exactly, and the table is left to new ones.

After a few rounds most of what devices hold is known. Each item that may be heavy by then is
*tracked*: it has a counter of a few bits (`counters.py`), which costs a tenth of a key in a
table and counts exactly. What is left is sampled at threshold t into an IBLT as ever
(`tables.py`), and since the frequent items are no longer in it, t is small and the rare are found.
Items are tracked from the round after their first sample on, as long as they may yet be heavy,
and their totals are estimated with the rounds before that in mind (`local_level.py`):

    assume = "drift"        rates move as much as they are seen to; where they do not, all rounds
                            speak for those in which an item was not counted (the default)
    assume = "stationary"   rates do not move
    assume = "nothing"      an item's count is what was counted and t times what was sampled:
                            unbiased whatever happens, since a round is planned before it is seen,
                            and rough

The next t is the one at which the table would be nearly full. What it would hold at the same t is
told by Good and Turing: of keys not seen before as many tokens as this time had one token each.

Items of a `hashed` domain are tracked by the names of their keys, and the strings of those that
are about to be heavy are fetched in pieces beside the counters (`strings.py`).

What devices learn: the list of tracked items, which is what the study knows so far, and, by the
width of an item's counter, about how frequent it is.

Source: subsampling and tables are [Gascon23]'s, missing mass [Good53]; tracking is ours.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from protocol.confidence import reaches
from protocol.hashed import Hashed
from protocol.local_level import STATIONARY, filter_levels
from protocol.mechanism import (
    WORD_BITS,
    Answer,
    Estimate,
    Histogram,
    Plan,
    Summing,
    SumQuestion,
    Terms,
    first_fields,
    ranked,
)
from protocol.mechanisms.counters import Counters, Group
from protocol.mechanisms.holdings import check_contribution, gather
from protocol.mechanisms.outlook import (
    Outlook,
    crowd,
    drift_of,
    expect,
    give_up,
    given_up,
    history_of,
    likely_heavy,
    remember,
    remember_slips,
    slipped,
    worth_tracking,
)
from protocol.mechanisms.strings import NUMBER_BYTES, Fetch, Fetches, Strings, numbers_for
from protocol.mechanisms.tables import (
    MOST_CELLS,
    Table,
    TableQuestion,
    check_words,
    fitting_cells,
    in_mode,
    least_bytes,
    likely,
    likely_cell,
    too_few,
    worst_threshold,
)
from protocol.sampling import Threshold
from protocol.sketches.capacity import capacity, cells_for
from protocol.sketches.iblt import Iblt, Listing
from protocol.tally import Tally
from secagg.ring import Ring, Vector

# Deviations of the number of keys that a table keeps free. Known keys do not help a tight one.
_SPARE = {"default": 1.0, "tight": 2.0}
_SHARE = 0.75  # of the bytes that counters may take
_FETCHED = 0.3  # of the bytes beside the counters that strings may take
_ONE_FETCHED = 0.5  # of those bytes that a single piece may take
_LEAST_FETCHED = _ONE_FETCHED * (1 - _SHARE)  # of all bytes, whatever the counters take
_FACTOR = 3.0  # that t changes by at most
_SURPRISE = 0.125  # of all tokens: what one item that nobody knew of may hold
_ROOM = 4.0  # by which more may be sampled than is expected, before the table cannot be read


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
    cells: int = Field(ge=1, le=MOST_CELLS)
    most: int = Field(ge=1, le=2**31 - 1)

    @model_validator(mode="after")
    def _keeps_to_the_words(self) -> Self:
        nbytes = _ring(self).nbytes
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
        return Threshold(self.t, self.question.contribution)

    @property
    def counters(self) -> Counters:
        """Return the counters of what is tracked."""
        most = self.terms.devices * self.question.contribution
        return Counters(self.groups, most, bytes.fromhex(self.seed))

    @property
    def strings(self) -> Fetches:
        """Return the pieces of strings that are fetched."""
        return Fetches(self.fetches, self.counters.most, _numbers(self))

    @property
    def table(self) -> Table:
        """Return the table of what is not."""
        cell = likely_cell(self.question, self.most, self.t)
        cell = in_mode(self.question, cell, self.cells)
        return Table(Iblt(cell, self.cells, bytes.fromhex(self.seed)), self.threshold)


class Tracked(Summing[TrackedQuestion, TrackedPlan]):
    """See the module's docstring."""

    name = "tracked"

    def first_plan(
        self, question: TrackedQuestion, terms: Terms, study: str, rounds: int, rng: Random
    ) -> TrackedPlan:
        """Return the plan of round 1, which tracks nothing.

        Raises:
            ValueError: if `words` do not hold a table of a few keys, or not the pieces that
                fetch the longest string in so many rounds; says how many do.
        """
        least = _piece_words(question, terms, rounds)
        check_words(question, terms, least=least)
        if question.words < least and isinstance(question.domain, Hashed):
            purpose = f"to fetch strings of {question.domain.max_bytes} bytes in {rounds} rounds"
            raise ValueError(f"{too_few(question, purpose, least)}, or fewer max_bytes")
        t = worst_threshold(question, terms)
        most = likely(question, terms, t)
        return TrackedPlan(
            **first_fields(question, terms, study, rounds, rng),
            t=t,
            cells=_cells(question, question.nbytes, most, t),
            most=most,
        )

    def ring(self, plan: TrackedPlan) -> Ring:
        """Return the ring of counters and table."""
        return _ring(plan)

    def encode_sum(
        self, plan: TrackedPlan, histograms: Iterable[Histogram], rng: np.random.Generator
    ) -> Vector:
        """Return the sum of the devices' vectors, bit for bit."""
        counters, name = plan.counters, plan.question.domain.name
        rows = counters.rows
        counts, rest = np.zeros(len(rows), dtype=np.int64), []
        fetched: list[tuple[str, str, int]] = []
        for histogram in histograms:
            check_contribution(histogram, plan.question.contribution)
            named = {item: name(item) for item in histogram}
            rest.append({i: held for i, held in histogram.items() if named[i] not in rows})
            for item, of in named.items():
                if of in rows:
                    counts[rows[of]] += histogram[item]
                    fetched.append((of, item, histogram[item]))
        held = gather(plan.question, rest)
        table = plan.table.insert(held, rng.random(len(held.counts)))
        strings = (plan.strings.encode(fetched),) if plan.fetches else ()
        return (*counters.encode(counts), *strings, *table)

    def fault(self, plan: TrackedPlan, total: Vector, participants: int) -> str | None:
        """Return which law `total` breaks: the counters' totals, or one of the table's.

        Noise in a counter of b bits breaks its group's law but for odds of 2^-b; the table's
        odds are in `Iblt.fault`. Not seen is a device that adds to a counter and its total, up
        to what all devices may hold; or to a string, which then does not hash to its key.
        """
        counters, _, table = _split(plan, total)
        found = plan.counters.fault(counters, participants * plan.question.contribution)
        return found or plan.table.iblt.fault(table, participants * plan.threshold.total)

    def decode(self, plan: TrackedPlan, total: Vector, participants: int, tally: Tally) -> Answer:
        """Return what was counted and what was sampled; the former also of an unread table."""
        in_counters, in_strings, in_table = _split(plan, total)
        counters, counted = plan.counters, list[Estimate]()
        if counters.items:
            # A plan may be older than the tally, which has given items up meanwhile.
            tally = tally.add([item for item in counters.items if item not in tally.rows], {})
            expected, _ = expect(tally, participants, counters.items)
            counts, slips = counters.decode(in_counters, expected)
            columns = counts.tolist(), counters.variances(slips).tolist()
            counted = list(map(Estimate, counters.items, *columns))
            tally = remember_slips(tally, counters.items, slips)
        listing = _read(plan, in_table, tally)
        sampled = None
        if listing.complete:
            found = plan.table.estimates(plan.question.domain, listing)
            sampled = [one for one in found if one.item not in counters.rows]
        after = remember(plan, tally, participants, counted, sampled)
        if plan.question.assume != "nothing":  # which adds up whatever was seen
            after = give_up(plan, after)
        domain = plan.question.domain
        if plan.fetches and isinstance(domain, Hashed):
            holders = {one.item: int(one.count) for one in counted}
            pieces = plan.strings.decode(in_strings[0], holders)
            after = Strings.of(domain, tally).add(pieces).keep(after)
        estimates = tuple(ranked([*counted, *(sampled or [])]))
        return Answer(listing.complete, listing.distinct, estimates, after)

    def is_readable(
        self, plan: TrackedPlan, total: Vector, participants: int, tally: Tally
    ) -> bool:
        """Return whether the table can be read; counters always can."""
        del participants
        return _read(plan, _split(plan, total)[2], tally).complete

    def next_plan(
        self, plan: TrackedPlan, answer: Answer | None, tally: Tally, rng: Random
    ) -> TrackedPlan:
        """Return the plan of the next round: who is tracked by now, and a t for the others."""
        question, terms = plan.question, plan.terms
        # A table is left whatever is tracked and fetched: what is new comes by no other way.
        least, outlook = least_bytes(question, terms), Outlook.of(plan, tally)
        spare = max(0, question.nbytes - least)
        groups = worth_tracking(outlook, min(spare, int(_SHARE * question.nbytes)))
        counters = Counters(groups, plan.counters.most)
        left = question.nbytes - sum(lane.nbytes for lane in counters.lanes)
        fetches = _to_fetch(outlook, counters, plan, left, least)
        strings = Fetches(fetches, counters.most, _numbers(plan))
        left -= strings.lane.nbytes if fetches else 0
        t, most = plan.t, likely(question, terms, plan.t)
        if answer is not None:
            keys, values = (crowd(tally) * of for of in _outside(plan, counters, answer))
            room = capacity(_cells(question, left, plan.most, plan.t))
            t *= float(np.clip(keys / _aim(room, question.table), 1 / _FACTOR, _FACTOR))
            t = min(max(1.0, t), 2 * worst_threshold(question, terms))
            sampling = Threshold(t, question.contribution)
            units = values * plan.threshold.unit / sampling.unit
            room_for = _ROOM * units + 16 * sampling.bound
            everybody = likely(question, terms, t)
            most = int(min(everybody, max(room_for, _SURPRISE * everybody)))
        cells = _cells(question, left, most, t)
        return plan.following(rng, groups=groups, fetches=fetches, t=t, cells=cells, most=most)

    def conclude(self, question: TrackedQuestion, tally: Tally) -> list[Estimate]:
        """Return the items whose totals reach the threshold, by the assumption asked for.

        An item whose string was not fetched goes by the name of its key.
        """
        found = self._heavy(question, tally)
        if not isinstance(question.domain, Hashed):
            return found
        whole = Strings.of(question.domain, tally).whole
        return [replace(one, item=whole.get(one.item, one.item)) for one in found]

    def _heavy(self, question: TrackedQuestion, tally: Tally) -> list[Estimate]:
        if question.assume == "nothing" or not tally.items:
            return super().conclude(question, tally)
        history = history_of(tally)
        drift = drift_of(tally) if question.assume == "drift" else STATIONARY
        levels = filter_levels(history, drift)
        spread = levels.variances + slipped(tally)
        certain = question.threshold, question.confidence
        heavy = np.flatnonzero(reaches(levels.totals, spread, *certain))
        totals, variances = levels.totals[heavy].tolist(), spread[heavy].tolist()
        items = [tally.items[row] for row in heavy.tolist()]
        return ranked(map(Estimate, items, totals, variances))


def _ring(plan: TrackedPlan) -> Ring:
    strings = (plan.strings.lane,) if plan.fetches else ()
    return Ring((*plan.counters.lanes, *strings, *plan.table.iblt.ring.lanes))


def _split(plan: TrackedPlan, total: Vector) -> tuple[Vector, Vector, Vector]:
    """Return the lanes of the counters, that of the strings if any, and those of the table."""
    counters = 3 * len(plan.groups)
    strings = counters + (1 if plan.fetches else 0)
    return total[:counters], total[counters:strings], total[strings:]


def _read(plan: TrackedPlan, table: Vector, tally: Tally) -> Listing:
    rows = plan.counters.rows
    untracked = [item for item in tally.items if item not in rows]
    known = plan.question.domain.keys_of(untracked), given_up(plan, tally)
    return plan.table.iblt.list_entries(table, np.unique(np.concatenate(known), axis=0))


def _to_fetch(
    outlook: Outlook, counters: Counters, plan: TrackedPlan, nbytes: int, table: int
) -> tuple[Fetch, ...]:
    """Return the next pieces of the strings of items that will be heavy, the heaviest first.

    `nbytes` are what counters leave for them and a table, which takes `table` at least.
    """
    domain = plan.question.domain
    if not isinstance(domain, Hashed) or not counters.items:
        return ()
    strings = Strings.of(domain, outlook.tally)
    missing = [name for name in likely_heavy(outlook) if name in counters.rows]
    missing = [name for name in missing if name not in strings.whole]
    numbers = _numbers(plan)
    fetches = tuple(strings.next_piece(name, numbers) for name in missing)
    wanted = Fetches(fetches, counters.most, numbers)
    one = min(1, wanted.fitting(int(_ONE_FETCHED * nbytes)))
    fitting = max(one, wanted.fitting(int(_FETCHED * nbytes)))
    fitting = min(fitting, wanted.fitting(max(0, nbytes - table)))
    to_come = len(fetches) * strings.pieces(numbers)
    pace = math.ceil(2 * to_come / max(1, plan.rounds - plan.round))
    return fetches[: min(fitting, pace)]


def _piece_words(question: SumQuestion, terms: Terms, rounds: int) -> int:
    """Return the words that fetch the longest string, from the second round on; 0 if none is."""
    if not isinstance(question.domain, Hashed):
        return 0
    least = -(-question.domain.max_bytes // (NUMBER_BYTES * max(1, rounds - 1)))
    one = Fetches((Fetch(name="", piece=0),), terms.devices * question.contribution, least)
    return math.ceil(8 * one.lane.nbytes / _LEAST_FETCHED / WORD_BITS)


def _most_numbers(question: SumQuestion, terms: Terms) -> int:
    """Return the numbers of a piece that fits whatever the counters take."""
    bits = Fetches((), terms.devices * question.contribution, 1).lane.bits
    return int(8 * _LEAST_FETCHED * question.nbytes) // bits


def _numbers(plan: TrackedPlan) -> int:
    domain = plan.question.domain
    if not isinstance(domain, Hashed):
        return 1
    most = _most_numbers(plan.question, plan.terms)
    return max(1, min(numbers_for(domain, plan.rounds), most))


def _cells(question: SumQuestion, nbytes: int, most: int, t: float) -> int:
    """Return the cells that fit in `nbytes`, and at least those of one key."""
    fitting = fitting_cells(question, likely_cell(question, most, t), nbytes)
    return max(cells_for(1), fitting)


def _aim(room: int, mode: Literal["default", "tight"]) -> float:
    """Return how many keys to expect in a table that has room for so many."""
    return max(1.0, room - _SPARE[mode] * math.sqrt(room))


def _outside(plan: TrackedPlan, counters: Counters, answer: Answer) -> tuple[float, float]:
    """Return the keys, and their values, that the next table would hold at the same t.

    Those that will not be tracked, as often as they were sampled; and for each that was
    sampled once, whether or not it will be, one that was not seen yet.
    """
    if not answer.decoded:
        return answer.distinct, math.inf
    keys, values, threshold, counted = 0, 0.0, plan.threshold, plan.counters.rows
    for one in answer.estimates:
        if one.item not in counted:
            is_single = one.count / threshold.mean < 1.5
            if is_single or one.item not in counters.rows:
                keys += 1
                values += one.count / threshold.unit
    return max(keys, 1), values

"""Track and discover: known items are counted exactly, and the table is left to new ones.

After a few rounds most of what devices hold is known. Each item that may be heavy by then is
*tracked*: it has a counter of a few bits (`counters.py`), which costs a tenth of a key in a
table and counts exactly. What is left is sampled at threshold t into an IBLT (`untracked.py`) as
ever, and since the frequent items are no longer in it, t is small and the rare are found.
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
are about to be heavy are fetched in pieces beside the counters (`strings.py`, `fetching.py`).

What devices learn: the list of tracked items, which is what the study knows so far, and, by the
width of an item's counter, about how frequent it is.

Source: subsampling and tables are [Gascon23]'s, missing mass [Good53]; tracking is ours.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
from numpy.typing import NDArray

from protocol.chance import Chance, uniforms
from protocol.confidence import reaches
from protocol.hashed import Hashed
from protocol.histograms import Items
from protocol.local_level import STATIONARY
from protocol.mechanism import (
    Answer,
    Estimate,
    Histogram,
    Summing,
    Terms,
    first_fields,
    ranked,
)
from protocol.mechanisms.counters import Counters
from protocol.mechanisms.fetching import COUNTED, Fetching
from protocol.mechanisms.hindsight import Past, Sharing, keep_past, levels_of
from protocol.mechanisms.holdings import Holdings, gather
from protocol.mechanisms.outlook import (
    MOST_BLOCKS,
    Outlook,
    crowd,
    drift_of,
    expect,
    give_up,
    given_up,
    history_of,
    likely_from,
    remember,
    remember_slips,
    slipped,
    worth_tracking,
)
from protocol.mechanisms.strings import Strings
from protocol.mechanisms.tables import check_words, least_bytes
from protocol.mechanisms.tracked_plan import TrackedPlan, TrackedQuestion
from protocol.mechanisms.untracked import Untracked
from protocol.sketches.iblt import Listing
from protocol.tally import Tally
from secagg.ring import Ring, Vector

__all__ = ["Tracked", "TrackedPlan", "TrackedQuestion"]


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
        fetching = Fetching(question, terms, rounds)
        check_words(question, terms, least=fetching.least_words)
        fetching.check_words()
        tokens = float(terms.devices * question.contribution)
        sampling = partial(Untracked.first, question, terms)
        left, past = question.nbytes, None
        if _asks_later(question, rounds):
            sharing = Sharing(question, rounds)
            past = sharing.past(tokens, left, lambda size: sampling(size).t, first=True)
        left -= past.nbytes if past else 0
        untracked = sampling(left)
        return TrackedPlan(
            **first_fields(question, terms, study, rounds, rng),
            t=untracked.t,
            past=past,
            cells=untracked.cells(left),
            most=untracked.most,
        )

    def ring(self, plan: TrackedPlan) -> Ring:
        """Return the ring of counters and table."""
        return plan.ring

    def encode_sum(
        self, plan: TrackedPlan, histograms: Iterable[Histogram], chance: Chance
    ) -> Vector:
        """Return the sum of the devices' vectors, bit for bit."""
        counters, whole = plan.counters, gather(plan.question, histograms)
        held, items = whole.held, whole.held.items
        names = items.made("names", plan.question.domain, lambda: _names(plan, items))
        rows = items.made("rows", plan, lambda: _rows(plan, names))
        totals = held.sums(held.counts)
        tracked = np.flatnonzero((rows >= 0) & (totals > 0))
        counts = np.zeros(len(counters.rows), dtype=np.int64)
        np.add.at(counts, rows[tracked], totals[tracked])
        fetched = (
            [(names[i], items[i], int(totals[i])) for i in tracked.tolist()] if plan.fetches else []
        )
        rest = held.counted(np.where(rows[held.which] < 0, held.counts, 0))
        untracked, sketch = Holdings(rest, whole.keys), plan.sketch
        table = plan.table.insert(untracked, uniforms(chance, len(rest.counts)))
        strings = (plan.strings.encode(fetched),) if plan.fetches else ()
        past = sketch.insert(*untracked.sums(rest.counts)) if sketch else ()
        return (*counters.encode(counts), *strings, *past, *table)

    def fault(self, plan: TrackedPlan, total: Vector, participants: int) -> str | None:
        """Return which law `total` breaks: the counters' totals, or one of the table's.

        Noise in a counter of b bits breaks its group's law but for odds of 2^-b; the table's
        odds are in `Iblt.fault`. Not seen is a device that adds to a counter and its total, up
        to what all devices may hold; or to a string, which then does not hash to its key.
        """
        counters, _, _, table = plan.split(total)
        found = plan.counters.fault(counters, participants * plan.question.contribution)
        return found or plan.table.iblt.fault(table, participants * plan.threshold.total)

    def decode(self, plan: TrackedPlan, total: Vector, participants: int, tally: Tally) -> Answer:
        """Return what was counted and what was sampled; the former also of an unread table."""
        in_counters, in_strings, in_past, in_table = plan.split(total)
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
        if plan.past:
            seed = bytes.fromhex(plan.seed)
            after = keep_past(after, plan.round - 1, plan.past, seed, in_past)
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
        return _read(plan, plan.split(total)[3], tally).complete

    def next_plan(
        self, plan: TrackedPlan, answer: Answer | None, tally: Tally, rng: Random
    ) -> TrackedPlan:
        """Return the plan of the next round: who is tracked by now, and a t for the others."""
        question, terms = plan.question, plan.terms
        # A table is left whatever is tracked and fetched: what is new comes by no other way.
        least, outlook = least_bytes(question, terms), Outlook.of(plan, tally)
        spare = max(0, question.nbytes - least)
        groups = worth_tracking(outlook, min(spare, int(COUNTED * question.nbytes)))
        counters = Counters(groups, plan.counters.most)
        left = question.nbytes - sum(lane.nbytes for lane in counters.lanes)
        strings = plan.fetching.following(outlook, counters, left, least)
        left -= strings.lane.nbytes if strings.wanted else 0
        past, untracked = _uncounted(plan, answer, tally, counters, (left, least))
        left -= past.nbytes if past else 0
        return plan.following(
            rng,
            groups=groups,
            fetches=strings.wanted,
            past=past,
            t=untracked.t,
            cells=untracked.cells(left),
            most=untracked.most,
        )

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
        levels = levels_of(question.domain, tally, history, drift)
        spread = levels.variances + slipped(tally)
        certain = likely_from(question.threshold), question.confidence
        heavy = np.flatnonzero(reaches(levels.totals, spread, *certain))
        totals, variances = levels.totals[heavy].tolist(), spread[heavy].tolist()
        items = [tally.items[row] for row in heavy.tolist()]
        return ranked(map(Estimate, items, totals, variances))


def _names(plan: TrackedPlan, items: Items) -> list[str]:
    """Return the name of each item, of one outside the domain nothing: nobody holds it."""
    domain = plan.question.domain
    return [domain.name(item) if item in domain else "" for item in items]


def _rows(plan: TrackedPlan, names: list[str]) -> NDArray[np.int64]:
    """Return the counter of each name, -1 if it has none."""
    rows = plan.counters.rows
    return np.array([rows.get(name, -1) for name in names], np.int64)


def _read(plan: TrackedPlan, table: Vector, tally: Tally) -> Listing:
    rows = plan.counters.rows
    untracked = [item for item in tally.items if item not in rows]
    known = plan.question.domain.keys_of(untracked), given_up(plan, tally)
    return plan.table.iblt.list_entries(table, np.unique(np.concatenate(known), axis=0))


def _asks_later(question: TrackedQuestion, rounds: int) -> bool:
    """Return whether a past would be asked for; a block of the tally has one sketch at most."""
    return question.assume != "nothing" and rounds <= MOST_BLOCKS


def _uncounted(
    plan: TrackedPlan,
    answer: Answer | None,
    tally: Tally,
    counters: Counters,
    room: tuple[int, int],
) -> tuple[Past | None, Untracked]:
    """Return how the next round sees what it does not count, in `room`: all bytes, a table's least.

    After a round without an answer that is as before, as far as there is room.
    """
    nbytes, least = room
    if answer is None:
        fits = plan.past is not None and nbytes - plan.past.nbytes >= least
        return plan.past if fits else None, plan.untracked.unheard()
    keys, values = (crowd(tally) * of for of in _outside(plan, counters, answer))
    sampling, past = partial(plan.untracked.following, keys, values), None
    if _asks_later(plan.question, plan.rounds):
        # Of a table that was not read, no more is known than how many keys were in it.
        tokens = (values if math.isfinite(values) else keys) * plan.threshold.unit
        sharing = Sharing(plan.question, plan.rounds, least)
        past = sharing.past(tokens, nbytes, lambda size: sampling(size).t)
    return past, sampling(nbytes - (past.nbytes if past else 0))


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

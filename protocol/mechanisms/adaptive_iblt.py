"""The adaptive subsampled IBLT: heavy hitters through a table that only the common ones enter.

Each device samples its histogram at threshold t (`sampling.py`) and inserts what is left
into an IBLT (`sketches/iblt.py`). The sum of the tables lists each sampled item with its
summed value, an unbiased estimate of its count. A table holds L0 keys
(`sketches/capacity.py`), so t must be so large that at most about L0 distinct items are
sampled, and no larger, since an item of count N is estimated with variance up to
N (E[T] - 1). So t adapts to the data:

    t_1  =  max(1, n m / L0)        at most L0 items expected, whatever devices hold

and then as `rule` says, with the number of distinct items in the sum, exact if it decoded, else
estimated from the stuck core: `pace.py` has the paper's rule and a better one. After a round
without a sum t stays. Items that earlier rounds listed help to decode (`sketches/memory.py`).

Source: Algorithm 4 and section 7 of [Gascon23]. The paper's fixed rule caps t at threshold / 2, to
keep heavy hitters in at least one round with odds of 1 - e^-2. We do not: a table that is
over-full at that t gives no estimate at all, where a larger t gives an unbiased one with a
variance that is told. Our cap is 2 t_1: honest devices never need more, garbage in the sum could
ask for it.
"""

import math
from collections.abc import Iterable
from random import Random
from typing import Literal, Self

from pydantic import Field, model_validator

from protocol.chance import Chance, uniforms
from protocol.mechanism import Answer, Histogram, Plan, Summing, Terms, add_estimates, first_fields
from protocol.mechanisms.holdings import gather
from protocol.mechanisms.pace import Pace, Rule, Seen, first, halfway
from protocol.mechanisms.tables import (
    MOST_CELLS,
    Table,
    TableQuestion,
    check_words,
    most_cells,
    table,
    words,
    worst_threshold,
)
from protocol.sampling import Threshold
from protocol.sketches.capacity import capacity
from protocol.sketches.iblt import Listing
from protocol.tally import Tally
from secagg.ring import Ring, Vector

_PACE = "pace"  # of a tally: what is foretold of the next round


class AdaptiveIbltQuestion(TableQuestion):
    """Which items of `domain` are heavy, told in at most `words` words a device.

    The sampling threshold follows the data by `rule`.
    """

    mechanism: Literal["adaptive-iblt"] = "adaptive-iblt"
    rule: Rule = "steady"


class AdaptiveIbltPlan(Plan):
    """Sample at threshold `t` (the paper's t, not tau), insert into a table of `cells`."""

    mechanism: Literal["adaptive-iblt"] = "adaptive-iblt"
    question: AdaptiveIbltQuestion
    cells: int = Field(ge=1, le=MOST_CELLS)

    @model_validator(mode="after")
    def _keeps_to_the_words(self) -> Self:
        if words(self.question, self.terms, self.t, self.cells) > self.question.words:
            most = most_cells(self.question, self.terms, self.t)
            raise ValueError(
                f"{self.cells} cells do not fit in {self.question.words} words; {most} do"
            )
        _table(self)
        return self

    @property
    def threshold(self) -> Threshold:
        """Return how devices sample."""
        return Threshold(self.t, self.question.contribution)


class AdaptiveIblt(Summing[AdaptiveIbltQuestion, AdaptiveIbltPlan]):
    """See the module's docstring."""

    name = "adaptive-iblt"

    def first_plan(
        self, question: AdaptiveIbltQuestion, terms: Terms, study: str, rounds: int, rng: Random
    ) -> AdaptiveIbltPlan:
        """Return the plan of round 1, with t_1 from the most that devices could hold.

        Raises:
            ValueError: if `words` do not hold a table of `LEAST_CAPACITY` keys; says how many
                do. Also if the devices' counts may add up to 2^31 or more.
        """
        check_words(question, terms)
        t = worst_threshold(question, terms)
        return AdaptiveIbltPlan(
            **first_fields(question, terms, study, rounds, rng),
            t=t,
            cells=most_cells(question, terms, t),
        )

    def ring(self, plan: AdaptiveIbltPlan) -> Ring:
        """Return the ring of the round's tables."""
        return _table(plan).iblt.ring

    def encode_sum(
        self, plan: AdaptiveIbltPlan, histograms: Iterable[Histogram], chance: Chance
    ) -> Vector:
        """Return the sum of the devices' tables, bit for bit, inserting each item once."""
        held = gather(plan.question, histograms)
        return _table(plan).insert(held, uniforms(chance, len(held.counts)))

    def fault(self, plan: AdaptiveIbltPlan, total: Vector, participants: int) -> str | None:
        """Return which of the table's laws `total` breaks; `Iblt.fault` has them and the odds.

        Not seen is a device that adds and subtracts honest tables: it may make items up, take
        counts from others' items, or spoil cells so that the sum cannot be read. It gains no
        more counts than all devices may insert, of which honest ones, as they sample, use
        some 1 / t.
        """
        return _table(plan).iblt.fault(total, participants * plan.threshold.total)

    def decode(
        self, plan: AdaptiveIbltPlan, total: Vector, participants: int, tally: Tally
    ) -> Answer:
        """Return the estimates in `total`, highest first, or how full the table was."""
        full = _table(plan)
        known = plan.question.domain.keys_of(tally.items)
        listing = full.iblt.list_entries(total, known)
        tally = _remember(plan, listing, participants, tally)
        if not listing.complete:
            return Answer(False, listing.distinct, tally=tally)
        found = full.estimates(plan.question.domain, listing)
        return Answer(True, listing.distinct, tuple(found), add_estimates(tally, found))

    def next_plan(
        self, plan: AdaptiveIbltPlan, answer: Answer | None, tally: Tally, rng: Random
    ) -> AdaptiveIbltPlan:
        """Return the plan of the next round: another seed, and t as the rule says."""
        t, room = plan.t, capacity(plan.cells)
        if answer is not None and plan.question.rule == "paper":
            t = halfway(t, answer.distinct, room)
        elif answer is not None and _PACE in tally.arrays:
            t = Pace.unpack(tally.arrays[_PACE]).threshold(room)
        t = min(max(1.0, t), 2 * worst_threshold(plan.question, plan.terms))
        return plan.following(rng, t=t, cells=most_cells(plan.question, plan.terms, t))


def _remember(plan: AdaptiveIbltPlan, listing: Listing, devices: int, tally: Tally) -> Tally:
    """Return `tally` with what the round foretells of the next."""
    if plan.question.rule == "paper":
        return tally
    once = 1 if plan.threshold.unit > 1 else math.ceil(plan.t)  # what one sampled token counts
    single = int((listing.values <= once).sum()) if listing.complete else None
    seen = Seen(plan.t, devices, listing.distinct, single)
    before = tally.arrays.get(_PACE)
    pace = first(seen) if before is None else Pace.unpack(before).after(seen)
    return tally.keep(_PACE, pace.pack())


def _table(plan: AdaptiveIbltPlan) -> Table:
    return table(plan.question, plan.terms, plan.t, plan.cells, bytes.fromhex(plan.seed))

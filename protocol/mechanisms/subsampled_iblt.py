"""The subsampled IBLT: b tables of one round, at one fixed threshold t, and a vote over the study.

Each device samples its histogram b times over, each time with fresh chance, and inserts each
sample into a table with hash functions of its own. A *repetition* is one of the b tables in
every round. An item is on a repetition's list if any of its tables that were read whole holds
it, and it is heavy if at least b / 2 lists have it. Two rules for t, b and the tables' room L0:

    theorem     t = max(1, tau / 2),  b = max(260, ceil(20 ln(40 m n R / (tau beta)))),
                L0 = 2 m n / tau ln R: with odds of 1 - beta, every item held tau times or more
                over all rounds is heavy, and none that is held at most tau / 10 times is
    practical   t = max(1, min(n m / L0, tau / 2)) with the largest table that the words hold,
                b = 1, and heavy is what is *estimated* to be held tau times. Or the analyst
                names t: with t = 1 nothing is sampled away

Estimates are means over the repetitions that were read, and add up over rounds.

Source: Algorithm 2, theorem 1 with appendix A, and section 7 of [Gascon23]. The paper prints
two values of b and two of L0; ours are those that its proof uses:

    b     the box has ceil(10 ln(4 m n R / (tau beta))). The proof needs 20 ln(40 ..) and b >= 260
          for its bound (2) on light items. (By Hoeffding, 10 ln(4 ..) would do: an item is voted
          on wrongly with odds of at most e^(-0.18 b), as a heavy one is on a list with odds of
          4/5 and a light one of 1/5, and there are at most 21 m n R / tau of both.)
    L0    the box has 20 m n / tau ln R, lemma 4 proves 2 m n / tau ln R for R > 32 and m n >
          4 tau. It writes 1 / tau for the odds of a token, which t = tau / 2 keeps with odds
          2 / tau; the bound stands: mu = 2 m n / tau >= 8 tokens are expected, and mu ln R exceeded
          with odds of e^-mu(ln R ln ln R - ln R + 1) < 1 / (32 R). Elsewhere we take R = 33 and
          m n = 4 tau
    k     the box has gamma = ln R hash functions, so that a table fails with odds 1 / (32 R). Most
          of our keys have three cells, and we make the table so large that no two of mu keys share
          all of theirs with those odds: mu^2 / 2 (3 / cells)^3 <= 1 / (32 R)
"""

import math
from collections.abc import Iterable
from random import Random
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from protocol.chance import Chance
from protocol.mechanism import (
    COUNT,
    VARIANCE,
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
from protocol.mechanisms.holdings import gather
from protocol.mechanisms.repetitions import Repetitions, elected
from protocol.mechanisms.tables import (
    MOST_CELLS,
    check_words,
    most_cells,
    table,
    words,
    worst_threshold,
)
from protocol.sketches.capacity import cells_for
from protocol.tally import Tally
from secagg.ring import Ring, Vector

MOST_TABLES = 10_000


class SubsampledIbltQuestion(SumQuestion):
    """Which items are heavy, told in at most `words` words a device, sampled alike in each round.

    `rule` chooses t, b and the tables' size; `beta` is the failure probability of the theorem.
    `t` names the threshold in the place of the practical rule's; `repetitions` names b in the
    place of the theorem's, which then does not hold.
    """

    mechanism: Literal["subsampled-iblt"] = "subsampled-iblt"
    rule: Literal["practical", "theorem"] = "practical"
    t: float | None = Field(default=None, ge=1, le=1e15)
    beta: float = Field(default=0.05, gt=0, lt=1)
    repetitions: int | None = Field(default=None, ge=1, le=MOST_TABLES)

    @model_validator(mode="after")
    def _is_of_one_rule(self) -> Self:
        if self.rule == "theorem" and self.t is not None:
            raise ValueError("the theorem's t is tau / 2: name t with the practical rule only")
        if self.rule == "practical" and self.repetitions is not None:
            raise ValueError("the practical rule has one table: repetitions are the theorem's")
        return self


class SubsampledIbltPlan(Plan):
    """Sample at `t`, and insert into `tables` tables of `cells` cells each."""

    mechanism: Literal["subsampled-iblt"] = "subsampled-iblt"
    question: SubsampledIbltQuestion
    cells: int = Field(ge=1, le=MOST_CELLS)
    tables: int = Field(ge=1, le=MOST_TABLES)

    @model_validator(mode="after")
    def _keeps_to_the_words(self) -> Self:
        needed = words(self.question, self.terms, self.t, self.cells, self.tables)
        if needed > self.question.words:
            raise ValueError(f"{needed} words are more than the {self.question.words} asked for")
        table(self.question, self.terms, self.t, self.cells, bytes(32))
        return self

    @property
    def repetitions(self) -> Repetitions:
        """Return the round's tables."""
        seed = bytes.fromhex(self.seed)
        return Repetitions(self.question, self.terms, self.t, self.tables, self.cells, seed)


class Theorem(NamedTuple):
    """The theorem's parameters: threshold, number of tables, cells of each and keys they hold."""

    t: float
    tables: int
    cells: int
    capacity: int


def theorem(tau: float, beta: float, tokens: int, rounds: int) -> Theorem:
    """Return the parameters for `tokens` = m n a round; the module's docstring derives them."""
    mean = 2 * max(tokens, 4 * tau) / tau
    capacity = math.ceil(mean * math.log(max(rounds, 33)))
    odds = 20 * math.log(40 * max(tokens * rounds / (tau * beta), 1))
    cells = cells_without_twins(capacity, mean, 1 / (32 * max(rounds, 33)))
    return Theorem(max(1.0, tau / 2), max(260, math.ceil(odds)), cells, capacity)


def cells_without_twins(capacity: int, keys: float, odds: float) -> int:
    """Return cells for `capacity` keys in which no two of `keys` meet, but for `odds`."""
    least, room = 3 * (keys * keys / (2 * odds)) ** (1 / 3), capacity
    while cells_for(room) < least:
        room = math.ceil(room * 1.02)
    return cells_for(room)


class SubsampledIblt(Summing[SubsampledIbltQuestion, SubsampledIbltPlan]):
    """See the module's docstring."""

    name = "subsampled-iblt"

    def first_plan(
        self, question: SubsampledIbltQuestion, terms: Terms, study: str, rounds: int, rng: Random
    ) -> SubsampledIbltPlan:
        """Return the plan of round 1; all that changes later is the seed.

        Raises:
            ValueError: if `words` do not hold the theorem's tables, or, of the practical rule,
                one of `LEAST_CAPACITY` keys; says how many do. Also if the devices' counts
                may add up to 2^31 or more.
        """
        if question.rule == "theorem":
            tokens = terms.devices * question.contribution
            t, tables, cells, _ = theorem(question.threshold, question.beta, tokens, rounds)
            tables = question.repetitions or tables
            needed = words(question, terms, t, cells, tables)
            if needed > question.words:
                raise ValueError(
                    f"{question.words} words are too few: {tables} tables of {cells} cells, as "
                    f"the theorem has them, take {needed:,} words"
                )
        else:
            check_words(question, terms)
            rule = max(1.0, min(worst_threshold(question, terms), question.threshold / 2))
            t = question.t or rule
            tables, cells = 1, most_cells(question, terms, t)
        return SubsampledIbltPlan(
            **first_fields(question, terms, study, rounds, rng),
            t=t,
            cells=cells,
            tables=tables,
        )

    def ring(self, plan: SubsampledIbltPlan) -> Ring:
        """Return the ring of the round's tables, one after the other."""
        return Ring(plan.repetitions.lanes)

    def encode_sum(
        self, plan: SubsampledIbltPlan, histograms: Iterable[Histogram], chance: Chance
    ) -> Vector:
        """Return the sum of the devices' tables, bit for bit, inserting each item once a table."""
        return plan.repetitions.insert(gather(plan.question, histograms), chance)

    def fault(self, plan: SubsampledIbltPlan, total: Vector, participants: int) -> str | None:
        """Return which law a table of `total` breaks; `Iblt.fault` has them and the odds.

        The tables have no law in common: each has a sample of its own. What is not seen is what
        is not seen of one table, in each of them.
        """
        return plan.repetitions.fault(total, participants)

    def decode(
        self, plan: SubsampledIbltPlan, total: Vector, participants: int, tally: Tally
    ) -> Answer:
        """Return the means of the tables that were read; it is decoded if they are half or more."""
        del participants  # the plan's bound stands for any number of them
        return plan.repetitions.read(total).answer(tally)

    def conclude(self, question: SubsampledIbltQuestion, tally: Tally) -> list[Estimate]:
        """Return the items with half of the votes, or by the practical rule, enough counts."""
        if question.rule == "practical":
            return super().conclude(question, tally)
        counts, variances = tally.column(COUNT), tally.column(VARIANCE)
        return ranked(
            Estimate(tally.items[row], counts[row], variances[row]) for row in elected(tally)
        )

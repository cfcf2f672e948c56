"""The approximate histogram: a table that says which items, a sketch that says how often.

Each device sends the tables of `subsampled_iblt.py`, sampled, and beside them a count sketch of
all it holds. After the study the tables' vote is the list H of items, and the count of each is

    h(x)  =  median over rows j of  sum over rounds r of  s_jr(x) T_r(j, g_j(x))

The locations g_j stay for the whole study, so that the same few items meet x in row j every
round; the signs s_jr are fresh each round, so that their counts cancel over rounds instead of
adding up. The error grows with the root of R, and theorem 4 says that none can do better.

Which items matter is known at the end only, so each round's sketch is kept in the study's
tally: as the smallest integers that hold its cells, compressed with it, and never expanded
over the domain. Reading takes R hashes an item of H, and nothing for the others. (Signs that
are made of fewer functions than rounds would let sums of sketches be kept in their place;
they would need as many cells for the same error.)

    theorem     w = ceil(10 m n sqrt(R) / tau) and ceil(ln(4 m n R / (tau beta))) rows beside the
                theorem's tables; it concludes with H, whatever the counts in it. For
                tau <= sqrt(R) a sketch is no cheaper than everything: there is none, and one
                table for all m n tokens, at t = 1, whose listing is exact
    practical   half of the words for one table by the practical rule, half for `rows` rows;
                it concludes with the listed items that the sketch puts at tau or above

Source: Algorithm 3, theorem 3 and appendix B of [Gascon23]; locations and signs after [Wu23].
Where the proof has a gap, and we tell so: it counts at most m n sqrt(R) / (10 tau) items held
10 tau / sqrt(R) times, of m n R tokens, where R times as many may be. So theorem 3 holds for
items whose counts come in many rounds, as they do from a population that changes slowly: their
signs cancel. Items of 2 tau that come in one round each break it from R = 100 on (every study
of 20 was off by more than tau; none was with the same items spread out); they need w in
proportion to R. Nor do ln(4 m n R / (tau beta)) rows of odds 2/3 make 1 - beta, but up to a
constant factor. We keep the paper's sizes, and measure: spread out, errors stay below tau.

Where we differ: in the fall-back the paper repeats the table as often as in algorithm 2;
where nothing is sampled, one table large enough is as good.
"""

import math
from collections.abc import Iterable
from random import Random
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.chance import Chance
from protocol.item_space import Keys
from protocol.mechanism import (
    COUNT,
    VARIANCE,
    WORD_BITS,
    Answer,
    Estimate,
    Hex32,
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
from protocol.mechanisms.subsampled_iblt import MOST_TABLES, cells_without_twins, theorem
from protocol.mechanisms.tables import MOST_CELLS, check_words, most_cells, worst_threshold
from protocol.sketches.count_sketch import MOST_ROWS, CountSketch, cell_bits, median
from protocol.tally import Tally
from secagg.ring import Ring, Vector

_SKETCHES, _SIGNS, _PLACES = "sketches", "signs", "places"  # of a tally: one a round; one in all
_SLACK = 1.15  # of the room for everything, so that no round fills its table to the limit
_MOST_KEPT = 2**28  # cells over all rounds


class ApproximateHistogramQuestion(SumQuestion):
    """How often the items of `domain` are held, each to within about `threshold`.

    `rule` chooses the sizes, `beta` is the theorem's failure probability. `repetitions` and
    `rows` name others than the theorem's; the practical rule has one table and 5 rows.
    """

    mechanism: Literal["approximate-histogram"] = "approximate-histogram"
    rule: Literal["practical", "theorem"] = "practical"
    beta: float = Field(default=0.05, gt=0, lt=1)
    repetitions: int | None = Field(default=None, ge=1, le=MOST_TABLES)
    rows: int | None = Field(default=None, ge=1, le=MOST_ROWS)

    @model_validator(mode="after")
    def _is_of_one_rule(self) -> Self:
        if self.rule == "practical" and self.repetitions is not None:
            raise ValueError("the practical rule has one table: repetitions are the theorem's")
        return self


class Shape(NamedTuple):
    """Sizes: of the sampling threshold and the tables, and of the sketch; no rows, no sketch."""

    t: float
    tables: int
    cells: int
    rows: int
    width: int


class ApproximateHistogramPlan(Plan):
    """Sample at `t` for the tables; add everything to a sketch at `places`, which stay."""

    mechanism: Literal["approximate-histogram"] = "approximate-histogram"
    question: ApproximateHistogramQuestion
    cells: int = Field(ge=1, le=MOST_CELLS)
    tables: int = Field(ge=1, le=MOST_TABLES)
    rows: int = Field(ge=0, le=MOST_ROWS)
    width: int = Field(ge=0, le=2**26)
    places: Hex32

    @model_validator(mode="after")
    def _keeps_to_the_words(self) -> Self:
        needed = _words(self.question, self.terms, self.shape)
        if needed > self.question.words:
            raise ValueError(f"{needed} words are more than the {self.question.words} asked for")
        return self

    @property
    def shape(self) -> Shape:
        """Return the sizes."""
        return Shape(self.t, self.tables, self.cells, self.rows, self.width)

    @property
    def repetitions(self) -> Repetitions:
        """Return the round's tables."""
        seed = bytes.fromhex(self.seed)
        return Repetitions(self.question, self.terms, self.t, self.tables, self.cells, seed)

    @property
    def sketch(self) -> CountSketch | None:
        """Return the round's sketch."""
        return _sketch(self.question, self.terms, self.shape, self.places, self.seed)


class ApproximateHistogram(Summing[ApproximateHistogramQuestion, ApproximateHistogramPlan]):
    """See the module's docstring."""

    name = "approximate-histogram"

    def first_plan(
        self,
        question: ApproximateHistogramQuestion,
        terms: Terms,
        study: str,
        rounds: int,
        rng: Random,
    ) -> ApproximateHistogramPlan:
        """Return the plan of round 1; all that changes later is the seed.

        Raises:
            ValueError: if `words` do not hold what the rule asks for; says how many do. Also
                if all rounds' sketches together are too much to keep.
        """
        shape = _by_theorem(question, terms, rounds)
        if question.rule == "practical":
            shape = _by_practice(question, terms)
        needed = _words(question, terms, shape)
        if needed > question.words:
            raise ValueError(
                f"{question.words} words are too few: {shape.tables} tables of {shape.cells} "
                f"cells and {shape.rows} rows of {shape.width} take {needed:,} words"
            )
        if rounds * shape.rows * shape.width > _MOST_KEPT:
            raise ValueError(f"sketches of {rounds} rounds have more than {_MOST_KEPT:,} cells")
        return ApproximateHistogramPlan(
            **first_fields(question, terms, study, rounds, rng),
            places=rng.randbytes(32).hex(),
            **shape._asdict(),
        )

    def ring(self, plan: ApproximateHistogramPlan) -> Ring:
        """Return the ring of the round's tables, and of the sketch after them."""
        return Ring(plan.repetitions.lanes + (plan.sketch.ring.lanes if plan.sketch else ()))

    def encode_sum(
        self,
        plan: ApproximateHistogramPlan,
        histograms: Iterable[Histogram],
        chance: Chance,
    ) -> Vector:
        """Return the sum of the devices' vectors, bit for bit."""
        held = gather(plan.question, histograms)
        tables = plan.repetitions.insert(held, chance)
        if plan.sketch is None:
            return tables
        return tables + plan.sketch.insert(*held.sums(held.counts))

    def fault(self, plan: ApproximateHistogramPlan, total: Vector, participants: int) -> str | None:
        """Return which law of a table or of the sketch `total` breaks.

        `Iblt.fault` and `count_sketch.py` have the laws and the odds. What a device puts in the
        tables and what in the sketch need not agree: samples do not tell.
        """
        tables, sketched = _split(plan, total)
        fault = plan.repetitions.fault(tables, participants)
        if fault is None and plan.sketch is not None:
            fault = plan.sketch.fault(sketched, participants * plan.question.contribution)
            fault = fault and f"sketch: {fault}"
        return fault

    def decode(
        self, plan: ApproximateHistogramPlan, total: Vector, participants: int, tally: Tally
    ) -> Answer:
        """Return what the round's samples say; the sketch goes into the tally, for the end."""
        del participants
        tables, sketched = _split(plan, total)
        if plan.sketch is not None:
            tally = _keep(plan, plan.sketch.counts(sketched), tally)
        return plan.repetitions.read(tables).answer(tally)

    def conclude(self, question: ApproximateHistogramQuestion, tally: Tally) -> list[Estimate]:
        """Return the histogram: the items of H, or by the practical rule, the heavy ones."""
        rows = elected(tally)
        counts, variances = tally.column(COUNT)[rows], tally.column(VARIANCE)[rows]
        names = [tally.items[row] for row in rows]
        if _SKETCHES in tally.arrays and names:
            counts, variances = _read(tally, question.domain.keys_of(names))
        least = 0 if question.rule == "theorem" else question.threshold
        triples = zip(names, counts.tolist(), variances.tolist(), strict=True)
        return ranked(Estimate(*one) for one in triples if one[1] >= least)


def _by_theorem(question: ApproximateHistogramQuestion, terms: Terms, rounds: int) -> Shape:
    tau, beta = question.threshold, question.beta
    tokens = terms.devices * question.contribution
    if tau <= math.sqrt(rounds):
        room = math.ceil(_SLACK * tokens)
        cells = cells_without_twins(room, tokens, beta / (4 * rounds))
        return Shape(1.0, question.repetitions or 1, cells, 0, 0)
    found = theorem(tau, beta, tokens, rounds)
    rows = math.ceil(math.log(max(4 * tokens * rounds / (tau * beta), 2)))
    width = max(2, math.ceil(10 * tokens * math.sqrt(rounds) / tau))
    tables = question.repetitions or found.tables
    return Shape(found.t, tables, found.cells, min(question.rows or rows, MOST_ROWS), width)


def _by_practice(question: ApproximateHistogramQuestion, terms: Terms) -> Shape:
    check_words(question, terms, parts=2)
    half = question.model_copy(update={"words": question.words // 2})
    t = max(1.0, min(worst_threshold(half, terms), question.threshold / 2))
    rows = question.rows or 5
    bits = cell_bits(terms.devices * question.contribution, signed=True)
    width = max(2, half.words * WORD_BITS // (bits * rows))
    return Shape(t, 1, most_cells(half, terms, t), rows, width)


def _words(question: ApproximateHistogramQuestion, terms: Terms, shape: Shape) -> int:
    """Return the words of a vector; ValueError if there are no such tables."""
    seed = bytes(32)
    tables = Repetitions(question, terms, shape.t, shape.tables, shape.cells, seed)
    sketch = _sketch(question, terms, shape, seed.hex(), seed.hex())
    ring = Ring(tables.lanes + (sketch.ring.lanes if sketch else ()))
    return -(-ring.nbytes * 8 // WORD_BITS)


def _sketch(
    question: SumQuestion, terms: Terms, shape: Shape, places: str, seed: str
) -> CountSketch | None:
    if shape.rows == 0:
        return None
    return CountSketch(
        rows=shape.rows,
        width=shape.width,
        chunks=question.domain.chunks,
        most=terms.devices * question.contribution,
        places=bytes.fromhex(places),
        signs=bytes.fromhex(seed),
    )


def _split(plan: ApproximateHistogramPlan, total: Vector) -> tuple[Vector, Vector]:
    """Return the tables' part of `total`, and the sketch's."""
    lanes = len(total) - (plan.sketch is not None)
    return total[:lanes], total[lanes:]


def _keep(plan: ApproximateHistogramPlan, counts: NDArray[np.int64], tally: Tally) -> Tally:
    """Return `tally` with the sketch of one more round, as small integers, and its signs."""
    reached = int(np.abs(counts).max())  # so that -reached - 1, which is no count, fits as well
    new: dict[str, NDArray[Any]] = {
        _SKETCHES: counts.astype(np.min_scalar_type(-reached - 1))[np.newaxis],
        _SIGNS: np.frombuffer(bytes.fromhex(plan.seed), np.uint8)[np.newaxis],
    }
    for name, array in new.items():
        before = tally.arrays.get(name, array[:0])
        tally = tally.keep(name, np.concatenate((before, array)))
    return tally.keep(_PLACES, np.frombuffer(bytes.fromhex(plan.places), np.uint8))


def _read(tally: Tally, keys: Keys) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the counts of `keys` over all rounds, and their variances."""
    sketches = tally.arrays[_SKETCHES]
    _, rows, width = sketches.shape
    sums, spread = np.zeros((rows, len(keys))), np.zeros(len(keys))
    for counts, signs in zip(sketches, tally.arrays[_SIGNS], strict=True):
        places = tally.arrays[_PLACES].tobytes()
        sketch = CountSketch(rows, width, keys.shape[1], 1, places, signs.tobytes())
        estimates = sketch.estimates(counts.astype(np.int64), keys)
        sums += estimates
        spread += sketch.variance(counts, median(estimates))
    return median(sums), spread

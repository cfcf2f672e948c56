"""The approximate histogram: tables list the items, and a sketch estimates their counts.

Each device sends sampled tables as in `subsampled.py`, and a count sketch of all of its items.
After the study the vote of the tables gives the list H of items. The count of each is

    h(x)  =  median over rows j of  sum over rounds r of  s_jr(x) T_r(j, g_j(x))

The locations g_j stay for the whole study, so that the same few items share the cell of x in row j
in every round. The signs s_jr are fresh in each round, so that the counts of these items cancel
over rounds instead of adding up. The error grows with the square root of R; theorem 4 proves that
it cannot grow more slowly.

The items of H are known at the end only. So the study state keeps the sketch of each round, as the
smallest integers that hold its cells, compressed, and never expanded over the domain. Reading
takes R hashes per item of H, and none for other items. (With signs from fewer functions than
rounds, sums of sketches could be stored instead; they would need as large a sketch for the same
error.)

    theorem     w = ceil(10 m n sqrt(R) / tau) and ceil(ln(4 m n R / (tau beta))) rows, with the
                tables of the theorem. The result is H, with any counts. For tau <= sqrt(R) a
                sketch is as large as the full data, so there is no sketch, and one table holds
                all m n tokens at t = 1, whose listing is exact
    practical   half of the vector for one table by the practical rule, half for `rows` rows. The
                result is the listed items with a count of tau or more by the sketch

Source: Algorithm 3, theorem 3 and appendix B of [Gascon23]; locations and signs after [Wu23].
The proof has a gap: it counts at most m n sqrt(R) / (10 tau) items with 10 tau / sqrt(R) tokens,
of m n R tokens, where R times that number is possible. So theorem 3 holds for items whose counts
come in many rounds, as in a population that changes slowly: their signs cancel. Items of 2 tau
that come in one round each break it from R = 100 on (every study of 20 was off by more than tau;
none was with the same items spread out). They need w in proportion to R. Also,
ln(4 m n R / (tau beta)) rows of probability 2/3 give 1 - beta only up to a constant factor. We
keep the sizes of the paper and measure: with items spread out, errors stay below tau.

We differ in the case without a sketch, where the paper repeats the table as often as in algorithm
2. Since nothing is sampled there, one table that is large enough gives the same.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.description import Description
from protocol.estimation.empirical_bayes import decision_threshold, normal_posterior
from protocol.estimation.estimates import (
    CONFIDENCE_LEVEL,
    Estimate,
    normal_interval,
    ranked,
    totals_of_all_rounds,
)
from protocol.estimation.rate_changes import RateHistory
from protocol.histograms import Histogram, keyed_histograms
from protocol.mechanism import Answer, SumMechanism
from protocol.mechanisms.iblt.sampled_table import (
    MAX_CELLS,
    check_message,
    check_size,
    max_cells,
    worst_case_threshold,
)
from protocol.mechanisms.iblt.threshold_sampling import ThresholdSampler
from protocol.mechanisms.sampled_counts import round_count_history
from protocol.numerics.array_types import Floats, Keys
from protocol.public_model import Hex32
from protocol.question_and_plan import Plan, SumQuestion, Terms
from protocol.randomness import RandomWords
from protocol.reference_mechanisms.count_sketch import MAX_ROWS, CountSketch, cell_modulus
from protocol.reference_mechanisms.median_estimates import (
    MedianEstimates,
    estimate_sums_of_rounds,
    keys_of_nobody,
)
from protocol.reference_mechanisms.subsampled_iblt import (
    MAX_TABLES,
    Repetitions,
    cells_without_collisions,
    elected_rows,
    theorem_parameters,
)
from protocol.round_sizes import message_bytes, vector_bytes
from protocol.study_state import StudyState
from secagg.oneshot.moduli import Moduli
from secagg.ring import Ring, Vector

# Arrays of the study state: one sketch and one seed for each round, and one seed for all.
_SKETCHES_ARRAY, _SIGN_SEEDS_ARRAY = "sketches", "sign seeds"
_LOCATION_SEED_ARRAY = "location seed"
_EXACT_CAPACITY_FACTOR = 1.15  # of the room for all tokens, so that no table is full to the limit
_MAX_STORED_CELLS = 2**28  # cells of all rounds together


class ApproximateHistogramQuestion(SumQuestion):
    """Question for the counts of the items of `domain`, each to within about `threshold`.

    `rule` chooses the sizes, `beta` is the failure probability of the theorem. `repetitions` and
    `rows` replace those of the theorem; the practical rule has one table and 5 rows.
    """

    mechanism: Literal["approximate-histogram"] = "approximate-histogram"
    rule: Literal["practical", "theorem"] = "practical"
    beta: float = Field(default=0.05, gt=0, lt=1)
    repetitions: int | None = Field(default=None, ge=1, le=MAX_TABLES)
    rows: int | None = Field(default=None, ge=1, le=MAX_ROWS)

    @model_validator(mode="after")
    def _is_of_one_rule(self) -> Self:
        if self.rule == "practical" and self.repetitions is not None:
            raise ValueError("repetitions need the rule theorem: the practical rule has one table")
        return self

    @property
    def min_reported_count(self) -> float:
        """Return 1 for the theorem's rule, which reports what half of the tables list."""
        return 1 if self.rule == "theorem" else self.threshold

    def moduli(self, terms: Terms, t: float) -> Moduli:
        """Return the moduli of tables and sketch: in a one-shot sum the prime that holds both."""
        if not terms.is_one_shot:
            return terms.moduli
        units = ThresholdSampler(t, self.contribution).max_device_units
        largest = terms.max_devices * max(units, 2 * self.contribution)  # counts have a sign
        return terms.moduli.fixed(terms.moduli.above(largest))


class HistogramSizes(NamedTuple):
    """Sampling threshold, sizes of the tables and of the sketch; without rows, no sketch."""

    t: float
    tables: int
    cells: int
    rows: int
    width: int


class ApproximateHistogramPlan(Plan):
    """Plan of a round: sample at `t` for the tables, and add all items to a sketch.

    `location_seed` determines the locations in the sketch, and stays for the study.
    """

    mechanism: Literal["approximate-histogram"] = "approximate-histogram"
    question: ApproximateHistogramQuestion
    cells: int = Field(ge=1, le=MAX_CELLS)
    tables: int = Field(ge=1, le=MAX_TABLES)
    rows: int = Field(ge=0, le=MAX_ROWS)
    width: int = Field(ge=0, le=2**26)
    location_seed: Hex32

    @model_validator(mode="after")
    def _fits_the_message(self) -> Self:
        check_size(self.question, _needed(self.question, self.terms, self.sizes))
        return self

    @property
    def sizes(self) -> HistogramSizes:
        return HistogramSizes(self.t, self.tables, self.cells, self.rows, self.width)

    @property
    def repetitions(self) -> Repetitions:
        seed = bytes.fromhex(self.seed)
        return Repetitions(self.question, self.terms, self.t, self.tables, self.cells, seed)

    @property
    def sketch(self) -> CountSketch | None:
        return _sketch(self.question, self.terms, self.sizes, self.location_seed, self.seed)


class ApproximateHistogram(SumMechanism[ApproximateHistogramQuestion, ApproximateHistogramPlan]):
    """Mechanism of sampled tables and a count sketch."""

    name = "approximate-histogram"
    question_type = ApproximateHistogramQuestion
    description = Description(
        purpose="how often each heavy item is held",
        cost="`message_bytes` per round, tables and a sketch",
    )
    plan_type = ApproximateHistogramPlan

    def may_show_one_device(self, plan: ApproximateHistogramPlan) -> bool:
        return plan.sketch is not None

    seed_fields = ("location_seed",)

    def _first_fields(
        self, question: ApproximateHistogramQuestion, terms: Terms, rounds: int
    ) -> dict[str, Any]:
        if question.rule == "practical":
            sizes = _practical_sizes(question, terms)
        else:
            sizes = _theorem_sizes(question, terms, rounds)
        needed = _needed(question, terms, sizes)
        if needed > question.message_bytes:
            raise ValueError(
                f"message_bytes {question.message_bytes:,} are too few: {sizes.tables} tables of "
                f"{sizes.cells} cells and {sizes.rows} rows of {sizes.width} take {needed:,}"
            )
        if rounds * sizes.rows * sizes.width > _MAX_STORED_CELLS:
            raise ValueError(
                f"sketches of {rounds} rounds have more than {_MAX_STORED_CELLS:,} cells"
            )
        return sizes._asdict()

    def ring(self, plan: ApproximateHistogramPlan) -> Ring:
        return Ring(plan.repetitions.lanes + (plan.sketch.ring.lanes if plan.sketch else ()))

    def encode_sum(
        self, plan: ApproximateHistogramPlan, histograms: Iterable[Histogram], chance: RandomWords
    ) -> Vector:
        held = keyed_histograms(plan.question.domain, plan.question.contribution, histograms)
        tables = plan.repetitions.insert(held, chance)
        if plan.sketch is None:
            return tables
        return tables + plan.sketch.insert(*held.item_totals(held.counts))

    def fault(self, plan: ApproximateHistogramPlan, total: Vector, participants: int) -> str | None:
        """Return the law of a table or of the sketch that `total` breaks.

        `SampledTable.fault` and `count_sketch.py` have the laws and probabilities. A device whose
        tables and sketch disagree is not detected, since tables are samples.
        """
        tables, sketched = _split(plan, total)
        fault = plan.repetitions.fault(tables, participants)
        if fault is None and plan.sketch is not None:
            fault = plan.sketch.fault(sketched, participants * plan.question.contribution)
            fault = fault and f"sketch: {fault}"
        return fault

    def decode(
        self, plan: ApproximateHistogramPlan, total: Vector, participants: int, state: StudyState
    ) -> Answer:
        tables, sketched = _split(plan, total)
        if plan.sketch is not None:
            state = _store_sketch(plan, plan.sketch.counts(sketched), state)
        return plan.repetitions.read(tables, [participants]).answer(plan, state)

    def rate_history(
        self, plan: ApproximateHistogramPlan, state: StudyState, items: Sequence[str]
    ) -> RateHistory | None:
        return round_count_history(plan, state, items)

    def final_estimates(
        self, question: ApproximateHistogramQuestion, state: StudyState
    ) -> list[Estimate]:
        rows = elected_rows(state)
        counts, variances = (column[rows] for column in totals_of_all_rounds(state))
        names = [state.items[row] for row in rows]
        if _SKETCHES_ARRAY in state.arrays and names:
            counts, variances = _estimate_counts(state, question.domain.keys_of(names))
        if question.rule == "theorem":
            return ranked(map(Estimate, names, counts.tolist(), variances.tolist()))
        result = normal_posterior(counts, variances, decision_threshold(question.threshold))
        listed = (result.heavy >= question.confidence).nonzero()[0].tolist()
        return ranked(
            Estimate(
                names[row],
                float(result.means[row]),
                float(result.variances[row]),
                probability=float(result.heavy[row]),
            )
            for row in listed
        )

    def confidence_interval(
        self, counts: Floats, variances: Floats, level: float = CONFIDENCE_LEVEL
    ) -> tuple[Floats, Floats]:
        low, high = normal_interval(counts, variances, level)
        return np.maximum(low, 0), high


def _theorem_sizes(
    question: ApproximateHistogramQuestion, terms: Terms, rounds: int
) -> HistogramSizes:
    tau, beta = question.threshold, question.beta
    tokens = terms.max_devices * question.contribution
    if tau <= math.sqrt(rounds):
        limit = math.ceil(_EXACT_CAPACITY_FACTOR * tokens)
        cells = cells_without_collisions(limit, tokens, beta / (4 * rounds))
        return HistogramSizes(1.0, question.repetitions or 1, cells, 0, 0)
    theorem = theorem_parameters(tau, beta, tokens, rounds)
    rows = math.ceil(math.log(max(4 * tokens * rounds / (tau * beta), 2)))
    width = max(2, math.ceil(10 * tokens * math.sqrt(rounds) / tau))
    tables = question.repetitions or theorem.tables
    rows = min(question.rows or rows, MAX_ROWS)
    return HistogramSizes(theorem.t, tables, theorem.cells, rows, width)


def _practical_sizes(question: ApproximateHistogramQuestion, terms: Terms) -> HistogramSizes:
    check_message(question, terms, tables=2)
    half = vector_bytes(terms, question.message_bytes) // 2
    t = max(1.0, min(worst_case_threshold(question, terms, half), question.threshold / 2))
    rows = question.rows or 5
    moduli = question.moduli(terms, t)
    q = cell_modulus(terms.max_devices * question.contribution, moduli, signed=True)
    width = max(2, moduli.max_length(q, half) // rows)
    return HistogramSizes(t, 1, max_cells(question, terms, t, tables=2), rows, width)


def _needed(question: ApproximateHistogramQuestion, terms: Terms, sizes: HistogramSizes) -> int:
    """Return the bytes of a message; ValueError if there are no such tables."""
    seed = bytes(32)
    tables = Repetitions(question, terms, sizes.t, sizes.tables, sizes.cells, seed)
    sketch = _sketch(question, terms, sizes, seed.hex(), seed.hex())
    ring = Ring(tables.lanes + (sketch.ring.lanes if sketch else ()))
    return message_bytes(terms, ring)


def _sketch(
    question: SumQuestion, terms: Terms, sizes: HistogramSizes, location_seed: str, seed: str
) -> CountSketch | None:
    if sizes.rows == 0:
        return None
    return CountSketch(
        rows=sizes.rows,
        width=sizes.width,
        chunks=question.domain.chunks,
        max_count=terms.max_devices * question.contribution,
        location_seed=bytes.fromhex(location_seed),
        sign_seed=bytes.fromhex(seed),
        moduli=question.moduli(terms, sizes.t),
    )


def _split(plan: ApproximateHistogramPlan, total: Vector) -> tuple[Vector, Vector]:
    """Return the lanes of the tables, and those of the sketch."""
    lanes = len(total) - (plan.sketch is not None)
    return total[:lanes], total[lanes:]


def _store_sketch(
    plan: ApproximateHistogramPlan, counts: NDArray[np.int64], state: StudyState
) -> StudyState:
    """Return `state` with the sketch of one more round, as small integers, and its signs."""
    largest = int(np.abs(counts).max())  # the type also holds -largest - 1, which is not a count
    new: dict[str, NDArray[Any]] = {
        _SKETCHES_ARRAY: counts.astype(np.min_scalar_type(-largest - 1))[np.newaxis],
        _SIGN_SEEDS_ARRAY: np.frombuffer(bytes.fromhex(plan.seed), np.uint8)[np.newaxis],
    }
    for name, array in new.items():
        earlier = state.arrays.get(name, array[:0])
        state = state.with_array(name, np.concatenate((earlier, array)))
    return state.with_array(
        _LOCATION_SEED_ARRAY, np.frombuffer(bytes.fromhex(plan.location_seed), np.uint8)
    )


def _estimate_counts(state: StudyState, keys: Keys) -> MedianEstimates:
    """Return the counts of `keys` over all rounds, and their variances."""
    sketches = state.arrays[_SKETCHES_ARRAY]
    _, rows, width = sketches.shape
    chunks, locations = keys.shape[1], state.arrays[_LOCATION_SEED_ARRAY].tobytes()
    every = np.concatenate((keys, keys_of_nobody(chunks)))
    rounds = (
        CountSketch(rows, width, chunks, 1, locations, signs.tobytes()).estimates(counts, every)
        for counts, signs in zip(sketches, state.arrays[_SIGN_SEEDS_ARRAY], strict=True)
    )
    # Of a fixed seed, so that every reading gives the same.
    return estimate_sums_of_rounds(rounds, len(keys), np.random.default_rng(list(locations)))

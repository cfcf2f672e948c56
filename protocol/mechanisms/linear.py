"""JL-HH, GLPS-HH and the Bucket mechanism: one private linear message a device, no candidates.

An item is its value, below 2^64 (2^24 for JL-HH, which asks for all of them), and one more value
stands for "nothing of it". A report is what a public random map makes of the value, under
noise (`oracles/projection.py`); what is kept of reports are the sums of the map's rows, which
name what most devices hold. For GLPS-HH, which adds a value up once for each of its bits, values
are scrambled first: strings that begin alike would count for each other (`scrambling.py`).

    count(x)  =  n times x's share, from the sums        Var: the noise, and the others' signs

The map stays for the whole study, so that sums of all rounds add up: after round r a study has
found what one round of all its devices so far would have. Its signs are one draw for all rounds.

What is charged is for the replacement of a device's item by another, or by none. Noise for
neighbours by "deletion" is half of that: two such steps lie between two items, and cost
(2 epsilon, (1 + e^epsilon) delta). The paper's noise is charged what it costs, exactly.

Source: [hsu2012]; see `docs/hsu2012.md`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Annotated, Literal, Self, TypeAlias, TypedDict, cast, get_args

import numpy as np
from pydantic import Field, model_validator

from protocol.chance import Chance
from protocol.mechanism import (
    Answer,
    Estimate,
    Hex32,
    Histogram,
    Terms,
    first_fields,
    put_estimates,
    ranked,
    standing_out,
)
from protocol.mechanisms.holdings import values_of
from protocol.oracles.bucket import Bucket
from protocol.oracles.discrete_noise import Integers
from protocol.oracles.glps import SparseRecovery
from protocol.oracles.jl import JohnsonLindenstrauss
from protocol.oracles.projection import Noise, Projection, Relation, bits_of
from protocol.oracles.scrambling import Scrambling
from protocol.reporting import SHOWN, Reporting, ReportPlan, ReportQuestion, Reports
from protocol.tally import Tally

_LEAST_CHARGE = 0.01  # epsilon of a report with a delta
Name = Literal["jl-hh", "glps-hh", "bucket-hh"]
_MOST_ROWS = 4096  # the noise of more takes a device seconds to solve
_SEED = bytes(32)  # any will do where hash functions do not matter
_STATE, _REPORTS = "state", "reports"  # of a tally: of all rounds so far


class _Asked(TypedDict):
    """What every map is made for."""

    epsilon: float
    delta: float
    size: int
    seed: bytes
    noise: Noise
    relation: Relation


class LinearQuestion(ReportQuestion, ABC):
    """Which items are heavy, by noise of one kind for neighbours by one relation."""

    mechanism: Name
    epsilon: float = Field(ge=0.01, le=32, strict=True)
    delta: float = Field(default=0, ge=0, le=0.5, strict=True)
    noise: Noise = "sampled"
    relation: Relation = "replacement"

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        self.projection(_SEED)
        return self

    @abstractmethod
    def projection(self, seed: bytes) -> Projection:
        """Return the map that grows from the 32 bytes of `seed`.

        Raises:
            ValueError: if there is none for these parameters; says which is out of its range.
        """

    @property
    def scrambled_bits(self) -> int | None:
        """Return the bits of values if they are scrambled."""
        return None

    def _asked(self, seed: bytes) -> _Asked:
        bits = self.scrambled_bits
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "size": self.domain.values + 1 if bits is None else 2**bits,
            "seed": seed,
            "noise": self.noise,
            "relation": self.relation,
        }


class JlQuestion(LinearQuestion):
    """A question of JL-HH with `rows` rows."""

    mechanism: Literal["jl-hh"]
    rows: int = Field(default=512, ge=1, le=_MOST_ROWS)

    def projection(self, seed: bytes) -> Projection:
        """Return JL-HH's map; raises as that of all."""
        return JohnsonLindenstrauss(**self._asked(seed), rows=self.rows)


class GlpsQuestion(LinearQuestion):
    """A question of GLPS-HH with `repetitions` of `buckets` each."""

    mechanism: Literal["glps-hh"]
    buckets: int = Field(default=16, ge=2, le=4096)
    repetitions: int = Field(default=3, ge=1, le=15)

    @property
    def scrambled_bits(self) -> int:
        """Return the bits of a value."""
        return bits_of(self.domain.values + 1)

    def projection(self, seed: bytes) -> Projection:
        """Return GLPS-HH's map; raises as that of all."""
        return SparseRecovery(
            **self._asked(seed), buckets=self.buckets, repetitions=self.repetitions
        )


class BucketQuestion(LinearQuestion):
    """A question of the Bucket mechanism, which fails with odds of `beta`."""

    mechanism: Literal["bucket-hh"]
    beta: float = Field(default=0.1, ge=1e-3, le=0.9)

    def projection(self, seed: bytes) -> Projection:
        """Return the Bucket mechanism's map; raises as that of all."""
        return Bucket(**self._asked(seed), beta=self.beta)


AnyLinearQuestion: TypeAlias = Annotated[
    JlQuestion | GlpsQuestion | BucketQuestion, Field(discriminator="mechanism")
]


class LinearPlan(ReportPlan):
    """Report by the map that grows from `hashes`, 32 public bytes that stay for the study."""

    mechanism: Name
    question: AnyLinearQuestion
    hashes: Hex32

    @cached_property
    def projection(self) -> Projection:
        """Return the map."""
        return self.question.projection(bytes.fromhex(self.hashes))

    @cached_property
    def scrambling(self) -> Scrambling | None:
        """Return the permutation of values, if there is one."""
        bits = self.question.scrambled_bits
        return None if bits is None else Scrambling(bits, bytes.fromhex(self.hashes))

    @cached_property
    def spent(self) -> tuple[float, float]:
        """Return the epsilon and delta of replacing a device's item by another, or by none."""
        made, question = self.projection, self.question
        # With a delta the exact epsilon may be next to nothing, and deltas would add up for ever.
        least = _LEAST_CHARGE if made.delta else 0.0
        epsilon, delta = max(made.epsilon_spent, least), made.delta
        if question.relation == "replacement" or question.noise == "sampled":
            return epsilon, delta
        return 2 * epsilon, (1 + math.exp(epsilon)) * delta


@dataclass(frozen=True, eq=False)
class Sums:
    """The sums of the map's rows over `reports` reports, as the randomizer keeps them."""

    reports: int
    state: Integers = field(repr=False)

    def __add__(self, other: "Sums") -> "Sums":
        """Return the sums over both batches."""
        return Sums(self.reports + other.reports, self.state + other.state)


class Linear(Reporting[LinearQuestion, LinearPlan, Sums]):
    """See the module's docstring."""

    def __init__(self, name: Name) -> None:
        self.name = name

    def first_plan(
        self, question: LinearQuestion, terms: Terms, study: str, rounds: int, rng: Random
    ) -> LinearPlan:
        """Return the plan of round 1; all that changes later is the seed, which is not used."""
        assert isinstance(question, JlQuestion | GlpsQuestion | BucketQuestion)  # there is no other
        return LinearPlan(
            **first_fields(question, terms, study, rounds, rng),
            hashes=rng.randbytes(32).hex(),
        )

    def nbytes(self, plan: LinearPlan) -> int:
        """Return the bytes of a report."""
        return -(-plan.projection.bits // 8)

    def epsilon(self, plan: LinearPlan) -> float:
        """Return what a report costs: twice what it is made for if neighbours are by deletion."""
        return plan.spent[0]

    def delta(self, plan: LinearPlan) -> float:
        """Return the question's, or (1 + e^epsilon) times as much by deletion."""
        return plan.spent[1]

    def encode(self, plan: LinearPlan, histograms: Iterable[Histogram], chance: Chance) -> Reports:
        """Return a report for each device."""
        values = values_of(plan.question.domain, histograms)
        if plan.scrambling is not None:
            values = plan.scrambling.forth(values)
        return plan.projection.perturb(values, chance)

    def check(self, plan: LinearPlan, reports: Reports) -> None:
        """Raise ValueError if a report has a wrong length, or a field out of its range."""
        plan.projection.randomizer.fields.unpack(reports)

    def gather(self, plan: LinearPlan, reports: Reports) -> Sums:
        """Return the sums over `reports`."""
        return Sums(len(reports), plan.projection.aggregate(reports))

    def decode(self, plan: LinearPlan, heard: Sums, tally: Tally) -> Answer:
        """Return what the round's reports name; the tally has what those of all rounds do."""
        here = _identified(plan, heard)
        if _STATE in tally.arrays:
            everybody = heard + Sums(int(tally.arrays[_REPORTS][0]), tally.arrays[_STATE])
            kept = put_estimates(tally, _identified(plan, everybody))
        else:
            everybody, kept = heard, put_estimates(tally, here)
        reports = np.array([everybody.reports], np.int64)
        kept = kept.keep(_STATE, everybody.state).keep(_REPORTS, reports)
        return Answer(True, standing_out(here), tuple(here), kept)


LINEAR = tuple(Linear(name) for name in cast("tuple[Name, ...]", get_args(Name)))


def _identified(plan: LinearPlan, heard: Sums) -> list[Estimate]:
    """Return what is likely heavy: the `SHOWN` best items whose count is above 0."""
    hitters = plan.projection.identify(heard.state, heard.reports, SHOWN)
    values = np.array([one.value for one in hitters], np.uint64)
    if plan.scrambling is not None:
        values = plan.scrambling.back(values)
    names = plan.question.domain.names_of(values)
    return ranked(
        Estimate(name, one.count, one.variance)
        for name, one in zip(names, hitters, strict=True)
        if name is not None and one.count > 0
    )

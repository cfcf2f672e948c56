"""JL-HH, GLPS-HH and the Bucket mechanism: one private linear message per device, no candidates.

An item is its value, below 2^64 (below 2^24 for JL-HH, which estimates all values), and one more
value stands for "no item". A public random map turns the value into a message, and noise makes it
private (`hsu2012_oracles/projection_oracle.py`). Only the sums of the map's rows over all reports
are stored; they give the values that most devices hold. GLPS-HH adds a value up once for each of
its bits, so its values are scrambled first (`Scrambling`): otherwise strings with the same
beginning would count for each other.

    count(x)  =  n times the share of x, from the sums     Var: the noise, and the others' signs

The map stays for the whole study, so that the sums of all rounds add up: after round r, a study
has the result that one round with all devices so far would have. Its signs are drawn once for
all rounds.

The charge is for replacing the item of a device by another item or by none. Noise for neighbours
by "add-remove" is half of that: two such steps are between two items, and cost (2 epsilon, (1 +
e^epsilon) delta). The noise of the paper is charged at its exact cost.

Source: [Hsu12]; see `docs/research/hsu2012.md`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias, TypedDict

import numpy as np
from pydantic import Field, model_validator

from protocol.description import Bar, Description
from protocol.domains import Domain
from protocol.domains.hashed import Hashed
from protocol.domains.known_items import KnownItems
from protocol.estimation.estimates import (
    MAX_SHOWN_ESTIMATES,
    Estimate,
    count_significant,
    ranked,
    replace_estimates,
)
from protocol.histograms import Histogram, device_values
from protocol.mechanism import Answer
from protocol.numerics.array_types import Integers, PackedReports
from protocol.privacy.loss_distributions import NeighbourRelation
from protocol.public_model import Hex32
from protocol.randomness import RandomWords
from protocol.reference_mechanisms.hsu2012_oracles.bucket import BucketProjection
from protocol.reference_mechanisms.hsu2012_oracles.glps import Scrambling, SparseRecovery
from protocol.reference_mechanisms.hsu2012_oracles.johnson_lindenstrauss import JohnsonLindenstrauss
from protocol.reference_mechanisms.hsu2012_oracles.projection_oracle import (
    NoiseKind,
    Projection,
    value_bits,
)
from protocol.report_mechanism import ReportMechanism, ReportPlan, ReportQuestion, noise_bar
from protocol.study_state import StudyState

_MIN_CHARGED_EPSILON = 0.01  # of a report with a delta
LinearMechanismName = Literal["jl-hh", "glps-hh", "bucket-hh"]
_MAX_HASHED_BYTES, _MAX_VALUES = 1024, 2**64  # of a simulated domain
_MAX_ROWS = 4096  # with more, a device needs seconds to compute its noise
_ANY_SEED = bytes(32)  # where hash functions do not matter
_SUMS_ARRAY, _REPORT_COUNT_ARRAY = "sums", "reports"  # of the study state: of all rounds so far


_NOISE_DEVIATIONS = 4.0  # of an estimate, which noise alone rarely reaches


class _ProjectionArguments(TypedDict):
    """Parameters that all maps share."""

    epsilon: float
    delta: float
    size: int
    seed: bytes
    noise: NoiseKind
    relation: NeighbourRelation


class LinearQuestion(ReportQuestion, ABC):
    """Question for heavy items; `noise` is its kind, `relation` defines neighbours."""

    estimates_all_values: ClassVar[bool] = False
    mechanism: LinearMechanismName
    epsilon: float = Field(ge=0.01, le=32, strict=True)
    delta: float = Field(default=0, ge=0, le=0.5, strict=True)
    noise: NoiseKind = "sampled"
    relation: NeighbourRelation = "replace-one"

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        self.projection(_ANY_SEED)
        return self

    @abstractmethod
    def projection(self, seed: bytes) -> Projection:
        """Return the map of the 32 bytes `seed`; ValueError for a parameter out of range."""

    @property
    def scrambled_bits(self) -> int | None:
        """Return the number of bits of scrambled values; None if values are not scrambled."""
        return None

    def _projection_arguments(self, seed: bytes) -> _ProjectionArguments:
        bits = self.scrambled_bits
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "size": self.domain.value_count + 1 if bits is None else 2**bits,
            "seed": seed,
            "noise": self.noise,
            "relation": self.relation,
        }


class JlQuestion(LinearQuestion):
    """Question of JL-HH with `rows` rows."""

    estimates_all_values: ClassVar[bool] = True
    public_name: ClassVar[str] = "JohnsonLindenstrauss"
    mechanism: Literal["jl-hh"]
    rows: int = Field(default=512, ge=1, le=_MAX_ROWS)

    def projection(self, seed: bytes) -> Projection:
        return JohnsonLindenstrauss(**self._projection_arguments(seed), rows=self.rows)


class GlpsQuestion(LinearQuestion):
    """Question of GLPS-HH with `repetitions` of `buckets` buckets each."""

    mechanism: Literal["glps-hh"]
    buckets: int = Field(default=16, ge=2, le=4096)
    repetitions: int = Field(default=3, ge=1, le=15)

    @property
    def scrambled_bits(self) -> int:
        return value_bits(self.domain.value_count + 1)

    def projection(self, seed: bytes) -> Projection:
        return SparseRecovery(
            **self._projection_arguments(seed), buckets=self.buckets, repetitions=self.repetitions
        )


class BucketQuestion(LinearQuestion):
    """Question of the Bucket mechanism, which fails with probability `beta`."""

    mechanism: Literal["bucket-hh"]
    beta: float = Field(default=0.1, ge=1e-3, le=0.9)

    def projection(self, seed: bytes) -> Projection:
        return BucketProjection(**self._projection_arguments(seed), beta=self.beta)


AnyLinearQuestion: TypeAlias = Annotated[
    JlQuestion | GlpsQuestion | BucketQuestion, Field(discriminator="mechanism")
]


class LinearPlan(ReportPlan):
    """Plan of a round: report by the map of `hash_seed`, which stays for the study."""

    mechanism: LinearMechanismName
    question: AnyLinearQuestion
    hash_seed: Hex32

    @cached_property
    def projection(self) -> Projection:
        return self.question.projection(bytes.fromhex(self.hash_seed))

    @cached_property
    def scrambling(self) -> Scrambling | None:
        """Return the permutation of values; None if they are not scrambled."""
        bits = self.question.scrambled_bits
        return None if bits is None else Scrambling(bits, bytes.fromhex(self.hash_seed))

    @cached_property
    def charged(self) -> tuple[float, float]:
        """Return the epsilon and delta of replacing a device's item by another, or by none."""
        projection, question = self.projection, self.question
        # With a delta the exact epsilon may be almost 0, and deltas would add up without limit.
        min_epsilon = _MIN_CHARGED_EPSILON if projection.delta else 0.0
        epsilon, delta = max(projection.epsilon_spent, min_epsilon), projection.delta
        if question.relation == "replace-one" or question.noise == "sampled":
            return epsilon, delta
        return 2 * epsilon, (1 + math.exp(epsilon)) * delta


@dataclass(frozen=True, eq=False)
class LinearAggregate:
    """Sums of the map's rows over `reports` reports, in the randomizer's form."""

    reports: int
    sums: Integers = field(repr=False)

    def __add__(self, other: "LinearAggregate") -> "LinearAggregate":
        return LinearAggregate(self.reports + other.reports, self.sums + other.sums)


class LinearMechanism(ReportMechanism[LinearQuestion, LinearPlan, LinearAggregate]):
    """Mechanism of one linear message per device."""

    plan_type = LinearPlan
    seed_fields = ("hash_seed",)

    def __init__(
        self,
        name: LinearMechanismName,
        question_type: type[LinearQuestion],
        purpose: str,
        cost: str,
    ) -> None:
        self.name, self.question_type = name, question_type
        self.description = Description(purpose, cost, "epsilon or (epsilon, delta)-local DP")

    def domain_about(self, known: KnownItems, fields: Mapping[str, Any]) -> Domain:
        """Return texts or hashes of them with fewer than 2^64 values, or a dictionary."""
        del fields
        if self.question_type.estimates_all_values or known.alphabet is not None:
            return known.dictionary()
        if len(set(known.items)) < 2:
            raise ValueError("the file has one item only: 2 or more are needed")
        max_bytes = known.levels or _MAX_HASHED_BYTES
        for domain in (known.text_domain(), Hashed(max_bytes=max_bytes)):
            is_complete = known.levels or all(item in domain for item in known.items)
            if domain.value_count < _MAX_VALUES and is_complete:
                return domain
        return known.dictionary()

    def bars(self, plan: LinearPlan, devices: int | None) -> Iterator[Bar]:
        if devices:
            variance = plan.projection.variance(devices, 0, 0)
            count = _NOISE_DEVIATIONS * math.sqrt(variance)
            yield noise_bar(plan, count, is_lower_bound=True)  # all items share the sums

    def nbytes(self, plan: LinearPlan) -> int:
        return -(-plan.projection.bits // 8)

    def epsilon(self, plan: LinearPlan) -> float:
        return plan.charged[0]

    def delta(self, plan: LinearPlan) -> float:
        return plan.charged[1]

    def encode(
        self, plan: LinearPlan, histograms: Iterable[Histogram], chance: RandomWords
    ) -> PackedReports:
        values = device_values(plan.question.domain, histograms)
        if plan.scrambling is not None:
            values = plan.scrambling.scramble(values)
        return plan.projection.perturb(values, chance)

    def check(self, plan: LinearPlan, reports: PackedReports) -> None:
        plan.projection.randomizer.report_fields.unpack(reports)

    def aggregate(self, plan: LinearPlan, reports: PackedReports) -> LinearAggregate:
        return LinearAggregate(len(reports), plan.projection.aggregate(reports))

    def decode(self, plan: LinearPlan, aggregate: LinearAggregate, state: StudyState) -> Answer:
        estimates = _heavy_estimates(plan, aggregate)
        if _SUMS_ARRAY in state.arrays:
            reports = int(state.arrays[_REPORT_COUNT_ARRAY][0])
            aggregate += LinearAggregate(reports, state.arrays[_SUMS_ARRAY])
            state = replace_estimates(state, _heavy_estimates(plan, aggregate))
        else:
            state = replace_estimates(state, estimates)
        count = np.array([aggregate.reports], np.int64)
        state = state.with_array(_SUMS_ARRAY, aggregate.sums).with_array(_REPORT_COUNT_ARRAY, count)
        return Answer(True, count_significant(estimates), tuple(estimates), state)


LINEAR_MECHANISMS: Final = (
    LinearMechanism(
        "jl-hh",
        JlQuestion,
        "the best of 2^24 values, all estimated; reference",
        "log2 m + 1 bits sampled, else m integers",
    ),
    LinearMechanism(
        "glps-hh",
        GlpsQuestion,
        "heavy values below 2^64, decoded bit by bit; reference",
        "11 to 13 bits sampled, else 1,000 integers and more",
    ),
    LinearMechanism(
        "bucket-hh",
        BucketQuestion,
        "the most frequent value below 2^64; reference",
        "10 to 12 bits sampled, else 456 integers and more",
    ),
)


def _heavy_estimates(plan: LinearPlan, aggregate: LinearAggregate) -> list[Estimate]:
    """Return the items that are probably heavy: `MAX_SHOWN_ESTIMATES` items above 0 at most."""
    hitters = plan.projection.identify(aggregate.sums, aggregate.reports, MAX_SHOWN_ESTIMATES)
    values = np.array([hitter.value for hitter in hitters], np.uint64)
    if plan.scrambling is not None:
        values = plan.scrambling.unscramble(values)
    names = plan.question.domain.names_of(values)
    return ranked(
        Estimate(name, min(hitter.count, aggregate.reports), hitter.variance)
        for name, hitter in zip(names, hitters, strict=True)
        if name is not None and hitter.count > 0
    )

"""What a round asks, and the functions that answer it.

    study -> plan(r) -> encode (each device) -> vectors -> [sum] -> decode -> answer(r) -> plan(r+1)
                                                                     tally(r-1)  tally(r)

A *question* is what an analyst asks for a whole study. A *plan* is what one round asks of
each device: public, frozen and complete, so that its digest can stand for all that a device
agreed to. A *mechanism* turns questions into plans, local histograms into vectors and sums
into answers. It holds no state: what it must know of earlier rounds is in the study's *tally*
(`tally.py`), which each answer carries on. And it knows nothing of the sum: between `encode`
and `decode` there is addition alone, which is the privacy boundary.

There is a second transport, which trusts no sum (`reporting.py`): each device sends one *report*,
private by its own chance, and the boundary is the device's own.

Source: the R-round linear-sketching setting of [Gascon23, section 2].
"""

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, Generic, Self, TypeAlias, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from protocol.chance import Chance, happens
from protocol.confidence import LEVEL, interval, reaches
from protocol.domain import Domain
from protocol.local_level import Floats
from protocol.privacy.entries import ExactSum
from protocol.privacy.entries import Mechanism as Loss
from protocol.privacy.noise import NoiseShares
from protocol.public import Public, refuse
from protocol.tally import NOTHING, Tally
from secagg.cohort import Registry
from secagg.errors import InfeasibleError
from secagg.keys import check_identity
from secagg.parameters import Assumptions, Mode, parameters
from secagg.ring import Ring, Vector

Histogram: TypeAlias = Mapping[str, int]  # a device's items, each with its count, all >= 1
WORD_BITS = 16
MOST_ROUNDS = 10_000
Hex32 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Rate = Annotated[float, Field(ge=0, lt=1)]


class Terms(Public):
    """Among how many devices a round hides each, and which rates it is secure against.

    A round has `cohorts` secure sums of at most `cohort_size` devices each; a cohort that
    finds fewer than `minimum` is not run. `corrupt` and `dropout` are fractions of a cohort,
    `sigma` and `eta` the exponents of the odds against privacy and correctness. Only devices
    whose identity `registrar`, an Ed25519 public key, has signed may take part; without one
    the server's word is all there is that devices are not its own.
    """

    cohort_size: int = Field(ge=3, le=100_000)
    minimum: int = Field(ge=3)
    cohorts: int = Field(default=1, ge=1, le=1_000)
    corrupt: Rate = 0.1
    dropout: Rate = 0.2
    sigma: int = Field(default=40, ge=1, le=256)
    eta: int = Field(default=30, ge=1, le=256)
    mode: Mode = "active"
    registrar: Hex32 | None = None

    @field_validator("minimum")
    @classmethod
    def _is_within_reach(cls, minimum: int, info: ValidationInfo) -> int:
        size = info.data.get("cohort_size", minimum)  # missing if that was at fault itself
        if minimum > size:
            raise ValueError(f"minimum {minimum} is above cohort_size {size}")
        return minimum

    @field_validator("registrar")
    @classmethod
    def _is_a_key(cls, registrar: str | None) -> str | None:
        if registrar is not None:
            check_identity(bytes.fromhex(registrar))
        return registrar

    @model_validator(mode="after")
    def _can_be_kept(self) -> Self:
        sizes = dict.fromkeys((self.minimum, self.cohort_size))
        why = (_infeasible(n, self.assumptions) for n in sizes)
        refuse(dict.fromkeys(fault for fault in why if fault))
        return self

    @property
    def assumptions(self) -> Assumptions:
        """Return the rates and odds as the secure sum takes them."""
        return Assumptions(self.corrupt, self.dropout, self.sigma, self.eta, self.mode)

    @property
    def devices(self) -> int:
        """Return the most devices that one round can count."""
        return self.cohorts * self.cohort_size


def _infeasible(n: int, assumptions: Assumptions) -> str | None:
    try:
        parameters(n, assumptions)
    except InfeasibleError as error:
        return str(error)
    return None


class Question(Public):
    """What an analyst asks: every item of `domain` that devices hold `threshold` times or more.

    `threshold` is the paper's tau, over all rounds; `contribution` its m, the most items
    that one device adds. Found is what reaches the threshold as surely as `confidence`
    (`confidence.py`); at 1/2 the estimate decides. A mechanism's own question adds its fields.
    """

    mechanism: str
    threshold: float = Field(ge=1, le=1e12, strict=True)
    contribution: int = Field(ge=1, le=10_000)
    domain: Domain
    confidence: float = Field(default=0.5, gt=0, lt=1)

    @property
    def repeats(self) -> bool:
        """Return whether a device takes part in each round of the study; else it does in one."""
        return False

    @property
    def votes(self) -> int:
        """Return the most that a device adds in a round, to all cells together."""
        return self.contribution

    @property
    def withholds(self) -> bool:
        """Return whether sums hold what must not be published, and is forgotten once decoded."""
        return False

    @property
    def hides_sizes(self) -> bool:
        """Return whether nobody but the server may learn how many devices joined a round."""
        return False

    def admit(self, item: str) -> str | None:
        """Return what of `item` a device counts, as the domain has it; None if it is outside."""
        return self.domain.admit(item)


class SumQuestion(Question):
    """A question that is answered by secure sums.

    `words` is the paper's C, the most 16-bit words that a device sends a round.
    """

    words: int = Field(ge=1, le=2**26)

    @property
    def nbytes(self) -> int:
        """Return the most bytes that a vector packs into."""
        return self.words * WORD_BITS // 8


Q = TypeVar("Q", bound=Question)


def enrolment_scope(study: str) -> bytes:
    """Return the 32 bytes that a registrar enrols identities for: one study, never all."""
    return hashlib.sha256(b"blindtally study v1\0" + study.encode()).digest()


class Plan(Public):
    """What one round asks of each device; its digest is bound into every key of the round.

    Rounds count from 1 to `rounds`. `seed` is 32 bytes of fresh public randomness for hash
    functions. Devices sample their items at threshold `t` (not the question's; 1 takes them
    all). A mechanism's own plan narrows `question` and adds what changes from round to round.
    """

    mechanism: str
    question: Question

    study: str = Field(min_length=1, max_length=64)
    round: int = Field(ge=1)
    rounds: int = Field(ge=1, le=MOST_ROUNDS)
    terms: Terms
    seed: Hex32
    t: float = Field(default=1, ge=1, le=1e15)

    def digest(self) -> bytes:
        """Return the SHA-256 of the plan's canonical JSON (sorted keys, no spaces, ASCII)."""
        plain = self.model_dump(mode="json")
        canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(b"blindtally plan v1\0" + canonical.encode()).digest()

    def following(self, rng: Random, **changes: object) -> Self:
        """Return the plan of the next round, with a fresh seed and some `changes`.

        Raises:
            ValueError: if there is no such plan.
        """
        fresh = {"round": self.round + 1, "seed": rng.randbytes(32).hex()}
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate(fields | fresh | changes)

    @property
    def invited(self) -> float:
        """Return the odds with which a device joins the round, by a coin of its own; here 1."""
        return 1.0

    def joins(self, chance: Chance) -> bool:
        """Return whether a device joins the round; to be asked once, as it flips the coin."""
        return bool(self.joining(chance, 1)[0])

    def joining(self, chance: Chance, count: int) -> NDArray[np.bool_]:
        """Return which of so many devices join, by a coin of each."""
        return happens(chance, math.floor(self.invited * 2**64), count)

    @property
    def registry(self) -> Registry | None:
        """Return who may take part in this study, None if the server decides that alone."""
        if self.terms.registrar is None:
            return None
        return Registry(bytes.fromhex(self.terms.registrar), enrolment_scope(self.study))


P = TypeVar("P", bound=Plan)


class FirstFields(TypedDict):
    """The fields that every plan of a round 1 has."""

    mechanism: str
    question: Question
    study: str
    round: int
    rounds: int
    terms: Terms
    seed: str


def first_fields(
    question: Question, terms: Terms, study: str, rounds: int, rng: Random
) -> FirstFields:
    """Return what the first plans of all mechanisms have in common, with a fresh seed.

    A mechanism that draws fields of its own does so afterwards: a replay draws in this order.
    """
    return {
        "mechanism": question.mechanism,
        "question": question,
        "study": study,
        "round": 1,
        "rounds": rounds,
        "terms": terms,
        "seed": rng.randbytes(32).hex(),
    }


@dataclass(frozen=True, slots=True)
class Estimate:
    """An item's estimated count in one round (or summed over rounds), with its variance."""

    item: str
    count: float
    variance: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What a round's sum says, and the study's tally with it.

    `decoded` tells whether the sum was read whole; `distinct` is the number of distinct keys
    in it, estimated if it was not.
    """

    decoded: bool
    distinct: float
    estimates: tuple[Estimate, ...] = ()
    tally: Tally = NOTHING


class Mechanism(ABC, Generic[Q, P]):
    """Turns questions into plans, and tallies into what is heavy; how plans are answered differs.

    Chance is an argument: `Random` for seeds of plans, `Chance` for what devices draw; the
    programs pass the system's.
    """

    name: str

    @abstractmethod
    def first_plan(self, question: Q, terms: Terms, study: str, rounds: int, rng: Random) -> P:
        """Return the plan of round 1 of `rounds`.

        Raises:
            ValueError: if the question cannot be answered under these terms; says what can.
        """

    def next_plan(self, plan: P, answer: Answer | None, tally: Tally, rng: Random) -> P:
        """Return the plan of the next round; `answer` is None after a round without one.

        `tally` is the study's: `answer`'s, or that of the round before. Here the plan is the
        same but for its seed: the mechanism is not interactive.
        """
        del answer, tally
        return plan.following(rng)

    def is_over(self, plan: P, answer: Answer | None, tally: Tally) -> bool:
        """Return whether nothing is left to ask after the round of `plan`; here never."""
        del plan, answer, tally
        return False

    @abstractmethod
    def loss(self, plan: P, rounds: int) -> Loss:
        """Return what so many rounds tell of a device, as a ledger (`privacy/ledger.py`) has it."""

    def conclude(self, question: Q, tally: Tally) -> list[Estimate]:
        """Return the items that are heavy by `tally`, highest estimate first.

        Here the columns `count` and `variance` are estimates and variances summed over rounds:
        rounds are over different devices with fresh chance, so both add up.
        """
        counts, variances = tally.column(COUNT), tally.column(VARIANCE)
        found = reaches(counts, variances, question.threshold, question.confidence)
        heavy = np.flatnonzero(found).tolist()
        return ranked(Estimate(tally.items[row], counts[row], variances[row]) for row in heavy)

    def interval(
        self, counts: Floats, variances: Floats, level: float = LEVEL
    ) -> tuple[Floats, Floats]:
        """Return the ends of intervals that hold what is concluded with odds of `level` each.

        Here they are those of sampled counts.
        """
        return interval(counts, variances, level)


class Summing(Mechanism[Q, P]):
    """A mechanism whose rounds are secure sums: histograms become vectors, sums answers."""

    @abstractmethod
    def ring(self, plan: P) -> Ring:
        """Return the ring of the round's vectors, wide enough that no sum can wrap."""

    def encode(self, plan: P, histogram: Histogram, chance: Chance) -> Vector:
        """Return one device's vector, its sum with nobody; raises as `encode_sum`."""
        return self.encode_sum(plan, [histogram], chance)

    @abstractmethod
    def encode_sum(self, plan: P, histograms: Iterable[Histogram], chance: Chance) -> Vector:
        """Return the sum of the devices' vectors, bit for bit that of their vectors one by one.

        An empty histogram gives a vector as well.

        Raises:
            ValueError: if a device's counts add up to more than the contribution bound, are
                not positive, or an item is outside the plan's domain.
        """

    def shares(self, plan: P, contacted: int) -> NoiseShares | None:
        """Return the noise that each of `contacted` devices of a cohort adds to its vector.

        None if there is none, as here. It is not in what `encode` returns: whoever encodes adds
        `hide` of it.
        """
        del plan, contacted
        return None

    def loss(self, plan: P, rounds: int) -> Loss:
        """Return what so many rounds tell of a device: exact sums, of the one that it is in."""
        del plan, rounds
        return ExactSum()

    @abstractmethod
    def fault(self, plan: P, total: Vector, participants: int) -> str | None:
        """Return which linear law `total` breaks, as no sum of `participants` honest vectors can.

        None if it breaks none, which does not prove that everybody was honest. The mechanism
        says with which odds garbage breaks none, and what it cannot see.
        """

    @abstractmethod
    def decode(self, plan: P, total: Vector, participants: int, tally: Tally) -> Answer:
        """Return what `total`, the sum of `participants` vectors, says after earlier rounds."""

    def is_readable(self, plan: P, total: Vector, participants: int, tally: Tally) -> bool:
        """Return whether `decode` would read `total` whole, for less work where there is less."""
        return self.decode(plan, total, participants, tally).decoded


def hide(ring: Ring, vector: Vector, shares: NoiseShares | None, chance: Chance) -> None:
    """Add one device's `shares` of noise to every element of its `vector`, in place."""
    if shares is None:
        return
    for lane, array in zip(ring.lanes, vector, strict=True):
        noise = shares.draw(chance, lane.length) % lane.q
        lane.add(array, noise.astype(lane.dtype))


COUNT, VARIANCE = "count", "variance"  # columns of a tally


def ranked(estimates: Iterable[Estimate]) -> list[Estimate]:
    """Return `estimates`, highest count first, and of one count in the order of items."""
    return sorted(estimates, key=lambda estimate: (-estimate.count, estimate.item))


def add_estimates(tally: Tally, estimates: Sequence[Estimate]) -> Tally:
    """Return `tally` with the counts and variances of a round's `estimates`."""
    counts = np.array([estimate.count for estimate in estimates], np.float64)
    variances = np.array([estimate.variance for estimate in estimates], np.float64)
    items = [estimate.item for estimate in estimates]
    return tally.add(items, {COUNT: counts, VARIANCE: variances})


def put_estimates(tally: Tally, estimates: Sequence[Estimate]) -> Tally:
    """Return `tally` with `estimates`, of all rounds together, in the place of what was there."""
    return add_estimates(Tally(arrays=tally.arrays), estimates)


def standing_out(estimates: Iterable[Estimate]) -> float:
    """Return how many of `estimates` are above three of their standard deviations."""
    return float(sum(one.count > 3 * one.variance**0.5 for one in estimates))

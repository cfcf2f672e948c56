"""Public documents of a study: its terms, its question, and the plan of each round.

A *question* holds what the analyst wants to know from the whole study. A *plan* holds everything
that one round asks of a device. It is public, frozen and complete, so its digest stands for all
that a device agreed to. The *terms* are the number of devices among which each device is hidden,
and the attacks that a round withstands. Each mechanism adds its own fields to questions and plans.

Source: the setting of linear sketches over R rounds of [Gascon23, section 2].
"""

import hashlib
import math
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any, ClassVar, Literal, Self, TypeAlias, TypeVar

import rfc8785
from pydantic import Field, ValidationInfo, field_validator, model_validator

from protocol.committee_terms import AnyCommitteeTerms, VolunteerTerms
from protocol.domains import Domain
from protocol.domains.hashed import Hashed
from protocol.numerics.array_types import Flags
from protocol.public_model import Hex32, PublicModel, Rate, invalid
from protocol.randomness import RandomWords, bernoulli
from secagg.errors import InfeasibleError
from secagg.keys import check_identity
from secagg.oneshot.moduli import PAIRWISE, Moduli
from secagg.parameters import MAX_EXPONENT, Assumptions, choose_parameters
from secagg.seating import MAX_DRAWS, SeatedRound, promised_colluders
from secagg.session import Registry

MAX_MESSAGE_BYTES = 2**27
# A question with this size gets another one when its study is created.
AUTO_BYTES = 0
MAX_ROUNDS = 10_000
MIN_COHORT_SIZE = 3  # devices; fewer hide nothing
# Limits of devices with default settings.
DEFAULT_MIN_THRESHOLD = 5.0  # of exact sums
DEFAULT_MIN_SUMMED = 50  # devices
DEFAULT_MAX_CONTRIBUTION = 100  # items of a device in a round
DEFAULT_MIN_CORRUPT = 0.1  # of terms
DEFAULT_MAX_EPSILON, DEFAULT_MAX_DELTA = 4.0, 1e-5
DEFAULT_MAX_UPLOAD_BYTES = 4 * 2**20  # in one round
# Members of a committee, and the fraction of operators that may collude.
DEFAULT_MIN_COMMITTEE, DEFAULT_MIN_COMMITTEE_CORRUPT = 5, 0.2
SumKind: TypeAlias = Literal["pairwise", "one-shot"]


class Terms(PublicModel):
    """Number of devices that a round hides each device among, and the attacks it withstands.

    A round has `cohorts` secure sums of at most `cohort_size` devices each. A cohort with fewer
    than `minimum` devices is not run. `corrupt` and `dropout` are fractions of a cohort. Privacy
    fails with probability 2^-`sigma` at most, and correctness with 2^-`eta`. `registrar` is an
    Ed25519 public key: only devices whose identity it has signed may take part. Without a
    registrar, devices must trust that the server does not invent other devices, so devices with
    default settings refuse the study unless it asks for reports.

    In a `pairwise` sum devices mask their vectors for one another. In a `one-shot` sum each device
    sends one message to a `committee`, which opens the sum of `minimum` messages or more. It has
    one cohort, and `dropout` is not used. Noise hides each device in the smallest sum. The
    registrar draws a committee of volunteers.
    """

    cohort_size: int = Field(ge=MIN_COHORT_SIZE, le=100_000)
    minimum: int = Field(ge=3)
    cohorts: int = Field(default=1, ge=1, le=1_000)
    corrupt: Rate = 0.1
    dropout: Rate = 0.2
    sigma: int = Field(default=40, ge=1, le=MAX_EXPONENT)
    eta: int = Field(default=30, ge=1, le=MAX_EXPONENT)
    registrar: Hex32 | None = None
    sum: SumKind = "pairwise"
    committee: AnyCommitteeTerms | None = None

    @field_validator("minimum")
    @classmethod
    def _minimum_fits(cls, minimum: int, info: ValidationInfo) -> int:
        size = info.data.get("cohort_size", minimum)  # missing if it was invalid itself
        if minimum > size:
            raise ValueError(f"minimum {minimum} is above cohort_size {size}")
        return minimum

    @field_validator("registrar")
    @classmethod
    def _registrar_is_key(cls, registrar: str | None) -> str | None:
        if registrar is not None:
            check_identity(bytes.fromhex(registrar))
        return registrar

    @model_validator(mode="after")
    def _is_feasible(self) -> Self:
        if self.is_one_shot or self.committee is not None:
            _raise_if_any(_one_shot_faults(self))
            return self
        sizes = dict.fromkeys((self.minimum, self.cohort_size))
        faults = dict.fromkeys(_infeasibility(n, self.assumptions) for n in sizes)
        _raise_if_any(fault for fault in faults if fault)
        return self

    @property
    def is_one_shot(self) -> bool:
        """Return whether devices send one message to a committee."""
        return self.sum == "one-shot"

    @property
    def moduli(self) -> Moduli:
        """Return the moduli that lanes of the sum may have.

        They are those of all operators that are named, so that absent ones do not change them.
        """
        return PAIRWISE if self.committee is None else Moduli.of(self.committee.parameters)

    @property
    def min_summed(self) -> int:
        """Return the smallest number of devices in a sum."""
        return self.minimum if self.is_one_shot else self.assumptions.quorum(self.minimum)

    @property
    def assumptions(self) -> Assumptions:
        """Return the rates and failure probabilities in the form that the secure sum uses."""
        return Assumptions(self.corrupt, self.dropout, self.sigma, self.eta)

    @property
    def is_seated(self) -> bool:
        """Return whether the registrar draws which devices of a round share a cohort."""
        return self.registrar is not None and self.cohorts > 1

    @property
    def draws_committee(self) -> bool:
        """Return whether the registrar draws the committee from volunteers."""
        return isinstance(self.committee, VolunteerTerms)

    @property
    def max_colluders(self) -> int:
        """Return the number of devices of any round that may work for the server.

        Where the server chooses the members of a cohort, it is that of the smallest cohort.
        """
        if not self.is_seated:
            return self.assumptions.max_corrupt(self.minimum)
        sizes = (self.minimum, self.cohort_size, self.cohorts)
        return promised_colluders(*sizes, self.assumptions)

    @property
    def max_devices(self) -> int:
        """Return the largest number of devices that one round can count."""
        return self.cohorts * self.cohort_size


def _raise_if_any(faults: Iterable[str]) -> None:
    listed = [*faults]
    if listed:
        raise invalid(listed)


def _one_shot_faults(terms: Terms) -> Iterator[str]:
    if terms.sum != "one-shot":
        yield "a committee is for one-shot sums: set sum to one-shot, or leave out the committee"
    elif terms.committee is None:
        yield (
            "a one-shot sum needs a committee: the public keys of its operators, or a number of "
            "volunteers"
        )
    elif terms.draws_committee and terms.registrar is None:
        yield "a committee of volunteers needs a registrar, which draws it"
    elif terms.cohorts != 1:
        yield f"a one-shot sum has one cohort, not {terms.cohorts}: make cohort_size larger"


def _infeasibility(n: int, assumptions: Assumptions) -> str | None:
    try:
        choose_parameters(n, assumptions)
    except InfeasibleError as error:
        return str(error)
    return None


def _plain(document: PublicModel) -> dict[str, Any]:
    return document.model_dump(mode="json")


class Question(PublicModel):
    """Request for every item of `domain` that devices hold `threshold` times or more.

    `threshold` is the paper's tau, over all rounds. `contribution` is its m, the largest number of
    items that one device adds to a round. An item is reported if its count reaches the threshold
    with probability `confidence`. The question of each mechanism adds its fields.
    """

    mechanism: str
    threshold: float = Field(ge=1, le=1e12, strict=True)
    contribution: int = Field(ge=1, le=10_000)
    domain: Domain
    confidence: float = Field(default=0.5, gt=0, lt=1)

    @property
    def asks_every_round(self) -> bool:
        """Return whether a device takes part in every round of the study, or in one only."""
        return False

    @property
    def max_votes(self) -> int:
        """Return the largest sum that a device adds to all cells of a round together."""
        return self.contribution

    @property
    def min_reported_count(self) -> float:
        """Return the smallest estimate of items that the service reports."""
        return self.threshold

    @property
    def counts_by_round(self) -> bool:
        """Return whether the threshold is for each round, instead of for all rounds together."""
        return False

    @property
    def discards_sums(self) -> bool:
        """Return whether sums hold unpublishable counts, so that they are deleted once decoded."""
        return False

    @property
    def hides_device_counts(self) -> bool:
        """Return whether only the server may know how many devices joined a round."""
        return False

    def largest_count(self, devices: int) -> float:
        """Return the largest count that one item of `devices` devices, all counted, can have."""
        return float(devices)

    def share(self, count: float, devices: int | None) -> float | None:
        """Return the share of `devices` that a count is; None if their number is secret.

        A device counts an item once, so that 178 of 372 devices are a share of 0.48.
        """
        if not devices or self.hides_device_counts:
            return None
        return min(1.0, max(0.0, count) / devices)

    @property
    def least_holders(self) -> float:
        """Return the number of devices from which counts of an item may be in any number shown."""
        return min(self.threshold, DEFAULT_MIN_THRESHOLD)

    def canonical(self, item: str) -> str | None:
        """Return the form of `item` that a device counts; None if it is outside the domain."""
        return self.domain.canonical(item)

    def enrolment_scope(self, study: str, terms: Terms, rounds: int) -> bytes:
        """Return the 32 bytes that a registrar signs identities for.

        They stand for one study with everything that its analyst decided, so that a device is not
        enrolled for another question, smaller cohorts, or more rounds under the same id. A goal is
        not among them, because a study may always end early.
        """
        facts: dict[str, Any] = {"question": _plain(self), "terms": _plain(terms), "rounds": rounds}
        digest = hashlib.sha256(rfc8785.dumps(facts)).digest()
        return hashlib.sha256(b"blindtally study v3\0" + digest + study.encode()).digest()

    def registry(self, study: str, terms: Terms, rounds: int) -> Registry | None:
        """Return the registry of the study's devices; None if the server alone decides."""
        if terms.registrar is None:
            return None
        scope = self.enrolment_scope(study, terms, rounds)
        return Registry(bytes.fromhex(terms.registrar), scope)


class SumQuestion(Question):
    """Question that is answered by secure sums.

    `message_bytes` bound a device's message of a round (`round_sizes.message_bytes`).
    """

    # Whether later rounds fetch the strings behind the keys of a hashed domain.
    fetches_strings: ClassVar[bool] = False

    message_bytes: int = Field(ge=1, le=MAX_MESSAGE_BYTES)

    @model_validator(mode="after")
    def _names_its_items(self) -> Self:
        if isinstance(self.domain, Hashed) and not self.fetches_strings:
            raise ValueError(
                f"{self.mechanism} fetches no strings, and would list the keys of a hashed domain: "
                "use tracked, or a domain of listed items, of an alphabet, or of short texts (utf8)"
            )
        return self

    def moduli(self, terms: Terms, t: float) -> Moduli:
        """Return the moduli of tables that are sampled at `t`; other lanes may need a prime."""
        del t
        return terms.moduli


Q = TypeVar("Q", bound=Question)


class Plan(PublicModel):
    """Request of one round to each device; all keys of the round are bound to its digest.

    `round` counts from 1 to `rounds`. `seed` is 32 bytes of fresh public randomness for hash
    functions. Devices sample their items at the sampling threshold `t`; 1 keeps all items. It is
    not the question's threshold tau. The plan of each mechanism narrows `question` and adds what
    changes from round to round.
    """

    mechanism: str
    question: Question

    study: str = Field(min_length=1, max_length=64)
    round: int = Field(ge=1, le=MAX_ROUNDS)
    rounds: int = Field(ge=1, le=MAX_ROUNDS)
    terms: Terms
    seed: Hex32
    t: float = Field(default=1, ge=1, le=1e15)

    @model_validator(mode="after")
    def _mechanisms_agree(self) -> Self:
        if self.mechanism != self.question.mechanism:
            raise ValueError(f"a plan of {self.mechanism} for {self.question.mechanism}")
        return self

    def canonical_text(self) -> str:
        """Return the plan's canonical JSON (RFC 8785), which is served and hashed."""
        return rfc8785.dumps(_plain(self)).decode()

    def digest(self) -> bytes:
        """Return the SHA-256 of a label and of the canonical text's bytes."""
        return hashlib.sha256(b"blindtally plan v2\0" + self.canonical_text().encode()).digest()

    def next_round(self, rng: Random, **changes: object) -> Self:
        """Return the plan of the next round, with a fresh seed and the given `changes`."""
        fresh = {"round": self.round + 1, "seed": rng.randbytes(32).hex()}
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate(fields | fresh | changes)

    @property
    def min_reported_count(self) -> float:
        """Return the smallest count with which the service lists an item."""
        return self.question.min_reported_count

    def history_faults(self) -> Iterator[str]:
        """Yield each request of the plan that no honest study can make in this round."""
        if self.round > self.rounds:
            yield f"asks in round {self.round} of {self.rounds}"

    @property
    def join_probability(self) -> float:
        """Return the probability that a device joins the round, by its own coin; here 1."""
        return 1.0

    def flip_join_coin(self, chance: RandomWords) -> bool:
        """Return whether a device joins the round; call once per device, since it draws a coin."""
        return bool(self.flip_join_coins(chance, 1)[0])

    def flip_join_coins(self, chance: RandomWords, count: int) -> Flags:
        """Return for each of `count` devices whether it joins, by its own coin."""
        return bernoulli(chance, math.floor(self.join_probability * 2**64), count)

    @property
    def vote_probability(self) -> float:
        """Return the probability that a device which joined gives a vote, by its secret coin."""
        return 1.0

    @property
    def registry(self) -> Registry | None:
        """Return the registry of devices that may take part; None if the server decides alone."""
        return self.question.registry(self.study, self.terms, self.rounds)

    def seated_round(self, joiners: int) -> SeatedRound:
        """Return the facts that the registrar signs when it seats `joiners` devices."""
        if self.registry is None:
            raise ValueError("a plan without a registrar seats nobody")
        registrar = self.registry.registrar
        return SeatedRound(self.digest(), registrar, joiners, self.terms.cohorts)

    @property
    def max_draws(self) -> int:
        """Return the number of times that the registrar seats one identity in the study."""
        return MAX_DRAWS + (self.rounds if self.question.asks_every_round else 0)

    @property
    def max_committee_draws(self) -> int:
        """Return the number of draws of committees that one volunteer is in, in the study."""
        return MAX_DRAWS + self.rounds


P = TypeVar("P", bound=Plan)


def first_plan_fields(
    question: Question, terms: Terms, study: str, rounds: int, rng: Random
) -> dict[str, Any]:
    """Return the fields that the first plans of all mechanisms share, with a fresh seed."""
    return {
        "mechanism": question.mechanism,
        "question": question,
        "study": study,
        "round": 1,
        "rounds": rounds,
        "terms": terms,
        "seed": rng.randbytes(32).hex(),
    }

"""Everything the programs say to one another: fields, sizes, limits and bytes.

Public facts travel as JSON (the pydantic models below; keys and signatures in hexadecimal),
everything large as raw bytes. What a participant sends is in `secagg/deals.py`; what it
hears is

    roster          for each slot: identity, mask key, seal key (32 each), signature (64),
                    enrolment (64, if the study has a registrar)
    sharers         for each: slot (u32), contribution (32), digest (32)
    confirmations   for each: slot (u32), signature (64)
    parcels         for each owner: slot (u32), parcel (81)

An error is problem+json (RFC 9457); its `type` is `urn:blindtally:problem:` and one of
`ProblemType`, which is stable: programs may act on it.
"""

import struct
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.mechanism import MOST_ROUNDS, Hex32, Terms
from protocol.mechanisms import AnyPlan, AnyQuestion
from protocol.privacy.ledger import Budget
from protocol.public import Public
from protocol.round import Phase
from secagg.keys import KEY_BYTES, SIGNATURE_BYTES
from secagg.parcels import Inbox, Parcel, inbox_bytes
from secagg.roster import (
    Entry,
    Roster,
    Sharer,
    Sharers,
    roster_bytes,
    sharers_bytes,
)

Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Hex64 = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
Rounds = Annotated[int, Field(ge=1, le=MOST_ROUNDS)]
PopulationName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
StudyState = Literal["created", "running", "finished", "stopped"]
RoundState = Literal["running", "decoded", "undecoded", "failed"]
RETRY_SECONDS: Final = 3.0  # at most between two tries of whoever found no service
PROBLEM = "urn:blindtally:problem:"

_CONFIRMATION = struct.Struct(f">I{SIGNATURE_BYTES}s")


class ProblemType(StrEnum):
    """What went wrong, in words that programs may rely on."""

    NOT_FOUND = "not-found"  # 404: no such study, round, participant or path
    NOT_AUTHORISED = "not-authorised"  # 401: no credential, or not one that is good here
    FORBIDDEN = "forbidden"  # 403: a credential that is good, but not for this
    TOO_MANY = "too-many-requests"  # 429: come back after Retry-After
    MALFORMED = "malformed"  # 400 or 422: not JSON, wrong size, type or range
    WRONG_MEDIA_TYPE = "wrong-media-type"  # 415
    METHOD_NOT_ALLOWED = "method-not-allowed"  # 405
    TOO_LARGE = "too-large"  # 413
    HEADERS_TOO_LARGE = "headers-too-large"  # 431
    TOO_SLOW = "too-slow"  # 408: the request did not come to its end in time
    WRONG_PHASE = "wrong-phase"  # 409: too early or too late; `phase` says where it stands
    CONFLICT = "conflict"  # 409: this was said before, with other content
    KEY_REUSED = "key-reused"  # 409: this Idempotency-Key came with another request before
    WRONG_STATE = "wrong-state"  # 409: the study is not in a state that allows this
    NO_ROUND = "no-round"  # 409: no round takes devices now; come back after Retry-After
    ALREADY_COUNTED = "already-counted"  # 409: this device took part in an earlier round
    OTHER_PLAN = "other-plan"  # 409: the report was made for another plan than this round's
    BUDGET_SPENT = "budget-spent"  # 409: this device, or population, has no budget left for this
    NOT_ENROLLED = "not-enrolled"  # 403: the study's registrar did not sign this identity
    BARRED = "barred"  # 403: this device departed from the protocol in an earlier cohort
    COHORT_FAILED = "cohort-failed"  # 410: the sum will not be made; forget it
    LEFT_OUT = "left-out"  # 410: the cohort went on without this participant
    UNAVAILABLE = "unavailable"  # 503: the database is busy or away; Retry-After
    INTERNAL = "internal-error"  # 500: a fault of ours


class Problem(Public):
    """An RFC 9457 problem. `errors` lists every fault of a rejected document."""

    type: str
    title: str
    status: int
    detail: str
    phase: Phase | None = None
    errors: tuple[dict[str, str], ...] | None = None


class Timeouts(Public):
    """Seconds of each phase at most; with a quorum heard, `patience` of silence ends it."""

    enrolling: Seconds = 600
    sharing: Seconds = 60
    masking: Seconds = 60
    confirming: Seconds = 60
    unmasking: Seconds = 60
    reporting: Seconds = 3600
    patience: Seconds = 5


class PopulationRequest(Public):
    """What an operator sends to create a population: what its studies may tell of a device."""

    budget: Budget


class PopulationView(Public):
    """A population as the service shows it."""

    name: str
    budget: Budget
    created: datetime


class StudyRequest(Public):
    """What an analyst sends to create a study.

    If it is of a `population`, that must have budget left for it.
    """

    name: Name
    question: AnyQuestion
    terms: Terms
    rounds: Rounds
    timeouts: Timeouts = Timeouts()
    start: bool = False
    population: PopulationName | None = None


class StudyView(Public):
    """A study as the service shows it; `round` is the latest, 0 before the first."""

    id: str
    name: str
    state: StudyState
    question: AnyQuestion
    terms: Terms
    rounds: int
    timeouts: Timeouts
    round: int
    created: datetime
    population: str | None = None


class PhaseRecord(Public):
    """When a cohort entered `phase`, and how many participants were heard in it."""

    phase: Phase
    entered: datetime
    heard: int


class CohortView(Public):
    """One secure sum: how far it is, who is in, and why it failed or was left out if it did.

    `holders` and `threshold` are 0 until enrolling is over. `survivors` are the slots whose
    vectors are in the sum, empty until the cohort is summed. `blamed` are the slots that
    departed from the protocol, each with what it did. Where nobody may learn how many devices
    joined (`Question.hides_sizes`), all of these are 0 or empty, as is `heard` of its history.
    """

    number: int
    phase: Phase
    deadline: datetime
    enrolled: int
    holders: int
    threshold: int
    history: tuple[PhaseRecord, ...]
    survivors: tuple[int, ...]
    failure: str | None
    blamed: Mapping[int, str] = {}


class RoundView(Public):
    """One round: its plan, its cohorts, and what its sum said.

    `participants` are the devices in the round's sum; `distinct` the estimated number of
    distinct keys in it; both None until the round is over. How many devices there are stays None
    where nobody may learn it (`Question.hides_sizes`).
    """

    number: int
    state: RoundState
    plan: AnyPlan
    cohorts: tuple[CohortView, ...]
    participants: int | None
    distinct: float | None
    opened: datetime
    closed: datetime | None


class HeavyHitter(Public):
    """An item whose estimated count reaches the study's threshold.

    `low` and `high` are the ends of its 95% interval.
    """

    item: str
    estimate: float
    standard_error: float
    low: float
    high: float


class Told(Public):
    """What a study says `at` a rank, value, range or prefix, and an interval of it.

    A value of an interval is a number, one of strings a prefix of it.
    """

    at: float | str
    value: float | str
    low: float | str
    high: float | str


class ToldPage(Public):
    """What a study says of values; each interval misses the truth with odds of `beta`."""

    estimator: str
    beta: float
    told: tuple[Told, ...]


class PopulationPage(Public):
    """A page of populations, by name; `next` is the `after` of the next page."""

    populations: tuple[PopulationView, ...]
    next: str | None


class StudyPage(Public):
    """A page of studies, newest first; `next` is the `after` of the next page."""

    studies: tuple[StudyView, ...]
    next: str | None


class RoundPage(Public):
    """A page of rounds, first to last; `next` is the `after` of the next page."""

    rounds: tuple[RoundView, ...]
    next: int | None


class HeavyHitterPage(Public):
    """A page of heavy hitters, most frequent first; `next` is the `after` of the next page."""

    heavy_hitters: tuple[HeavyHitter, ...]
    next: str | None


class Enrolment(Public):
    """A device's identity asks to be let in by an enrolment token.

    `credential` is the SHA-256 of the 32 random bytes that only the device knows, and that it
    shows from then on; `signature` is that of the identity (`possession`).
    """

    identity: Hex32
    credential: Hex32
    signature: Hex64


class AuditRecord(Public):
    """Who did what to whom, and how it ended: done, or refused."""

    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    outcome: str


class AuditPage(Public):
    """Entries of the audit trail, newest first; `next` is what to pass as `before` for more."""

    entries: tuple[AuditRecord, ...]
    next: int | None = None


class Join(Public):
    """A device asks to take part in a round, with its identity and its keys for it.

    `identity` is an Ed25519 public key that the device keeps for one study, so that nobody
    counts twice; `signature` is its own, under both keys (`secagg.cohort.advertisement`);
    `enrolment` the registrar's.
    """

    identity: Hex32
    mask_key: Hex32
    seal_key: Hex32
    signature: Hex64
    enrolment: Hex64 | None = None


class Seat(Public):
    """The answer to `Join`: where the device sits, until when it must come back."""

    participant: str
    cohort: int
    slot: int
    deadline: datetime


class Survivors(Public):
    """Slots whose masked vectors arrived."""

    survivors: tuple[int, ...]


class Pending(Public):
    """Not yet: the cohort is still in `phase`, until `deadline` at most. Ask again."""

    phase: Phase
    deadline: datetime


def pack_roster(roster: Iterable[Entry]) -> bytes:
    """Return the body that carries `roster`, by slot."""
    return roster_bytes(roster)


def unpack_roster(body: bytes, *, has_registrar: bool) -> Roster:
    """Return the roster in `body`.

    Raises:
        ValueError: if the size is no multiple of an entry's, or a key is no good.
    """
    return Roster(body, 3 * KEY_BYTES + (1 + has_registrar) * SIGNATURE_BYTES)


def pack_sharers(sharers: Mapping[int, Sharer]) -> bytes:
    """Return the body that says who shared."""
    return sharers_bytes(sharers)


def unpack_sharers(body: bytes) -> Sharers:
    """Return who shared, by slot; raises ValueError as `unpack_confirmations`."""
    return Sharers(body)


def pack_confirmations(signatures: Mapping[int, bytes]) -> bytes:
    """Return the body that carries signatures under the survivors."""
    return b"".join(_CONFIRMATION.pack(*row) for row in sorted(signatures.items()))


def unpack_confirmations(body: bytes) -> dict[int, bytes]:
    """Return signatures under the survivors, by slot.

    Raises:
        ValueError: if the size is no multiple of a record's, or slots do not strictly rise.
    """
    size = _CONFIRMATION.size
    if len(body) % size:
        raise ValueError(f"confirmations take {size} bytes each; {len(body)} is no multiple")
    signatures: dict[int, bytes] = dict(_CONFIRMATION.iter_unpack(body))
    if len(signatures) * size < len(body) or [*signatures] != sorted(signatures):
        raise ValueError("the slots of confirmations must strictly rise")
    return signatures


def pack_parcels(parcels: Mapping[int, Parcel]) -> bytes:
    """Return the body that carries a holder's parcels."""
    return inbox_bytes(parcels)


def unpack_parcels(body: bytes) -> Inbox:
    """Return a holder's parcels, by owner; raises ValueError as `unpack_confirmations`."""
    return Inbox.unpack(body)

"""Everything the programs say to one another: fields, sizes, limits and bytes.

Public facts travel as JSON (the pydantic models below; keys and seeds in hexadecimal),
everything large as raw bytes:

    vector       the ring's packed bytes, exactly `Ring.nbytes`
    envelopes    per neighbour: slot (u32, big end first), envelope (`ENVELOPE_BYTES`)
    reveal       per neighbour and self: owner's slot (u32), kind (u8), share (33 bytes)

An error is problem+json (RFC 9457); its `type` is `urn:blindtally:problem:` and one of
`ProblemType`, which is stable: programs may act on it.
"""

import struct
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from protocol.mechanism import Hex32, Terms
from protocol.mechanisms import AnyPlan, AnyQuestion
from protocol.public import Public
from protocol.round import Phase
from secagg.participant import ENVELOPE_BYTES, Reveal
from secagg.shamir import SHARE_BYTES

Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
DeviceId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{8,64}$")]
StudyState = Literal["created", "running", "finished", "stopped"]
RoundState = Literal["running", "decoded", "undecoded", "failed"]
RETRY_SECONDS: Final = 3.0  # at most between two tries of whoever found no service
PROBLEM = "urn:blindtally:problem:"

_ENVELOPE = struct.Struct(f">I{ENVELOPE_BYTES}s")
_REVEALED = struct.Struct(f">IB{SHARE_BYTES}s")
_KINDS = ("seed_shares", "key_shares")


class ProblemType(StrEnum):
    """What went wrong, in words that programs may rely on."""

    NOT_FOUND = "not-found"  # 404: no such study, round, participant or path
    NOT_AUTHORISED = "not-authorised"  # 401: the ticket is missing or not this participant's
    MALFORMED = "malformed"  # 400 or 422: not JSON, wrong size, type or range
    WRONG_MEDIA_TYPE = "wrong-media-type"  # 415
    METHOD_NOT_ALLOWED = "method-not-allowed"  # 405
    TOO_LARGE = "too-large"  # 413
    WRONG_PHASE = "wrong-phase"  # 409: too early or too late; `phase` says where it stands
    CONFLICT = "conflict"  # 409: this was said before, with other content
    WRONG_STATE = "wrong-state"  # 409: the study is not in a state that allows this
    NO_ROUND = "no-round"  # 409: no round takes devices now; come back after Retry-After
    ALREADY_COUNTED = "already-counted"  # 409: this device took part in an earlier round
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
    unmasking: Seconds = 60
    patience: Seconds = 5


class StudyRequest(Public):
    """What an analyst sends to create a study."""

    name: Name
    question: AnyQuestion
    terms: Terms
    rounds: int = Field(ge=1, le=10_000)
    timeouts: Timeouts = Timeouts()
    start: bool = False


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


class PhaseRecord(Public):
    """When a cohort entered `phase`, and how many participants were heard in it."""

    phase: Phase
    entered: datetime
    heard: int


class CohortView(Public):
    """One secure sum: how far it is, who is in, and why it failed if it did.

    `degree` and `threshold` are 0 until enrolling is over. `survivors` are the slots whose
    vectors are in the sum, empty until the cohort is summed.
    """

    number: int
    phase: Phase
    deadline: datetime
    enrolled: int
    degree: int
    threshold: int
    history: tuple[PhaseRecord, ...]
    survivors: tuple[int, ...]
    failure: str | None


class RoundView(Public):
    """One round: its plan, its cohorts, and what its sum said.

    `participants` are the devices in the round's sum; `distinct` the estimated number of
    distinct keys in it; both None until the round is over.
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
    """An item whose estimated count reaches the study's threshold."""

    item: str
    estimate: float
    standard_error: float


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


class Join(Public):
    """A device asks to take part in a round, with its public keys and seed commitment for it.

    `device` is a pseudonym that the device keeps for one study, so that nobody counts twice.
    """

    device: DeviceId
    mask_key: Hex32
    seal_key: Hex32
    commitment: Hex32


class Seat(Public):
    """The answer to `Join`: where the device sits, until when it must come back."""

    participant: str
    cohort: int
    slot: int
    deadline: datetime


class Neighbour(Public):
    """A neighbour's slot and public keys."""

    slot: int = Field(ge=0)
    mask_key: Hex32
    seal_key: Hex32


class Roster(Public):
    """Who takes part, as one participant needs to know it: its neighbours.

    `n` are enrolled; `seed` and (n, degree) give the graph, so that each participant
    computes its neighbours itself; `digest` covers the keys of all.
    """

    slot: int = Field(ge=0)
    n: int = Field(ge=2, le=100_000)
    degree: int = Field(ge=1)
    threshold: int = Field(ge=1)
    seed: Hex32
    digest: Hex32
    neighbours: tuple[Neighbour, ...]


class Survivors(Public):
    """Slots whose masked vectors arrived, and those that shared and were lost since."""

    survivors: tuple[int, ...]
    lost: tuple[int, ...]


class Pending(Public):
    """Not yet: the cohort is still in `phase`, until `deadline` at most. Ask again."""

    phase: Phase
    deadline: datetime


def pack_envelopes(envelopes: Mapping[int, bytes]) -> bytes:
    """Return the body that carries `envelopes`, by slot of the other end."""
    return b"".join(_ENVELOPE.pack(slot, sealed) for slot, sealed in sorted(envelopes.items()))


def unpack_envelopes(body: bytes) -> dict[int, bytes]:
    """Return the envelopes in `body`, by slot.

    Raises:
        ValueError: if the size is no multiple of a record's, or slots do not strictly rise.
    """
    return dict(_records(_ENVELOPE, body, "envelopes"))


def pack_reveal(reveal: Reveal) -> bytes:
    """Return the body that carries `reveal`."""
    records = [
        (owner, kind, share)
        for kind, name in enumerate(_KINDS)
        for owner, share in getattr(reveal, name).items()
    ]
    return b"".join(_REVEALED.pack(*record) for record in sorted(records))


def unpack_reveal(body: bytes) -> Reveal:
    """Return the shares in `body`.

    Raises:
        ValueError: if the size is no multiple of a record's, owners do not strictly rise
            (so nobody can give both secrets of one owner), or a kind is unknown.
    """
    shares: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})
    for owner, kind, share in _records(_REVEALED, body, "shares"):
        if kind >= len(_KINDS):
            raise ValueError(f"share of participant {owner}: kind 0 or 1 expected, got {kind}")
        shares[kind][owner] = share
    return Reveal(seed_shares=shares[0], key_shares=shares[1])


def _records(layout: struct.Struct, body: bytes, what: str) -> list[tuple[Any, ...]]:
    if len(body) % layout.size:
        raise ValueError(f"{what} take {layout.size} bytes each; {len(body)} is no multiple")
    records = list(layout.iter_unpack(body))
    slots = [record[0] for record in records]
    if any(later <= earlier for earlier, later in pairwise(slots)):
        raise ValueError(f"the slots of {what} must strictly rise")
    return records

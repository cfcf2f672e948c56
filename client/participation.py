"""One device in one round: the steps of `secagg.participant`, said over HTTP.

    join -> [roster] share -> [sharers] mask -> [survivors] confirm
         -> [confirmations, parcels] reveal

In brackets what is awaited before a step. In a round of the semi-honest mode nobody confirms
aloud. `Participation.steps` yields after each step, so that whoever drives it can stop there:
that device has vanished, as far as the others can tell. A plan may want devices to join by a
coin of their own: one that stays away takes no step, and says so to nobody.

Each step is computed once and its bytes are sent until they arrive, never computed again; what
may be given in one way only is in the device's journal before it leaves. The device checks
what it is told against its policy before the step that depends on it, and computes by itself
how many hold its shares, mask with it and confirm.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from random import Random
from typing import Final, ParamSpec, TypeVar
from urllib.parse import quote

from client.encoding import Contribution, encode
from client.journal import Given, Journal, What
from client.policy import Policy, rho_of
from client.transport import Transport
from protocol.chance import Chance
from protocol.credentials import make
from protocol.mechanisms import SUMMING
from protocol.messages import (
    Join,
    RoundView,
    Seat,
    Survivors,
    unpack_confirmations,
    unpack_parcels,
    unpack_roster,
    unpack_sharers,
)
from protocol.round import Phase, phases
from secagg.cohort import Cohort, View
from secagg.deals import KeyDeal, Reveal, Upload
from secagg.errors import RefusedError
from secagg.keys import Identity
from secagg.parameters import Mode, parameters
from secagg.participant import Confirmed, Joined, Masked, Shared, join
from secagg.ring import Ring, Vector

MUCH: Final = 4 * 2**20  # bytes of masks: from some 10 ms on, the event loop should go on meanwhile
A_HOLDER: Final = 2**16  # bytes of masks that take as long as the keys and signatures of one
P = ParamSpec("P")
T = TypeVar("T")


class Step(StrEnum):
    """What a device has just done."""

    JOINED = "joined"
    SHARED = "shared"
    MASKED = "masked"
    CONFIRMED = "confirmed"
    REVEALED = "revealed"
    REPORTED = "reported"


STEP_IN: Final = {  # the step that a phase awaits
    Phase.ENROLLING: Step.JOINED,
    Phase.SHARING: Step.SHARED,
    Phase.MASKING: Step.MASKED,
    Phase.CONFIRMING: Step.CONFIRMED,
    Phase.UNMASKING: Step.REVEALED,
    Phase.REPORTING: Step.REPORTED,
}


def steps(mode: Mode) -> tuple[Step, ...]:
    """Return the steps of a device in a round of `mode`, first to last."""
    return tuple(STEP_IN[phase] for phase in phases(mode))


@dataclass(frozen=True, slots=True)
class Device:
    """A device as one study knows it.

    `identity` is made for this study alone, so that nobody can tell who takes part in two, and
    kept as long as it lasts; `enrolment` is the registrar's signature under it, if the study
    has one; `journal` says what was given, and outlives whatever `identity` outlives;
    `credential` is what the identity was let in with (`client.enrolment`), if that is needed.
    """

    identity: Identity
    contribution: Contribution = field(repr=False)
    journal: Journal = field(repr=False)
    enrolment: bytes = b""
    credential: str = field(default="", repr=False)


class Participation:
    """The part that `device` takes in the round that `view` shows.

    `secrets` makes keys, seeds and tickets, `chance` samples what is sent and makes its noise:
    both must be the system's randomness, but in a simulation. `seat` is known once the device has
    joined, `vector` (unmasked, as it was encoded) once it has masked.
    """

    def __init__(
        self,
        transport: Transport,
        view: RoundView,
        device: Device,
        *,
        policy: Policy,
        secrets: Random,
        chance: Chance,
    ) -> None:
        self.seat: Seat | None = None
        self.vector: Vector | None = None
        self._transport = transport
        self._plan = view.plan
        self._number = view.number
        self._device = device
        self._policy = policy
        self._secrets = secrets
        self._chance = chance
        self._ticket = ""
        self._ring: Ring = SUMMING[view.plan.question.mechanism].ring(view.plan)

    async def steps(self, study: str) -> AsyncGenerator[Step]:
        """Take part in a round of `study`, step by step; in no step, if its coin says so.

        Raises:
            RefusedError: if the service asks for more than the policy gives, or for what
                would weaken the sum.
            ServiceError: if the service refuses a message: `LeftOutError`,
                `CohortFailedError` and so on.
            JournalError: if what is to be given cannot be recorded.
            httpx.TransportError: if the service is out of reach for too long.
        """
        given_to = await asyncio.to_thread(self._device.journal.rounds)
        self._policy.check_plan(self._plan, study, self._number, given_to)
        told = await asyncio.to_thread(self._device.journal.told, study)
        self._policy.check_told(self._plan, told)
        self._policy.check_enrolment(self._plan, self._device.identity, self._device.enrolment)
        if not await asyncio.to_thread(self._is_invited, study):
            return
        joined, seat = await self._join(study)
        yield Step.JOINED
        shared = await self._share(joined, seat)
        yield Step.SHARED
        masked = await self._mask(shared)
        yield Step.MASKED
        confirmed = await self._confirm(masked)
        if self._is_active:
            yield Step.CONFIRMED
        await self._reveal(confirmed)
        yield Step.REVEALED

    def _is_invited(self, study: str) -> bool:
        """Return whether my coin lets me join: it is in the journal before anything is sent."""
        plan, journal = self._plan, self._device.journal
        if plan.invited == 1:  # no coin: but whose coin fell for another plan is not asked again
            return not journal.has_coin(study, self._number)
        flip = partial(plan.joins, self._chance)
        return journal.invited(study, self._number, plan.digest().hex(), flip)

    @property
    def _is_active(self) -> bool:
        return self._plan.terms.assumptions.is_active

    async def _join(self, study: str) -> tuple[Joined, Seat]:
        device = self._device
        self._ticket = device.credential or make(self._secrets)
        joined = join(device.identity, self._secrets)
        asked = Join(
            identity=device.identity.public.hex(),
            mask_key=joined.public.mask.hex(),
            seal_key=joined.public.seal.hex(),
            signature=joined.advertise(self._plan.digest()).hex(),
            enrolment=device.enrolment.hex() if self._plan.registry else None,
        )
        path = f"/studies/{study}/rounds/{self._number}/participants"
        answer = await self._transport.send(
            "POST", path, content=asked.model_dump_json().encode(), ticket=self._ticket
        )
        with reading():
            self.seat = Seat.model_validate_json(answer.content)
        return joined, self.seat

    async def _share(self, joined: Joined, seat: Seat) -> Shared:
        roster = await self._hear("roster")
        # Holders are drawn now, and who refuses some is asked again: so the draw counts.
        drawn = joined.public.mask + joined.public.seal
        await self._record(What.SHARES, drawn, self._policy.max_sharings)
        shared, deal = await self._work(self._deal, joined, seat, roster)
        await self._say("shares", deal.pack())
        return shared

    def _deal(self, joined: Joined, seat: Seat, body: bytes) -> tuple[Shared, KeyDeal]:
        plan = self._plan
        with reading():
            roster = unpack_roster(body, has_registrar=plan.registry is not None)
        self._policy.check_cohort(plan, seat, len(roster))
        with reading():  # so many may be more than the terms can be kept for
            assumptions, registry = plan.terms.assumptions, plan.registry
            cohort = Cohort(plan.digest(), seat.cohort, roster, assumptions, registry)
        return joined.share(seat.slot, cohort, self._secrets)

    async def _mask(self, shared: Shared) -> Masked:
        sharers = await self._hear("sharers")
        masked, upload = await self._work(self._put_on, shared, sharers)
        await self._give(What.VECTOR, upload.pack())
        return masked

    def _put_on(self, shared: Shared, body: bytes) -> tuple[Masked, Upload]:
        with reading():
            view = View(shared.cohort, unpack_sharers(body))
        vector = encode(self._plan, self._device.contribution, shared.cohort.n, self._chance)
        masked, upload = shared.mask(view, self._ring, vector, self._secrets)
        self.vector = vector
        return masked, upload

    async def _confirm(self, masked: Masked) -> Confirmed:
        body = await self._hear("survivors")
        with reading():
            told = Survivors.model_validate_json(body)
        confirmed, signature = masked.confirm(told.survivors)
        if self._is_active:
            await self._give(What.CONFIRMATION, signature)
        return confirmed

    async def _reveal(self, confirmed: Confirmed) -> None:
        confirmations = await self._hear("confirmations") if self._is_active else b""
        parcels = await self._hear("parcels")
        reveal = await self._work(self._open, confirmed, confirmations, parcels)
        await self._give(What.REVEAL, reveal.pack())

    def _open(self, confirmed: Confirmed, signatures: bytes, body: bytes) -> Reveal:
        with reading():
            confirmations, parcels = unpack_confirmations(signatures), unpack_parcels(body)
        return confirmed.reveal(confirmations, parcels, self._secrets)

    async def _work(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a step returns; where steps take long, in a thread."""
        terms = self._plan.terms
        holders = parameters(terms.cohort_size, terms.assumptions).holders
        if holders * (self._ring.nbytes + A_HOLDER) < MUCH:
            return step(*args, **kwargs)
        return await asyncio.to_thread(step, *args, **kwargs)

    async def _hear(self, what: str) -> bytes:
        return (await self._transport.poll(self._path(what), self._ticket)).content

    async def _say(self, what: str, body: bytes) -> None:
        await self._transport.send("PUT", self._path(what), content=body, ticket=self._ticket)

    async def _give(self, what: What, body: bytes) -> None:
        """Say what may be said in one way only: it is in the journal before it leaves."""
        most = self._policy.max_rounds if self._plan.question.repeats else 1
        await self._record(what, body, most, a_round=1)
        await self._say(what, body)

    async def _record(self, what: What, body: bytes, most: int, a_round: int | None = None) -> None:
        assert self.seat is not None  # `steps` joins first
        given = Given.of(self._plan.study, self._number, self.seat.cohort, what, body)
        hidden = None
        if what is What.VECTOR:
            given = replace(given, rho=rho_of(self._plan))
            hidden = partial(self._policy.check_told, self._plan)
        record = partial(self._device.journal.record, a_round=a_round, hidden=hidden)
        await asyncio.to_thread(record, given, most)

    def _path(self, what: str) -> str:
        assert self.seat is not None  # `steps` joins first
        return f"/participants/{quote(self.seat.participant, safe='')}/{what}"


@contextmanager
def reading() -> Iterator[None]:
    """Leave if what the service said cannot be read.

    Raises:
        RefusedError: in place of any ValueError.
    """
    try:
        yield
    except ValueError as error:  # pydantic's among them
        raise RefusedError(f"sent what cannot be read: {error}") from error

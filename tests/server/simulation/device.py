"""A device over the rounds of a simulated study, and its checks of each response.

Device i adds 1 to cell i of its vector, so a sum shows its devices, and how often each is in it.
Its requests go to any running server, and some are dropped on purpose. Each actual response is
recorded, also if the device never receives it: a message that was accepted once must be accepted
forever.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal, cast

import httpx

from protocol.api.messages import PROBLEM_TYPE_PREFIX, RoundView, SlotAssignment
from secagg.ring import Vector
from tests.server.device import KINDS, Device
from tests.server.simulation.server import NoResponseError

Lost = Literal["request", "answer"]
Ask = Callable[..., Awaitable[httpx.Response]]
# Refusals that an honest device may get, by its request; 503 is an outage.
_CLOSED_PHASE = {(409, "wrong-phase"), (410, "cohort-failed"), (410, "dropped-out")}
_OUTAGE = {(503, "unavailable")}
_NO_SEAT = {(409, "no-round"), (409, "wrong-state"), (409, "already-counted")}


class RoundOverError(Exception):
    """The round is over for this device."""


class NotReadyError(Exception):
    """The device has no message to send yet, or no server runs."""


def verdict(response: httpx.Response) -> tuple[int, str]:
    """Return status and type of an answer."""
    if response.status_code < 400:
        return response.status_code, ""
    return response.status_code, str(response.json()["type"]).removeprefix(PROBLEM_TYPE_PREFIX)


class RoundDevice(Device):
    """A device in one round: it repeats each message until it is accepted."""

    def __init__(
        self, index: int, ask: Ask, study: str, view: RoundView, rng: Random, was_counted: bool
    ) -> None:
        super().__init__(cast("httpx.AsyncClient", None), f"device {index} of {study}", {}, rng)
        self.index, self.ask, self.study, self.view = index, ask, study, view
        self.was_counted = was_counted  # perhaps, in an earlier round
        self.accepted: set[str] = (
            set()
        )  # kinds that the service acknowledged, even if the response was dropped
        self.sent: set[str] = set()  # kinds that may have reached it
        self.is_over = False

    def encode(self) -> Vector:
        """Return a vector with 1 in the cell of this device."""
        vector = self.ring.zero()
        vector[0][self.index] = 1
        return vector

    async def get(self, what: str, wait: float = 0) -> httpx.Response:
        """Ask for something that must be there, without waiting."""
        path = f"{self.path}/{what}"
        response = await self.ask("GET", path, params={"wait": wait}, headers=self.headers)
        outcome = verdict(response)
        if response.status_code == 202 or outcome in _OUTAGE:
            raise NotReadyError
        if outcome in _CLOSED_PHASE:
            raise RoundOverError
        assert response.status_code == 200, f"{what}: {response.text}"
        return response

    async def request_seat(self, lost: Lost | None) -> None:
        path = f"/v1/studies/{self.study}/rounds/{self.view.number}/participants"
        request = self.join_request().model_dump()
        if lost == "request":
            raise NoResponseError
        response = await self.ask("POST", path, json=request, headers=self.headers)
        outcome = verdict(response)
        if outcome in _OUTAGE:
            raise NotReadyError
        if outcome in _NO_SEAT:
            assert self.seat is None, "a seat that was given is gone"
            assert outcome != (409, "already-counted") or self.was_counted
            raise RoundOverError
        assert response.status_code in (200, 201), response.text
        seat = SlotAssignment.model_validate_json(response.content)
        if self.seat is not None:
            was = (self.seat.participant, self.seat.cohort, self.seat.slot)
            assert (seat.participant, seat.cohort, seat.slot) == was, "another seat was given"
        self.seat = seat

    async def send_next(self, lost: Lost | None) -> None:
        """Compute the next message once, and send it until it is accepted."""
        kind = next(kind for kind in KINDS if kind not in self.accepted)
        if kind not in self.bodies:
            self.record(kind, await self.compute(kind))
        if lost == "request":
            raise NoResponseError
        outcome = await self.send(kind, self.bodies[kind])
        if outcome in _OUTAGE:
            raise NotReadyError
        if outcome in _CLOSED_PHASE:
            raise RoundOverError
        assert outcome == (204, ""), f"{kind} of an honest device: {outcome}"
        self.is_over = kind == KINDS[-1]
        if lost == "answer":
            raise NoResponseError

    async def send(self, kind: str, body: bytes) -> tuple[int, str]:
        """Send the message of `kind`, or other bytes; return status and type of the response."""
        is_mine, was_accepted = self.bodies.get(kind) == body, kind in self.accepted
        if is_mine:
            self.sent.add(kind)
        octets = {"Content-Type": "application/octet-stream"}
        path = f"{self.path}/{kind}"
        headers = octets | self.headers
        outcome = verdict(await self.ask("PUT", path, content=body, headers=headers))
        if not is_mine:
            assert outcome in _CLOSED_PHASE | _OUTAGE | {(409, "conflict"), (422, "malformed")}, (
                outcome
            )
        elif outcome == (204, ""):
            self.accepted.add(kind)
        elif was_accepted:
            assert outcome in _OUTAGE, f"{kind} was acknowledged and is refused: {outcome}"
        return outcome


@dataclass
class SimulatedDevice:
    """Device number `index` of a study, over all of its rounds; `is_away` if it does nothing."""

    index: int
    study: str
    ask: Ask
    time: Callable[[], float]
    rng: Random
    seats: list[RoundDevice] = field(default_factory=list)
    is_away: bool = False
    is_busy: bool = False  # with a step: a device is one program
    _later: float = 0.0  # when to look for a round again

    @property
    def seat(self) -> RoundDevice | None:
        """Return the seat in the present round, None if there is none."""
        return self.seats[-1] if self.seats and not self.seats[-1].is_over else None

    async def step(self, lost: Lost | None = None) -> None:
        """Take the next step: find a round, join it, or send one message."""
        if self.is_busy:
            return
        self.is_busy = True
        try:
            now = self.seat or await self._find()
            if now.seat is None:
                await self._join(now, lost)
            else:
                await now.send_next(lost)
        except RoundOverError:
            self.seats[-1].is_over = True
        except (NotReadyError, NoResponseError):
            pass
        finally:
            self.is_busy = False

    async def _join(self, now: RoundDevice, lost: Lost | None) -> None:
        await now.request_seat(lost)
        if lost == "answer":  # the same request gets the same response
            await now.request_seat(None)

    async def _find(self) -> RoundDevice:
        if self.time() < self._later:
            raise NotReadyError
        after = self.seats[-1].view.number if self.seats else 0
        path = f"/v1/studies/{self.study}/rounds/open"
        response = await self.ask("GET", path, params={"after": after})
        if response.status_code != 200:
            assert verdict(response) in _NO_SEAT | _OUTAGE, response.text
            self._later = self.time() + 2.0
            raise NotReadyError
        view = RoundView.model_validate_json(response.content)
        chance = Random(self.rng.getrandbits(64))
        counted = any("masked-input" in seat.sent for seat in self.seats)
        self.seats.append(RoundDevice(self.index, self.ask, self.study, view, chance, counted))
        return self.seats[-1]

    def sent_messages(self) -> list[tuple[RoundDevice, str, bytes]]:
        """Return all that was sent so far, in all rounds."""
        return [
            (seat, kind, body)
            for seat in self.seats
            for kind, body in seat.bodies.items()
            if kind in seat.sent
        ]

"""Registrar that seats rounds: draws which joiners share a cohort, and signs each cohort.

It draws the committees of one-shot sums from volunteers in the same way.

    async with http_client(url) as http:
        await Registrar(identity, DrawRecord(path)).serve(Transport(http), api_key)

A server that could repeat a draw would repeat it until its colluders surround a device. So a plan
has one list of joiners and one draw. An identity is drawn at most `Plan.max_draws` times in its
study, and a volunteer `Plan.max_committee_draws` times, under any plans that the server makes. The
record is durable before anything is signed. The same request has the same answer, so a registrar or
a service that was killed goes on.

The list of a committee has exactly the number of volunteers that the plan promises, all different
devices that the registrar enrolled and that signed their keys for this plan. With fewer, the
devices that collude would be a larger part of the list than the committee's parameters assume.
"""

import asyncio
import os
import sqlite3
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random, SystemRandom
from typing import Final

import httpx

from client.committee.private_database import open_private_database
from client.committee.round_poller import RoundPoller, polling
from client.http.address_and_retries import url_path
from client.http.exchange import parse_document
from client.http.transport import Transport
from protocol.api.messages import CommitteeView, PendingSeating, SeatingPage, SeatingView
from protocol.api.one_shot import SUM_NUMBER, VOLUNTEER_BYTES
from protocol.committee_terms import VolunteerTerms
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan
from secagg.keys import KEY_BYTES, SIGNATURE_BYTES, Identity
from secagg.oneshot.committee import (
    ENTRY_BYTES,
    Committee,
    MemberEntry,
    draw_members,
    sign_committee,
)
from secagg.seating import split_identities

MAX_JOINERS: Final = 2**22  # 400 MB of identities and enrolments
_ROW_BYTES: Final = KEY_BYTES + SIGNATURE_BYTES
_SCHEMA: Final = """
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS draws (plan BLOB PRIMARY KEY, joiners BLOB, seats BLOB);
CREATE TABLE IF NOT EXISTS seated_in_study (device BLOB PRIMARY KEY, times INTEGER) WITHOUT ROWID;
"""
_COUNT_DRAW: Final = (  # a device is the hash of its study's scope and its identity
    "INSERT INTO seated_in_study VALUES (?, 1) "
    "ON CONFLICT (device) DO UPDATE SET times = times + 1 WHERE times < ?"
)


class SeatingRefusedError(ValueError):
    """The registrar does not seat this round; the message states the reason."""


class DrawRecord:
    """Durable record of draws, in a SQLite file which only its owner may read.

    Without a `path` it ends with the process.

    Raises:
        OSError, sqlite3.Error: if the file cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._connection = open_private_database(self, path, _SCHEMA)

    def draw(
        self,
        scope: bytes,
        plan_digest: bytes,
        joiners: Sequence[bytes],
        max_draws: int,
        rng: Random,
    ) -> list[int]:
        """Return the numbers of `joiners` in a random order, the same one for the same plan.

        A joiner is an identity, and facts of it that no second draw may change. `scope` is that of
        the study for which the identities were enrolled. Draws of other studies do not count, since
        a device may have the same identity there.

        Raises:
            SeatingRefusedError: if the plan was drawn for others, or one of the identities has been
                drawn `max_draws` times in its study.
        """
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")  # another process may have the same file
        try:
            seats = self._seats(scope, plan_digest, joiners, max_draws, rng)
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite itself ends it on a full disk
                execute("ROLLBACK")
            raise
        return seats

    def _seats(
        self,
        scope: bytes,
        plan_digest: bytes,
        joiners: Sequence[bytes],
        max_draws: int,
        rng: Random,
    ) -> list[int]:
        digest = sha256(b"".join(joiners)).digest()
        query = "SELECT joiners, seats FROM draws WHERE plan = ?"
        known = self._connection.execute(query, (plan_digest,)).fetchone()
        if known is None:
            identities = [joiner[:KEY_BYTES] for joiner in joiners]
            seats = self._new_draw(scope, identities, max_draws, rng)
            row = (plan_digest, digest, array("Q", seats).tobytes())
            self._connection.execute("INSERT INTO draws VALUES (?, ?, ?)", row)
            return seats
        if known[0] != digest:
            raise SeatingRefusedError("other joiners were seated for the same plan before")
        return array("Q", known[1]).tolist()

    def _new_draw(
        self, scope: bytes, identities: Sequence[bytes], max_draws: int, rng: Random
    ) -> list[int]:
        rows = ((sha256(scope + identity).digest(), max_draws) for identity in identities)
        counted = self._connection.executemany(_COUNT_DRAW, rows).rowcount
        if counted < len(identities):
            raise SeatingRefusedError(
                f"{len(identities) - counted} of {len(identities)} devices were seated {max_draws} "
                "times in this study before"
            )
        seats = list(range(len(identities)))
        rng.shuffle(seats)
        return seats


@dataclass
class Registrar(RoundPoller[PendingSeating]):
    """The registrar of `identity`; `rng` must be the system's randomness outside of tests.

    With a `study`, it seats the rounds of that study only. A draw that cannot be recorded is not
    signed, and tried again.
    """

    refusals = (SeatingRefusedError,)
    repeated = (*RoundPoller.repeated, sqlite3.Error)
    poll_seconds = 1.0
    identity: Identity
    draws: DrawRecord
    rng: Random = field(default_factory=SystemRandom)
    study: str | None = None
    last_contact: float = field(default_factory=time.monotonic, init=False)

    async def waiting(
        self, transport: Transport, api_key: str | None, wait: float
    ) -> list[PendingSeating]:
        path = f"/registrars/{self.identity.public.hex()}/seatings"
        answer = await transport.send("GET", path, ticket=api_key, wait=wait)
        page = parse_document(SeatingPage, answer.content)
        self.last_contact = time.monotonic()
        return [each for each in page.rounds if self.study in (None, each.study)]

    async def step(
        self, transport: Transport, api_key: str | None, pending: PendingSeating
    ) -> bool:
        await self._seat(transport, pending, api_key)
        return True

    async def _seat(
        self, transport: Transport, pending: PendingSeating, api_key: str | None
    ) -> None:
        base = url_path("studies", pending.study, "rounds", pending.round)
        if pending.is_committee:
            await self._draw_committee(transport, base, pending, api_key)
            return
        answer = await transport.send("GET", f"{base}/seating", ticket=api_key)
        view = parse_document(SeatingView, answer.content)
        self._check_plan(view.plan, pending, view.joiners)
        rows: list[bytes] = []
        while len(rows) < view.joiners:
            answer = await transport.send(
                "GET", f"{base}/joiners", params={"after": len(rows)}, ticket=api_key
            )
            rows += _split_rows(answer.content)
        if len(rows) > view.joiners:
            raise SeatingRefusedError(f"{view.joiners} joined, and {len(rows)} are shown")
        body = await asyncio.to_thread(self._sign_seats, view.plan, rows)
        await transport.send("PUT", f"{base}/seating", content=body, ticket=api_key)

    async def _draw_committee(
        self, transport: Transport, base: str, pending: PendingSeating, api_key: str | None
    ) -> None:
        """Draw the committee of a one-shot sum from its volunteers, and send it."""
        answer = await transport.send("GET", f"{base}/committee", ticket=api_key)
        plan = parse_document(CommitteeView, answer.content).plan
        self._check_round(plan, pending)
        if not plan.terms.draws_committee:
            raise SeatingRefusedError("the plan does not ask this registrar for a committee")
        answer = await transport.send("GET", f"{base}/volunteers", ticket=api_key)
        body = await asyncio.to_thread(self._sign_committee, plan, answer.content)
        await transport.send("PUT", f"{base}/committee", content=body, ticket=api_key)

    def _sign_committee(self, plan: AnyPlan, body: bytes) -> bytes:
        def draw(volunteers: Sequence[bytes]) -> list[int]:
            assert plan.registry is not None  # `_check_round`
            facts = plan.registry.scope, plan.digest(), volunteers, plan.max_committee_draws
            return self.draws.draw(*facts, self.rng)

        try:
            return signed_committee(plan, body, self.identity, draw)
        except ValueError as error:
            raise SeatingRefusedError(str(error)) from None

    def _check_round(self, plan: AnyPlan, pending: PendingSeating) -> None:
        if (plan.study, plan.round) != (pending.study, pending.round):
            raise SeatingRefusedError("the service shows the plan of another round")
        if plan.terms.registrar != self.identity.public.hex():
            raise SeatingRefusedError("the plan names another registrar")
        for fault in plan.history_faults():
            raise SeatingRefusedError(f"no honest study has this plan: it {fault}")

    def _check_plan(self, plan: AnyPlan, pending: PendingSeating, joiners: int) -> None:
        self._check_round(plan, pending)
        terms = plan.terms
        if not terms.is_seated:
            raise SeatingRefusedError("the plan does not ask this registrar for seats")
        fewest, most = terms.cohorts * terms.minimum, min(terms.max_devices, MAX_JOINERS)
        if plan.mechanism not in SUM_MECHANISMS or not fewest <= joiners <= most:
            raise SeatingRefusedError(f"{joiners} joined, and a round has {fewest} to {most}")

    def _sign_seats(self, plan: AnyPlan, rows: Sequence[bytes]) -> bytes:
        """Return signatures of all cohorts, and the number of the joiner in each seat."""
        number_of = {row[:KEY_BYTES]: number for number, row in enumerate(rows)}
        registry = plan.registry
        assert registry is not None  # `_check_plan`
        if len(number_of) < len(rows):
            raise SeatingRefusedError("a device would have two seats")
        for row in rows:
            if not registry.admits(row[:KEY_BYTES], row[KEY_BYTES:]):
                raise SeatingRefusedError("a joiner was never enrolled by this registrar")
        # By identity, so that the order in which the server shows them makes no other draw.
        joiners = sorted(number_of)
        seats = self.draws.draw(registry.scope, plan.digest(), joiners, plan.max_draws, self.rng)
        seated = [joiners[seat] for seat in seats]
        seated_round = plan.seated_round(len(rows))
        signatures = [
            seated_round.sign(self.identity, cohort, identities).signature
            for cohort, identities in enumerate(split_identities(seated, plan.terms.cohorts))
        ]
        numbers = (number_of[identity].to_bytes(4, "big") for identity in seated)
        return b"".join([*signatures, *numbers])


def _split_rows(body: bytes) -> list[bytes]:
    if not body or len(body) % _ROW_BYTES:
        raise SeatingRefusedError(f"joiners take {_ROW_BYTES} bytes each, got {len(body)}")
    return [body[start : start + _ROW_BYTES] for start in range(0, len(body), _ROW_BYTES)]


def seating_rounds(
    connect: Callable[[], httpx.AsyncClient], registrar: Registrar, api_key: str | None = None
) -> AbstractAsyncContextManager[None]:
    """Seat the rounds of `registrar` in the background, for programs that are it themselves.

    Raises:
        ServiceError: if the service refuses the first request, for example without the scope
            `seat`.
    """
    return polling(connect, [(registrar, api_key)])


def signed_committee(
    plan: AnyPlan, body: bytes, registrar: Identity, draw: Callable[[Sequence[bytes]], list[int]]
) -> bytes:
    """Return the committee of `plan`, packed, from the volunteers in `body`.

    `body` has the key and the enrolment of each. `draw` receives identity and key of each, and
    returns their numbers in a random order, always the same one for a plan.

    Raises:
        ValueError: if the list is not one of enrolled volunteers of this plan, or as `draw` does.
    """
    terms, digest = plan.terms.committee, plan.digest()
    assert isinstance(terms, VolunteerTerms), "the caller checks the plan"
    if len(body) != terms.volunteers * VOLUNTEER_BYTES:
        raise ValueError(
            f"the plan promises {terms.volunteers} volunteers, of {VOLUNTEER_BYTES} bytes each, "
            f"and the list has {len(body)} bytes"
        )
    rows = (body[at : at + VOLUNTEER_BYTES] for at in range(0, len(body), VOLUNTEER_BYTES))
    # Sorted, so that the order in which the server lists them makes no other draw.
    volunteers = [_checked_volunteer(plan, digest, row) for row in sorted(rows)]
    order = draw([entry.identity + entry.key for entry in volunteers])
    members = draw_members(volunteers, terms.size, digest, SUM_NUMBER, order)
    committee = Committee(digest, SUM_NUMBER, terms.parameters, members)
    return sign_committee(committee, registrar).pack()


def _checked_volunteer(plan: AnyPlan, digest: bytes, row: bytes) -> MemberEntry:
    entry, registry = MemberEntry.unpack(row[:ENTRY_BYTES]), plan.registry
    assert registry is not None, "a committee of volunteers has a registrar"
    if not registry.admits(entry.identity, row[ENTRY_BYTES:]):
        raise ValueError("a volunteer was never enrolled by this registrar")
    if not entry.is_authentic(digest, SUM_NUMBER):
        raise ValueError("a volunteer did not sign its key for this plan")
    return entry

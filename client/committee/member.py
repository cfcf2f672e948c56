"""Member of committees: opens the one-shot sums of a service together with the other members.

    async with http_client(url) as http:
        await CommitteeMember(identity, MemberJournal(path)).serve(Transport(http), api_key)

The member is an operator, or a device that volunteers for the committee of one study. It polls the
service, so it may run behind a firewall. It takes the steps of
`secagg.oneshot.member`, each after its result is in the journal, and sends the same bytes again if
it is asked again. It reads the plan of each round and serves only those that its policy accepts.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random, SystemRandom
from time import monotonic, time
from typing import Final

from client.committee.member_journal import (
    KeptKey,
    MemberEntry,
    MemberJournal,
    MemberJournalError,
    UnwritableJournalError,
)
from client.committee.round_poller import RoundPoller
from client.errors import NoRoundError, ServiceError, ServiceUnreachableError, WrongPhaseError
from client.http.address_and_retries import url_path
from client.http.exchange import parse_document, refusing_malformed
from client.http.transport import Transport
from protocol.api.messages import CommitteeRound, CommitteeRoundPage, CommitteeView
from protocol.api.one_shot import SUM_NUMBER, OneShotRound, column_bytes
from protocol.api.phases import MEMBER_MESSAGE_KIND, MemberMessageKind, Phase
from protocol.committee_terms import CommitteeTerms, VolunteerTerms
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan
from secagg.errors import ProtocolError, UnsafeRequestError
from secagg.keys import KEY_BYTES, Identity
from secagg.messages import unpack_signatures
from secagg.oneshot.committee import Committee, OneShotSession
from secagg.oneshot.member import Agreed, Checked, volunteer_again
from secagg.oneshot.member_messages import unpack_digests
from secagg.oneshot.message import Layout
from secagg.roster import DIGEST_BYTES

_ERASURE_SECONDS: Final = 600.0  # between two searches for keys of rounds that are over
_MAX_KEPT_SUMS: Final = 16
_MAX_VIEW_BYTES: Final = 2**22
_MAX_PAGE_BYTES: Final = 2**25  # of columns of messages


@dataclass(frozen=True, slots=True)
class MemberPolicy:
    """Limits of a member: it serves no round that protects devices less.

    Attributes:
        min_devices: the smallest number of messages in a sum.
        registrars: the public keys of registrars whose studies it serves; empty for any.
        serve_unverified: serves studies without a registrar, whose server could invent devices.
        max_column_bytes: the largest size of what it receives of all devices of a sum, and of all
            sums whose shares it keeps. Its memory holds about five times as much.
    """

    min_devices: int = 50
    registrars: frozenset[bytes] = frozenset()
    serve_unverified: bool = False
    max_column_bytes: int = 2**29

    def refusal(self, plan: AnyPlan) -> str | None:
        """Return the reason not to serve a round of `plan`, None if the policy accepts it."""
        terms = plan.terms
        if terms.minimum < self.min_devices:
            return f"it sums as few as {terms.minimum} devices, below {self.min_devices}"
        nbytes = received_bytes(plan)
        if nbytes > self.max_column_bytes:
            return f"its devices may send {nbytes:,} bytes, above {self.max_column_bytes:,}"
        if terms.registrar is None:
            return None if self.serve_unverified else "no registrar vouches for its devices"
        if self.registrars and bytes.fromhex(terms.registrar) not in self.registrars:
            return "it names another registrar than those accepted"
        return None


def received_bytes(plan: AnyPlan) -> int:
    """Return the largest size of what a member receives of all devices of a sum."""
    return plan.terms.cohort_size * column_bytes(plan)


class NotServedError(Exception):
    """The member takes no further part in a round; the message states the reason."""


@dataclass(frozen=True, slots=True)
class Volunteering:
    """The study that a device volunteers for, and the source of its enrolment.

    `enrol` returns the registrar's signature of the device's identity for a plan. With a `round`,
    the device serves in this round only.
    """

    study: str
    enrol: Callable[[AnyPlan], Awaitable[bytes]]
    round: int | None = None


@dataclass
class CommitteeMember(RoundPoller[CommitteeRound]):
    """The member with `identity`; `rng` must be the system's randomness outside of tests.

    With `volunteering` it is a device, which serves in one study.
    """

    refusals = (NotServedError, MemberJournalError, ProtocolError)
    repeated = (*RoundPoller.repeated, UnwritableJournalError)
    skipped = (WrongPhaseError, NoRoundError)  # it went on meanwhile, or has enough volunteers
    poll_seconds = 0.5
    poll_wait = 20.0
    identity: Identity
    journal: MemberJournal
    policy: MemberPolicy = field(default_factory=MemberPolicy)
    rng: Random = field(default_factory=SystemRandom)
    clock: Callable[[], float] = time  # seconds since 1970
    volunteering: Volunteering | None = None
    seconds: Callable[[], float] = monotonic  # of durations, which no change of the time alters
    last_contact: float | None = field(default=None, init=False)  # when it last read the rounds
    _contact_seconds: float = field(default=-math.inf, init=False, repr=False)
    _next_erasure: float = field(default=-math.inf, init=False, repr=False)
    _states: dict[bytes, tuple[Checked | Agreed, int]] = field(
        default_factory=dict, init=False, repr=False
    )

    async def prepare(self, transport: Transport, api_key: str | None) -> None:
        if self.seconds() >= self._next_erasure:
            self._next_erasure = self.seconds() + _ERASURE_SECONDS
            await self.erase_spent_keys(transport, api_key)

    async def waiting(
        self, transport: Transport, api_key: str | None, wait: float
    ) -> list[CommitteeRound]:
        path = f"/members/{self.identity.public.hex()}/rounds"
        params = {"study": self.volunteering.study} if self.volunteering else None
        answer = await transport.send("GET", path, params=params, ticket=api_key, wait=wait)
        page = parse_document(CommitteeRoundPage, answer.content)
        self.last_contact, self._contact_seconds = self.clock(), self.seconds()
        return [each for each in page.rounds if self._may_serve(each)]

    async def step(
        self, transport: Transport, api_key: str | None, pending: CommitteeRound
    ) -> bool:
        return await _MemberStep(self, transport, api_key, pending).take()

    def _may_serve(self, pending: CommitteeRound) -> bool:
        """Return whether the round is one that the member asked for."""
        offer = self.volunteering
        if offer is None:
            return True
        return offer.study == pending.study and offer.round in (None, pending.round)

    async def erase_spent_keys(self, transport: Transport, api_key: str | None = None) -> None:
        """Erase the keys of the rounds that are over, as the service shows, and those that are old.

        A service that does not answer, or does not know a round any more, leaves its key alone.
        """
        self.journal.erase_old_keys(self.clock())
        for kept in self.journal.kept_keys():
            if self.volunteering is not None and kept.study != self.volunteering.study:
                continue  # perhaps of another service
            path = f"{_round_path(kept.study, kept.round)}/committee"
            try:
                answer = await transport.send(
                    "GET", path, ticket=api_key, max_bytes=_MAX_VIEW_BYTES
                )
                view = parse_document(CommitteeView, answer.content)
            except ServiceUnreachableError:
                return
            except (ServiceError, UnsafeRequestError):
                continue
            is_same = await asyncio.to_thread(view.plan.digest) == kept.plan
            if is_same and view.phase.is_over:
                self.journal.erase_key(kept.plan)

    def seconds_since_contact(self) -> float:
        """Return the seconds since the service last showed its rounds; infinite before that."""
        return self.seconds() - self._contact_seconds

    def keep(self, plan_digest: bytes, state: Checked | Agreed, nbytes: int) -> None:
        """Keep the shares of a sum of `nbytes` until its next step; the oldest are made again.

        A sum that fails has no next step, so a server could fill the memory with many of them.
        """
        self._states[plan_digest] = state, nbytes
        kept = sum(size for _, size in self._states.values())
        while len(self._states) > 1 and (
            len(self._states) > _MAX_KEPT_SUMS or kept > self.policy.max_column_bytes
        ):
            kept -= self._states.pop(next(iter(self._states)))[1]

    def take(self, plan_digest: bytes) -> Checked | Agreed | None:
        """Return the kept state of a sum, which is not kept any more, or None."""
        return self._states.pop(plan_digest, (None, 0))[0]


@dataclass
class _MemberStep:
    """One step of a member in one round."""

    member: CommitteeMember
    transport: Transport
    api_key: str | None = field(repr=False)
    pending: CommitteeRound
    _digest: bytes = field(default=b"", init=False)  # of the plan

    async def take(self) -> bool:
        """Take the step that the round's phase waits for; False if it went on meanwhile.

        Raises:
            NotServedError, MemberJournalError, ProtocolError: if the member must not take it.
            ServiceError, ServiceUnreachableError: if the service refuses it.
        """
        view = parse_document(CommitteeView, await self._get("committee"))
        if view.phase not in MEMBER_MESSAGE_KIND:
            return False
        self._check_plan(view.plan)
        self._digest = await asyncio.to_thread(view.plan.digest)
        entry = self.member.journal.entry(self._digest)
        if view.phase is Phase.CONVENING:
            await self._register(view.plan)
            return True
        session = await asyncio.to_thread(self._session, view)
        if view.phase is Phase.CHECKING:
            await self._complain(view.plan, session, entry)
        elif view.phase is Phase.AGREEING:
            await self._agree(view.plan, session, entry)
        elif view.phase is Phase.RELEASING:
            await self._release(view.plan, session, entry)
        return True

    def _check_plan(self, plan: AnyPlan) -> None:
        if (plan.study, plan.round) != (self.pending.study, self.pending.round):
            raise NotServedError("the service shows the plan of another round")
        committee = plan.terms.committee
        if isinstance(committee, VolunteerTerms) != (self.member.volunteering is not None):
            raise NotServedError("the plan asks for another kind of member")
        if committee is None or (
            isinstance(committee, CommitteeTerms) and self._identity.hex() not in committee.members
        ):
            raise NotServedError("the plan does not name this member")
        if plan.mechanism not in SUM_MECHANISMS:
            raise NotServedError("no honest study has this plan: it asks a committee for reports")
        for fault in plan.history_faults():
            raise NotServedError(f"no honest study has this plan: it {fault}")
        with refusing_malformed():  # lanes too wide for primes
            refusal = self.member.policy.refusal(plan)
        if refusal is not None:
            raise NotServedError(refusal)

    @property
    def _identity(self) -> bytes:
        return self.member.identity.public

    async def _register(self, plan: AnyPlan) -> None:
        volunteering = self.member.volunteering
        enrolment = await volunteering.enrol(plan) if volunteering else b""
        fresh = self.member.rng.randbytes(KEY_BYTES)
        kept = KeptKey(self._digest, plan.study, plan.round)
        secret = self.member.journal.key(kept, fresh, self.member.clock())
        state = volunteer_again(self.member.identity, secret, self._digest, SUM_NUMBER)
        body = state.register(self._digest, SUM_NUMBER).pack() + enrolment
        await self._put(MemberMessageKind.KEY, body)

    def _session(self, view: CommitteeView) -> OneShotSession:
        """Return the session of the sum, whose committee the journal binds the key to."""
        with refusing_malformed():
            committee = Committee.unpack(bytes.fromhex(view.committee or ""))
            session = OneShotRound.of(view.plan, self._digest, committee).session
        session.check_authority()
        self.member.journal.bind(self._digest, committee.digest)
        return session

    async def _complain(self, plan: AnyPlan, session: OneShotSession, entry: MemberEntry) -> None:
        body = entry.complaints
        if body is None:
            state, body = await self._check(plan, session, entry)
            self.member.journal.complain(self._digest, body)
            self._keep(plan, state)
        await self._put(MemberMessageKind.COMPLAINTS, body)

    async def _check(
        self, plan: AnyPlan, session: OneShotSession, entry: MemberEntry
    ) -> tuple[Checked, bytes]:
        """Return the state after checking the columns, and the complaints."""
        if entry.secret is None:
            raise NotServedError("this member has no key for the sum any more")
        columns = await self._columns(plan, session)
        state = volunteer_again(self.member.identity, entry.secret, self._digest, SUM_NUMBER)
        with refusing_malformed():
            checked, complaints = await asyncio.to_thread(state.check, session, columns)
        return checked, complaints.pack()

    async def _columns(self, plan: AnyPlan, session: OneShotSession) -> list[bytes]:
        """Return this member's columns of all messages."""
        members = [each.identity for each in session.committee.entries]
        if self._identity not in members:
            raise UnsafeRequestError("showed a committee without my entry for this sum")
        size = Layout.of(session).column_bytes(members.index(self._identity) + 1)
        columns = list[bytes]()
        after = b""
        while True:
            path = f"members/{self._identity.hex()}/columns"
            body = await self._get(path, {"after": after.hex()}, _MAX_PAGE_BYTES)
            if not body:
                return columns
            if len(body) % size:
                raise UnsafeRequestError(f"sent {len(body)} bytes of columns of {size} bytes")
            columns += [body[start : start + size] for start in range(0, len(body), size)]
            last = columns[-1][:KEY_BYTES]
            if last <= after or len(columns) > plan.terms.cohort_size:
                raise UnsafeRequestError("sent more columns than the sum has devices")
            after = last

    async def _agree(self, plan: AnyPlan, session: OneShotSession, entry: MemberEntry) -> None:
        signature = entry.signature
        if signature is None:
            included = await self._message_set(plan)
            checked = self.member.take(self._digest)
            if not isinstance(checked, Checked):  # this process has started since
                checked, _ = await self._check(plan, session, entry)
            self.member.journal.attempt(self._digest, session.set_digest(included))
            agreed = await asyncio.to_thread(checked.agree, included)
            state, signature = agreed
            self.member.journal.sign(self._digest, signature)
            self._keep(plan, state)
        await self._put(MemberMessageKind.SET_SIGNATURE, signature)

    async def _message_set(self, plan: AnyPlan) -> tuple[bytes, ...]:
        max_bytes = plan.terms.cohort_size * DIGEST_BYTES
        with refusing_malformed():
            return unpack_digests(await self._get("message-set", max_bytes=max_bytes))

    async def _release(self, plan: AnyPlan, session: OneShotSession, entry: MemberEntry) -> None:
        body = entry.sum
        if body is None:
            if entry.signature is None or entry.attempt is None:
                raise NotServedError("this member signed no set of messages")
            agreed = self.member.take(self._digest)
            if not isinstance(agreed, Agreed):  # this process has started since
                included = await self._message_set(plan)
                checked, _ = await self._check(plan, session, entry)
                agreed = checked.agree_again(included, entry.attempt)
            self._keep(plan, agreed)
            with refusing_malformed():
                signatures = unpack_signatures(await self._get("set-signatures"))
            body = (await asyncio.to_thread(agreed.release, signatures)).pack()
            self.member.journal.release(self._digest, body)
            self.member.take(self._digest)
        await self._put(MemberMessageKind.SUM, body)

    def _keep(self, plan: AnyPlan, state: Checked | Agreed) -> None:
        self.member.keep(self._digest, state, received_bytes(plan))

    async def _get(
        self,
        resource: str,
        params: dict[str, int | str] | None = None,
        max_bytes: int = _MAX_VIEW_BYTES,
    ) -> bytes:
        answer = await self.transport.send(
            "GET",
            f"{self._base}/{resource}",
            params=params,
            ticket=self.api_key,
            max_bytes=max_bytes,
        )
        return answer.content

    async def _put(self, kind: MemberMessageKind, body: bytes) -> None:
        path = f"{self._base}/members/{self._identity.hex()}/{kind}"
        await self.transport.send("PUT", path, content=body, ticket=self.api_key)

    @property
    def _base(self) -> str:
        return _round_path(self.pending.study, self.pending.round)


def _round_path(study: str, number: int) -> str:
    return url_path("studies", study, "rounds", number)

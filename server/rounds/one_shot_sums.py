"""One-shot sums on the server: the messages of devices, and the total.

Both follow from rows that no longer change once their phase is over, so that a server that was
killed makes them again. Long computations run in threads.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protocol.api.messages import ProblemType
from protocol.api.one_shot import OneShotRound
from protocol.api.phases import MemberMessageKind, Phase
from protocol.mechanisms.registry import AnyPlan
from secagg.oneshot.committee import OneShotSession
from secagg.oneshot.member_messages import ComplaintList, MemberSum, unpack_digests
from secagg.oneshot.message import DeviceMessage, Layout, MerkleLevels, merkle_levels, tree_depth
from secagg.oneshot.moduli import divided
from secagg.oneshot.opening import choose_messages, open_sum
from secagg.roster import DIGEST_BYTES
from server.db.repositories.rounds.cohorts import CheckedCohort
from server.db.repositories.rounds.pending_cohorts import PendingCohort
from server.db.store import Store
from server.errors import ProblemError
from server.rounds.cohort_sums import SummedCohort, check_sum

_MAX_MESSAGES_PER_PAGE = 1_000
_PAGE_MEMORY = 8 * 2**20  # bytes
_PARTS_MEMORY = 1_000  # bytes of the objects of a message
_BEYOND_BOUND = (
    "Too few messages had no complaint. More members were dropped than the bound of the degree "
    "proof allows, so that a lying device may have chosen the members that checked it"
)


@dataclass(frozen=True, slots=True)
class ServedSum:
    """One-shot sum of a round whose committee is fixed: its cohort, plan and session."""

    cohort: int
    plan: AnyPlan
    facts: OneShotRound = field(repr=False)

    @property
    def session(self) -> OneShotSession:
        return self.facts.session

    def number_of(self, identity: bytes) -> int | None:
        """Return the number of a member, 1 to m; None if it is not in the committee."""
        entries = self.session.committee.entries
        numbers = (n for n, entry in enumerate(entries, 1) if entry.identity == identity)
        return next(numbers, None)

    def by_number(self, bodies: Mapping[bytes, bytes]) -> dict[int, bytes]:
        """Return messages by the number of their member."""
        entries = enumerate(self.session.committee.entries, 1)
        return {n: bodies[entry.identity] for n, entry in entries if entry.identity in bodies}


async def read_one_shot_sum(store: Store, study: str, number: int) -> ServedSum:
    """Return the sum of a one-shot round; raises ProblemError if it has no committee."""
    plan = await store.rounds.plan(study, number)
    cohort, committee = await store.committees.committee(study, number)
    facts = await asyncio.to_thread(OneShotRound.of, plan, committee.plan_digest, committee)
    return ServedSum(cohort, plan, facts)


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages of devices, by rising identity, and the Merkle tree of each one's shares."""

    messages: Sequence[DeviceMessage] = field(repr=False)
    trees: Sequence[MerkleLevels] = field(repr=False)
    memory: int  # bytes, about

    @classmethod
    def of(cls, session: OneShotSession, messages: Sequence[DeviceMessage]) -> "MessagePage":
        trees = [merkle_levels(message.encrypted_shares(session)) for message in messages]
        return cls(messages, trees, 1 + len(messages) * _message_memory(session))

    def columns(self, session: OneShotSession, member: int) -> bytes:
        """Return the columns of `member`, 1 to m: its share of each message, with its proof."""
        rows = zip(self.messages, self.trees, strict=True)
        return b"".join(message.column(session, member, tree) for message, tree in rows)


def _message_memory(session: OneShotSession) -> int:
    """Return the bytes in memory of a message with its Merkle tree, about."""
    layout = Layout.of(session)
    tree = (2 * DIGEST_BYTES) << tree_depth(layout.sharing.parameters.members)
    return layout.message_bytes + tree + _PARTS_MEMORY


def _page_size(session: OneShotSession) -> int:
    """Return the number of messages in a page, which takes at most `_PAGE_MEMORY` bytes."""
    return max(1, min(_MAX_MESSAGES_PER_PAGE, _PAGE_MEMORY // _message_memory(session)))


async def read_page_ends(store: Store, served: ServedSum) -> frozenset[str]:
    """Return the last identity of each page of a sum that takes no more messages.

    A page starts after one of them: otherwise a member could have a page made for each identity.
    """
    ends = await store.one_shot_messages.page_ends(served.cohort, _page_size(served.session))
    return frozenset(ends)


async def read_message_page(store: Store, served: ServedSum, after: str) -> MessagePage:
    """Return the messages of the devices whose identities follow `after`, in their order.

    All members read them one after the other, each its own columns.

    Raises:
        ProblemError: if they have been deleted.
    """
    layout = Layout.of(served.session)
    rows = await store.one_shot_messages.page(served.cohort, after, _page_size(served.session))
    bodies = [body for _, body in rows if body is not None]
    if len(bodies) < len(rows):
        raise messages_deleted()
    return await asyncio.to_thread(
        lambda: MessagePage.of(
            served.session, [DeviceMessage.of_checked(body, layout) for body in bodies]
        )
    )


def messages_deleted() -> ProblemError:
    return ProblemError(ProblemType.WRONG_PHASE, "the messages of this round have been deleted")


async def check_messages(store: Store, cohort: PendingCohort) -> CheckedCohort:
    """Return the set of messages that the members of a one-shot sum are to sum.

    Raises:
        OpeningError: if too few members checked their columns, or too few messages remain.
        ProblemError: if the study was deleted meanwhile.
    """
    served = await read_one_shot_sum(store, cohort.study, cohort.round)
    complaints = await store.committees.bodies(cohort.id, MemberMessageKind.COMPLAINTS)
    digests = await store.one_shot_messages.digests(cohort.id)
    by_number = served.by_number(complaints)
    lists = ((number, ComplaintList.unpack(body)) for number, body in by_number.items())
    chosen = await asyncio.to_thread(choose_messages, served.session, digests, lists)
    note = _BEYOND_BOUND if chosen.is_beyond_bound else None
    return CheckedCohort(Phase.AGREEING, message_set=b"".join(chosen.included), note=note)


async def open_one_shot_sum(store: Store, cohort: PendingCohort) -> SummedCohort:
    """Return the sum of the messages in the cohort's set.

    Raises:
        OpeningError: if the sums of the members do not determine the total.
        PoisonedSumError: if no honest vectors have this sum.
        ProblemError: if the study was stopped meanwhile.
    """
    served = await read_one_shot_sum(store, cohort.study, cohort.round)
    bodies = await store.committees.bodies(cohort.id, MemberMessageKind.SUM)
    included = unpack_digests(await store.one_shot_messages.message_set(cohort.id))
    return await asyncio.to_thread(_open, served, served.by_number(bodies), len(included))


def _open(served: ServedSum, bodies: Mapping[int, bytes], messages: int) -> SummedCohort:
    session = served.session
    sums = {member: MemberSum.unpack(body, session) for member, body in bodies.items()}
    opened = open_sum(session, sums)
    total = check_sum(served.plan, divided(served.facts.ring, opened.total), messages, {})
    liars = [session.member_identity(member).hex() for member in sorted(opened.liars)]
    return SummedCohort(total, liars=liars)

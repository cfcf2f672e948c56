"""Messages of one cohort, read in batches from the database and unpacked in threads."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.api.phases import MessageKind
from secagg.aggregator import UnmaskingRequest, complaints_by_dealer
from secagg.messages import Complaints, KeyShares
from secagg.roster import GRAPH_NONCE_BYTES, ShareCommitment, ShareCommitments
from secagg.session import Session, Transcript
from secagg.shares import SHARE_PAIR_BYTES, ReceivedShares, share_pairs_bytes
from server.db.repositories.messages.sum_messages import MessageRepository

T = TypeVar("T")
Batch: TypeAlias = Sequence[tuple[int, bytes]]  # slots and bodies
_MAX_INLINE_BODIES = 8  # for which a change of threads takes longer


@dataclass(frozen=True, slots=True)
class HolderTable:
    """Holders of each of `dealers`: one row per dealer, in the order of its share pairs."""

    dealers: NDArray[np.int64]
    holders: NDArray[np.unsignedinteger]

    def places(self, holder: int) -> dict[int, int]:
        """Return the place of the pair for `holder` among the share pairs of each dealer."""
        positions = np.flatnonzero(self.holders == holder)  # nonzero takes longer in two dimensions
        rows, places = np.divmod(positions, self.holders.shape[1])
        return dict(zip(self.dealers[rows].tolist(), places.tolist(), strict=True))


async def read_holder_table(
    messages: MessageRepository, number: int, session: Session
) -> HolderTable:
    """Return the holders in cohort `number`, which follow from the graph nonces."""
    nonces = dict(await messages.prefixes(number, MessageKind.KEY_SHARES, GRAPH_NONCE_BYTES))
    holders = await asyncio.to_thread(session.neighbour_selection.all_holders, nonces)
    narrow = holders.astype(np.min_scalar_type(session.n))
    return HolderTable(np.array([*nonces], np.int64), narrow)


async def read_received_shares(
    messages: MessageRepository, number: int, table: HolderTable, holder: int
) -> ReceivedShares:
    """Return the share pairs for one participant of cohort `number`, from its dealers' bodies."""
    places = table.places(holder)
    bodies = await messages.bodies_of(number, MessageKind.KEY_SHARES, places.keys())
    records = []
    for dealer, body in sorted(bodies):
        pairs = share_pairs_bytes(KeyShares.unpack(body).share_pairs)
        start = places[dealer] * SHARE_PAIR_BYTES
        records += [dealer.to_bytes(4, "big"), pairs[start : start + SHARE_PAIR_BYTES]]
    return ReceivedShares.unpack(b"".join(records))


async def read_complaints(messages: MessageRepository, number: int) -> dict[int, Complaints]:
    """Return the complaints in cohort `number` by holder; most have none."""
    return await read_messages(messages, number, MessageKind.COMPLAINTS, Complaints.unpack)


async def read_share_commitments(
    messages: MessageRepository, number: int
) -> dict[int, ShareCommitment]:
    """Return the share commitment of each dealer of cohort `number`."""
    kind = MessageKind.KEY_SHARES
    return await read_messages(
        messages, number, kind, lambda body: KeyShares.unpack(body).share_commitment
    )


def make_transcript(
    session: Session,
    complaints: Mapping[int, Complaints],
    answered: Collection[int],
    commitments: Mapping[int, ShareCommitment],
) -> Transcript:
    """Return the transcript of a cohort: the dealers that checked their shares.

    An accused dealer that is not in `answered` is left out. Stored answers are valid.
    """
    unanswered = complaints_by_dealer(complaints).keys() - answered
    kept = {slot: commitments[slot] for slot in complaints.keys() - unanswered}
    return Transcript(session, ShareCommitments.of(kept))


async def read_messages(
    messages: MessageRepository, number: int, kind: MessageKind, unpack: Callable[[bytes], T]
) -> dict[int, T]:
    """Return all messages of a kind in cohort `number`, unpacked, by slot."""
    result: dict[int, T] = {}
    async for batch in messages.bodies(number, kind):
        if len(batch) <= _MAX_INLINE_BODIES:
            result |= messages_by_slot(unpack, batch)
        else:
            result |= await asyncio.to_thread(messages_by_slot, unpack, batch)
    return result


def messages_by_slot(unpack: Callable[[bytes], T], batch: Batch) -> dict[int, T]:
    """Return the messages of a batch, unpacked, by slot."""
    return {slot: unpack(body) for slot, body in batch}


def make_unmasking_request(
    transcript: Transcript, survivors: frozenset[int], complaints: Mapping[int, Complaints]
) -> UnmaskingRequest:
    """Return the shares of a cohort that its survivors must reveal."""
    accused = {slot: message.signatures.keys() for slot, message in complaints.items()}
    return UnmaskingRequest(transcript, survivors, accused)

"""Messages of one cohort, read in batches from the database and unpacked in threads."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.api.phases import MessageKind
from secagg.aggregator import UnmaskingRequest, complaints_by_dealer, route_shares
from secagg.messages import Complaints, KeyShares
from secagg.roster import GRAPH_NONCE_BYTES, ShareCommitment, ShareCommitments
from secagg.session import Session, Transcript
from secagg.shares import SHARE_PAIR_BYTES, ReceivedShares, share_pairs_bytes
from server.db.repositories.messages import MessageRepository

T = TypeVar("T")
Batch: TypeAlias = list[tuple[int, bytes]]  # slots and bodies


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


async def read_all_received_shares(
    messages: MessageRepository, number: int, session: Session
) -> dict[int, ReceivedShares]:
    """Return the share pairs for each participant of cohort `number` that shared."""
    key_shares = await read_messages(messages, number, MessageKind.KEY_SHARES, KeyShares.unpack)
    return await asyncio.to_thread(route_shares, session, key_shares)


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


async def read_transcript(messages: MessageRepository, number: int, session: Session) -> Transcript:
    """Return the transcript of cohort `number`: the dealers that checked their shares.

    An accused dealer without an answer is left out. Stored answers are valid.
    """
    complaints = await read_complaints(messages, number)
    accused = complaints_by_dealer(complaints).keys()
    answered = await messages.senders(number, MessageKind.ANSWERS) if accused else frozenset()
    dealers = complaints.keys() - (accused - answered)
    commitments: dict[int, ShareCommitment] = {}
    async for batch in messages.bodies(number, MessageKind.KEY_SHARES):
        commitments |= await asyncio.to_thread(
            _unpack_each, lambda body: KeyShares.unpack(body).share_commitment, batch
        )
    kept = {slot: commitments[slot] for slot in dealers}
    return Transcript(session, ShareCommitments.of(kept))


async def read_messages(
    messages: MessageRepository, number: int, kind: MessageKind, unpack: Callable[[bytes], T]
) -> dict[int, T]:
    """Return all messages of a kind in cohort `number`, unpacked, by slot."""
    result: dict[int, T] = {}
    async for batch in messages.bodies(number, kind):
        result |= await asyncio.to_thread(_unpack_each, unpack, batch)
    return result


def _unpack_each(unpack: Callable[[bytes], T], batch: Batch) -> dict[int, T]:
    return {slot: unpack(body) for slot, body in batch}


async def read_unmasking_request(
    messages: MessageRepository, number: int, transcript: Transcript
) -> UnmaskingRequest:
    """Return the shares of cohort `number` that the survivors must reveal."""
    survivors = await messages.senders(number, MessageKind.MASKED_INPUT)
    complaints = await read_complaints(messages, number)
    accused = {slot: message.signatures.keys() for slot, message in complaints.items()}
    return UnmaskingRequest(transcript, survivors, accused)

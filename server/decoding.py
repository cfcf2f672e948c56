"""From frozen rows to a sum, and from a round's sums to its answer.

Vectors are added as they are read, some at a time, so memory does not grow with the number
of devices. All that takes longer than a blink runs in a thread; numpy and AES let go of the
interpreter there. What `unmask` recovers on its way lives in that call and nowhere else.
"""

import asyncio
from random import Random

import structlog

from protocol.mechanism import Answer
from protocol.mechanisms import MECHANISMS, AnyPlan
from protocol.messages import unpack_reveal
from secagg.aggregator import Heard, unmask
from secagg.participant import Reveal
from secagg.ring import Ring, Vector
from server.store.messages import Messages
from server.store.rounds import Outcome

_SHOWN = 20  # pairs of a dispute in one line of the log
_log = structlog.get_logger(__name__)


async def sum_vectors(messages: Messages, cohort: int, ring: Ring) -> Vector:
    """Return the sum of the masked vectors that a cohort's participants sent."""
    total = ring.zero()
    async for batch in messages.bodies(cohort, "vector"):
        await asyncio.to_thread(_add, ring, total, batch)
    return total


def _add(ring: Ring, total: Vector, batch: list[tuple[int, bytes]]) -> None:
    for _, body in batch:
        ring.add(total, ring.unpack(body))


async def unmask_cohort(messages: Messages, cohort: int) -> bytes:
    """Return the packed sum of the survivors' vectors.

    Raises:
        RecoveryError: if a secret that it needs cannot be had from the shares.
    """
    facts = await messages.facts(cohort)
    reveals: dict[int, Reveal] = {}
    async for batch in messages.bodies(cohort, "reveal"):
        reveals |= {slot: unpack_reveal(body) for slot, body in batch}
    heard = Heard(
        keys=facts.keys,
        commitments=facts.commitments,
        shared=await messages.said(cohort, "envelopes"),
        survivors=await messages.said(cohort, "vector"),
        reveals=reveals,
    )
    masked = await sum_vectors(messages, cohort, facts.ring)
    found = await asyncio.to_thread(unmask, facts.sum, facts.ring, heard, masked)
    if found.disputed:
        pairs = sorted(found.disputed)
        _log.warning("false shares outvoted", cohort=cohort, owners_and_holders=pairs[:_SHOWN])
    return await asyncio.to_thread(facts.ring.pack, found.total)


async def decode_round(messages: Messages, study: str, plan: AnyPlan) -> Outcome:
    """Return what the sums of a round's cohorts say together."""
    packed, participants = await messages.sums(study, plan.round)
    if not packed:
        return Outcome("failed")
    answer = await asyncio.to_thread(_decode, plan, packed, participants)
    return Outcome("decoded" if answer.decoded else "undecoded", participants, answer)


def _decode(plan: AnyPlan, packed: list[bytes], participants: int) -> Answer:
    mechanism = MECHANISMS[plan.mechanism]
    ring = mechanism.ring(plan)
    total = ring.zero()
    for body in packed:
        ring.add(total, ring.unpack(body))
    return mechanism.decode(plan, total, participants)


async def plan_next(plan: AnyPlan, answer: Answer | None, rng: Random) -> AnyPlan:
    """Return the plan of the round after `plan`."""
    mechanism = MECHANISMS[plan.mechanism]
    following: AnyPlan = await asyncio.to_thread(mechanism.next_plan, plan, answer, rng)
    return following

"""From frozen rows to a sum, and from a round's sums to its answer.

Vectors are added as they are read, some at a time, and so is what is kept of reports: memory does
not grow with the number of devices, unless a mechanism keeps their reports. All that takes longer
than a blink runs in a thread; numpy and AES let go of the interpreter there. What `unmask`
recovers on its way lives in that call and nowhere else.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import structlog

from protocol.mechanism import Answer
from protocol.mechanisms import MECHANISMS, REPORTING, SUMMING, AnyPlan
from protocol.messages import RoundState
from protocol.reporting import Heard
from protocol.tally import Tally
from secagg.aggregator import Settled, Unmasked, settle_deals, unmask
from secagg.cohort import Cohort, Sharer, View
from secagg.deals import KeyDeal, Reveal, SeedDeal
from secagg.keys import SIGNATURE_BYTES
from secagg.ring import Ring, Vector
from server.store import Store
from server.store.messages import Messages
from server.store.reports import Reports
from server.store.rounds import Outcome

_SHOWN = 20  # complaints in one line of the log
_log = structlog.get_logger(__name__)


class PoisonedError(Exception):
    """A cohort's sum breaks a law that every sum of honest vectors obeys.

    Attributes:
        blamed: who lied about shares, as met on the way: what each did, by slot.
    """

    def __init__(self, fault: str, blamed: Mapping[int, str]) -> None:
        super().__init__(fault)
        self.blamed = blamed


@dataclass(frozen=True, slots=True)
class Summed:
    """A cohort's packed sum, and who lied about shares on the way: what each did, by slot."""

    total: bytes
    blamed: Mapping[int, str]


async def read_view(messages: Messages, number: int, cohort: Cohort) -> View:
    """Return the view that follows from what the participants of cohort `number` shared."""
    sharers: dict[int, Sharer] = {}
    async for batch in messages.bodies(number, "shares"):
        sharers |= await asyncio.to_thread(_sharers, batch)
    return View(cohort, sharers)


def _sharers(batch: list[tuple[int, bytes]]) -> dict[int, Sharer]:
    return {slot: KeyDeal.unpack(body).sharer for slot, body in batch}


async def read_settled(messages: Messages, number: int, view: View) -> Settled:
    """Return what was dealt in cohort `number` and matters now that its vectors are in."""
    seeds: dict[int, bytes] = {}
    async for batch in messages.bodies(number, "seeds"):
        seeds |= dict(batch)
    keys: dict[int, bytes] = {}
    if len(seeds) < len(view.sharers):
        async for batch in messages.bodies(number, "shares"):
            keys |= {slot: body for slot, body in batch if slot not in seeds}
    return await asyncio.to_thread(_settle, view, keys, seeds)


def _settle(view: View, keys: Mapping[int, bytes], seeds: Mapping[int, bytes]) -> Settled:
    return settle_deals(
        view,
        {slot: KeyDeal.unpack(body) for slot, body in keys.items()},
        {slot: SeedDeal.unpack(body[:-SIGNATURE_BYTES]) for slot, body in seeds.items()},
    )


async def sum_vectors(messages: Messages, cohort: int, ring: Ring) -> Vector:
    """Return the sum of the masked vectors that a cohort's participants sent."""
    total = ring.zero()
    async for batch in messages.bodies(cohort, "vector"):
        await asyncio.to_thread(_add, ring, total, batch)
    return total


def _add(ring: Ring, total: Vector, batch: list[tuple[int, bytes]]) -> None:
    for _, body in batch:
        ring.add_packed(total, body)


async def unmask_cohort(messages: Messages, cohort: int) -> Summed:
    """Return the sum of the survivors' vectors.

    Raises:
        RecoveryError: if a secret that it needs cannot be had from the shares.
        PoisonedError: if no honest vectors add up to this.
        Refusal: if the cohort is over meanwhile.
    """
    facts = await messages.facts(cohort)
    view = await read_view(messages, cohort, facts.sum)
    settled = await read_settled(messages, cohort, view)
    reveals: dict[int, Reveal] = {}
    async for batch in messages.bodies(cohort, "reveal"):
        reveals |= await asyncio.to_thread(_reveals, batch)
    _log_complaints(cohort, reveals)
    masked = await sum_vectors(messages, cohort, facts.ring)
    found = await asyncio.to_thread(unmask, settled, facts.ring, reveals, masked)
    packed = await asyncio.to_thread(_check_laws, facts.plan, found, len(settled.survivors))
    return Summed(packed, found.blamed)


def _reveals(batch: list[tuple[int, bytes]]) -> dict[int, Reveal]:
    return {slot: Reveal.unpack(body) for slot, body in batch}


def _check_laws(plan: AnyPlan, found: Unmasked, participants: int) -> bytes:
    """Return the packed sum, if it can be one."""
    mechanism = SUMMING[plan.mechanism]
    fault = mechanism.fault(plan, found.total, participants)
    if fault is not None:
        raise PoisonedError(fault, found.blamed)
    return mechanism.ring(plan).pack(found.total)


def _log_complaints(cohort: int, reveals: dict[int, Reveal]) -> None:
    pairs = sorted((owner, slot) for slot, reveal in reveals.items() for owner in reveal.faulty)
    if pairs:
        _log.warning(
            "shares did not open",
            cohort_id=cohort,
            pairs=len(pairs),
            owners_holders=pairs[:_SHOWN],
        )


async def decode_round(store: Store, study: str, plan: AnyPlan, tally: Tally) -> Outcome:
    """Return what a round's reports, or the sums of its cohorts, say together, after `tally`.

    If they cannot be read together, those that cannot be read alone are left out: a vector that
    keeps every law may still make nonsense of its cohort's sum, and should not of the others'.
    """
    if plan.mechanism in REPORTING:
        return await decode_reports(store.reports, study, plan, tally)
    sums = await store.messages.sums(study, plan.round)
    if not sums:
        return Outcome("failed")
    return await asyncio.to_thread(_decode, plan, tally, sums)


async def decode_reports(reports: Reports, study: str, plan: AnyPlan, tally: Tally) -> Outcome:
    """Return what a round's reports say after `tally`; a batch is forgotten once it is gathered."""
    mechanism, heard = REPORTING[plan.mechanism], None
    nbytes, most = mechanism.nbytes(plan), mechanism.read_at_once(plan)
    async for batch in reports.bodies(study, plan.round, nbytes, most):
        some = await asyncio.to_thread(_gather, plan, batch)
        heard = some if heard is None else heard + some
    if heard is None or heard.reports < plan.terms.minimum:
        return Outcome("failed", 0 if heard is None else heard.reports)
    return await asyncio.to_thread(_read, plan, heard, tally)


def _gather(plan: AnyPlan, batch: bytes) -> Heard:
    mechanism = REPORTING[plan.mechanism]
    rows = np.frombuffer(batch, np.uint8).reshape(-1, mechanism.nbytes(plan))
    heard: Heard = mechanism.gather(plan, rows)
    return heard


def _read(plan: AnyPlan, heard: Heard, tally: Tally) -> Outcome:
    answer = REPORTING[plan.mechanism].decode(plan, heard, tally)
    return _outcome(plan, heard.reports, answer)


def _decode(plan: AnyPlan, tally: Tally, sums: Mapping[int, tuple[bytes, int]]) -> Outcome:
    outcome = _decode_all(plan, tally, sums)
    if outcome.state == "decoded" or len(sums) == 1:
        return outcome
    mechanism = SUMMING[plan.mechanism]
    ring = mechanism.ring(plan)
    unread = frozenset(
        number
        for number, (packed, count) in sums.items()
        if not mechanism.is_readable(plan, ring.unpack(packed), count, tally)
    )
    if len(unread) in (0, len(sums)):
        return outcome  # too much in them altogether, and nobody's fault
    _log.warning("cohorts left out", study=plan.study, round=plan.round, cohorts=sorted(unread))
    rest = {number: one for number, one in sums.items() if number not in unread}
    return replace(_decode_all(plan, tally, rest), left_out=unread)


def _decode_all(plan: AnyPlan, tally: Tally, sums: Mapping[int, tuple[bytes, int]]) -> Outcome:
    mechanism = SUMMING[plan.mechanism]
    ring = mechanism.ring(plan)
    total = ring.zero()
    for packed, _ in sums.values():
        ring.add_packed(total, packed)
    participants = sum(count for _, count in sums.values())
    return _outcome(plan, participants, mechanism.decode(plan, total, participants, tally))


def _outcome(plan: AnyPlan, participants: int, answer: Answer) -> Outcome:
    mechanism = MECHANISMS[plan.mechanism]
    heavy = tuple(mechanism.conclude(plan.question, answer.tally))
    state: RoundState = "decoded" if answer.decoded else "undecoded"
    is_last = mechanism.is_over(plan, answer, answer.tally)
    return Outcome(state, participants, answer, heavy, is_last=is_last)


async def plan_next(plan: AnyPlan, answer: Answer | None, tally: Tally, rng: Random) -> AnyPlan:
    """Return the plan of the round after `plan`, which left `tally`."""
    mechanism = MECHANISMS[plan.mechanism]
    following: AnyPlan = await asyncio.to_thread(mechanism.next_plan, plan, answer, tally, rng)
    return following

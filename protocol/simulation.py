"""A whole study in memory. Read this first.

    study -> plan(r) -> encode (each device) -> vectors -> [sum] -> decode -> answer(r) -> plan(r+1)

`run_study` is that line in a loop, `run_round` one turn of it. The sum is addition in the
ring, or, if it is to be `secure`, the real protocol of `secagg` with everybody in one
process: the same sum, as long as few enough devices vanish. Every other file of the project
makes a line of this page fast, durable or reachable over HTTP.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from protocol.chance import Chance, seeded
from protocol.histograms import Histograms, Total
from protocol.mechanism import Answer, Histogram, P, Plan, Q, Summing, Terms, hide
from protocol.round import Phase, phases
from protocol.sampling import clip_all
from protocol.tally import NOTHING, Tally
from secagg.aggregator import (
    check_confirmation,
    check_reveal,
    check_shares,
    check_upload,
    settle_deals,
    unmask,
)
from secagg.cohort import Cohort, Entry, View
from secagg.errors import RecoveryError
from secagg.keys import Identity
from secagg.parameters import Mode
from secagg.participant import join
from secagg.ring import Ring, Vector

PHASES = phases("active")
STAYS = len(PHASES)  # of a device that vanishes in no phase
BEFORE_A_VECTOR = (Phase.ENROLLING, Phase.SHARING, Phase.MASKING)  # later losses are in the sum
Vanishing = Mapping[int, Phase]  # devices by number, each with the phase it is not heard in
Losses = Callable[[int], NDArray[np.int8]]  # of the next so many devices: phases' places in PHASES


@dataclass(frozen=True, slots=True)
class Outcome(Generic[P]):
    """One round: its plan, how many are in its sum, what the sum said, the tally so far."""

    plan: P
    devices: int
    answer: Answer | None
    tally: Tally
    truth: Mapping[str, int]  # what is estimated, which no program ever knows


def run_study(
    mechanism: Summing[Q, P],
    question: Q,
    terms: Terms,
    rounds: Iterable[Iterable[Sequence[Histogram]]],
    rng: Random,
    *,
    planned: int,
    dropout: float = 0.0,
    secure: bool = False,
) -> Iterator[Outcome[P]]:
    """Yield the outcome of each of `rounds`, the blocks of its devices; `planned` are so many.

    Each device vanishes with probability `dropout`, in any phase alike. Nothing hangs on the size
    of blocks but memory.

    Raises:
        ValueError: if the mechanism has no plan for this question under these terms.
    """
    plan, tally = mechanism.first_plan(question, terms, "simulation", planned, rng), NOTHING
    # Devices that are asked again give the same again: they clip what they hold once.
    always = rng.getrandbits(128) if question.repeats else None
    for blocks in rounds:
        chance = np.random.default_rng(rng.getrandbits(128) if always is None else always)
        clipped = (clip_all(Histograms.of(b), question.contribution, chance) for b in blocks)
        losses = at_random(dropout, terms.mode, np.random.default_rng(rng.getrandbits(128)))
        outcome = run_round(mechanism, plan, clipped, rng, tally, losses=losses, secure=secure)
        yield outcome
        tally = outcome.tally
        if mechanism.is_over(plan, outcome.answer, tally):
            return
        plan = mechanism.next_plan(plan, outcome.answer, tally, rng)


def nobody(count: int) -> NDArray[np.int8]:
    """Return that so many devices stay."""
    return np.full(count, STAYS, np.int8)


def at_random(dropout: float, mode: Mode, rng: np.random.Generator) -> Losses:
    """Return losses of this rate, in all phases of `mode` alike."""
    speaking = np.array([PHASES.index(phase) for phase in phases(mode)] + [STAYS], np.int8)

    def losses(count: int) -> NDArray[np.int8]:
        share = rng.random(count) * ((len(speaking) - 1) / dropout)
        return speaking[np.minimum(share, len(speaking) - 1).astype(np.intp)]

    return losses if dropout else nobody


def run_round(
    mechanism: Summing[Q, P],
    plan: P,
    blocks: Iterable[Sequence[Histogram]],
    rng: Random,
    tally: Tally = NOTHING,
    *,
    losses: Losses = nobody,
    secure: bool = False,
) -> Outcome[P]:
    """Return the outcome of one round, after `tally`, over devices that come in `blocks`."""
    chance = seeded(np.random.default_rng(rng.getrandbits(128)))
    secrets, truth = Random(rng.getrandbits(128)), Total()
    attendance = _attending(plan, losses, rng)
    if secure:
        histograms = [histogram for block in blocks for histogram in block]
        lost, is_here = attendance(len(histograms))
        vanishing = {d: PHASES[p] for d, p in enumerate(lost) if p != STAYS}
        vectors = _Vectors(mechanism, plan, histograms, chance)
        total, counted = _sum_cohorts(mechanism.ring(plan), plan, vectors, vanishing, secrets)
        devices, known = len(counted), counted if plan.invited == 1 else np.flatnonzero(is_here)
        truth.add(Histograms.of(histograms[device] for device in known))
    else:
        total, devices = _sum_blocks(mechanism, plan, blocks, attendance, chance, truth)
    answer = mechanism.decode(plan, total, devices, tally) if devices else None
    return Outcome(plan, devices, answer, answer.tally if answer else tally, truth.counts())


Attendance = Callable[[int], tuple[NDArray[np.int8], NDArray[np.bool_]]]


def _attending(plan: Plan, losses: Losses, rng: Random) -> Attendance:
    """Return how the next so many devices attend: where each is lost, and who is estimated.

    Where devices join by coins, those who stay away are not there from the start; estimates are of
    them, too.
    """
    coins = seeded(np.random.default_rng(rng.getrandbits(128))) if plan.invited < 1 else None
    away = np.int8(PHASES.index(Phase.ENROLLING))

    def attend(count: int) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
        lost = losses(count)
        is_here = _gives(lost)
        if coins is not None:
            lost = np.where(plan.joining(coins, count), lost, away)
        return lost, is_here

    return attend


def _gives(lost: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Return which devices give a vector, by where each is lost."""
    return ~np.isin(lost, [PHASES.index(phase) for phase in BEFORE_A_VECTOR])


def _sum_blocks(
    mechanism: Summing[Q, P],
    plan: P,
    blocks: Iterable[Sequence[Histogram]],
    attendance: Attendance,
    chance: Chance,
    truth: Total,
) -> tuple[Vector, int]:
    """Return the sum of all vectors, with noise, and of how many; `truth` has what they hold."""
    ring, cohorts = mechanism.ring(plan), _Cohorts(plan.terms.cohort_size)
    total = ring.zero()
    for block in blocks:
        lost, is_here = attendance(len(block))
        is_in = _gives(lost)
        held = Histograms.of(block)
        given = held if is_in.all() else held.take(np.flatnonzero(is_in))
        ring.add(total, mechanism.encode_sum(plan, given, chance))
        cohorts.add(lost != PHASES.index(Phase.ENROLLING), is_in)
        truth.add(given if plan.invited == 1 else held.take(np.flatnonzero(is_here)))
    for members, survivors in cohorts:
        shares = mechanism.shares(plan, members)
        if shares is not None and survivors:
            hide(ring, total, shares.together(survivors), chance)
    return total, int(cohorts.survivors.sum())


class _Cohorts:
    """How many enrol in each cohort, and are in its sum: whoever enrols joins the first with room.

    What they are is said of devices in their order, block by block.
    """

    def __init__(self, size: int) -> None:
        self.survivors = np.zeros(0, np.int64)
        self._size, self._enrolled = size, 0

    def add(self, enrolled: NDArray[np.bool_], counted: NDArray[np.bool_]) -> None:
        places = self._enrolled + np.cumsum(enrolled) - 1
        found = np.bincount(places[counted] // self._size, minlength=len(self.survivors))
        found[: len(self.survivors)] += self.survivors
        self.survivors = found
        self._enrolled += int(enrolled.sum())

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for number, survivors in enumerate(self.survivors.tolist()):
            yield min(self._size, self._enrolled - number * self._size), survivors


@dataclass(frozen=True)
class _Vectors(Generic[P]):
    """The vectors of devices, each made when its cohort is."""

    mechanism: Summing[Any, P]
    plan: P
    histograms: Sequence[Histogram]
    chance: Chance

    def __len__(self) -> int:
        return len(self.histograms)

    def of(self, members: Sequence[int]) -> list[Vector]:
        """Return the vectors of a cohort, their noise included."""
        mechanism, plan = self.mechanism, self.plan
        ring, shares = mechanism.ring(plan), mechanism.shares(plan, len(members))
        made = [mechanism.encode(plan, self.histograms[d], self.chance) for d in members]
        for vector in made:
            hide(ring, vector, shares, self.chance)
        return made


def _sum_cohorts(
    ring: Ring, plan: P, vectors: _Vectors[P], vanishing: Vanishing, rng: Random
) -> tuple[Vector, list[int]]:
    """Return the sum of the cohorts' sums, and the devices in it.

    Whoever enrols joins the first cohort with room; one below the minimum is not run.
    """
    total, counted = ring.zero(), list[int]()
    enrolled = (d for d in range(len(vectors)) if vanishing.get(d) is not Phase.ENROLLING)
    for cohort in range(plan.terms.cohorts):
        members = list(islice(enrolled, plan.terms.cohort_size))
        if len(members) < plan.terms.minimum:
            break
        chosen = vectors.of(members)
        lost = {slot: vanishing[d] for slot, d in enumerate(members) if d in vanishing}
        found = secure_sum(plan, cohort, ring, chosen, lost, rng)
        if found is not None:
            ring.add(total, found[0])
            counted += [members[slot] for slot in found[1]]
    return total, counted


def secure_sum(
    plan: Plan,
    number: int,
    ring: Ring,
    vectors: Sequence[Vector],
    vanishing: Vanishing,
    rng: Random,
) -> tuple[Vector, list[int]] | None:
    """Return the sum of the survivors' vectors and their slots, or None if there is none.

    One call is cohort `number`, phase by phase; `vanishing` is by slot. `rng` makes the
    secrets: a seeded one keeps none, and is for simulation only.
    """
    joined = [join(Identity.generate(rng), rng) for _ in vectors]
    digest = plan.digest()
    roster = tuple(Entry(d.identity.public, d.public, d.advertise(digest)) for d in joined)
    cohort = Cohort(digest, number, roster, plan.terms.assumptions)
    there = _attendance(len(vectors), plan.terms.mode, vanishing)
    if len(there[Phase.UNMASKING]) < cohort.quorum:
        return None

    sharing, deals = {}, {}
    for slot in there[Phase.SHARING]:
        sharing[slot], deals[slot] = joined[slot].share(slot, cohort, rng)
        check_shares(cohort, slot, deals[slot])
    view = View(cohort, {slot: deal.sharer for slot, deal in deals.items()})

    masking, seeds, masked_sum = {}, {}, ring.zero()
    for slot in there[Phase.MASKING]:
        masking[slot], upload = sharing[slot].mask(view, ring, vectors[slot], rng)
        check_upload(view, slot, upload)
        seeds[slot] = upload.deal
        ring.add_packed(masked_sum, upload.vector)
    settled = settle_deals(view, deals, seeds)

    confirming, confirmations = {}, {}
    for slot in there[Phase.CONFIRMING]:
        confirming[slot], confirmations[slot] = masking[slot].confirm(settled.survivors)
        check_confirmation(view, slot, settled.survivors, confirmations[slot])

    reveals = {}
    for slot in there[Phase.UNMASKING]:
        reveals[slot] = confirming[slot].reveal(confirmations, settled.inboxes[slot], rng)
        check_reveal(settled, slot, reveals[slot])
    try:
        return unmask(settled, ring, reveals, masked_sum).total, sorted(settled.survivors)
    except RecoveryError:
        return None


def _attendance(n: int, mode: Mode, vanishing: Vanishing) -> dict[Phase, list[int]]:
    """Return who is heard in each phase; nobody vanishes in one that the mode leaves out."""
    slots, there = list(range(n)), dict[Phase, list[int]]()
    for phase in phases("active"):
        if phase in phases(mode):
            slots = [slot for slot in slots if vanishing.get(slot) is not phase]
        there[phase] = slots
    return there

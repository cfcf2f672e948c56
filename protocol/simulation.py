"""A whole study in memory. Read this first.

    study -> plan(r) -> encode (each device) -> vectors -> [sum] -> decode -> answer(r) -> plan(r+1)

`run_study` is that line in a loop, `run_round` one turn of it. The sum is addition in the
ring, or, if it is to be `secure`, the real protocol of `secagg` with everybody in one
process: the same sum, as long as few enough devices vanish. Every other file of the project
makes a line of this page fast, durable or reachable over HTTP.
"""

from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Final, Generic, Protocol

import numpy as np

from protocol.chance import Chance
from protocol.histograms import Histograms, Total
from protocol.mechanism import Answer, Histogram, P, Plan, Q, Summing, Terms, hide
from protocol.round import Phase, phases
from protocol.stretches import (
    PHASES,
    STAYS,
    A,
    AtRandom,
    Block,
    Blocks,
    Cohorts,
    Growing,
    Losing,
    People,
    Stretch,
    Sums,
    Turn,
    nobody,
)
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

Vanishing = Mapping[int, Phase]  # devices by number, each with the phase it is not heard in
Summed = tuple[Vector, list[int]]  # a sum, and the devices in it


@dataclass(frozen=True, slots=True)
class Outcome(Generic[P]):
    """One round: its plan, how many are in its sum, what the sum said, the tally so far."""

    plan: P
    devices: int
    answer: Answer | None
    tally: Tally
    truth: Mapping[str, int]  # what is estimated, which no program ever knows


class Hands(Protocol):
    """Who does the work of a round: this process alone, or others, of whom nothing else hangs."""

    def add(self, growing: Growing[A], stretches: Sequence[Stretch]) -> None:
        """Add stretches, in their order, to what there is so far."""

    def sum_cohorts(self, cohorts: Iterable["SecureCohort"]) -> Iterator["Summed | None"]:
        """Yield what `sum_cohort` returns of each of `cohorts`, in their order."""


class Alone:
    """The process that asks."""

    def add(self, growing: Growing[A], stretches: Sequence[Stretch]) -> None:
        """Add one after the other."""
        for stretch in stretches:
            growing.play(stretch.number, stretch.blocks())

    def sum_cohorts(self, cohorts: Iterable["SecureCohort"]) -> Iterator["Summed | None"]:
        """Sum one after the other."""
        return map(sum_cohort, cohorts)


ALONE: Final = Alone()


def run_study(  # noqa: PLR0913 - what differs from study to study
    mechanism: Summing[Q, P],
    question: Q,
    terms: Terms,
    rounds: Iterable[People[Block] | Blocks],
    rng: Random,
    *,
    planned: int,
    dropout: float = 0.0,
    secure: bool = False,
    hands: Hands = ALONE,
) -> Iterator[Outcome[P]]:
    """Yield the outcome of each of `rounds`, the blocks of its devices; `planned` are so many.

    Each device vanishes with probability `dropout`, in any phase alike. Nothing hangs on the size
    of blocks but memory, and on whose `hands` do the work but time.

    Raises:
        ValueError: if the mechanism has no plan for this question under these terms.
    """
    plan, tally = mechanism.first_plan(question, terms, "simulation", planned, rng), NOTHING
    # Devices that are asked again give the same again: they clip what they hold once.
    always = rng.getrandbits(128) if question.repeats else None
    for people in rounds:
        clips = rng.getrandbits(128) if always is None else always
        losing = AtRandom(dropout, terms.mode, rng.getrandbits(128))
        outcome = run_round(
            mechanism,
            plan,
            people,
            rng,
            tally,
            losing=losing,
            clips=clips,
            secure=secure,
            hands=hands,
        )
        yield outcome
        tally = outcome.tally
        if mechanism.is_over(plan, outcome.answer, tally):
            return
        plan = mechanism.next_plan(plan, outcome.answer, tally, rng)


def run_round(  # noqa: PLR0913 - and from round to round
    mechanism: Summing[Q, P],
    plan: P,
    people: People[Block] | Blocks,
    rng: Random,
    tally: Tally = NOTHING,
    *,
    losing: Losing = nobody,
    clips: int | None = None,
    secure: bool = False,
    hands: Hands = ALONE,
) -> Outcome[P]:
    """Return the outcome of one round, after `tally`, over `people`; see `Turn` for `clips`."""
    if not isinstance(people, People):
        people = People(people)
    samples, secrets = rng.getrandbits(128), Random(rng.getrandbits(128))
    coins = rng.getrandbits(128) if plan.invited < 1 else 0
    turn = Turn(mechanism, plan, losing, samples, coins, clips)
    summed = _sum_cohorts(turn, people, secrets, hands) if secure else _sum(turn, people, hands)
    total, devices, truth = summed
    answer = mechanism.decode(plan, total, devices, tally) if devices else None
    return Outcome(plan, devices, answer, answer.tally if answer else tally, truth)


def _sum(turn: Turn[P], people: People[Block], hands: Hands) -> tuple[Vector, int, dict[str, int]]:
    """Return the sum of all vectors, with noise, of how many, and what is to be estimated."""
    mechanism, plan = turn.mechanism, turn.plan
    cohorts = Cohorts(plan.terms.cohort_size)
    sums = Sums(turn, cohorts.add)
    chance = sums.play(0, people.first)
    hands.add(sums, [Stretch(number, blocks) for number, blocks in enumerate(people.later, 1)])
    for members, survivors in cohorts:
        shares = mechanism.shares(plan, members)
        if shares is not None and survivors:
            hide(mechanism.ring(plan), sums.total, shares.together(survivors), chance)
    return sums.total, int(cohorts.survivors.sum()), sums.truth.counts()


def _sum_cohorts(
    turn: Turn[P], people: People[Block], secrets: Random, hands: Hands
) -> tuple[Vector, int, dict[str, int]]:
    """Return the sum of the cohorts' sums, of how many, and what is to be estimated."""
    plan, held = turn.plan, _Held(turn, people)
    ring, truth = turn.mechanism.ring(plan), Total()
    total, counted = ring.zero(), list[int]()
    for summed in hands.sum_cohorts(_cohorts(held, secrets)):
        if summed is not None:
            ring.add(total, summed[0])
            counted += summed[1]
    known = counted if plan.invited == 1 else held.estimated
    truth.add(Histograms.of(held.histograms[device] for device in known))
    return total, len(counted), truth.counts()


class _Held(Generic[P]):
    """All devices of a round at once, with what each holds, and where it is lost."""

    def __init__(self, turn: Turn[P], people: People[Block]) -> None:
        self.turn = turn
        self.histograms: list[Histogram] = []
        self.vanishing: dict[int, Phase] = {}
        self.estimated: list[int] = []
        self._starts: list[int] = []
        self._chances: list[Chance] = []
        for number, blocks in enumerate([lambda: people.first, *people.later]):
            self._starts.append(len(self.histograms))
            self._chances.append(turn.chance(number))
            for held, lost, is_here in turn.attending(number, blocks()):
                first = len(self.histograms)
                some = np.flatnonzero(lost != STAYS).tolist()
                self.vanishing |= {first + device: PHASES[lost[device]] for device in some}
                self.estimated += (first + np.flatnonzero(is_here)).tolist()
                self.histograms += held

    def vectors(self, members: Sequence[int]) -> list[Vector]:
        """Return the vectors of a cohort, their noise included."""
        mechanism, plan = self.turn.mechanism, self.turn.plan
        ring, shares = mechanism.ring(plan), mechanism.shares(plan, len(members))
        chances = [self._chances[bisect(self._starts, device) - 1] for device in members]
        made = [
            mechanism.encode(plan, self.histograms[device], chance)
            for device, chance in zip(members, chances, strict=True)
        ]
        for vector, chance in zip(made, chances, strict=True):
            hide(ring, vector, shares, chance)
        return made


@dataclass(frozen=True, slots=True)
class SecureCohort:
    """A cohort that is to be summed securely, anywhere, with secrets grown from `seed`."""

    plan: Plan
    number: int
    ring: Ring
    members: Sequence[int]  # devices
    vectors: Sequence[Vector] = field(repr=False)
    vanishing: Vanishing  # by slot
    seed: int = field(repr=False)


def _cohorts(held: _Held[P], secrets: Random) -> Iterator[SecureCohort]:
    """Yield the cohorts: whoever enrols joins the first with room; one below the minimum is none.

    Vectors are made when it is their cohort's turn.
    """
    plan, vanishing = held.turn.plan, held.vanishing
    ring = held.turn.mechanism.ring(plan)
    devices = range(len(held.histograms))
    enrolled = (d for d in devices if vanishing.get(d) is not Phase.ENROLLING)
    for number in range(plan.terms.cohorts):
        members = list(islice(enrolled, plan.terms.cohort_size))
        if len(members) < plan.terms.minimum:
            return
        lost = {slot: vanishing[d] for slot, d in enumerate(members) if d in vanishing}
        vectors, seed = held.vectors(members), secrets.getrandbits(128)
        yield SecureCohort(plan, number, ring, members, vectors, lost, seed)


def sum_cohort(one: SecureCohort) -> Summed | None:
    """Return the sum of a cohort and the devices in it, or None if there is none."""
    rng = Random(one.seed)
    found = secure_sum(one.plan, one.number, one.ring, one.vectors, one.vanishing, rng)
    return None if found is None else (found[0], [one.members[slot] for slot in found[1]])


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
    assert view.graph.keys() == deals.keys()  # found once for all, where a device looks for its own

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

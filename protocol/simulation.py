"""A whole study in memory. Read this first.

    study -> plan(r) -> encode (each device) -> vectors -> [sum] -> decode -> answer(r) -> plan(r+1)

`run_study` is that line in a loop, `run_round` one turn of it. The sum is addition in the
ring, or, if it is to be `secure`, the real protocol of `secagg` with everybody in one
process: the same sum, as long as few enough devices vanish. Every other file of the project
makes a line of this page fast, durable or reachable over HTTP.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any, Generic

import numpy as np

from protocol.chance import Chance, seeded
from protocol.mechanism import Answer, Histogram, P, Plan, Q, Summing, Terms, hide
from protocol.round import Phase, phases
from protocol.sampling import clip
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

BEFORE_A_VECTOR = (Phase.ENROLLING, Phase.SHARING, Phase.MASKING)  # later losses are in the sum
Vanishing = Mapping[int, Phase]  # devices by number, each with the phase it is not heard in


@dataclass(frozen=True, slots=True)
class Outcome(Generic[P]):
    """One round: its plan, whose vectors are in its sum, what the sum said, the tally so far."""

    plan: P
    counted: tuple[int, ...]
    answer: Answer | None
    tally: Tally
    truth: Mapping[str, int]  # what is estimated, which no program ever knows


def run_study(
    mechanism: Summing[Q, P],
    question: Q,
    terms: Terms,
    rounds: Iterable[Sequence[Histogram]],
    rng: Random,
    *,
    planned: int,
    dropout: float = 0.0,
    secure: bool = False,
) -> Iterator[Outcome[P]]:
    """Yield the outcome of each of `rounds`, the histograms of its devices; `planned` are so many.

    Each device vanishes with probability `dropout`, in any phase alike.

    Raises:
        ValueError: if the mechanism has no plan for this question under these terms.
    """
    plan, tally = mechanism.first_plan(question, terms, "simulation", planned, rng), NOTHING
    speaking = phases(terms.mode)
    # Devices that are asked again give the same again: they clip what they hold once.
    always = rng.getrandbits(128) if question.repeats else None
    for histograms in rounds:
        chance = np.random.default_rng(rng.getrandbits(128) if always is None else always)
        clipped = [clip(histogram, question.contribution, chance) for histogram in histograms]
        vanishing = {
            device: rng.choice(speaking) for device in range(len(clipped)) if rng.random() < dropout
        }
        outcome = run_round(
            mechanism, plan, clipped, rng, tally, vanishing=vanishing, secure=secure
        )
        yield outcome
        tally = outcome.tally
        if mechanism.is_over(plan, outcome.answer, tally):
            return
        plan = mechanism.next_plan(plan, outcome.answer, tally, rng)


def run_round(
    mechanism: Summing[Q, P],
    plan: P,
    histograms: Sequence[Histogram],
    rng: Random,
    tally: Tally = NOTHING,
    *,
    vanishing: Vanishing | None = None,
    secure: bool = False,
) -> Outcome[P]:
    """Return the outcome of one round, after `tally`, over devices that hold `histograms`."""
    vanishing = vanishing or {}
    chance = seeded(np.random.default_rng(rng.getrandbits(128)))
    here = [d for d in range(len(histograms)) if vanishing.get(d) not in BEFORE_A_VECTOR]
    if plan.invited < 1:
        away = [device for device in range(len(histograms)) if not plan.joins(chance)]
        vanishing = dict(vanishing) | dict.fromkeys(away, Phase.ENROLLING)
    secrets = Random(rng.getrandbits(128))
    if secure:
        vectors = _Vectors(mechanism, plan, histograms, chance)
        total, counted = _sum_cohorts(mechanism.ring(plan), plan, vectors, vanishing, secrets)
    else:
        counted = [d for d in range(len(histograms)) if vanishing.get(d) not in BEFORE_A_VECTOR]
        total = mechanism.encode_sum(plan, [histograms[device] for device in counted], chance)
        enrolled = [d for d in range(len(histograms)) if vanishing.get(d) is not Phase.ENROLLING]
        _add_noise(mechanism, plan, total, enrolled, frozenset(counted), chance)
    truth: Counter[str] = Counter()
    for device in counted if plan.invited == 1 else here:  # estimates are of who stayed away, too
        truth.update(histograms[device])
    answer = mechanism.decode(plan, total, len(counted), tally) if counted else None
    return Outcome(plan, tuple(counted), answer, answer.tally if answer else tally, truth)


def _add_noise(
    mechanism: Summing[Q, P],
    plan: P,
    total: Vector,
    enrolled: Sequence[int],
    counted: frozenset[int],
    chance: Chance,
) -> None:
    """Add to `total` what the shares of noise add up to of those `counted`, cohort by cohort."""
    ring = mechanism.ring(plan)
    for first in range(0, len(enrolled), plan.terms.cohort_size):
        members = enrolled[first : first + plan.terms.cohort_size]
        shares = mechanism.shares(plan, len(members))
        survivors = len(counted.intersection(members))
        if shares is not None and survivors:
            hide(ring, total, shares.together(survivors), chance)


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

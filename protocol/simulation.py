"""A whole study in memory. Read this first.

    study -> plan(r) -> encode (each device) -> vectors -> [sum] -> decode -> answer(r) -> plan(r+1)

`run_study` is that line in a loop, `run_round` one turn of it. The sum is addition in the
ring, or, if it is to be `secure`, the real protocol of `secagg` with everybody in one
process: the same sum, as long as few enough devices vanish. Every other file of the project
makes a line of this page fast, durable or reachable over HTTP.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Generic

import numpy as np

from protocol.mechanism import Answer, Estimate, Histogram, Mechanism, P, Plan, Q, Terms
from protocol.round import Phase
from protocol.sampling import clip
from secagg.aggregator import Heard, check_envelopes, check_reveal, digest, unmask
from secagg.errors import RecoveryError
from secagg.graph import Assumptions, parameters
from secagg.participant import Cohort, join
from secagg.ring import Ring, Vector

SPEAKING = (Phase.ENROLLING, Phase.SHARING, Phase.MASKING, Phase.UNMASKING)
Vanishing = Mapping[int, Phase]  # devices by number, each with the phase it is not heard in


@dataclass(frozen=True, slots=True)
class Outcome(Generic[P]):
    """One round: its plan, whose vectors are in its sum, and what the sum said, if any."""

    plan: P
    counted: tuple[int, ...]
    answer: Answer | None
    truth: Mapping[str, int]  # what the counted devices hold, which no program ever knows


def run_study(
    mechanism: Mechanism[Q, P],
    question: Q,
    terms: Terms,
    rounds: Iterable[Sequence[Histogram]],
    rng: Random,
    *,
    dropout: float = 0.0,
    secure: bool = False,
) -> Iterator[Outcome[P]]:
    """Yield the outcome of each of `rounds`, the histograms of its devices.

    Each device vanishes with probability `dropout`, in any phase alike.

    Raises:
        ValueError: if the mechanism has no plan for this question under these terms.
    """
    plan = mechanism.first_plan(question, terms, "simulation", rng)
    for histograms in rounds:
        chance = np.random.default_rng(rng.getrandbits(128))
        clipped = [clip(histogram, question.contribution, chance) for histogram in histograms]
        vanishing = {
            device: rng.choice(SPEAKING) for device in range(len(clipped)) if rng.random() < dropout
        }
        outcome = run_round(mechanism, plan, clipped, rng, vanishing=vanishing, secure=secure)
        yield outcome
        plan = mechanism.next_plan(plan, outcome.answer, rng)


def run_round(
    mechanism: Mechanism[Q, P],
    plan: P,
    histograms: Sequence[Histogram],
    rng: Random,
    *,
    vanishing: Vanishing | None = None,
    secure: bool = False,
) -> Outcome[P]:
    """Return the outcome of one round over devices that hold `histograms`."""
    vanishing = vanishing or {}
    chance, secrets = np.random.default_rng(rng.getrandbits(128)), Random(rng.getrandbits(128))
    if secure:
        vectors = [mechanism.encode(plan, histogram, chance) for histogram in histograms]
        total, counted = _sum_cohorts(mechanism.ring(plan), plan, vectors, vanishing, secrets)
    else:
        arrived = (None, Phase.UNMASKING)  # whoever vanishes last is in the sum
        counted = [slot for slot in range(len(histograms)) if vanishing.get(slot) in arrived]
        total = mechanism.encode_sum(plan, [histograms[device] for device in counted], chance)
    truth: Counter[str] = Counter()
    for device in counted:
        truth.update(histograms[device])
    answer = mechanism.decode(plan, total, len(counted)) if counted else None
    return Outcome(plan, tuple(counted), answer, truth)


def add_up(answers: Iterable[Answer | None]) -> list[Estimate]:
    """Return the estimates summed over rounds, highest first.

    Rounds are over different devices with fresh chance, so variances add.
    """
    counts: defaultdict[str, float] = defaultdict(float)
    variances: defaultdict[str, float] = defaultdict(float)
    for answer in answers:
        for estimate in answer.estimates if answer else ():
            counts[estimate.item] += estimate.count
            variances[estimate.item] += estimate.variance
    ranked = sorted(counts, key=lambda item: (-counts[item], item))
    return [Estimate(item, counts[item], variances[item]) for item in ranked]


def _sum_cohorts(
    ring: Ring, plan: Plan, vectors: Sequence[Vector], vanishing: Vanishing, rng: Random
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
        chosen = [vectors[device] for device in members]
        lost = {slot: vanishing[d] for slot, d in enumerate(members) if d in vanishing}
        found = secure_sum(plan.session(cohort), plan.terms.assumptions, ring, chosen, lost, rng)
        if found is not None:
            ring.add(total, found[0])
            counted += [members[slot] for slot in found[1]]
    return total, counted


def secure_sum(
    session: bytes,
    assumptions: Assumptions,
    ring: Ring,
    vectors: Sequence[Vector],
    vanishing: Vanishing,
    rng: Random,
) -> tuple[Vector, list[int]] | None:
    """Return the sum of the survivors' vectors and their slots, or None if there is none.

    One call is one cohort, phase by phase; `vanishing` is by slot. `rng` makes the secrets:
    a seeded one keeps none, and is for simulation only.
    """
    n = len(vectors)
    slots = range(n)
    gone = {phase: {s for s in slots if vanishing.get(s) is phase} for phase in SPEAKING}
    shared = set(slots) - gone[Phase.SHARING]
    survivors = shared - gone[Phase.MASKING]
    revealing = survivors - gone[Phase.UNMASKING]
    if len(revealing) < assumptions.quorum(n):
        return None

    joined = [join(rng) for _ in slots]
    keys = {slot: device.public for slot, device in enumerate(joined)}
    seed = rng.randbytes(32)
    cohort = Cohort(session, parameters(n, assumptions), assumptions, seed, digest(keys))

    sharing, envelopes = {}, {}
    for slot in sorted(shared):
        theirs = {other: keys[other] for other in cohort.graph.neighbours(slot)}
        sharing[slot], envelopes[slot] = joined[slot].share(slot, cohort, theirs, rng)
        check_envelopes(cohort, slot, envelopes[slot])

    masking, masked_sum = {}, ring.zero()
    for slot in sorted(survivors):
        senders = shared.intersection(cohort.graph.neighbours(slot))
        mine = {sender: envelopes[sender][slot] for sender in senders}
        masking[slot], masked = sharing[slot].mask(mine, ring, vectors[slot])
        ring.add(masked_sum, masked)

    reveals, lost = {}, shared - survivors
    for slot in sorted(revealing):
        reveals[slot] = masking[slot].reveal(survivors, lost)
        check_reveal(cohort, slot, shared, survivors, reveals[slot])
    commitments = {slot: device.commitment for slot, device in enumerate(joined)}
    heard = Heard(keys, commitments, shared, survivors, reveals)
    try:
        return unmask(cohort, ring, heard, masked_sum).total, sorted(survivors)
    except RecoveryError:
        return None

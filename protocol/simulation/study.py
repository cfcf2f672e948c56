"""A whole study in memory. Read this first.

    study -> plan(r) -> encode (each device) -> vectors -> [sum] -> decode -> answer(r) -> plan(r+1)

`run_study` repeats this line for each round, and `run_round` is one repetition. The sum is
addition in the ring, or, with `secure`, the real protocol of `secagg` with all parties in one
process: the same sum, unless too many devices drop out. Reports have no sum: they are aggregated
(`reports.py`). Every other part of the project makes a step of this page fast, durable or reachable
over HTTP.
"""

from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any, Final, Generic

import numpy as np

from protocol.api.phases import Phase
from protocol.device_policy.plan_check import max_copies
from protocol.device_policy.policy import Policy
from protocol.histograms import Histogram, Histograms, ItemTotals
from protocol.mechanism import Answer, Mechanism, SumMechanism, add_noise
from protocol.mechanisms.quality_goal import QualityGoal
from protocol.privacy.noise_shares import simulate_skellam_sum
from protocol.question_and_plan import P, Q, Terms
from protocol.randomness import RandomWords
from protocol.report_mechanism import ReportMechanism
from protocol.simulation.reports import ReportAccumulator
from protocol.simulation.rounds import (
    LOCAL_EXECUTOR,
    NO_DROPOUT,
    NO_DROPOUTS,
    PHASES,
    Accumulator,
    Batch,
    Batches,
    Chunk,
    CohortCounts,
    DropoutModel,
    RandomDropout,
    RoundDevices,
    RoundExecutor,
    RoundSpec,
    SecureCohort,
    SumAccumulator,
)
from protocol.study_state import EMPTY_STATE, StudyState
from secagg.ring import Vector

DEFAULT_POLICY: Final = Policy()


@dataclass(frozen=True, slots=True)
class RoundOutcome(Generic[P]):
    """One round: its plan, the number of devices in its sum, its answer, and the study state.

    `truth` has the estimated totals, and `copies_left_out` the number of copies of items that the
    devices did not count; no real service knows either.
    """

    plan: P
    devices: int
    answer: Answer | None
    study_state: StudyState
    truth: Mapping[str, int]
    copies_left_out: int = 0

    @property
    def is_decoded(self) -> bool:
        return self.answer is not None and self.answer.decoded


def run_study(  # noqa: PLR0913 - the parameters of a study
    mechanism: Mechanism[Q, P],
    question: Q,
    terms: Terms,
    rounds: Iterable[RoundDevices[Batch] | Batches],
    rng: Random,
    *,
    planned: int,
    stop_at: QualityGoal | None = None,
    dropout: float = 0.0,
    secure: bool = False,
    policy: Policy | None = DEFAULT_POLICY,
    executor: RoundExecutor = LOCAL_EXECUTOR,
) -> Iterator[RoundOutcome[P]]:
    """Yield the outcome of each of `rounds`, the batches of its devices, out of `planned` rounds.

    The study ends before that if its list reaches `stop_at`. Each device drops out with probability
    `dropout`, equally likely in each phase, and counts the copies of an item that `policy` allows.
    Without a policy, as in papers, only the contribution limits them. The outcomes depend neither
    on the size of batches nor on `executor`.
    """
    plan, state = mechanism.first_plan(question, terms, "simulation", planned, rng), EMPTY_STATE
    # In a study that asks every round, devices clip their items once, and send the same again.
    fixed_clipping = rng.getrandbits(128) if question.asks_every_round else None
    for devices in rounds:
        clipping_seed = rng.getrandbits(128) if fixed_clipping is None else fixed_clipping
        outcome = run_round(
            mechanism,
            plan,
            devices,
            rng,
            state,
            dropouts=RandomDropout(dropout, rng.getrandbits(128)),
            clipping_seed=clipping_seed,
            policy=policy,
            secure=secure,
            executor=executor,
        )
        yield outcome
        state = outcome.study_state
        if mechanism.is_over(plan, outcome.answer, state):
            return
        if stop_at is not None:
            quality = mechanism.final_answer(question, state).quality
            if stop_at.is_reached(outcome.is_decoded, quality):
                return
        plan = mechanism.next_plan(plan, outcome.answer, state, rng)


def run_round(  # noqa: PLR0913 - the parameters of a round
    mechanism: Mechanism[Q, P],
    plan: P,
    devices: RoundDevices[Batch] | Batches,
    rng: Random,
    state: StudyState = EMPTY_STATE,
    *,
    dropouts: DropoutModel = NO_DROPOUTS,
    clipping_seed: int | None = None,
    secure: bool = False,
    policy: Policy | None = None,
    executor: RoundExecutor = LOCAL_EXECUTOR,
) -> RoundOutcome[P]:
    """Return the outcome of one round over `devices`; see `RoundSpec` for `clipping_seed`.

    `secure` sums are of the kind that the plan's terms ask for; for `policy` see `run_study`.
    """
    if not isinstance(devices, RoundDevices):
        devices = RoundDevices(devices)
    sampling_seed, secrets = rng.getrandbits(128), Random(rng.getrandbits(128))
    join_seed = rng.getrandbits(128) if plan.join_probability < 1 else 0
    copies = None if policy is None else max_copies(policy, plan)
    spec = RoundSpec(plan, dropouts, sampling_seed, join_seed, clipping_seed, copies)
    answer = None
    if isinstance(mechanism, ReportMechanism):
        accumulator = ReportAccumulator(mechanism, spec)
        _add_chunks(accumulator, devices, executor)
        aggregate, truth = accumulator.aggregate, accumulator.truth
        survivors = aggregate.reports if aggregate else 0
        if aggregate is not None:
            answer = mechanism.decode(plan, aggregate, state)
    else:
        assert isinstance(mechanism, SumMechanism)  # there are no other bases
        add = _sum_securely if secure else _plain_sum
        total, survivors, truth = add(mechanism, spec, devices, secrets, executor)
        answer = mechanism.decode(plan, total, survivors, state) if survivors else None
    state, left_out = answer.state if answer else state, truth.copies_left_out
    return RoundOutcome(plan, survivors, answer, state, truth.counts(), left_out)


def _add_chunks(
    accumulator: Accumulator[Any], devices: RoundDevices[Batch], executor: RoundExecutor
) -> None:
    """Run the first chunk here, and the others by `executor`."""
    accumulator.add_chunk(0, devices.first_batches)
    later = [Chunk(number, batches) for number, batches in enumerate(devices.later_chunks, 1)]
    executor.add(accumulator, later)


def _plain_sum(
    mechanism: SumMechanism[Q, P],
    spec: RoundSpec[P],
    devices: RoundDevices[Batch],
    secrets: Random,
    executor: RoundExecutor,
) -> tuple[Vector, int, ItemTotals]:
    """Return the sum of all vectors with noise, the number of survivors, and the true totals.

    The noise of all devices is drawn at once, in floats: a sum with `secure` has exact shares.
    """
    plan, ring = spec.plan, mechanism.ring(spec.plan)
    cohorts = CohortCounts(plan.terms.cohort_size)
    accumulator = SumAccumulator(mechanism, spec, cohorts.assign)
    _add_chunks(accumulator, devices, executor)
    shares = ((mechanism.noise_shares(plan, members), count) for members, count in cohorts)
    variance = float(sum(each.share * count for each, count in shares if each is not None))
    if variance:
        rng = np.random.default_rng(secrets.getrandbits(128))
        for lane, array in zip(ring.lanes, accumulator.total, strict=True):
            noise = simulate_skellam_sum(rng, variance, lane.length) % lane.q
            lane.add(array, noise.astype(lane.dtype))
    return accumulator.total, int(cohorts.survivors.sum()), accumulator.truth


def _sum_securely(
    mechanism: SumMechanism[Q, P],
    spec: RoundSpec[P],
    devices: RoundDevices[Batch],
    secrets: Random,
    executor: RoundExecutor,
) -> tuple[Vector, int, ItemTotals]:
    """Return the sum of the cohorts' sums, the number of survivors, and the true totals."""
    plan, in_memory = spec.plan, _RoundInMemory(mechanism, spec, devices)
    ring, survivors = mechanism.ring(plan), list[int]()
    total = ring.zero()
    for cohort_sum in executor.sum_cohorts(_form_cohorts(in_memory, secrets)):
        if cohort_sum is not None:
            ring.add(total, cohort_sum[0])
            survivors += cohort_sum[1]
    estimated = survivors if plan.join_probability == 1 else in_memory.estimated
    held = Histograms.from_mappings(in_memory.histograms[device] for device in estimated)
    in_memory.truth.add(held)
    return total, len(survivors), in_memory.truth


class _RoundInMemory(Generic[P]):
    """All devices of a round in memory: their histograms, and the phases of the dropouts."""

    def __init__(
        self, mechanism: SumMechanism[Any, P], spec: RoundSpec[P], devices: RoundDevices[Batch]
    ) -> None:
        self.mechanism, self.plan = mechanism, spec.plan
        self.histograms: list[Histogram] = []
        self.dropouts: dict[int, Phase] = {}
        self.estimated: list[int] = []
        self.truth = ItemTotals()
        self._starts: list[int] = []
        self._words: list[RandomWords] = []
        for number, batches in enumerate([lambda: devices.first_batches, *devices.later_chunks]):
            self._starts.append(len(self.histograms))
            self._words.append(spec.chunk_randomness(number))
            for histograms, dropouts, is_estimated in spec.batches(number, batches(), self.truth):
                first = len(self.histograms)
                places = np.flatnonzero(dropouts != NO_DROPOUT).tolist()
                self.dropouts |= {first + place: PHASES[dropouts[place]] for place in places}
                self.estimated += (first + np.flatnonzero(is_estimated)).tolist()
                self.histograms += histograms

    def vectors(self, members: Sequence[int]) -> list[Vector]:
        """Return the vectors of a cohort, including their noise."""
        mechanism, plan = self.mechanism, self.plan
        ring, shares = mechanism.ring(plan), mechanism.noise_shares(plan, len(members))
        words = [self._words[bisect(self._starts, device) - 1] for device in members]
        vectors = [
            mechanism.encode(plan, self.histograms[device], chunk_words)
            for device, chunk_words in zip(members, words, strict=True)
        ]
        for vector, chunk_words in zip(vectors, words, strict=True):
            add_noise(ring, vector, shares, chunk_words)
        return vectors


def _form_cohorts(in_memory: _RoundInMemory[P], secrets: Random) -> Iterator[SecureCohort]:
    """Yield the cohorts of `minimum` or more; vectors are made when their cohort is next."""
    plan, dropouts = in_memory.plan, in_memory.dropouts
    ring = in_memory.mechanism.ring(plan)
    devices = range(len(in_memory.histograms))
    enrolled = (device for device in devices if dropouts.get(device) is not Phase.ENROLLING)
    for number in range(plan.terms.cohorts):
        members = list(islice(enrolled, plan.terms.cohort_size))
        if len(members) < plan.terms.minimum:
            return
        by_slot = {slot: dropouts[d] for slot, d in enumerate(members) if d in dropouts}
        vectors, seed = in_memory.vectors(members), secrets.getrandbits(128)
        yield SecureCohort(plan, number, ring, members, vectors, by_slot, seed)

"""Devices of a simulated round: chunks, dropouts, cohorts, and the executors of their sums.

A *chunk* is 2^18 consecutive devices of a round. It has its own random generators for everything
that its devices draw: their items, clipping, joining, dropping out and sampling. So its sum does
not depend on the process that computes it, nor on the other chunks: workers receive a plan, return
sums of chunks, and the total is the same to the bit. The first chunk draws from the round's own
generators; chunk c > 0 draws from generators seeded by the round's seeds and c.

Shorter chunks would gain little and pay 20 us for each generator; longer ones would leave workers
idle. The length decides only which devices a seed draws.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.api.phases import PAIRWISE_SUM, Phase
from protocol.histograms import Histogram, Histograms, ItemTotals, clip_histograms, limit_copies
from protocol.mechanism import SumMechanism
from protocol.numerics.array_types import Flags
from protocol.question_and_plan import P, Plan
from protocol.randomness import RandomWords, seeded_words
from secagg.errors import RecoveryError
from secagg.oneshot.moduli import divided, joined, one_lane
from secagg.oneshot.parameters import CommitteeParameters
from secagg.oneshot.run import run_one_shot_sum
from secagg.ring import Ring, Vector
from secagg.run import Attendance, run_secure_sum

CHUNK_DEVICES: Final = 2**18
# The phases in which simulated devices drop out. One that drops out while checking its shares costs
# a sum no more than one that drops out while sharing.
PHASES = tuple(phase for phase in PAIRWISE_SUM.phases if phase is not Phase.CHECKING)
NO_DROPOUT = len(PHASES)  # the index of a device that stays to the end
PHASES_BEFORE_INPUT = (Phase.ENROLLING, Phase.SHARING, Phase.MASKING)  # later dropouts count
_ENROLLING = PHASES.index(Phase.ENROLLING)

DropoutDraws: TypeAlias = Callable[[int], NDArray[np.int8]]  # for the next n devices: PHASES index
DropoutModel: TypeAlias = Callable[[int], DropoutDraws]  # for a chunk, by number
DropoutPhases: TypeAlias = Mapping[
    int, Phase
]  # dropouts by number, each with its first missing phase
CohortSum: TypeAlias = tuple[Vector, list[int]]  # a sum, and the devices in it
Batch: TypeAlias = Sequence[Histogram]
Batches: TypeAlias = Iterable[Batch]
B_co = TypeVar("B_co", bound=Batch, covariant=True)
Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class RoundDevices(Generic[B_co]):
    """The devices of a round: the batches of the first chunk, and functions that make the others'.

    The functions can be pickled. Iteration passes once through the batches of all chunks.
    """

    first_batches: Iterable[B_co]
    later_chunks: Sequence[Callable[[], Iterable[B_co]]] = ()

    def __iter__(self) -> Iterator[B_co]:
        yield from self.first_batches
        for make_batches in self.later_chunks:
            yield from make_batches()


def chunk_generator(seed: int | Sequence[int], chunk: int) -> np.random.Generator:
    """Return the generator of a chunk for draws with `seed`."""
    if not chunk:
        return np.random.default_rng(seed)
    return np.random.default_rng([*((seed,) if isinstance(seed, int) else seed), chunk])


@dataclass(frozen=True, slots=True)
class RandomDropout:
    """Dropouts with probability `dropout` per device, equally likely in each of `PHASES`."""

    dropout: float
    seed: int

    def __call__(self, chunk: int) -> DropoutDraws:
        """Return the draws for a chunk."""
        if not self.dropout:
            return lambda count: np.full(count, NO_DROPOUT, np.int8)
        rng = chunk_generator(self.seed, chunk)

        def draw(count: int) -> NDArray[np.int8]:
            indices = rng.random(count) * (NO_DROPOUT / self.dropout)
            return np.minimum(indices, NO_DROPOUT).astype(np.int8)

        return draw


NO_DROPOUTS: Final = RandomDropout(0.0, 0)


@dataclass(frozen=True, slots=True)
class RoundSpec(Generic[P]):
    """One simulated round: its plan, and the seeds of what its devices draw.

    Without a `clipping_seed` no device may hold more than the contribution bound; a device counts
    at most `max_copies` of one item, or any number if that is None. If devices join at random,
    those that do not join drop out in enrolling.
    """

    plan: P
    dropouts: DropoutModel
    sampling_seed: int = field(repr=False)
    join_seed: int = field(repr=False)
    clipping_seed: int | None = field(default=None, repr=False)
    max_copies: int | None = None

    def chunk_randomness(self, chunk: int) -> RandomWords:
        """Return the random words by which the devices of a chunk sample, or make reports."""
        return seeded_words(chunk_generator(self.sampling_seed, chunk))

    def batches(
        self, chunk: int, batches: Batches, totals: ItemTotals
    ) -> Iterator[tuple[Histograms, NDArray[np.int8], Flags]]:
        """Yield for each batch: clipped histograms, dropout phases, and the devices estimated.

        Items outside the domain are left out first, and then copies of items, which `totals`
        counts. Devices that do not join at random are estimated too.
        """
        plan, draw_dropouts = self.plan, self.dropouts(chunk)
        clipping = None
        if self.clipping_seed is not None:
            clipping = chunk_generator(self.clipping_seed, chunk)
        join_words = None
        if plan.join_probability < 1:
            join_words = seeded_words(chunk_generator(self.join_seed, chunk))
        for batch in batches:
            histograms = Histograms.from_mappings(batch).renamed(plan.question.canonical)
            if self.max_copies is not None:
                histograms, left_out = limit_copies(histograms, self.max_copies)
                totals.copies_left_out += left_out
            if clipping is not None:
                histograms = clip_histograms(histograms, plan.question.contribution, clipping)
            dropouts = draw_dropouts(len(histograms))
            is_estimated = delivers_input(dropouts)
            if join_words is not None:
                joins = plan.flip_join_coins(join_words, len(histograms))
                dropouts = np.where(joins, dropouts, np.int8(_ENROLLING))
            yield histograms, dropouts, is_estimated


def delivers_input(dropouts: NDArray[np.int8]) -> Flags:
    """Return a flag for each device that sends a masked input, from its dropout phase."""
    return ~np.isin(dropouts, [PHASES.index(phase) for phase in PHASES_BEFORE_INPUT])


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk after the first, by its number in the round."""

    number: int
    batches: Callable[[], Batches]


class Accumulator(Protocol[Part]):
    """The total of a round's chunks, added in the order of their numbers, local or remote."""

    @property
    def remote_task(self) -> Callable[[Sequence[Chunk]], Part]:
        """Return a function, which can be pickled, that sums chunks elsewhere for `merge`."""

    def add_chunk(self, chunk: int, batches: Batches) -> object:
        """Run a chunk here and add it."""

    def merge(self, part: Part) -> None:
        """Add chunks that ran elsewhere."""


@dataclass(frozen=True, slots=True)
class ChunkSum:
    """The sum of some chunks, the number of devices that enrolled, and their true item totals.

    `included` has one bit per enrolled device, in their order: whether it is in the sum.
    """

    total: Vector
    enrolled: int
    included: NDArray[np.uint8]
    truth: ItemTotals


class SumAccumulator(Generic[P]):
    """The sum of a round's chunks, without noise.

    `assign_to_cohorts` receives, for the devices that enrol and in their order, whether each is in
    the sum.
    """

    def __init__(
        self,
        mechanism: SumMechanism[Any, P],
        spec: RoundSpec[P],
        assign_to_cohorts: Callable[[Flags], None],
    ) -> None:
        self.mechanism, self.spec = mechanism, spec
        self.total = mechanism.ring(spec.plan).zero()
        self.truth = ItemTotals()
        self._assign_to_cohorts = assign_to_cohorts

    def add_chunk(self, chunk: int, batches: Batches) -> None:
        """Run a chunk here and add it."""
        mechanism, plan = self.mechanism, self.spec.plan
        ring, words = mechanism.ring(plan), self.spec.chunk_randomness(chunk)
        for histograms, dropouts, is_estimated in self.spec.batches(chunk, batches, self.truth):
            is_in = delivers_input(dropouts)
            summed = histograms if is_in.all() else histograms.take(np.flatnonzero(is_in))
            ring.add(self.total, mechanism.encode_sum(plan, summed, words))
            self._assign_to_cohorts(is_in[dropouts != _ENROLLING])
            self.truth.add(
                summed
                if plan.join_probability == 1
                else histograms.take(np.flatnonzero(is_estimated))
            )

    @property
    def remote_task(self) -> Callable[[Sequence[Chunk]], ChunkSum]:
        return partial(sum_chunks, self.mechanism, self.spec)

    def merge(self, part: ChunkSum) -> None:
        self.mechanism.ring(self.spec.plan).add(self.total, part.total)
        self._assign_to_cohorts(np.unpackbits(part.included, count=part.enrolled).astype(np.bool_))
        self.truth.merge(part.truth)


def sum_chunks(
    mechanism: SumMechanism[Any, P], spec: RoundSpec[P], chunks: Sequence[Chunk]
) -> ChunkSum:
    """Return the sum of these chunks of a round: the task of a worker."""
    assigned: list[Flags] = []
    accumulator = SumAccumulator(mechanism, spec, assigned.append)
    for chunk in chunks:
        accumulator.add_chunk(chunk.number, chunk.batches())
    is_in = np.concatenate(assigned)
    return ChunkSum(accumulator.total, len(is_in), np.packbits(is_in), accumulator.truth)


class CohortCounts:
    """The number of enrolled devices and of survivors in each cohort.

    A device that enrols joins the first cohort with room. `assign` receives whether each device
    survives, batch by batch, in the order of enrolling.
    """

    def __init__(self, size: int) -> None:
        self.survivors = np.zeros(0, np.int64)
        self._size, self._enrolled = size, 0

    def assign(self, survives: Flags) -> None:
        """Assign the next devices to cohorts."""
        if not len(survives):
            return
        first = self._enrolled // self._size
        end = self._enrolled + len(survives)
        starts = np.arange(first * self._size, end, self._size) - self._enrolled
        counts = np.add.reduceat(survives, np.maximum(starts, 0), dtype=np.int64)
        survivors = np.zeros(first + len(counts), np.int64)
        survivors[: len(self.survivors)] = self.survivors
        survivors[first:] += counts
        self.survivors, self._enrolled = survivors, end

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for number, survivors in enumerate(self.survivors.tolist()):
            yield min(self._size, self._enrolled - number * self._size), survivors


@dataclass(frozen=True, slots=True)
class SecureCohort:
    """A cohort to sum securely in any process; all its secrets follow from `seed`."""

    plan: Plan
    number: int
    ring: Ring
    members: Sequence[int]  # devices
    vectors: Sequence[Vector] = field(repr=False)
    dropouts: DropoutPhases  # by slot
    seed: int = field(repr=False)


def sum_cohort(cohort: SecureCohort) -> CohortSum | None:
    """Return the sum of a cohort and the devices in it, or None if the cohort fails."""
    terms, n = cohort.plan.terms, len(cohort.vectors)
    if terms.committee is not None:
        return _sum_in_one_shot(cohort, terms.committee.parameters)
    attendance = _attendance_of(n, cohort.dropouts)
    if len(attendance.unmasking) < terms.assumptions.quorum(n):
        return None
    try:
        result = run_secure_sum(
            cohort.ring,
            cohort.vectors,
            terms.assumptions,
            Random(cohort.seed),
            attendance,
            cohort.plan.digest(),
            cohort.number,
        )
    except RecoveryError:
        return None
    return result.total, [cohort.members[slot] for slot in sorted(result.survivors)]


def _sum_in_one_shot(cohort: SecureCohort, committee: CommitteeParameters) -> CohortSum | None:
    """Return the one-shot sum of a cohort, or None if fewer than `minimum` devices send.

    The committee is simulated too, and none of its members drops out.
    """
    slots = range(len(cohort.vectors))
    sending = [slot for slot in slots if cohort.dropouts.get(slot) not in PHASES_BEFORE_INPUT]
    if len(sending) < cohort.plan.terms.minimum:
        return None
    result = run_one_shot_sum(
        one_lane(cohort.ring),
        [joined(vector) for vector in cohort.vectors],
        committee,
        Random(cohort.seed),
        sending,
        plan_digest=cohort.plan.digest(),
        number=cohort.number,
    )
    total = divided(cohort.ring, result.total)
    return total, [cohort.members[slot] for slot in sorted(result.devices)]


def _attendance_of(n: int, dropouts: DropoutPhases) -> Attendance:
    """Return the slots present in each step."""
    slots, present = list(range(n)), []
    for phase in PAIRWISE_SUM.phases:
        slots = [slot for slot in slots if dropouts.get(slot) is not phase]
        present.append(slots)
    return Attendance(*present[1:])  # after enrolling


class RoundExecutor(Protocol):
    """The process or processes that run a round."""

    def add(self, accumulator: Accumulator[Part], chunks: Sequence[Chunk]) -> None:
        """Add chunks to an accumulator, in their order."""

    def sum_cohorts(self, cohorts: Iterable[SecureCohort]) -> Iterator[CohortSum | None]:
        """Yield the result of `sum_cohort` for each of `cohorts`, in their order."""


class LocalExecutor:
    """Runs a round in this process, one chunk or cohort after the other."""

    def add(self, accumulator: Accumulator[Part], chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            accumulator.add_chunk(chunk.number, chunk.batches())

    def sum_cohorts(self, cohorts: Iterable[SecureCohort]) -> Iterator[CohortSum | None]:
        return map(sum_cohort, cohorts)


LOCAL_EXECUTOR: Final = LocalExecutor()

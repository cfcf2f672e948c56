"""Executors of a round's chunks and secure cohorts. The result does not depend on the executor."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from protocol.api.phases import Phase, participant_phases
from protocol.simulation.chunks import Accumulator, Chunk, Part
from protocol.study import Plan
from secagg.errors import RecoveryError
from secagg.parameters import Mode
from secagg.ring import Ring, Vector
from secagg.run import Attendance, run_secure_sum

DropoutPhases = Mapping[int, Phase]  # dropouts by number, each with its first missing phase
CohortSum = tuple[Vector, list[int]]  # a sum, and the devices in it


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
    attendance = _attendance_of(n, terms.mode, cohort.dropouts)
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


def _attendance_of(n: int, mode: Mode, dropouts: DropoutPhases) -> Attendance:
    """Return the slots present in each step; no device drops out in a phase that `mode` skips."""
    slots, present = list(range(n)), []
    for phase in participant_phases("active"):
        if phase in participant_phases(mode):
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
        """Add chunks to an accumulator, in their order."""
        for chunk in chunks:
            accumulator.add_chunk(chunk.number, chunk.batches())

    def sum_cohorts(self, cohorts: Iterable[SecureCohort]) -> Iterator[CohortSum | None]:
        """Yield the result of `sum_cohort` for each of `cohorts`, in their order."""
        return map(sum_cohort, cohorts)


LOCAL_EXECUTOR: Final = LocalExecutor()

"""Cohorts of a simulated round: their numbers of survivors, and their secure sums."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from protocol.api.phases import PARTICIPANT_PHASES, Phase
from protocol.numerics.arrays import Flags
from protocol.question_and_plan import Plan
from secagg.errors import RecoveryError
from secagg.parameters import Mode
from secagg.ring import Ring, Vector
from secagg.run import Attendance, run_secure_sum


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
    for phase in PARTICIPANT_PHASES["active"]:
        if phase in PARTICIPANT_PHASES[mode]:
            slots = [slot for slot in slots if dropouts.get(slot) is not phase]
        present.append(slots)
    return Attendance(*present[1:])  # after enrolling

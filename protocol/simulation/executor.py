"""Executor of a simulated round: the interface, and the one that runs in this process."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from protocol.simulation.chunks import Accumulator, Chunk, Part
from protocol.simulation.cohorts import CohortSum, SecureCohort, sum_cohort


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

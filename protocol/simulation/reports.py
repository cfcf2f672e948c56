"""A simulated round of locally private reports, chunk by chunk.

    devices -> clip -> encode (each device) -> reports -> aggregate, +

As in a round of sums (`rounds.py`), each chunk has its own random generators, so that its aggregate
does not depend on the process that runs it, and aggregates add up. A device that drops out sends
nothing. Each report includes its noise already: there are no cohorts here.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Generic

import numpy as np

from protocol.histograms import Histograms, ItemTotals
from protocol.report_mechanism import RP, H, ReportMechanism
from protocol.simulation.rounds import NO_DROPOUT, Batches, Chunk, RoundSpec


@dataclass(frozen=True, slots=True)
class ChunkReports(Generic[H]):
    """The aggregate of some chunks, None without reports, and the true totals of their devices."""

    aggregate: H | None
    truth: ItemTotals


class ReportAccumulator(Generic[RP, H]):
    """The aggregate of a round's chunks; None before the first report."""

    def __init__(self, mechanism: ReportMechanism[Any, RP, H], spec: RoundSpec[RP]) -> None:
        self.aggregate: H | None = None
        self.truth = ItemTotals()
        self._mechanism, self._spec = mechanism, spec

    def add_chunk(self, chunk: int, batches: Batches) -> None:
        """Run a chunk here and add it."""
        mechanism, plan = self._mechanism, self._spec.plan
        words = self._spec.chunk_randomness(chunk)
        reporting = (
            histograms.take(np.flatnonzero(dropouts == NO_DROPOUT))
            for histograms, dropouts, _ in self._spec.batches(chunk, batches, self.truth)
        )
        for held in _joined(reporting):
            self.truth.add(held)
            if len(held):
                self._add(mechanism.aggregate(plan, mechanism.encode(plan, held, words)))

    @property
    def remote_task(self) -> Callable[[Sequence[Chunk]], ChunkReports[H]]:
        return partial(aggregate_chunks, self._mechanism, self._spec)

    def merge(self, part: ChunkReports[H]) -> None:
        if part.aggregate is not None:
            self._add(part.aggregate)
        self.truth.merge(part.truth)

    def _add(self, aggregate: H) -> None:
        self.aggregate = aggregate if self.aggregate is None else self.aggregate + aggregate


def _joined(batches: Iterable[Histograms]) -> Iterator[Histograms]:
    """Yield consecutive batches that share an `ItemIndex` as one, which is faster to aggregate."""
    for _, group in groupby(batches, key=lambda batch: id(batch.items)):
        yield Histograms.concatenated(group)


def aggregate_chunks(
    mechanism: ReportMechanism[Any, RP, H], spec: RoundSpec[RP], chunks: Sequence[Chunk]
) -> ChunkReports[H]:
    """Return the aggregate of these chunks of a round: the task of a worker."""
    accumulator = ReportAccumulator(mechanism, spec)
    for chunk in chunks:
        accumulator.add_chunk(chunk.number, chunk.batches())
    return ChunkReports(accumulator.aggregate, accumulator.truth)

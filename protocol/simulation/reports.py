"""A simulated round of locally private reports, chunk by chunk.

    devices -> clip -> encode (each device) -> reports -> aggregate, +

As in a round of sums (`chunks`), each chunk has its own random generator, for clipping and for
reports, so that its aggregate does not depend on the process that runs it, and aggregates add up.
The first chunk continues with the generator that drew its devices, as in a round with one chunk.

No device drops out, and each report includes its noise already: there are no cohorts here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic

import numpy as np

from protocol.histograms import Histograms, ItemTotals, clip_histograms
from protocol.randomness import seeded_words
from protocol.report_mechanism import RP, H, ReportMechanism
from protocol.simulation.rounds import (
    LOCAL_EXECUTOR,
    Batch,
    Batches,
    Chunk,
    RoundDevices,
    RoundExecutor,
    chunk_generator,
)


@dataclass(frozen=True, slots=True)
class ReportRoundResult(Generic[H]):
    """The aggregate of some chunks, and the true item totals of their devices."""

    aggregate: H
    truth: dict[str, int]


@dataclass(frozen=True, slots=True)
class ReportRoundSpec(Generic[RP, H]):
    """One simulated round of reports: its plan, and the seed of what its devices draw."""

    mechanism: ReportMechanism[Any, RP, H]
    plan: RP
    seed: int = field(repr=False)

    def chunk_generator(self, chunk: int) -> np.random.Generator:
        """Return the generator for the devices of a chunk after the first."""
        return chunk_generator(self.seed, chunk)


class ReportAccumulator(Generic[RP, H]):
    """The aggregate of a round's chunks; `generator_of` returns the generator of a chunk."""

    def __init__(
        self, spec: ReportRoundSpec[RP, H], generator_of: Callable[[int], np.random.Generator]
    ) -> None:
        self._spec, self._generator_of = spec, generator_of
        self._aggregate: H | None = None
        self._truth = ItemTotals()

    def add_chunk(self, chunk: int, batches: Batches) -> None:
        """Run a chunk of at least one batch here and add it."""
        mechanism, plan, rng = self._spec.mechanism, self._spec.plan, self._generator_of(chunk)
        histograms = Histograms.concatenated(map(Histograms.from_mappings, batches))
        clipped = clip_histograms(histograms, 1, rng)
        inside = clipped.only_items(plan.question.domain.__contains__)
        reports = mechanism.encode(plan, inside, seeded_words(rng))
        self._add_aggregate(mechanism.aggregate(plan, reports))
        self._truth.add(clipped)

    def merge(self, part: ReportRoundResult[H]) -> None:
        self._add_aggregate(part.aggregate)
        self._truth.add_counts(part.truth)

    @property
    def remote_task(self) -> Callable[[Sequence[Chunk]], ReportRoundResult[H]]:
        return partial(_aggregate_chunks, self._spec)

    @property
    def result(self) -> ReportRoundResult[H]:
        assert self._aggregate is not None  # a round has at least one chunk
        return ReportRoundResult(self._aggregate, self._truth.counts())

    def _add_aggregate(self, aggregate: H) -> None:
        self._aggregate = aggregate if self._aggregate is None else self._aggregate + aggregate


def _aggregate_chunks(
    spec: ReportRoundSpec[RP, H], chunks: Sequence[Chunk]
) -> ReportRoundResult[H]:
    accumulator = ReportAccumulator(spec, spec.chunk_generator)
    for chunk in chunks:
        accumulator.add_chunk(chunk.number, chunk.batches())
    return accumulator.result


def run_report_round(
    spec: ReportRoundSpec[RP, H],
    devices: RoundDevices[Batch],
    first_generator: np.random.Generator,
    executor: RoundExecutor = LOCAL_EXECUTOR,
) -> ReportRoundResult[H]:
    """Return the aggregate of all reports of `devices`, and the totals after clipping to one.

    `first_generator` draws for the first chunk. The result does not depend on `executor`.
    """
    accumulator = ReportAccumulator(
        spec, lambda chunk: spec.chunk_generator(chunk) if chunk else first_generator
    )
    accumulator.add_chunk(0, devices.first_batches)
    later = [Chunk(number, batches) for number, batches in enumerate(devices.later_chunks, 1)]
    executor.add(accumulator, later)
    return accumulator.result

"""Items with their counts, from which the items of simulated devices are drawn."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat

import numpy as np

from protocol.histograms import BATCH_HOLDINGS, Histograms, ItemIndex
from protocol.numerics.array_types import Integers
from protocol.simulation.rounds import RoundDevices, chunk_generator


@dataclass(frozen=True, slots=True)
class ItemCounts:
    """Items with their counts; devices are independent draws from them."""

    items: tuple[str, ...]
    counts: Integers

    def devices_per_round(self, rounds: int, wanted: int) -> int:
        """Return `wanted`, because draws never run out."""
        del rounds
        return wanted

    def rounds(
        self,
        sizes: Sequence[int],
        contribution: int,
        rng: np.random.Generator,
        batch_holdings: int = BATCH_HOLDINGS,
        chunk_devices: int | None = None,
        counts_by_round: Iterable[Integers] | None = None,
    ) -> Iterator[RoundDevices[Histograms]]:
        """Yield rounds of these numbers of new devices, each with `contribution` drawn items.

        Items are drawn from `counts_by_round`, by default from the same counts in every round.
        Batches have at most `batch_holdings` draws, which are made when the batch is read.
        """
        index = ItemIndex(self.items)
        index_of_kind = np.array([index.positions[item] for item in self.items], np.int64)
        size = max(1, batch_holdings // contribution)
        for devices, counts in zip(sizes, counts_by_round or repeat(self.counts), strict=False):
            draws = _TokenDraws(index, index_of_kind, counts, contribution, size)
            first = min(devices, chunk_devices or devices)
            starts = range(first, devices, first)
            seeds = tuple(rng.integers(2**63, size=2).tolist()) if starts else ()
            later = [
                partial(draws.later_chunk, min(first, devices - start), seeds, number)
                for number, start in enumerate(starts, 1)
            ]
            yield RoundDevices(draws.batches(first, rng), later)


@dataclass(frozen=True, slots=True)
class _TokenDraws:
    """Draws of `contribution` tokens per device; token kind k is the item `index_of_kind[k]`."""

    items: ItemIndex
    index_of_kind: Integers
    counts: Integers
    contribution: int
    batch_devices: int

    def batches(self, devices: int, rng: np.random.Generator) -> Iterator[Histograms]:
        tokens = self.items.cached(
            "tokens", self.counts.tobytes(), lambda: _TokenTable(self.counts)
        )
        for start in range(0, devices, self.batch_devices):
            size = min(self.batch_devices, devices - start) * self.contribution
            drawn = self.index_of_kind[tokens.draw(size, rng)]
            yield Histograms.one_item_each(self.items, drawn).grouped(self.contribution)

    def later_chunk(self, devices: int, seeds: Sequence[int], chunk: int) -> Iterator[Histograms]:
        return self.batches(devices, chunk_generator(seeds, chunk))


class _TokenTable:
    """Row of tokens, `counts` of each kind, from which tokens are drawn by number.

    The numbers are divided into ranges of equal size, 16 or more per kind. Most ranges have tokens
    of one kind, which is looked up in a small table. For the others the kind is searched, which
    takes 10 times as long.
    """

    def __init__(self, counts: Integers) -> None:
        self._ends = np.cumsum(counts)
        total = int(self._ends[-1])
        self._range_shift = max(0, total.bit_length() - (16 * len(counts)).bit_length())
        starts = np.arange((total >> self._range_shift) + 2) << self._range_shift
        first = np.searchsorted(self._ends, starts, side="right")
        self._ambiguous = len(counts)  # no kind
        kinds = np.where(first[1:] == first[:-1], first[:-1], self._ambiguous)
        self._kind_of_range = kinds.astype(np.min_scalar_type(self._ambiguous))

    def draw(self, size: int, rng: np.random.Generator) -> Integers:
        """Return the kinds of `size` tokens, drawn with replacement."""
        drawn = rng.integers(self._ends[-1], size=size)
        kinds: Integers = self._kind_of_range[drawn >> self._range_shift].astype(np.int64)
        several = np.flatnonzero(kinds == self._ambiguous)
        kinds[several] = np.searchsorted(self._ends, drawn[several], side="right")
        return kinds

"""Rounds of a simulated study: how many devices each has, what they hold, and which rounds fail.

Sizes are repeated, so that `10000,500` is a study of days and nights. A drift changes the items
that devices hold from round to round (`populations.py`). A failed round has no sum: its devices are
in no total, and the next plan is made without it, as in a service where too many devices dropped
out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random
from typing import Final

import numpy as np

from blindtally.datasets.item_counts import ItemCounts
from blindtally.datasets.reader import MIN_ROUND_DEVICES, Dataset, too_few_devices_message
from blindtally.simulate.options import DriftKind, SimulationRequest
from blindtally.simulate.populations import ItemPopulation, size_with_drift
from protocol.domains.strings import Utf8
from protocol.histograms import Histograms
from protocol.numerics.arrays import Integers
from protocol.simulation.rounds import CHUNK_DEVICES, RoundDevices

_DRAWN_TOKENS: Final = 2**40  # that stand for the shares of a drift


@dataclass(frozen=True, slots=True)
class RoundSchedule:
    """Devices of each round, the numbers of the rounds that fail, from 1, and the drift."""

    sizes: tuple[int, ...]
    lost: frozenset[int]
    drift: DriftKind

    @classmethod
    def of(cls, request: SimulationRequest, dataset: Dataset) -> "RoundSchedule":
        """Return the schedule that the options ask for.

        Raises:
            ValueError: if the options are malformed, or the data has too few devices.
        """
        rounds, drift = request.rounds, request.drift
        if drift not in ("none", "crowds") and not isinstance(dataset, ItemCounts):
            raise ValueError(
                f"--drift {drift} draws items from item,count, and {request.data} has the items of "
                "each device: its drifts are none and crowds"
            )
        if request.devices_by_round is None:
            sizes = _equal_sizes(request, dataset)
        else:
            given = _parse_sizes(request.devices_by_round)
            sizes = tuple(islice(cycle(given), rounds))
        sizes = tuple(size_with_drift(size, number, drift) for number, size in enumerate(sizes))
        most = dataset.devices_per_round(1, sum(sizes))
        if most < sum(sizes):
            raise ValueError(
                f"{request.data}: holds {most:,} devices, each in one round at most, and the "
                f"rounds take {sum(sizes):,}: use fewer --rounds or smaller --devices-by-round"
            )
        return cls(sizes, _parse_lost(request.lost_rounds, rounds, request.seed), drift)

    def rounds(
        self, dataset: Dataset, contribution: int, seed: int
    ) -> Iterator[RoundDevices[Histograms]]:
        """Yield the devices of each round, none for a round that fails."""
        rng = np.random.default_rng([seed, 0])
        if isinstance(dataset, ItemCounts) and self.drift not in ("none", "crowds"):
            drifting = self._counts_by_round(dataset, seed)
            rounds = dataset.rounds(
                self.sizes,
                contribution,
                rng,
                chunk_devices=CHUNK_DEVICES,
                counts_by_round=drifting,
            )
        else:
            rounds = dataset.rounds(self.sizes, contribution, rng, chunk_devices=CHUNK_DEVICES)
        for number, devices in enumerate(rounds, 1):
            yield RoundDevices(()) if number in self.lost else devices

    def _counts_by_round(self, dataset: ItemCounts, seed: int) -> Iterator[Integers]:
        shares = dataset.counts / dataset.counts.sum()
        population = ItemPopulation(dataset.items, shares, Utf8(max_bytes=1))
        rng = np.random.default_rng([seed, 1])
        for drifted in population.shares_by_round(len(self.sizes), rng, self.drift):
            yield np.rint(drifted * _DRAWN_TOKENS).astype(np.int64)


def _equal_sizes(request: SimulationRequest, dataset: Dataset) -> tuple[int, ...]:
    devices = dataset.devices_per_round(request.rounds, request.devices)
    if devices < MIN_ROUND_DEVICES:
        devices = dataset.devices_per_round(1, MIN_ROUND_DEVICES * request.rounds)
        raise ValueError(too_few_devices_message(request.data, devices))
    return (devices,) * request.rounds


def _parse_sizes(text: str) -> list[int]:
    sizes = _parse_numbers("--devices-by-round", text)
    if min(sizes) < MIN_ROUND_DEVICES:
        raise ValueError(f"--devices-by-round takes {MIN_ROUND_DEVICES} or more, got {text!r}")
    return sizes


def _parse_lost(text: str | None, rounds: int, seed: int) -> frozenset[int]:
    """Return the rounds that a number of rounds, or a list of rounds, stands for."""
    if text is None:
        return frozenset()
    numbers = _parse_numbers("--lost-rounds", text)
    if "," not in text:
        if numbers[0] > rounds:
            raise ValueError(f"--lost-rounds is at most the {rounds} rounds, got {numbers[0]}")
        return frozenset(Random(seed).sample(range(1, rounds + 1), numbers[0]))
    if not all(1 <= number <= rounds for number in numbers):
        raise ValueError(f"--lost-rounds lists rounds from 1 to {rounds}, got {text!r}")
    return frozenset(numbers)


def _parse_numbers(option: str, text: str) -> list[int]:
    parts = text.removesuffix(",").split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"{option} takes whole numbers with commas between them, got {text!r}")
    return [int(part) for part in parts]

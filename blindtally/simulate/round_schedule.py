"""Rounds of a simulated study: how many devices each has, what they hold, and which rounds fail.

Sizes are repeated, so that `10000,500` is a study of days and nights. A drift changes the items
that devices hold from round to round (`populations.py`). A failed round has no sum: its devices are
in no total, and the next plan is made without it, as in a service where too many devices dropped
out. If a question asks every round, each round has the same devices with the same items.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Final

import numpy as np

from blindtally.datasets.item_counts import ItemCounts
from blindtally.datasets.reader import MIN_ROUND_DEVICES, Dataset, too_few_devices_message
from blindtally.simulate.populations import DriftKind, ItemPopulation, size_with_drift
from blindtally.simulate.scenario import DEFAULT_DEVICES, Scenario, SimulationRequest
from protocol.domains.strings import Utf8
from protocol.histograms import Histograms
from protocol.numerics.array_types import Integers
from protocol.simulation.rounds import CHUNK_DEVICES, RoundDevices

_DRAWN_TOKENS: Final = 2**40  # that stand for the shares of a drift


@dataclass(frozen=True, slots=True)
class RoundSchedule:
    """Devices of each round, the numbers of the rounds that fail, from 1, and the drift."""

    sizes: tuple[int, ...]
    lost: frozenset[int]
    drift: DriftKind = "none"
    repeats_devices: bool = False

    @classmethod
    def of(
        cls, request: SimulationRequest, dataset: Dataset, rounds: int, *, repeats_devices: bool
    ) -> "RoundSchedule":
        """Return the schedule of `rounds` that the request asks for.

        Raises:
            ValueError: if the scenario is not possible, or the data has too few devices.
        """
        scenario = request.scenario
        drift, given = scenario.drift, scenario.devices_by_round
        if repeats_devices and (drift != "none" or given is not None):
            raise ValueError(
                "each round asks the same devices: leave out drift and devices_by_round"
            )
        if drift not in ("none", "crowds") and not isinstance(dataset, ItemCounts):
            raise ValueError(
                f"drift {drift} draws items from item,count, and {request.data} has the items of "
                "each device: its drifts are none and crowds"
            )
        if given is None:
            sizes = _equal_sizes(request, dataset, rounds, repeats_devices=repeats_devices)
        else:
            sizes = _given_sizes(request, given, rounds)
        sizes = tuple(size_with_drift(size, number, drift) for number, size in enumerate(sizes))
        _check_devices(request.data, dataset, sizes[:1] if repeats_devices else sizes)
        return cls(sizes, _lost_rounds(scenario, rounds, request.seed), drift, repeats_devices)

    @property
    def selected(self) -> int:
        """Return the number of devices of all rounds that do not fail, each counted once."""
        sizes = [size for number, size in enumerate(self.sizes, 1) if number not in self.lost]
        return max(sizes, default=0) if self.repeats_devices else sum(sizes)

    def rounds(
        self, dataset: Dataset, contribution: int, seed: int
    ) -> Iterator[RoundDevices[Histograms]]:
        """Yield the devices of each round, none for a round that fails."""
        rng = np.random.default_rng([seed, 0])
        if self.repeats_devices:
            drawn = next(
                dataset.rounds(self.sizes[:1], contribution, rng, chunk_devices=CHUNK_DEVICES)
            )
            rounds = iter([RoundDevices(tuple(drawn.first_batches), drawn.later_chunks)])
            rounds = cycle(rounds)
        elif isinstance(dataset, ItemCounts) and self.drift not in ("none", "crowds"):
            rounds = dataset.rounds(
                self.sizes,
                contribution,
                rng,
                chunk_devices=CHUNK_DEVICES,
                counts_by_round=self._counts_by_round(dataset, seed),
            )
        else:
            rounds = dataset.rounds(self.sizes, contribution, rng, chunk_devices=CHUNK_DEVICES)
        for number, devices in enumerate(islice(rounds, len(self.sizes)), 1):
            yield RoundDevices(()) if number in self.lost else devices

    def _counts_by_round(self, dataset: ItemCounts, seed: int) -> Iterator[Integers]:
        shares = dataset.counts / dataset.counts.sum()
        population = ItemPopulation(dataset.items, shares, Utf8(max_bytes=1))
        rng = np.random.default_rng([seed, 1])
        for drifted in population.shares_by_round(len(self.sizes), rng, self.drift):
            yield np.rint(drifted * _DRAWN_TOKENS).astype(np.int64)


def _equal_sizes(
    request: SimulationRequest, dataset: Dataset, rounds: int, *, repeats_devices: bool
) -> tuple[int, ...]:
    wanted, different = request.devices or DEFAULT_DEVICES, 1 if repeats_devices else rounds
    devices = dataset.devices_per_round(different, wanted)
    if devices < MIN_ROUND_DEVICES:
        devices = dataset.devices_per_round(1, MIN_ROUND_DEVICES * different)
        raise ValueError(too_few_devices_message(request.data, devices))
    return (devices,) * rounds


def _given_sizes(
    request: SimulationRequest, given: tuple[int, ...], rounds: int
) -> tuple[int, ...]:
    if request.devices is not None:
        raise ValueError("--devices and devices_by_round contradict each other: leave out one")
    if min(given) < MIN_ROUND_DEVICES:
        raise ValueError(f"devices_by_round takes {MIN_ROUND_DEVICES} or more, got {min(given)}")
    return tuple(islice(cycle(given), rounds))


def _check_devices(path: Path, dataset: Dataset, sizes: tuple[int, ...]) -> None:
    most = dataset.devices_per_round(1, sum(sizes))
    if most < sum(sizes):
        raise ValueError(
            f"{path}: holds {most:,} devices, each in one round at most, and the rounds take "
            f"{sum(sizes):,}: use fewer --rounds or smaller devices_by_round"
        )


def _lost_rounds(scenario: Scenario, rounds: int, seed: int) -> frozenset[int]:
    """Return the rounds that a number of rounds, or a list of rounds, stands for."""
    lost = scenario.lost_rounds
    if isinstance(lost, int):
        if not 0 <= lost <= rounds:
            raise ValueError(f"lost_rounds is at most the {rounds} rounds, got {lost}")
        return frozenset(Random(seed).sample(range(1, rounds + 1), lost))
    if not all(1 <= number <= rounds for number in lost):
        raise ValueError(f"lost_rounds lists rounds from 1 to {rounds}, got {lost}")
    return frozenset(lost)

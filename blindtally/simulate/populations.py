"""Populations of items: the tokens of each round, drawn from a distribution that may drift.

Every token is a device (m = 1). A round has M_r tokens, M_r normal with mean M and deviation
M / 10, as in section 7 of [Gascon23]. The source has no drifts. A drift may lead to *another*
distribution, which is flatter (shares to the power 0.6) and ranks items at random:

    none       every round from the same distribution
    gradual    to the other distribution, in equal steps
    sudden     to the other distribution, half way
    late       a sixth of the items appear in a random round, and stay
    crowds     in every second week of rounds only a third of the devices take part
    weekly     a fifth of the items are three times as frequent on two days of seven
    bursts     a fifth of the items come in three rounds only, ten times as frequent
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from blindtally.datasets.device_histograms import DeviceHistograms
from blindtally.datasets.reader import Dataset
from protocol.domains import Domain
from protocol.domains.strings import Alphabet, smallest_domain

DriftKind = Literal["none", "gradual", "sudden", "late", "crowds", "weekly", "bursts"]
# Those of the figures of [Gascon23] and of `python -m paper words`.
DRIFT_KINDS: tuple[DriftKind, ...] = ("none", "gradual", "sudden", "late", "crowds")
RoundCounts: TypeAlias = NDArray[np.int64]  # counts by item

PAPER_ALPHABET = Alphabet(characters="abcdefghijklmnopqrstuvwxyz0123456789'@#;*:./_ ", length=3)
_CROWD_PERIOD_ROUNDS = 7
_CHANGING_SHARE = 1 / 5  # of the items with a weekly rhythm, or with a burst
_BURST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class ItemPopulation:
    """Items with the shares they are drawn by, and the domain that holds them."""

    items: tuple[str, ...]
    shares: NDArray[np.float64]
    domain: Domain

    def rounds(
        self, rounds: int, tokens: int, rng: np.random.Generator, drift: DriftKind = "none"
    ) -> Iterator[RoundCounts]:
        """Yield the counts of each of `rounds`, of `tokens` each on average."""
        for number, shares in enumerate(self.shares_by_round(rounds, rng, drift)):
            drawn = max(1, round(rng.normal(tokens, tokens / 10)))
            yield rng.multinomial(size_with_drift(drawn, number, drift), shares)

    def shares_by_round(
        self, rounds: int, rng: np.random.Generator, drift: DriftKind = "none"
    ) -> Iterator[NDArray[np.float64]]:
        """Yield the shares of each of `rounds`; random draws are made before the first."""
        flatter = self.shares**0.6
        other = rng.permutation(flatter / flatter.sum())
        comes = np.zeros(len(self.items), np.int64)
        if drift == "late" and rounds > 1:
            late = rng.random(len(self.items)) < 1 / 6
            comes[late] = rng.integers(1, rounds, int(late.sum()))
        rhythm = _rhythm(drift, rounds, len(self.items), rng)
        for number in range(rounds):
            away = 0.0
            if drift == "gradual":
                away = number / max(1, rounds - 1)
            elif drift == "sudden":
                away = float(2 * number >= rounds)
            shares = ((1 - away) * self.shares + away * other) * (comes <= number)
            shares = shares * rhythm(number)
            yield shares / shares.sum()


def _rhythm(
    drift: DriftKind, rounds: int, items: int, rng: np.random.Generator
) -> Callable[[int], NDArray[np.float64]]:
    """Return the factors of the items' shares in a round; random draws are made now."""
    if drift not in ("weekly", "bursts"):
        return lambda _: np.ones(items)
    is_changing = rng.random(items) < _CHANGING_SHARE
    if drift == "weekly":
        return lambda number: np.where(is_changing & (number % 7 >= 5), 3.0, 1.0)
    starts = rng.integers(0, max(1, rounds - _BURST_ROUNDS + 1), items)
    return lambda number: np.where(
        is_changing, 10.0 * ((starts <= number) & (number < starts + _BURST_ROUNDS)), 1.0
    )


def size_with_drift(size: int, number: int, drift: DriftKind) -> int:
    """Return the devices of round `number`, counted from 0, that has `size` without the drift."""
    is_quiet = drift == "crowds" and number // _CROWD_PERIOD_ROUNDS % 2
    return max(1, size // 3) if is_quiet else size


def population_of(data: Dataset) -> ItemPopulation:
    """Return the items of `data`, over the paper's alphabet where it fits."""
    items = data.items
    if isinstance(data, DeviceHistograms):
        totals = data.item_totals()
        counts = np.array([totals[item] for item in items], np.int64)
    else:
        counts = data.counts
    domain: Domain = smallest_domain(items)
    if all(item in PAPER_ALPHABET for item in items):
        domain = PAPER_ALPHABET
    return ItemPopulation(items, counts / counts.sum(), domain)

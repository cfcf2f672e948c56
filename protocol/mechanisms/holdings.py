"""What some devices hold, as arrays: the common first step of every `encode_sum` and `encode`."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.domain import Domain
from protocol.item_space import Keys, Values
from protocol.mechanism import Histogram, SumQuestion


@dataclass(frozen=True, slots=True)
class Holdings:
    """Distinct `keys`, shape `(k, chunks)`, and holdings: which key, and how often it is held.

    Holdings stand in the order of devices, and within one device in that of its items.
    """

    keys: Keys
    which: NDArray[np.int64]
    counts: NDArray[np.int64]

    def total(self, amounts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sum of `amounts`, one a holding, by key."""
        totals = np.zeros(len(self.keys), dtype=np.int64)
        np.add.at(totals, self.which, amounts)
        return totals


def gather(question: SumQuestion, histograms: Iterable[Histogram]) -> Holdings:
    """Return what the devices hold.

    Raises:
        ValueError: if a device's counts add up to more than the contribution bound, are not
            positive, or an item is outside the domain.
    """
    numbers: dict[str, int] = {}
    which: list[int] = []
    counts: list[int] = []
    for histogram in histograms:
        check_contribution(histogram, question.contribution)
        for item in sorted(histogram):
            which.append(numbers.setdefault(item, len(numbers)))
            counts.append(histogram[item])
    keys = question.domain.encode(list(numbers))
    return Holdings(keys, np.array(which, np.int64), np.array(counts, np.int64))


def check_contribution(histogram: Histogram, most: int) -> None:
    """Raise ValueError unless the counts are positive and add up to at most `most`."""
    total = 0
    for item, count in histogram.items():
        if count < 1:
            raise ValueError(f"counts are 1 or more, got {count} of {item!r}")
        total += count
    if total > most:
        raise ValueError(f"a device contributes at most {most} items, got {total}")


def values_of(domain: Domain, histograms: Iterable[Histogram]) -> Values:
    """Return each device's value: that of its item, or `domain.values` if it has nothing to say.

    Raises:
        ValueError: if a device holds more than one item, or one outside the domain.
    """
    held = [item_of(histogram) for histogram in histograms]
    holders = [device for device, item in enumerate(held) if item is not None]
    values = np.full(len(held), domain.values, np.uint64)
    values[holders] = domain.values_of([item for item in held if item is not None])
    return values


def item_of(histogram: Histogram) -> str | None:
    """Return the one item of a device, None if it has nothing to say.

    Raises:
        ValueError: if its counts add up to more than 1, or are not positive.
    """
    check_contribution(histogram, 1)
    return next(iter(histogram), None)

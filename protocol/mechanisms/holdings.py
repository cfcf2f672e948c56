"""What devices hold, as keys and values: the common first step of every `encode_sum`."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.domain import Domain
from protocol.histograms import Histograms, Items
from protocol.item_space import Keys, Values
from protocol.mechanism import Histogram, SumQuestion


@dataclass(frozen=True, slots=True)
class Holdings:
    """What devices hold, with the key of each item that is held, shape `(items, chunks)`."""

    held: Histograms
    keys: Keys

    @property
    def counts(self) -> NDArray[np.int64]:
        """Return how often each holding is held, device by device."""
        return self.held.counts

    def sums(self, amounts: NDArray[np.int64]) -> tuple[Keys, NDArray[np.int64]]:
        """Return keys, and the sums of their `amounts`, one a holding, where these are not 0."""
        totals = self.held.sums(amounts)
        some = np.flatnonzero(totals)
        return self.keys[some], totals[some]


def gather(question: SumQuestion, histograms: Iterable[Histogram]) -> Holdings:
    """Return what the devices hold.

    Raises:
        ValueError: if a device's counts add up to more than the contribution bound, are not
            positive, or an item is outside the domain.
    """
    held = Histograms.of(histograms)
    held.check(question.contribution)
    return Holdings(held, _of_items(question.domain, held, question.domain.encode))


def values_of(domain: Domain, histograms: Iterable[Histogram]) -> Values:
    """Return each device's value: that of its item, or `domain.values` if it has nothing to say.

    Raises:
        ValueError: if a device holds more than one item, or one outside the domain.
    """
    held = Histograms.of(histograms)
    held.check(1)
    of_items = _of_items(domain, held, domain.values_of)
    values = np.full(len(held), domain.values, np.uint64)
    values[held.devices] = of_items[held.which]
    return values


def item_of(histogram: Histogram) -> str | None:
    """Return the one item of a device, None if it has nothing to say.

    Raises:
        ValueError: if its counts add up to more than 1, or are not positive.
    """
    Histograms.of([histogram]).check(1)
    return next(iter(histogram), None)


def _of_items(
    domain: Domain, held: Histograms, make: Callable[[Sequence[str]], NDArray[np.uint64]]
) -> NDArray[np.uint64]:
    """Return what `make` makes of each item that is in the domain, and zeros of others.

    Raises:
        ValueError: if one that is not is held.
    """
    inside, made = held.items.made(
        make.__name__, domain, lambda: _inside_only(domain, held.items, make)
    )
    if not inside.all():
        outside = np.flatnonzero(~inside[held.which])
        if len(outside):
            make([held.items[held.which[outside[0]]]])  # which says what is wrong
    return made


def _inside_only(
    domain: Domain, items: Items, make: Callable[[Sequence[str]], NDArray[np.uint64]]
) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
    inside = np.array([item in domain for item in items], np.bool_)
    some = make([items[place] for place in np.flatnonzero(inside).tolist()])
    made = np.zeros((len(items), *some.shape[1:]), np.uint64)
    made[inside] = some
    return inside, made

"""What devices hold, as keys and values: the common first step of every `encode_sum`."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocol.domain import Domain
from protocol.histograms import Histograms, Items
from protocol.item_space import Keys, Values
from protocol.mechanism import Histogram, SumQuestion

R = TypeVar("R", bound=np.generic)


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
    return rows_of(domain, histograms, domain.values_of, np.uint64(domain.values))


def rows_of(
    domain: Domain,
    histograms: Iterable[Histogram],
    make: Callable[[Sequence[str]], NDArray[R]],
    nothing: ArrayLike,
) -> NDArray[R]:
    """Return a row for each device: what `make` makes of its item, or `nothing` if it has none.

    Raises:
        ValueError: if a device holds more than one item, or one outside the domain, of which
            `make` says what is wrong.
    """
    held = Histograms.of(histograms)
    held.check(1)
    of_items = _of_items(domain, held, make)
    rows = np.empty((len(held), *of_items.shape[1:]), of_items.dtype)
    rows[:] = nothing
    rows[held.devices] = of_items[held.which]
    return rows


def _of_items(
    domain: Domain, held: Histograms, make: Callable[[Sequence[str]], NDArray[R]]
) -> NDArray[R]:
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
    domain: Domain, items: Items, make: Callable[[Sequence[str]], NDArray[R]]
) -> tuple[NDArray[np.bool_], NDArray[R]]:
    inside = np.array([item in domain for item in items], np.bool_)
    some = make([items[place] for place in np.flatnonzero(inside).tolist()])
    made = np.zeros((len(items), *some.shape[1:]), some.dtype)
    made[inside] = some
    return inside, made

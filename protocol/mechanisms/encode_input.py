"""Keys and values of the items that devices hold: the common first step of every `encode`."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocol.arrays import Flags, ItemValues, Keys
from protocol.domains.strings import Domain
from protocol.histograms import Histogram, Histograms, ItemIndex
from protocol.study import SumQuestion

R = TypeVar("R", bound=np.generic)


@dataclass(frozen=True, slots=True)
class KeyedHistograms:
    """Histograms of devices, with the key of each item, shape `(items, chunks)`."""

    histograms: Histograms
    keys: Keys

    @property
    def counts(self) -> NDArray[np.int64]:
        """Return the count of each holding, device by device."""
        return self.histograms.counts

    def item_totals(self, amounts: NDArray[np.int64]) -> tuple[Keys, NDArray[np.int64]]:
        """Return the keys whose `amounts`, one per holding, do not sum to 0, and the sums."""
        totals = self.histograms.item_totals(amounts)
        items = np.flatnonzero(totals)
        return self.keys[items], totals[items]


def keyed_histograms(question: SumQuestion, histograms: Iterable[Histogram]) -> KeyedHistograms:
    """Return the histograms of the devices with the keys of their items.

    Raises ValueError if a histogram is not within the contribution bound and the domain.
    """
    held = Histograms.from_mappings(histograms)
    held.check(question.contribution)
    keys = _encode_items(question.domain, held, question.domain.encode, "keys")
    return KeyedHistograms(held, keys)


def device_values(domain: Domain, histograms: Iterable[Histogram]) -> ItemValues:
    """Return the value of each device's item, or `domain.value_count` if it has no item."""
    return device_rows(
        domain, histograms, domain.values_of, np.uint64(domain.value_count), "values"
    )


def device_rows(
    domain: Domain,
    histograms: Iterable[Histogram],
    encode: Callable[[Sequence[str]], NDArray[R]],
    no_item: ArrayLike,
    cache_key: str,
) -> NDArray[R]:
    """Return a row for each device: `encode` of its item, or `no_item` if it has none.

    The rows of all items are cached under `cache_key`, which names the encoding. Raises ValueError
    if a device holds more than one item, or one outside the domain.
    """
    held = Histograms.from_mappings(histograms)
    held.check(1)
    encoded = _encode_items(domain, held, encode, cache_key)
    rows = np.empty((len(held), *encoded.shape[1:]), encoded.dtype)
    rows[:] = no_item
    rows[held.devices] = encoded[held.item_indices]
    return rows


def _encode_items(
    domain: Domain, held: Histograms, encode: Callable[[Sequence[str]], NDArray[R]], cache_key: str
) -> NDArray[R]:
    """Return `encode` of each item in the domain, zeros for others; ValueError if one is held."""
    inside, encoded = held.items.cached(
        cache_key, domain, lambda: _encode_inside(domain, held.items, encode)
    )
    if not inside.all():
        outside = np.flatnonzero(~inside[held.item_indices])
        if len(outside):
            encode([held.items[held.item_indices[outside[0]]]])  # raises the error
    return encoded


def _encode_inside(
    domain: Domain, items: ItemIndex, encode: Callable[[Sequence[str]], NDArray[R]]
) -> tuple[Flags, NDArray[R]]:
    inside = np.array([item in domain for item in items], np.bool_)
    rows = encode([items[index] for index in np.flatnonzero(inside).tolist()])
    encoded = np.zeros((len(items), *rows.shape[1:]), rows.dtype)
    encoded[inside] = rows
    return inside, encoded

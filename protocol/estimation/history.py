"""Observations of items in blocks of rounds."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from protocol.numerics.arrays import Floats, Indices

# Tokens that an item without any is assumed to have over all its exposure.
MIN_TOKENS_PER_ITEM = 0.25


@dataclass(frozen=True, slots=True)
class History:
    """Observations of k items in B blocks: `observed` and `exposure` (k, B), `devices` (B,)."""

    observed: Floats
    exposure: Floats
    devices: Floats

    def select(self, rows: Indices | slice) -> "History":
        """Return the observations of the items in `rows`."""
        return History(self.observed[rows], self.exposure[rows], self.devices)

    def scaled(self, factors: Floats) -> "History":
        """Return the same observations of devices that count for `factors` (B,) of them."""
        return replace(self, exposure=self.exposure * factors, devices=self.devices * factors)

    @property
    def log_absence(self) -> Floats:
        """Return the log-likelihood of each block if the item has no tokens in it (k, B)."""
        return np.where(self.observed > 0, -np.inf, 0.0)

    @property
    def rates(self) -> Floats:
        """Return the mean rate of each item (k,), above zero."""
        return _mean_rates(self.observed, self.exposure)

    def rates_between(self, breaks: Iterable[int]) -> Floats:
        """Return each item's mean rate between the breaks around each block (k, B).

        Without exposure between the breaks, this is the mean rate of all blocks.
        """
        blocks = len(self.devices)
        ends = [0, *sorted(block for block in breaks if 0 < block < blocks), blocks]
        parts = []
        for start, end in pairwise(ends):
            exposure = self.exposure[:, start:end]
            mean = _mean_rates(self.observed[:, start:end], exposure)
            mean = np.where(exposure.sum(axis=1) > 0, mean, self.rates)
            parts.append(np.repeat(mean[:, np.newaxis], end - start, axis=1))
        return np.concatenate(parts, axis=1)


def _mean_rates(observed: Floats, exposure: Floats) -> Floats:
    tokens, devices = observed.sum(axis=1), exposure.sum(axis=1)
    rates: Floats = np.maximum(tokens, MIN_TOKENS_PER_ITEM) / np.maximum(devices, 1e-9)
    return rates

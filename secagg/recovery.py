"""Which shares were given of whose secret, and the secrets that they meet in.

The records of all reveals are sorted once, by owner and then holder. As long as few are lost,
the first t shares of most secrets were all given: Lagrange's weights at zero are the same for
these, and some hundred secrets are one product of matrices. The others have weights of
their own, and are recovered one by one.

Nothing here is checked: whether a secret is the one committed to is up to the caller.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from secagg.cohort import View
from secagg.deals import KEY, RECORD, SEED, Reveal
from secagg.shamir import SHARE_BYTES, recover, recover_alike

_BLOCK = 128  # secrets recovered together: some 2 MB, which stay in the cache


class Given:
    """The shares that matter in `reveals`, by holder: of survivors' seeds, of others' mask keys.

    Each reveal must have been checked (`secagg.aggregator.check_reveal`). `threshold` is the t
    of the cohort.
    """

    def __init__(
        self, view: View, survivors: frozenset[int], reveals: Mapping[int, Reveal]
    ) -> None:
        self._view = view
        self.threshold = view.cohort.parameters.threshold
        self._shares, self._places, self._keys = _sorted(view.cohort.n, survivors, reveals)
        self._alike = dict(self._recover_alike())

    def secret(self, owner: int) -> bytes | None:
        """Return what the first t shares of `owner` meet in, if so many were given, or None."""
        if owner in self._alike:
            return self._alike[owner]
        first = dict(islice(self.shares(owner).items(), self.threshold))
        return recover(first) if len(first) == self.threshold else None

    def shares(self, owner: int) -> dict[int, bytes]:
        """Return all shares given of the secret of `owner`, by number."""
        needed = np.array((owner, *self._view.holders(owner))) + owner * self._view.cohort.n
        at, found = self._find(needed)
        numbers = (np.flatnonzero(found) + 1).tolist()
        return dict(zip(numbers, self._shares[self._places[at[found]]].tolist(), strict=True))

    def _recover_alike(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield owners whose first t shares were all given, each with its secret."""
        n, t = self._view.cohort.n, self.threshold
        owners = np.array(sorted(self._view.sharers), np.int64)
        firsts = ((owner, *self._view.holders(owner)[: t - 1]) for owner in owners.tolist())
        holders = np.fromiter(chain.from_iterable(firsts), np.int64).reshape(-1, t)
        at, found = self._find(holders + n * owners[:, np.newaxis])
        alike = found.all(axis=1)
        owners, places = owners[alike], self._places[at[alike]]
        for start in range(0, len(owners), _BLOCK):
            block = self._shares[places[start : start + _BLOCK]].view(np.uint8)
            secrets = recover_alike(block.reshape(-1, t, SHARE_BYTES), tuple(range(1, t + 1)))
            yield from zip(owners[start : start + _BLOCK].tolist(), secrets, strict=True)

    def _find(self, needed: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return where the records of these keys are in the order, and whether they are."""
        at = np.searchsorted(self._keys, needed)
        return at, self._keys[at] == needed


def _sorted(
    n: int, survivors: frozenset[int], reveals: Mapping[int, Reveal]
) -> tuple[NDArray[np.void], NDArray[np.intp], NDArray[np.int64]]:
    """Return the shares given, the places in them by owner and holder, and the keys there.

    The key of a record is its owner times `n` plus its holder; after the last comes one that is
    no record's, so that a search always ends at a key.
    """
    said = [reveals[holder].said() for holder in sorted(reveals)]
    records = np.frombuffer(b"".join(said), RECORD)
    holders = np.repeat(sorted(reveals), [len(one) // RECORD.itemsize for one in said])
    owners, kinds = records["owner"].astype(np.int64), np.full(n, KEY, np.uint8)
    kinds[list(survivors)] = SEED
    wanted = np.flatnonzero(records["kind"] == kinds[owners])
    # They stand by holder already, so a stable sort by owner will do.
    order = np.argsort(owners[wanted].astype(np.min_scalar_type(n)), kind="stable")
    places = wanted[order]
    keys = np.append(owners[places] * n + holders[places], n * n)
    return records["share"], places, keys

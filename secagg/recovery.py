"""Which shares were given of whose secret, and the secrets that they meet in.

The records of all reveals stand by holder and then owner, as they come. As long as few are lost,
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
from secagg.deals import KEY, NEITHER, RECORD, SEED, Reveal
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
        said = [reveals[holder].said() for holder in sorted(reveals)]
        records = np.frombuffer(b"".join(said), RECORD)
        counts = [len(one) // RECORD.itemsize for one in said]
        n = view.cohort.n
        # A record's key is its holder times n plus its owner. After the last one comes a key
        # that is no record's, so that a search always ends at a key.
        self._keys = np.append(np.repeat(np.array(sorted(reveals), np.int64) * n, counts), n * n)
        self._keys[:-1] += records["owner"]
        self._shares = records["share"]
        self._kinds = np.append(records["kind"], np.uint8(NEITHER))
        self._wanted = np.full(n, KEY, np.uint8)
        self._wanted[list(survivors)] = SEED
        self._alike = dict(self._recover_alike())

    def secret(self, owner: int) -> bytes | None:
        """Return what the first t shares of `owner` meet in, if so many were given, or None."""
        if owner in self._alike:
            return self._alike[owner]
        first = dict(islice(self.shares(owner).items(), self.threshold))
        return recover(first) if len(first) == self.threshold else None

    def shares(self, owner: int) -> dict[int, bytes]:
        """Return all shares given of the secret of `owner`, by number."""
        holders = np.array((owner, *self._view.holders(owner)))
        at, found = self._find(np.full_like(holders, owner), holders)
        numbers = (np.flatnonzero(found) + 1).tolist()
        return dict(zip(numbers, self._shares[at[found]].tolist(), strict=True))

    def _recover_alike(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield owners whose first t shares were all given, each with its secret."""
        t = self.threshold
        owners = np.array(sorted(self._view.sharers), np.int64)
        firsts = ((owner, *self._view.holders(owner)[: t - 1]) for owner in owners.tolist())
        holders = np.fromiter(chain.from_iterable(firsts), np.int64, len(owners) * t)
        # In the order of the keys the search runs through memory once.
        order = np.argsort(holders.astype(np.min_scalar_type(len(self._wanted))), kind="stable")
        at, found = np.empty(len(order), np.intp), np.empty(len(order), np.bool_)
        at[order], found[order] = self._find(np.repeat(owners, t)[order], holders[order])
        alike = found.reshape(-1, t).all(axis=1)
        owners, places = owners[alike], at.reshape(-1, t)[alike]
        for start in range(0, len(owners), _BLOCK):
            block = self._shares[places[start : start + _BLOCK]].view(np.uint8)
            secrets = recover_alike(block.reshape(-1, t, SHARE_BYTES), tuple(range(1, t + 1)))
            yield from zip(owners[start : start + _BLOCK].tolist(), secrets, strict=True)

    def _find(
        self, owners: NDArray[np.int64], holders: NDArray[np.int64]
    ) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return where what each holder gave of each owner stands, and whether it does."""
        needed = holders * len(self._wanted) + owners
        at = np.searchsorted(self._keys, needed)
        is_given = self._keys[at] == needed
        return at, is_given & (self._kinds[at] == self._wanted[owners])

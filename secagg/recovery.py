"""Which shares were given of whose secret, and the secrets that they meet in.

The records of all reveals stand by holder and then owner, as they come. Of each secret the
first t shares that were given are taken, and secrets are recovered by the hundred: one by one
they take four times as long.

Nothing here is checked: whether a secret is the one committed to is up to the caller.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from secagg.cohort import View
from secagg.deals import KEY, NEITHER, RECORD, SEED, Reveal
from secagg.shamir import SHARE_BYTES, recover_many

_SEARCHED = 1024  # secrets whose shares are looked for together
_RECOVERED = 2**13  # shares of secrets recovered together: some 2 MB, which stay in the cache


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
        self._secrets = dict(self._recover())

    def secret(self, owner: int) -> bytes | None:
        """Return what the first t shares of `owner` meet in, if so many were given, or None."""
        return self._secrets.get(owner)

    def shares(self, owner: int) -> dict[int, bytes]:
        """Return all shares given of the secret of `owner`, by number."""
        at, found = self._find(np.array([owner]), np.array([[owner, *self._view.holders(owner)]]))
        numbers = (np.flatnonzero(found) + 1).tolist()
        return dict(zip(numbers, self._shares[at[found]].tolist(), strict=True))

    def _recover(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield owners of whose shares t were given or more, each with its secret."""
        t, everybody, picks = self.threshold, self._view.slots, self._view.picks
        for start in range(0, len(everybody), _SEARCHED):
            owners = everybody[start : start + _SEARCHED]
            holders = np.column_stack([owners, picks[start : start + _SEARCHED]])
            at, found = self._find(owners, holders[:, :t])
            if not found.all():  # somebody is lost, or complained
                at, found = self._find(owners, holders)
            counts = found.cumsum(axis=1, dtype=np.int32)
            enough = counts[:, -1] >= t
            first = (found & (counts <= t))[enough]
            places, numbers = at[enough][first].reshape(-1, t), np.nonzero(first)[1].reshape(-1, t)
            owners, together = owners[enough], max(1, _RECOVERED // t)
            for block in range(0, len(owners), together):
                here = slice(block, block + together)
                shares = self._shares[places[here]].view(np.uint8).reshape(-1, t, SHARE_BYTES)
                secrets = recover_many(shares, numbers[here] + 1)
                yield from zip(owners[here].tolist(), secrets, strict=True)

    def _find(
        self, owners: NDArray[np.int64], holders: NDArray[np.int64]
    ) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return where what each holder, a row for an owner, gave of it stands, and if it does."""
        needed = (holders * len(self._wanted) + owners[:, np.newaxis]).ravel()
        # In the order of the keys the search runs through memory once.
        slots = holders.ravel().astype(np.min_scalar_type(len(self._wanted)))
        order = np.argsort(slots, kind="stable")
        at = np.empty(len(order), np.intp)
        at[order] = np.searchsorted(self._keys, needed[order])
        wanted = np.repeat(self._wanted[owners], holders.shape[1])
        found = (self._keys[at] == needed) & (self._kinds[at] == wanted)
        return at.reshape(holders.shape), found.reshape(holders.shape)

"""What primitives alone take here and now, measured amid the work that stands beside them.

    mask           AES-128-CTR keystream into a buffer, and an in-place add of uint32
    agreement      X25519
    verification   Ed25519
    arrival        SHA-256 of a packed vector, and an in-place add of it
    hash           SHA-256 of a packed vector
    envelope       SHA-256 of a share to commit to it, SHA-256 for the pad that it is under

On a shared machine the same work takes a fifth more from one minute to the next. So floors
are means as the values are, of bursts between pieces of the work; the first of a burst fills
the caches and does not count.
"""

import time
from collections.abc import Callable
from hashlib import sha256
from random import Random

import numpy as np

from secagg.keys import Identity, KeyPair, Keystream, is_signed

CALLS_PER_BURST = 10


class Floors:
    """Mean CPU seconds of each primitive, for vectors of so many `words`, over all bursts."""

    def __init__(self, words: int) -> None:
        self._work = _primitives(words)
        self._seconds = dict.fromkeys(self._work, 0.0)
        self._times = 0

    def measure(self, bursts: int = 1) -> None:
        """Measure each primitive some times more."""
        for name, work in list(self._work.items()) * bursts:
            work()
            start = time.process_time()
            for _ in range(CALLS_PER_BURST):
                work()
            self._seconds[name] += time.process_time() - start
        self._times += CALLS_PER_BURST * bursts

    def __getitem__(self, name: str) -> float:
        return self._seconds[name] / self._times


def device_floor(floors: Floors, partners: float, sealing: float, verifications: int) -> float:
    """Return the seconds of a device's masks, agreements and verifications in one sum.

    It masks with so many `partners`, and seals for, or opens of, so many others.
    """
    return (
        (partners + 1) * floors["mask"]
        + (2 + partners + sealing) * floors["agreement"]
        + verifications * floors["verification"]
    )


def sealing_floor(floors: Floors, holders: int) -> float:
    """Return the seconds of what else it does: hash its vector to sign it, and envelopes.

    There are three deals: of the key, of the seed, and to itself.
    """
    return floors["hash"] + 3 * holders * floors["envelope"]


def _primitives(words: int) -> dict[str, Callable[[], object]]:
    buffer, total = np.empty(words, np.uint32), np.zeros(words, np.uint32)
    mine, theirs = KeyPair.generate(Random(1)), KeyPair.generate(Random(2)).public
    identity, packed = Identity.generate(Random(3)), bytes(4 * words)
    said = bytes(96)
    signature = identity.sign(said)

    def mask() -> None:
        Keystream(bytes(16)).fill(buffer)
        np.add(total, buffer, out=total)

    def arrival() -> None:
        sha256(packed).digest()
        np.add(total, np.frombuffer(packed, np.uint32), out=total)

    share, bound = bytes(33), bytes(96)

    def envelope() -> None:
        sha256(share).digest()
        sha256(bound).digest()

    return {
        "mask": mask,
        "agreement": lambda: mine.agree(theirs),
        "verification": lambda: is_signed(identity.public, said, signature),
        "arrival": arrival,
        "hash": lambda: sha256(packed).digest(),
        "envelope": envelope,
    }

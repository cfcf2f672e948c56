"""CPU seconds of primitives alone, measured here and now among the work they are compared with.

    mask           AES-128-CTR keystream into a buffer, and an in-place add of uint32
    agreement      X25519
    verification   Ed25519
    arrival        SHA-256 of a packed vector, and an in-place add of it
    hash           SHA-256 of a packed vector
    envelope       SHA-256 of a share to commit to it, SHA-256 for the pad that encrypts it

On a shared machine the same work takes a fifth more from one minute to the next. So floors
are means as the values are, of bursts between pieces of the work; the first call of a burst fills
the caches and does not count.
"""

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from random import Random

import numpy as np

from benchmarks.harness import cpu_seconds
from secagg.keys import Identity, KeyPair, Keystream, is_signed

CALLS_PER_BURST = 10


class Floors:
    """Mean CPU seconds of each primitive over all bursts, for vectors of `words` 32-bit words."""

    def __init__(self, words: int) -> None:
        self._work = _primitives(words)
        self._seconds = dict.fromkeys(self._work, 0.0)
        self._calls = 0

    def measure(self, bursts: int = 1) -> None:
        """Measure each primitive in some more bursts."""
        for name, work in list(self._work.items()) * bursts:
            work()
            self._seconds[name] += cpu_seconds(partial(_burst, work))
        self._calls += CALLS_PER_BURST * bursts

    def __getitem__(self, name: str) -> float:
        return self._seconds[name] / self._calls


def _burst(work: Callable[[], object]) -> None:
    for _ in range(CALLS_PER_BURST):
        work()


def device_floor(floors: Floors, neighbours: float, sealing: float, verifications: int) -> float:
    """Return the seconds of a device's masks, agreements and verifications in one sum.

    It masks with its `neighbours`, and encrypts shares for, or decrypts those of, `sealing` others.
    """
    return (
        (neighbours + 1) * floors["mask"]
        + (2 + neighbours + sealing) * floors["agreement"]
        + verifications * floors["verification"]
    )


def sealing_floor(floors: Floors, holders: int) -> float:
    """Return the seconds of a device's other work: its vector's hash to sign, and envelopes.

    There are four sets of envelopes: of the mask key and of the seed, made and decrypted.
    """
    return floors["hash"] + 4 * holders * floors["envelope"]


def _primitives(words: int) -> dict[str, Callable[[], object]]:
    buffer, total = np.empty(words, np.uint32), np.zeros(words, np.uint32)
    own_keys, peer_key = KeyPair.generate(Random(1)), KeyPair.generate(Random(2)).public
    identity, packed = Identity.generate(Random(3)), bytes(4 * words)
    message, share, bound = bytes(96), bytes(33), bytes(96)
    signature = identity.sign(message)

    def mask() -> None:
        Keystream(bytes(16)).fill(buffer)
        np.add(total, buffer, out=total)

    def arrival() -> None:
        sha256(packed).digest()
        np.add(total, np.frombuffer(packed, np.uint32), out=total)

    def envelope() -> None:
        sha256(share).digest()
        sha256(bound).digest()

    return {
        "mask": mask,
        "agreement": lambda: own_keys.agree(peer_key),
        "verification": lambda: is_signed(identity.public, message, signature),
        "arrival": arrival,
        "hash": lambda: sha256(packed).digest(),
        "envelope": envelope,
    }

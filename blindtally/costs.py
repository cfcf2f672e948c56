"""What a secure sum costs: bytes that are counted, and seconds that are estimated.

Bytes are those of the messages, but for the heads of HTTP, with everybody heard in each phase;
the masked vector itself is left out, for it is as long as its study makes it. Who holds and
who masks is drawn at random: where that matters, it is the mean.

Seconds are how often each operation is done times what it takes here and now, of one thread,
measured in less than a second. So they are good for comparing parameters, and for telling
which of them to change; a device in somebody's hand is several times slower.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from random import Random
from typing import Final

import numpy as np

from protocol.messages import (
    Join,
    Survivors,
    pack_confirmations,
    pack_parcels,
    pack_roster,
    pack_sharers,
    unpack_roster,
    unpack_sharers,
)
from secagg.cohort import DIGEST_BYTES, Entry, Sharer
from secagg.deals import KeyDeal, Reveal, SeedDeal
from secagg.graph import Picking
from secagg.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Identity,
    KeyPair,
    PublicKeys,
    Purpose,
    is_signed,
)
from secagg.masks import Wardrobe
from secagg.parameters import Assumptions, Parameters
from secagg.parcels import ENVELOPE_BYTES, Parcel, seal_shares
from secagg.ring import Lane, Ring
from secagg.shamir import SHARE_BYTES, recover_many, split

_SOME: Final = 1_000  # participants that the cost of one other is measured with
_MANY: Final = 300  # holders up to which sharing is measured, and not extrapolated
_TOGETHER: Final = 64  # secrets recovered at once
_WORDS: Final = 2**16
_ENOUGH: Final = 0.02  # seconds to repeat an operation for; the fastest counts
_LEAST: Final = 3  # repetitions: the first fills caches


@dataclass(frozen=True, slots=True)
class Units:
    """Seconds of each operation on this machine.

    `envelope` is sealing or opening one, `share` reading and checking one in the open;
    `other` reading, labelling and looking for one participant; `word` masking 32 bits,
    `arrival` checking and adding 32 bits that arrived.
    """

    pair: float
    agree: float
    sign: float
    verify: float
    envelope: float
    stream: float
    word: float
    arrival: float
    other: float
    share: float
    split: float
    recover: float


@dataclass(frozen=True)
class Cost:
    """What one sum costs with `found` under `assumptions`, enrolled by a registrar or not."""

    found: Parameters
    assumptions: Assumptions
    has_registrar: bool

    @property
    def messages(self) -> int:
        """Return how many messages a device sends, each of them signed."""
        return len(self.up)  # the deal goes with the vector, in one

    @property
    def up(self) -> dict[str, int]:
        """Return the bytes that a device sends, signatures included; `deal` without vector."""
        key, signature = "00" * KEY_BYTES, "00" * SIGNATURE_BYTES
        enrolment = signature if self.has_registrar else None
        join = Join(
            identity=key, mask_key=key, seal_key=key, signature=signature, enrolment=enrolment
        )
        sizes = {
            "join": len(join.model_dump_json()),
            "shares": KeyDeal.nbytes(self.found.holders),
            "deal": SeedDeal.nbytes(self.found.holders) + SIGNATURE_BYTES,
        }
        if self.assumptions.is_active:
            sizes["confirmation"] = SIGNATURE_BYTES
        return sizes | {"reveal": Reveal.nbytes(self.found.holders + 1)}

    @property
    def down(self) -> dict[str, int]:
        """Return the bytes that a device hears, by message."""
        n, entry = self.found.n, _entry(0, enrolled=self.has_registrar)
        sizes = {
            "roster": n * len(pack_roster([entry])),
            "sharers": n * len(pack_sharers({0: _sharer(0)})),
            "survivors": len(Survivors(survivors=tuple(range(n))).model_dump_json()),
        }
        if self.assumptions.is_active:
            sizes["confirmations"] = n * len(pack_confirmations({0: bytes(SIGNATURE_BYTES)}))
        parcel = len(pack_parcels({0: Parcel(bytes(DIGEST_BYTES), bytes(ENVELOPE_BYTES))}))
        return sizes | {"parcels": self.found.holders * parcel}

    @cached_property
    def partners(self) -> float:
        """Return how many a device masks with: those that it picks, and those that pick it."""
        others, m = self.found.n - 1, self.found.partners
        return m + (others - m) * m / others

    @property
    def checked(self) -> int:
        """Return how many signatures a device checks."""
        if not self.assumptions.is_active:
            return 0
        return self.found.holders * (1 + self.has_registrar) + self.found.witnesses

    def device_seconds(self, units: Units, words: int) -> dict[str, float]:
        """Return what a device is busy with, in seconds."""
        k = self.found.holders
        strangers = k * (1 - k / (self.found.n - 1))  # whose holder I am, and who are not mine
        return {
            "masks": (self.partners + 1) * (units.stream + words * units.word),
            "signatures": self.checked * units.verify + self.messages * units.sign,
            "keys": 2 * units.pair + (k + self.partners + strangers) * units.agree,
            "shares": 2 * units.split + 3 * k * units.envelope + k * units.share,
            "the others": self.found.n * units.other,
        }

    def server_seconds(self, units: Units, words: int, lost: int) -> dict[str, float]:
        """Return what the server is busy with in one sum, `lost` of whose devices it loses.

        These are lost after they shared, and before they sent a vector: that costs most.
        """
        n, kept = self.found.n, self.found.n - lost
        said = 2 * n + 3 * kept if self.assumptions.is_active else 2 * n + 2 * kept
        pairs = lost * self.partners * kept / n
        return {
            "masks": (kept + pairs) * (units.stream + words * units.word),
            "signatures": (said + n * self.has_registrar) * units.verify,
            "keys": lost * units.pair + pairs * units.agree,
            "shares": n * units.recover + kept * self.found.holders * units.share,
            "vectors": kept * words * units.arrival,
        }


def measure(found: Parameters) -> Units:
    """Return what each operation takes here and now."""
    rng = Random(1)
    pair, other = KeyPair.generate(rng), KeyPair.generate(rng)
    identity, purpose, said = Identity.generate(rng), Purpose(bytes(32), "mask", 0, 1), bytes(100)
    signature, ring = identity.sign(said), Ring((Lane(2**32, _WORDS),))
    vector, wardrobe = ring.zero(), Wardrobe(ring)
    body, stream = ring.pack(vector), purpose.stream(bytes(32))
    splitting, recovering = _sharing(found, rng)

    shares = [bytes(SHARE_BYTES)] * 100

    def arrive() -> None:
        sha256(body).digest()
        ring.add_packed(vector, body)

    return Units(
        pair=_seconds(lambda: KeyPair.generate(rng)),
        agree=_seconds(lambda: pair.agree(other.public)),
        sign=_seconds(lambda: identity.sign(said)),
        verify=_seconds(lambda: is_signed(identity.public, said, signature)),
        envelope=_seconds(lambda: seal_shares(shares, [purpose.derive(bytes(32)) for _ in shares]))
        / len(shares),
        stream=_seconds(lambda: purpose.stream(bytes(32))),
        word=_seconds(lambda: wardrobe.put_on(vector, stream)) / _WORDS,
        arrival=2 * _seconds(arrive) / _WORDS,  # once when it comes, once when it is added
        other=_other(found),
        share=_share(),
        split=splitting,
        recover=recovering,
    )


def _sharing(found: Parameters, rng: Random) -> tuple[float, float]:
    """Return the seconds of sharing a secret and of recovering it."""
    holders = min(found.holders, _MANY)
    threshold = max(2, found.threshold * holders // found.holders)
    factor = (found.holders / holders) ** 2.5
    shares = split(bytes(32), holders + 1, threshold, rng)
    splitting = _seconds(lambda: split(bytes(32), holders + 1, threshold, rng))

    kept = max(threshold, (holders + 1) * 4 // 5)  # others are missing each time, as after losses
    rows = [sorted(rng.sample(range(1, holders + 2), kept))[:threshold] for _ in range(_TOGETHER)]
    numbers = np.array(rows)
    packed = np.frombuffer(b"".join(shares), np.uint8).reshape(-1, SHARE_BYTES)[numbers - 1]
    recovering = _seconds(lambda: recover_many(packed, numbers)) / _TOGETHER
    return splitting * factor, recovering * factor


def _share() -> float:
    """Return the seconds of reading and checking a share in the open."""
    some = {owner: bytes(SHARE_BYTES) for owner in range(100)}
    body = Reveal(some, {}, signature=bytes(SIGNATURE_BYTES)).pack()

    return _seconds(lambda: Reveal.unpack(body).are_shares) / len(some)


def _other(found: Parameters) -> float:
    """Return the seconds that each other participant takes a device."""
    some = min(found.n, _SOME)
    roster = pack_roster(_entry(slot, enrolled=True) for slot in range(some))
    sharers = pack_sharers({slot: _sharer(slot) for slot in range(some)})
    picking = Picking(bytes(32), found)

    def read() -> None:
        entries = unpack_roster(roster, has_registrar=True)
        sha256(b"".join(entry.pack() for entry in entries)).digest()
        heard = unpack_sharers(sharers)
        sha256(b"".join(sharer.said() for sharer in heard.values())).digest()
        picking.partners(0, {slot: sharer.contribution for slot, sharer in heard.items()})

    return _seconds(read) / some


def _entry(slot: int, *, enrolled: bool) -> Entry:
    """Return an entry of a roster, of keys that nobody has."""

    def key(which: int) -> bytes:
        return b"\x09" + slot.to_bytes(4, "big") + bytes([which]) + bytes(KEY_BYTES - 6)

    enrolment = bytes(SIGNATURE_BYTES) if enrolled else b""
    return Entry(key(1), PublicKeys(key(2), key(3)), bytes(SIGNATURE_BYTES), enrolment)


def _sharer(slot: int) -> Sharer:
    return Sharer(slot.to_bytes(32, "big"), bytes(32))


def _seconds(operation: Callable[[], object]) -> float:
    """Return the least seconds that `operation` took, in a while of repetitions."""
    taken, began = list[float](), time.perf_counter()
    while time.perf_counter() < began + _ENOUGH or len(taken) < _LEAST:
        start = time.perf_counter()
        operation()
        taken.append(time.perf_counter() - start)
    return min(taken)

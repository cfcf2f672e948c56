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
    JoinRequest,
    Survivors,
)
from secagg.graph import NeighbourSelection
from secagg.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Identity,
    KeyPair,
    PublicKeys,
    Purpose,
    is_signed,
)
from secagg.masks import MaskApplier
from secagg.messages import KeyShares, SeedShares, UnmaskingShares, pack_confirmations
from secagg.parameters import Assumptions, Parameters
from secagg.ring import Lane, Ring
from secagg.roster import (
    DIGEST_BYTES,
    Roster,
    RosterEntry,
    ShareCommitment,
    ShareCommitments,
    roster_bytes,
    share_commitments_bytes,
)
from secagg.shamir import SHARE_BYTES, recover_many, split
from secagg.shares import CIPHERTEXT_BYTES, EncryptedShare, encrypt_shares, received_shares_bytes

_SAMPLE_PARTICIPANTS: Final = 1_000  # participants that the cost of one other is measured with
_MAX_MEASURED_HOLDERS: Final = 300  # holders up to which sharing is measured, and not extrapolated
_RECOVERY_BATCH: Final = 64  # secrets recovered at once
_SAMPLE_WORDS: Final = 2**16
_MEASUREMENT_SECONDS: Final = 0.02  # seconds to repeat an operation for; the fastest counts
_MIN_REPETITIONS: Final = 3  # repetitions: the first fills caches


@dataclass(frozen=True, slots=True)
class OperationSeconds:
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
class SumCost:
    """What one sum costs with `found` under `assumptions`, enrolled by a registrar or not."""

    parameters: Parameters
    assumptions: Assumptions
    has_registrar: bool

    @property
    def message_count(self) -> int:
        """Return how many messages a device sends, each of them signed."""
        return len(self.upload_bytes)  # the deal goes with the vector, in one

    @property
    def upload_bytes(self) -> dict[str, int]:
        """Return the bytes that a device sends, signatures included; `deal` without vector."""
        key, signature = "00" * KEY_BYTES, "00" * SIGNATURE_BYTES
        enrolment = signature if self.has_registrar else None
        join = JoinRequest(
            identity=key,
            mask_key=key,
            encryption_key=key,
            signature=signature,
            registrar_signature=enrolment,
        )
        sizes = {
            "join": len(join.model_dump_json()),
            "shares": KeyShares.nbytes(self.parameters.holders),
            "deal": SeedShares.nbytes(self.parameters.holders) + SIGNATURE_BYTES,
        }
        if self.assumptions.is_active:
            sizes["confirmation"] = SIGNATURE_BYTES
        return sizes | {"reveal": UnmaskingShares.nbytes(self.parameters.holders + 1)}

    @property
    def download_bytes(self) -> dict[str, int]:
        """Return the bytes that a device hears, by message."""
        n, entry = self.parameters.n, _sample_roster_entry(0, enrolled=self.has_registrar)
        sizes = {
            "roster": n * len(roster_bytes([entry])),
            "sharers": n * len(share_commitments_bytes({0: _sample_commitment(0)})),
            "survivors": len(Survivors(survivors=tuple(range(n))).model_dump_json()),
        }
        if self.assumptions.is_active:
            sizes["confirmations"] = n * len(pack_confirmations({0: bytes(SIGNATURE_BYTES)}))
        parcel = len(
            received_shares_bytes({0: EncryptedShare(bytes(DIGEST_BYTES), bytes(CIPHERTEXT_BYTES))})
        )
        return sizes | {"parcels": self.parameters.holders * parcel}

    @cached_property
    def mean_neighbours(self) -> float:
        """Return how many a device masks with: those that it picks, and those that pick it."""
        others, m = self.parameters.n - 1, self.parameters.neighbours
        return m + (others - m) * m / others

    @property
    def checked_signatures(self) -> int:
        """Return how many signatures a device checks."""
        if not self.assumptions.is_active:
            return 0
        return self.parameters.holders * (1 + self.has_registrar) + self.parameters.spot_checks

    def device_seconds(self, units: OperationSeconds, words: int) -> dict[str, float]:
        """Return what a device is busy with, in seconds."""
        k = self.parameters.holders
        strangers = k * (1 - k / (self.parameters.n - 1))  # whose holder I am, and who are not mine
        return {
            "masks": (self.mean_neighbours + 1) * (units.stream + words * units.word),
            "signatures": self.checked_signatures * units.verify + self.message_count * units.sign,
            "keys": 2 * units.pair + (k + self.mean_neighbours + strangers) * units.agree,
            "shares": 2 * units.split + 3 * k * units.envelope + k * units.share,
            "the others": self.parameters.n * units.other,
        }

    def server_seconds(self, units: OperationSeconds, words: int, lost: int) -> dict[str, float]:
        """Return what the server is busy with in one sum, `lost` of whose devices it loses.

        These are lost after they shared, and before they sent a vector: that costs most.
        """
        n, kept = self.parameters.n, self.parameters.n - lost
        said = 2 * n + 3 * kept if self.assumptions.is_active else 2 * n + 2 * kept
        pairs = lost * self.mean_neighbours * kept / n
        return {
            "masks": (kept + pairs) * (units.stream + words * units.word),
            "signatures": (said + n * self.has_registrar) * units.verify,
            "keys": lost * units.pair + pairs * units.agree,
            "shares": n * units.recover + kept * self.parameters.holders * units.share,
            "vectors": kept * words * units.arrival,
        }


def measure_operations(found: Parameters) -> OperationSeconds:
    """Return what each operation takes here and now."""
    rng = Random(1)
    pair, other = KeyPair.generate(rng), KeyPair.generate(rng)
    identity, purpose, said = Identity.generate(rng), Purpose(bytes(32), "mask", 0, 1), bytes(100)
    signature, ring = identity.sign(said), Ring((Lane(2**32, _SAMPLE_WORDS),))
    vector, wardrobe = ring.zero(), MaskApplier(ring)
    body, stream = ring.pack(vector), purpose.keystream(bytes(32))
    splitting, recovering = _measure_sharing(found, rng)

    shares = [bytes(SHARE_BYTES)] * 100

    def arrive() -> None:
        sha256(body).digest()
        ring.add_packed(vector, body)

    return OperationSeconds(
        pair=_fastest_seconds(lambda: KeyPair.generate(rng)),
        agree=_fastest_seconds(lambda: pair.agree(other.public)),
        sign=_fastest_seconds(lambda: identity.sign(said)),
        verify=_fastest_seconds(lambda: is_signed(identity.public, said, signature)),
        envelope=_fastest_seconds(
            lambda: encrypt_shares(shares, [purpose.derive(bytes(32)) for _ in shares])
        )
        / len(shares),
        stream=_fastest_seconds(lambda: purpose.keystream(bytes(32))),
        word=_fastest_seconds(lambda: wardrobe.add_mask(vector, stream)) / _SAMPLE_WORDS,
        arrival=2
        * _fastest_seconds(arrive)
        / _SAMPLE_WORDS,  # once when it comes, once when it is added
        other=_measure_per_participant(found),
        share=_measure_share_check(),
        split=splitting,
        recover=recovering,
    )


def _measure_sharing(found: Parameters, rng: Random) -> tuple[float, float]:
    """Return the seconds of sharing a secret and of recovering it."""
    holders = min(found.holders, _MAX_MEASURED_HOLDERS)
    threshold = max(2, found.threshold * holders // found.holders)
    factor = (found.holders / holders) ** 2.5
    shares = split(bytes(32), holders + 1, threshold, rng)
    splitting = _fastest_seconds(lambda: split(bytes(32), holders + 1, threshold, rng))

    kept = max(threshold, (holders + 1) * 4 // 5)  # others are missing each time, as after losses
    rows = [
        sorted(rng.sample(range(1, holders + 2), kept))[:threshold] for _ in range(_RECOVERY_BATCH)
    ]
    numbers = np.array(rows)
    packed = np.frombuffer(b"".join(shares), np.uint8).reshape(-1, SHARE_BYTES)[numbers - 1]
    recovering = _fastest_seconds(lambda: recover_many(packed, numbers)) / _RECOVERY_BATCH
    return splitting * factor, recovering * factor


def _measure_share_check() -> float:
    """Return the seconds of reading and checking a share in the open."""
    some = {owner: bytes(SHARE_BYTES) for owner in range(100)}
    body = UnmaskingShares(some, {}, signature=bytes(SIGNATURE_BYTES)).pack()

    return _fastest_seconds(lambda: UnmaskingShares.unpack(body).are_field_elements) / len(some)


def _measure_per_participant(found: Parameters) -> float:
    """Return the seconds that each other participant takes a device."""
    some = min(found.n, _SAMPLE_PARTICIPANTS)
    roster = roster_bytes(_sample_roster_entry(slot, enrolled=True) for slot in range(some))
    sharers = share_commitments_bytes({slot: _sample_commitment(slot) for slot in range(some)})
    picking = NeighbourSelection(bytes(32), found)

    def read() -> None:
        entries = Roster.unpack(roster, has_registrar=True)
        sha256(b"".join(entry.pack() for entry in entries)).digest()
        heard = ShareCommitments.unpack(sharers)
        sha256(b"".join(sharer.signed_bytes() for sharer in heard.values())).digest()
        picking.neighbours(0, {slot: sharer.graph_nonce for slot, sharer in heard.items()})

    return _fastest_seconds(read) / some


def _sample_roster_entry(slot: int, *, enrolled: bool) -> RosterEntry:
    """Return an entry of a roster, of keys that nobody has."""

    def key(which: int) -> bytes:
        return b"\x09" + slot.to_bytes(4, "big") + bytes([which]) + bytes(KEY_BYTES - 6)

    enrolment = bytes(SIGNATURE_BYTES) if enrolled else b""
    return RosterEntry(key(1), PublicKeys(key(2), key(3)), bytes(SIGNATURE_BYTES), enrolment)


def _sample_commitment(slot: int) -> ShareCommitment:
    return ShareCommitment(slot.to_bytes(32, "big"), bytes(32))


def _fastest_seconds(operation: Callable[[], object]) -> float:
    """Return the least seconds that `operation` took, in a while of repetitions."""
    taken, began = list[float](), time.perf_counter()
    while time.perf_counter() < began + _MEASUREMENT_SECONDS or len(taken) < _MIN_REPETITIONS:
        start = time.perf_counter()
        operation()
        taken.append(time.perf_counter() - start)
    return min(taken)

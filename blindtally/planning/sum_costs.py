"""Costs of a secure sum: counted bytes, and seconds as operations times their measured time.

Bytes are those of the messages without HTTP headers and without the masked vector. No device drops
out. Holders and neighbours are random, so some sizes are means. Seconds are of one thread of this
machine, and serve to compare parameters.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from random import Random
from typing import Final

import numpy as np

from protocol.api.device_messages import JoinRequest, Survivors
from secagg.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Identity,
    KeyPair,
    PublicKeys,
    Purpose,
    is_signed,
)
from secagg.masks import MaskedVector
from secagg.messages import (
    Complaints,
    KeyShares,
    SignedInput,
    UnmaskingShares,
    pack_signatures,
    pack_signed_inputs,
)
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
from secagg.session import NeighbourSelection
from secagg.shamir import SHARE_BYTES, recover_many, split
from secagg.shares import (
    SHARE_PAIR_BYTES,
    SharePair,
    encrypt_shares,
    received_shares_bytes,
)

_SAMPLE_PARTICIPANTS: Final = 1_000  # with which the cost of one participant is measured
_MAX_MEASURED_HOLDERS: Final = 300  # above this, the time of sharing is extrapolated
_RECOVERY_BATCH: Final = 64  # secrets recovered at once
_SAMPLE_WORDS: Final = 2**16
_MEASUREMENT_SECONDS: Final = 0.01  # of repetitions, of which the fastest counts
_MIN_REPETITIONS: Final = 3  # because the first fills caches


@dataclass(frozen=True, slots=True)
class OperationSeconds:
    """Seconds of each operation on this machine.

    `envelope` encrypts or decrypts a share, and `share` reads and checks a revealed one. `other`
    reads and selects one participant. `word` masks 32 bits, and `arrival` checks and adds 32
    received bits.
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
    """Costs of one sum with `parameters` under `assumptions`, with or without a registrar."""

    parameters: Parameters
    assumptions: Assumptions
    has_registrar: bool

    @property
    def message_count(self) -> int:
        return len(self.upload_bytes)

    @property
    def upload_bytes(self) -> dict[str, int]:
        """Return the bytes that a device sends, with signatures and without its vector."""
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
            "complaints": Complaints.nbytes(0),
            "input": SIGNATURE_BYTES,
        }
        if self.assumptions.is_active:
            sizes["confirmation"] = SIGNATURE_BYTES
        return sizes | {"reveal": UnmaskingShares.nbytes(self.parameters.holders + 1)}

    @property
    def download_bytes(self) -> dict[str, int]:
        n, entry = self.parameters.n, _sample_roster_entry(0, enrolled=self.has_registrar)
        pair, k = SharePair.unpack(bytes(SHARE_PAIR_BYTES)), self.parameters.holders
        sizes = {
            "roster": n * len(roster_bytes([entry])),
            "received": k * len(received_shares_bytes({0: pair})),
            "sharers": n * len(share_commitments_bytes({0: _sample_commitment(0)})),
            "survivors": len(Survivors(survivors=tuple(range(n))).model_dump_json()),
        }
        if self.assumptions.is_active:
            signed = SignedInput(bytes(DIGEST_BYTES), bytes(SIGNATURE_BYTES))
            sizes["confirmations"] = n * len(pack_signatures({0: bytes(SIGNATURE_BYTES)}))
            sizes["inputs"] = k * len(pack_signed_inputs({0: signed}))
        return sizes

    @cached_property
    def mean_neighbours(self) -> float:
        """Return the mean number of neighbours: those that a device selects, and that select it."""
        others, m = self.parameters.n - 1, self.parameters.neighbours
        return m + (others - m) * m / others

    @property
    def checked_signatures(self) -> int:
        """Return the number of signatures that a device checks."""
        if not self.assumptions.is_active:
            return 0
        # Of its holders, and of the dealers whose shares it holds: k on average.
        return self.parameters.holders * (2 + self.has_registrar) + self.parameters.spot_checks

    def device_seconds(self, units: OperationSeconds, words: int) -> dict[str, float]:
        """Return the seconds of a device, by kind of work."""
        k = self.parameters.holders
        dealers = k * (
            1 - k / (self.parameters.n - 1)
        )  # whose holder the device is, and not mutually
        return {
            "masks": (self.mean_neighbours + 1) * (units.stream + words * units.word),
            "signatures": self.checked_signatures * units.verify + self.message_count * units.sign,
            "keys": 2 * units.pair + (k + self.mean_neighbours + dealers) * units.agree,
            "shares": 2 * units.split + 4 * k * units.envelope + k * units.share,
            "the others": self.parameters.n * units.other,
        }

    def server_seconds(
        self, units: OperationSeconds, words: int, dropouts: int
    ) -> dict[str, float]:
        """Return the seconds of the server, by kind of work.

        The devices drop out after checking and before masking, which costs the most.
        """
        n, kept = self.parameters.n, self.parameters.n - dropouts
        messages = 3 * n + (3 if self.assumptions.is_active else 2) * kept
        pairs = dropouts * self.mean_neighbours * kept / n
        return {
            "masks": (kept + pairs) * (units.stream + words * units.word),
            "signatures": (messages + n * self.has_registrar) * units.verify,
            "keys": dropouts * units.pair + pairs * units.agree,
            "shares": n * units.recover + kept * self.parameters.holders * units.share,
            "vectors": kept * words * units.arrival,
        }


def measure_operations(parameters: Parameters) -> OperationSeconds:
    rng = Random(1)
    pair, other = KeyPair.generate(rng), KeyPair.generate(rng)
    identity, purpose, message = (
        Identity.generate(rng),
        Purpose(bytes(32), "mask", 0, 1),
        bytes(100),
    )
    signature, ring = identity.sign(message), Ring((Lane(2**32, _SAMPLE_WORDS),))
    vector, masked = ring.zero(), MaskedVector(ring, ring.zero())
    body, stream = ring.pack(vector), purpose.keystream(bytes(32))
    splitting, recovering = _measure_sharing(parameters, rng)
    shares = [bytes(SHARE_BYTES)] * 100

    def encrypt() -> None:
        encrypt_shares(shares, [purpose.derive(bytes(32)) for _ in shares])

    def receive() -> None:
        sha256(body).digest()
        ring.add_packed(vector, body)

    return OperationSeconds(
        pair=fastest_seconds(lambda: KeyPair.generate(rng)),
        agree=fastest_seconds(lambda: pair.agree(other.public)),
        sign=fastest_seconds(lambda: identity.sign(message)),
        verify=fastest_seconds(lambda: is_signed(identity.public, message, signature)),
        envelope=fastest_seconds(encrypt) / len(shares),
        stream=fastest_seconds(lambda: purpose.keystream(bytes(32))),
        word=fastest_seconds(lambda: masked.add(stream)) / _SAMPLE_WORDS,
        arrival=2 * fastest_seconds(receive) / _SAMPLE_WORDS,  # on receipt, and in the sum
        other=_measure_per_participant(parameters),
        share=_measure_share_check(),
        split=splitting,
        recover=recovering,
    )


def _measure_sharing(parameters: Parameters, rng: Random) -> tuple[float, float]:
    holders = min(parameters.holders, _MAX_MEASURED_HOLDERS)
    threshold = max(2, parameters.threshold * holders // parameters.holders)
    factor = (parameters.holders / holders) ** 2.5
    shares = split(bytes(32), holders + 1, threshold, rng)
    splitting = fastest_seconds(lambda: split(bytes(32), holders + 1, threshold, rng))

    kept = max(threshold, (holders + 1) * 4 // 5)  # other ones each time, as after dropouts
    rows = [
        sorted(rng.sample(range(1, holders + 2), kept))[:threshold] for _ in range(_RECOVERY_BATCH)
    ]
    numbers = np.array(rows)
    packed = np.frombuffer(b"".join(shares), np.uint8).reshape(-1, SHARE_BYTES)[numbers - 1]
    recovering = fastest_seconds(lambda: recover_many(packed, numbers)) / _RECOVERY_BATCH
    return splitting * factor, recovering * factor


def _measure_share_check() -> float:
    shares = {dealer: bytes(SHARE_BYTES) for dealer in range(100)}
    body = UnmaskingShares(shares, {}, signature=bytes(SIGNATURE_BYTES)).pack()
    return fastest_seconds(lambda: UnmaskingShares.unpack(body).are_field_elements) / len(shares)


def _measure_per_participant(parameters: Parameters) -> float:
    """Return the seconds that a device spends for each other participant."""
    count = min(parameters.n, _SAMPLE_PARTICIPANTS)
    roster = roster_bytes(_sample_roster_entry(slot, enrolled=True) for slot in range(count))
    sharers = share_commitments_bytes({slot: _sample_commitment(slot) for slot in range(count)})
    selection = NeighbourSelection(bytes(32), parameters)

    def read() -> None:
        entries = Roster.unpack(roster, has_registrar=True)
        sha256(b"".join(entry.pack() for entry in entries)).digest()
        received = ShareCommitments.unpack(sharers)
        sha256(b"".join(sharer.signed_bytes() for sharer in received.values())).digest()
        selection.neighbours(0, {slot: sharer.graph_nonce for slot, sharer in received.items()})

    return fastest_seconds(read) / count


def _sample_roster_entry(slot: int, *, enrolled: bool) -> RosterEntry:
    """Return an entry of a roster, with invented keys."""
    identity, *public = (
        b"\x09" + slot.to_bytes(4, "big") + bytes([number]) + bytes(KEY_BYTES - 6)
        for number in (1, 2, 3)
    )
    enrolment = bytes(SIGNATURE_BYTES) if enrolled else b""
    return RosterEntry(identity, PublicKeys(*public), bytes(SIGNATURE_BYTES), enrolment)


def _sample_commitment(slot: int) -> ShareCommitment:
    return ShareCommitment(slot.to_bytes(32, "big"), bytes(32))


def fastest_seconds(operation: Callable[[], object]) -> float:
    """Return the minimum seconds of `operation`, over some repetitions."""
    taken, began = list[float](), time.perf_counter()
    while time.perf_counter() < began + _MEASUREMENT_SECONDS or len(taken) < _MIN_REPETITIONS:
        start = time.perf_counter()
        operation()
        taken.append(time.perf_counter() - start)
    return min(taken)

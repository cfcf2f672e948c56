"""Bytes of a secure sum, counted from its messages.

Bytes are those of the messages without HTTP headers and without the masked vector. No device drops
out. `benchmarks/secagg.py` measures the time of a sum.
"""

from dataclasses import dataclass

from protocol.api.messages_outside_sums import JoinRequest, Survivors
from secagg.keys import KEY_BYTES, SIGNATURE_BYTES, PublicKeys
from secagg.messages import (
    Complaints,
    KeyShares,
    SignedInput,
    UnmaskingShares,
    pack_signatures,
    pack_signed_inputs,
)
from secagg.parameters import Assumptions, Parameters
from secagg.roster import (
    DIGEST_BYTES,
    RosterEntry,
    ShareCommitment,
    roster_bytes,
    share_commitments_bytes,
)
from secagg.shares import SHARE_PAIR_BYTES, SharePair, received_shares_bytes


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
        return {
            "join": len(join.model_dump_json()),
            "shares": KeyShares.nbytes(self.parameters.holders),
            "complaints": Complaints.nbytes(0),
            "input": SIGNATURE_BYTES,
            "confirmation": SIGNATURE_BYTES,
            "reveal": UnmaskingShares.nbytes(self.parameters.holders + 1),
        }

    @property
    def download_bytes(self) -> dict[str, int]:
        n, entry = self.parameters.n, _sample_roster_entry(0, enrolled=self.has_registrar)
        pair, k = SharePair.unpack(bytes(SHARE_PAIR_BYTES)), self.parameters.holders
        signed = SignedInput(bytes(DIGEST_BYTES), bytes(SIGNATURE_BYTES))
        return {
            "roster": n * len(roster_bytes([entry])),
            "received": k * len(received_shares_bytes({0: pair})),
            "dealers": n * len(share_commitments_bytes({0: _sample_commitment(0)})),
            "survivors": len(Survivors(survivors=tuple(range(n))).model_dump_json()),
            "confirmations": n * len(pack_signatures({0: bytes(SIGNATURE_BYTES)})),
            "inputs": k * len(pack_signed_inputs({0: signed})),
        }


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

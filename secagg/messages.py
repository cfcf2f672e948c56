"""Messages of participants, and their bytes.

    KeyShares        graph nonce (32), commitments to the seed (32) and to the own share of it
                     (32), a share pair for each holder, signature (64)
    Complaints       for each dealer complained about, in rising order: slot (u32), signature
                     (64); signature of all (64)
    signatures       for each participant in rising order: slot (u32), signature (64)
    Answers          for each holder that complained, in rising order: slot (u32), its shares of
                     the mask key and of the seed (33 each); signature (64)
    MaskedInput      packed vector, signature (64)
    SignedInputs     for each dealer in rising order: slot (u32), SHA-256 of its packed vector
                     (32), signature (64)
    UnmaskingShares  for each dealer in rising order: slot (u32), kind (u8), share (33);
                     signature (64)

`secagg.shares` has the share pairs.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from secagg.keys import SIGNATURE_BYTES, Identity
from secagg.roster import DIGEST_BYTES, GRAPH_NONCE_BYTES, ShareCommitment, records_by_slot
from secagg.shamir import SHARE_BYTES, is_share
from secagg.shares import SHARE_PAIR_BYTES, SharePair, share_pairs_bytes, unpack_share_pairs

_SIGNATURE_DTYPE = np.dtype([("slot", ">u4"), ("signature", f"V{SIGNATURE_BYTES}")])
SIGNATURE_RECORD_BYTES = _SIGNATURE_DTYPE.itemsize
_SIGNED_INPUT_DTYPE = np.dtype(
    [("slot", ">u4"), ("digest", f"V{DIGEST_BYTES}"), ("signature", f"V{SIGNATURE_BYTES}")]
)
_ANSWER_DTYPE = np.dtype(
    [("holder", ">u4"), ("key", f"V{SHARE_BYTES}"), ("seed", f"V{SHARE_BYTES}")]
)
_REVEALED_SHARE = struct.Struct(f">IB{SHARE_BYTES}s")
REVEALED_SHARE_BYTES = _REVEALED_SHARE.size
REVEALED_SHARE_DTYPE = np.dtype(  # the same bytes
    [("dealer", ">u4"), ("kind", "u1"), ("share", f"V{SHARE_BYTES}")]
)
SEED_SHARE, KEY_SHARE = range(2)  # kinds of revealed shares


@dataclass(frozen=True, slots=True)
class KeyShares:
    """A dealer's graph nonce, and encrypted shares of its mask key and its seed for its holders.

    It commits to its seed, and to its own share of its seed, which it keeps.
    """

    graph_nonce: bytes
    seed_commitment: bytes
    own_share_commitment: bytes
    share_pairs: Sequence[SharePair]
    signature: bytes = b""

    @staticmethod
    def nbytes(holders: int) -> int:
        """Return the size of the message for this number of holders."""
        start = GRAPH_NONCE_BYTES + 2 * DIGEST_BYTES
        return start + holders * SHARE_PAIR_BYTES + SIGNATURE_BYTES

    @property
    def share_commitment(self) -> ShareCommitment:
        """Return the commitment to this message that all participants receive."""
        digest = sha256(self.seed_commitment + self.own_share_commitment)
        digest.update(share_pairs_bytes(self.share_pairs))
        return ShareCommitment(self.graph_nonce, digest.digest())

    def pack(self) -> bytes:
        """Return the bytes of the message."""
        commitments = self.graph_nonce, self.seed_commitment, self.own_share_commitment
        return b"".join((*commitments, share_pairs_bytes(self.share_pairs), self.signature))

    @classmethod
    def unpack(cls, body: bytes) -> "KeyShares":
        """Return the message in `body`.

        Raises:
            ValueError: if the size of `body` fits no number of share pairs.
        """
        if len(body) < cls.nbytes(0):
            raise ValueError("too short for a graph nonce, two commitments and a signature")
        nonce, seed, own = (body[start : start + DIGEST_BYTES] for start in (0, 32, 64))
        pairs = unpack_share_pairs(memoryview(body)[3 * DIGEST_BYTES : -SIGNATURE_BYTES])
        return cls(nonce, seed, own, pairs, body[-SIGNATURE_BYTES:])


def pack_signatures(signatures: Mapping[int, bytes]) -> bytes:
    """Return the bytes of signatures by slot: confirmations, or complaints about one dealer."""
    return b"".join(slot.to_bytes(4, "big") + signatures[slot] for slot in sorted(signatures))


def unpack_signatures(body: bytes) -> dict[int, bytes]:
    """Return the signatures in `body`, by slot.

    Raises:
        ValueError: if the size is not a multiple of a record's, or slots do not strictly rise.
    """
    records = records_by_slot(body, _SIGNATURE_DTYPE, "slot", "signatures")
    return dict(zip(records["slot"].tolist(), records["signature"].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Complaints:
    """A holder's signature of each share pair that it cannot use, by dealer; usually none.

    `signature` covers these and all share pairs that the holder received.
    """

    signatures: Mapping[int, bytes]
    signature: bytes = b""

    @staticmethod
    def nbytes(dealers: int) -> int:
        """Return the size of the message about this number of dealers."""
        return dealers * SIGNATURE_RECORD_BYTES + SIGNATURE_BYTES

    def signed_bytes(self) -> bytes:
        """Return the bytes of the records, which the signature covers."""
        return pack_signatures(self.signatures)

    def pack(self) -> bytes:
        """Return the bytes of the message."""
        return self.signed_bytes() + self.signature

    @classmethod
    def unpack(cls, body: bytes) -> "Complaints":
        """Return the message in `body`.

        Raises:
            ValueError: if the size fits no number of records, or dealers do not strictly rise.
        """
        if len(body) < SIGNATURE_BYTES:
            raise ValueError("too short for a signature")
        return cls(unpack_signatures(body[:-SIGNATURE_BYTES]), body[-SIGNATURE_BYTES:])


@dataclass(frozen=True, slots=True)
class Answers:
    """The shares of a dealer's mask key and of its seed for the holders that complained."""

    key_shares: Mapping[int, bytes] = field(repr=False)
    seed_shares: Mapping[int, bytes] = field(repr=False)
    signature: bytes = b""

    @staticmethod
    def nbytes(holders: int) -> int:
        """Return the size of the message for this number of holders."""
        return holders * _ANSWER_DTYPE.itemsize + SIGNATURE_BYTES

    def signed_bytes(self) -> bytes:
        """Return the bytes of the records, which the signature covers."""
        keys, seeds = self.key_shares, self.seed_shares
        return b"".join(slot.to_bytes(4, "big") + keys[slot] + seeds[slot] for slot in sorted(keys))

    def pack(self) -> bytes:
        """Return the bytes of the message."""
        return self.signed_bytes() + self.signature

    @classmethod
    def unpack(cls, body: bytes) -> "Answers":
        """Return the message in `body`.

        Raises:
            ValueError: if the size fits no number of records, or holders do not strictly rise.
        """
        if len(body) < SIGNATURE_BYTES:
            raise ValueError("too short for a signature")
        records = records_by_slot(body[:-SIGNATURE_BYTES], _ANSWER_DTYPE, "holder", "answers")
        keys, seeds = (
            dict(zip(records["holder"].tolist(), records[name].tolist(), strict=True))
            for name in ("key", "seed")
        )
        return cls(keys, seeds, body[-SIGNATURE_BYTES:])


@dataclass(frozen=True)
class MaskedInput:
    """A masked vector, packed, and its sender's signature under its transcript."""

    vector: bytes | memoryview = field(repr=False)
    signature: bytes

    @property
    def signed_input(self) -> "SignedInput":
        """Return the part of the message that the sender's holders receive."""
        return SignedInput(self._digests[0], self.signature)

    @property
    def digest(self) -> bytes:
        """Return the SHA-256 of the vector and of `signed_input`."""
        return self._digests[1]

    @cached_property
    def _digests(self) -> tuple[bytes, bytes]:
        """SHA-256 of the vector, and of it with `signed_input`; the vector is hashed once."""
        digest = sha256(self.vector)
        of_vector = digest.digest()
        digest.update(of_vector + self.signature)
        return of_vector, digest.digest()

    def pack(self) -> bytes:
        """Return the bytes of the message."""
        return b"".join((self.vector, self.signature))  # copied once

    @classmethod
    def unpack(cls, body: bytes) -> "MaskedInput":
        """Return the message in `body`, with a vector that is not copied.

        Raises:
            ValueError: if `body` is too short.
        """
        if len(body) <= SIGNATURE_BYTES:
            raise ValueError("too short for a vector and a signature")
        vector = memoryview(body).toreadonly()[:-SIGNATURE_BYTES]
        return cls(vector, body[-SIGNATURE_BYTES:])


class SignedInput(NamedTuple):
    """The SHA-256 of a masked vector, and its sender's signature: it shows their transcript."""

    digest: bytes
    signature: bytes

    @classmethod
    def unpack(cls, body: bytes) -> "SignedInput":
        """Return the digest and the signature in `body`, one after the other."""
        return cls(body[:DIGEST_BYTES], body[DIGEST_BYTES:])


def pack_signed_inputs(signed: Mapping[int, SignedInput]) -> bytes:
    """Return the bytes of signed inputs, by slot."""
    return b"".join(slot.to_bytes(4, "big") + b"".join(signed[slot]) for slot in sorted(signed))


def unpack_signed_inputs(body: bytes) -> dict[int, SignedInput]:
    """Return the signed inputs in `body`, by slot.

    Raises:
        ValueError: if the size is not a multiple of a record's, or slots do not strictly rise.
    """
    records = records_by_slot(body, _SIGNED_INPUT_DTYPE, "slot", "signed inputs")
    signed = map(SignedInput, records["digest"].tolist(), records["signature"].tolist())
    return dict(zip(records["slot"].tolist(), signed, strict=True))


@dataclass(frozen=True)
class UnmaskingShares:
    """Shares that a holder reveals to the server, by dealer: of the seed or the mask key.

    There is never a share of both for one dealer.
    """

    seed_shares: Mapping[int, bytes] = field(repr=False)  # of survivors
    key_shares: Mapping[int, bytes] = field(repr=False)  # of dealers that dropped out
    signature: bytes = b""

    @staticmethod
    def nbytes(dealers: int) -> int:
        """Return the size of the message about this number of dealers."""
        return dealers * REVEALED_SHARE_BYTES + SIGNATURE_BYTES

    def signed_bytes(self) -> bytes:
        """Return the bytes of the records, which the signature covers."""
        return self._records

    @cached_property
    def _records(self) -> bytes:
        records = [(dealer, SEED_SHARE, share) for dealer, share in self.seed_shares.items()]
        records += [(dealer, KEY_SHARE, share) for dealer, share in self.key_shares.items()]
        return b"".join(_REVEALED_SHARE.pack(*record) for record in sorted(records))

    @property
    def records(self) -> NDArray[np.void]:
        """Return dealers, kinds and shares (`REVEALED_SHARE_DTYPE`), by rising dealer."""
        return np.frombuffer(self._records, REVEALED_SHARE_DTYPE)

    @property
    def are_field_elements(self) -> bool:
        """Return whether all shares are field elements; it is certain if first bytes are 0."""
        records = self.records
        firsts = records.view(np.uint8).reshape(-1, REVEALED_SHARE_BYTES)[:, -SHARE_BYTES]
        return not firsts.any() or all(map(is_share, records["share"].tolist()))

    def signed(self, identity: Identity, statement: bytes) -> "UnmaskingShares":
        """Return this message signed by `identity` under its `Transcript.unmasking_statement`."""
        signed = replace(self, signature=identity.sign(statement))
        vars(signed)["_records"] = self.signed_bytes()  # the same bytes, made once
        return signed

    def pack(self) -> bytes:
        """Return the bytes of the message."""
        return self.signed_bytes() + self.signature

    @classmethod
    def unpack(cls, body: bytes) -> "UnmaskingShares":
        """Return the message in `body`.

        Raises:
            ValueError: if the size does not fit a whole number of records and a signature,
                dealers do not strictly rise (so that no message reveals both secrets of one
                dealer), or a kind is unknown.
        """
        if len(body) < SIGNATURE_BYTES:
            raise ValueError("too short for a signature")
        record_bytes = body[:-SIGNATURE_BYTES]
        records = records_by_slot(record_bytes, REVEALED_SHARE_DTYPE, "dealer", "shares")
        if records["kind"].max(initial=SEED_SHARE) > KEY_SHARE:
            raise ValueError("a share's kind is 0 or 1")
        message = cls(
            _SharesOfKind(records, SEED_SHARE),
            _SharesOfKind(records, KEY_SHARE),
            body[-SIGNATURE_BYTES:],
        )
        vars(message)["_records"] = record_bytes  # records in rising order have one form only
        return message


class _SharesOfKind(Mapping[int, bytes]):
    """The shares of one kind in `records`, by dealer, made when they are first read.

    The server checks all shares as arrays, and reads single ones only of a false message.
    """

    def __init__(self, records: NDArray[np.void], kind: int) -> None:
        self._records = records
        self._kind = kind

    @cached_property
    def _by_dealer(self) -> dict[int, bytes]:
        records = self._records[self._records["kind"] == self._kind]
        return dict(zip(records["dealer"].tolist(), records["share"].tolist(), strict=True))

    def __getitem__(self, dealer: int) -> bytes:
        return self._by_dealer[dealer]

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_dealer)

    def __len__(self) -> int:
        return len(self._by_dealer)

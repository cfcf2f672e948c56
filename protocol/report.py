"""A locally private report on its way: what a device signs, sends, and nothing else.

    digest (32) | report (of the plan's size) | signature (64) | enrolment (64, with a registrar)

The digest is that of the plan which the report is made for: a report for other parameters is
refused, never read as if it were for these. The signature is the device's own, by an identity
that it keeps for all studies that ask for reports, so that the service can add up what it has
spent; the identity itself is in the path.
"""

from dataclasses import dataclass, field
from hashlib import sha256

from secagg.keys import SIGNATURE_BYTES, Identity, is_signed, statement

DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Report:
    """What the device of `identity` reports to the plan of `digest`."""

    identity: bytes
    digest: bytes
    body: bytes = field(repr=False)
    signature: bytes = field(repr=False)
    enrolment: bytes = field(default=b"", repr=False)

    @classmethod
    def sign(cls, identity: Identity, digest: bytes, body: bytes, enrolment: bytes) -> "Report":
        """Return the report, signed."""
        signature = identity.sign(_statement(digest, body))
        return cls(identity.public, digest, body, signature, enrolment)

    @property
    def is_signed(self) -> bool:
        """Return whether the signature is that of the identity."""
        return is_signed(self.identity, _statement(self.digest, self.body), self.signature)

    @property
    def fingerprint(self) -> bytes:
        """Return what tells whether the same was said before; signatures may differ."""
        return sha256(self.digest + self.body).digest()

    def pack(self) -> bytes:
        """Return the bytes that travel."""
        return self.digest + self.body + self.signature + self.enrolment

    @classmethod
    def unpack(cls, identity: bytes, packed: bytes, nbytes: int, has_registrar: bool) -> "Report":
        """Return the report of `pack`, of a body of `nbytes`.

        Raises:
            ValueError: if there are more or fewer bytes.
        """
        expected = packed_bytes(nbytes, has_registrar)
        if len(packed) != expected:
            raise ValueError(f"a report takes {expected} bytes here, not {len(packed)}")
        end = DIGEST_BYTES + nbytes
        digest, body = packed[:DIGEST_BYTES], packed[DIGEST_BYTES:end]
        signed = end + SIGNATURE_BYTES
        return cls(identity, digest, body, packed[end:signed], packed[signed:])


def packed_bytes(nbytes: int, has_registrar: bool) -> int:
    """Return the bytes of a packed report with a body of `nbytes`."""
    return DIGEST_BYTES + nbytes + SIGNATURE_BYTES * (2 if has_registrar else 1)


def _statement(digest: bytes, body: bytes) -> bytes:
    return statement("report", digest, 0, body)

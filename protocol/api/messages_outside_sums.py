"""Messages of devices outside the secure sum, and the documents that answer them.

Requests to join and the list of survivors are JSON. A message may be answered with the documents
that the device receives next. Each is preceded by its length in bytes, as a big-endian integer of
four bytes. A locally private report is packed into the
bytes that a device signs and sends:

    digest (32) | report (of the plan's size) | signature (64) | enrolment (64, with a registrar)

The digest is the one of the report's plan, so a report for other parameters is refused. The device
signs with an identity that it keeps for all studies of reports, so that the service can add up its
privacy loss. The identity itself is in the path.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Final

from pydantic import Field

from protocol.api.phases import MessageKind
from protocol.public_model import Hex32, PublicModel, Rows
from secagg.keys import SIGNATURE_BYTES, Identity, is_signed, statement
from secagg.roster import DIGEST_BYTES

Hex64 = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
LENGTH_BYTES: Final = 4  # of the length before a document


class JoinRequest(PublicModel):
    """A device's request to take part in a round, with its identity and its keys for it.

    `identity` is an Ed25519 public key that the device keeps for one study, so that each device
    counts once; `signature` is the identity's over both keys
    (`secagg.session.advertisement_statement`), `registrar_signature` the registrar's over the
    identity.
    """

    identity: Hex32
    mask_key: Hex32
    encryption_key: Hex32
    signature: Hex64
    registrar_signature: Hex64 | None = None


class Survivors(PublicModel):
    """The slots whose masked inputs arrived."""

    survivors: Rows[int]


class DocumentKind(StrEnum):
    """Kinds of documents about a cohort, as in paths."""

    ROSTER = "roster"
    ENCRYPTED_SHARES = "encrypted-shares"
    COMPLAINTS = "complaints"
    SHARE_COMMITMENTS = "share-commitments"
    SURVIVORS = "survivors"
    CONFIRMATIONS = "confirmations"
    SIGNED_INPUTS = "signed-inputs"


# Documents that a device receives after it has sent a message.
NEXT_DOCUMENTS: Final[Mapping[MessageKind, tuple[DocumentKind, ...]]] = {
    MessageKind.KEY_SHARES: (DocumentKind.ENCRYPTED_SHARES,),
    MessageKind.COMPLAINTS: (DocumentKind.COMPLAINTS, DocumentKind.SHARE_COMMITMENTS),
    MessageKind.ANSWERS: (DocumentKind.SHARE_COMMITMENTS,),
    MessageKind.MASKED_INPUT: (DocumentKind.SURVIVORS,),
    MessageKind.CONFIRMATION: (DocumentKind.CONFIRMATIONS, DocumentKind.SIGNED_INPUTS),
}


def frame_document(document: bytes) -> bytes:
    """Return a document after its length."""
    return frame_length(document) + document


def frame_length(document: bytes) -> bytes:
    """Return the length of a document, as it is sent before the document."""
    return len(document).to_bytes(LENGTH_BYTES, "big")


@dataclass(frozen=True, slots=True)
class SignedReport:
    """Signed report of the device `identity` to the plan with `plan_digest`."""

    identity: bytes
    plan_digest: bytes
    body: bytes = field(repr=False)
    signature: bytes = field(repr=False)
    registrar_signature: bytes = field(default=b"", repr=False)

    @classmethod
    def sign(
        cls, identity: Identity, digest: bytes, body: bytes, enrolment: bytes
    ) -> "SignedReport":
        signature = identity.sign(_statement(digest, body))
        return cls(identity.public, digest, body, signature, enrolment)

    @property
    def has_valid_signature(self) -> bool:
        return is_signed(self.identity, _statement(self.plan_digest, self.body), self.signature)

    @property
    def content_digest(self) -> bytes:
        """Return a digest that is equal for equal reports, whose signatures may differ."""
        return sha256(self.plan_digest + self.body).digest()

    def pack(self) -> bytes:
        return self.plan_digest + self.body + self.signature + self.registrar_signature

    @classmethod
    def unpack(
        cls, identity: bytes, packed: bytes, nbytes: int, has_registrar: bool
    ) -> "SignedReport":
        """Return the report of `pack`, with a body of `nbytes`; ValueError if the size differs."""
        expected = packed_report_bytes(nbytes, has_registrar)
        if len(packed) != expected:
            raise ValueError(f"a report takes {expected} bytes here, not {len(packed)}")
        end = DIGEST_BYTES + nbytes
        digest, body = packed[:DIGEST_BYTES], packed[DIGEST_BYTES:end]
        signed = end + SIGNATURE_BYTES
        return cls(identity, digest, body, packed[end:signed], packed[signed:])


def packed_report_bytes(nbytes: int, has_registrar: bool) -> int:
    """Return the bytes of a packed report with a body of `nbytes`."""
    return DIGEST_BYTES + nbytes + SIGNATURE_BYTES * (2 if has_registrar else 1)


def _statement(digest: bytes, body: bytes) -> bytes:
    return statement("report", digest, 0, body)

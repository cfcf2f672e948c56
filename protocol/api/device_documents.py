"""Documents that a device in a cohort receives, in JSON or packed, and its request to join.

A message may be answered with the documents that the device receives next. Each is preceded by its
length in bytes, as a big-endian integer of four bytes.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from protocol.api.phases import MessageKind
from protocol.public_model import PublicModel
from protocol.question_and_plan import Hex32

Hex64 = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


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

    survivors: tuple[int, ...]


class DocumentKind(StrEnum):
    """Kinds of documents about a cohort, as in paths."""

    ROSTER = "roster"
    ENCRYPTED_SHARES = "encrypted-shares"
    COMPLAINTS = "complaints"
    SHARE_COMMITMENTS = "share-commitments"
    SURVIVORS = "survivors"
    CONFIRMATIONS = "confirmations"
    SIGNED_INPUTS = "signed-inputs"


LENGTH_BYTES: Final = 4  # of the length before a document
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
    return len(document).to_bytes(LENGTH_BYTES, "big") + document

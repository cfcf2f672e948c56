"""Messages of a cohort that are JSON: a device's request to join, and the list of survivors."""

from typing import Annotated

from pydantic import Field

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

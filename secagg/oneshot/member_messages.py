"""Messages of members, and their bytes.

    digests        32 bytes for each message of a device, in rising order: a set, or complaints
    ComplaintList  digests, signature (64)
    MemberSum      packed sum (`Sharing.sum_bytes`), signature (64)

The signatures of members under a set are packed by `secagg.messages.pack_signatures`, with the
number of the member, 1 to m, as the slot.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from secagg.keys import SIGNATURE_BYTES
from secagg.oneshot.committee import OneShotSession
from secagg.roster import DIGEST_BYTES


def are_rising(digests: Sequence[bytes]) -> bool:
    """Return whether the digests strictly rise, so that none occurs twice."""
    return all(first < second for first, second in pairwise(digests))


def unpack_digests(body: bytes) -> tuple[bytes, ...]:
    """Return the digests in `body`.

    Raises:
        ValueError: if the size is not a multiple of a digest's, or they do not strictly rise.
    """
    if len(body) % DIGEST_BYTES:
        raise ValueError(f"digests have {DIGEST_BYTES} bytes each; {len(body)} is not a multiple")
    starts = range(0, len(body), DIGEST_BYTES)
    digests = tuple(body[start : start + DIGEST_BYTES] for start in starts)
    if not are_rising(digests):
        raise ValueError("digests of messages do not strictly rise")
    return digests


@dataclass(frozen=True, slots=True)
class ComplaintList:
    """The digests of the messages that a member cannot use, rising, and its signature."""

    messages: tuple[bytes, ...]
    signature: bytes

    def pack(self) -> bytes:
        return b"".join((*self.messages, self.signature))

    @classmethod
    def unpack(cls, body: bytes) -> "ComplaintList":
        """Return the complaints in `body`.

        Raises:
            ValueError: if the size does not fit, or the digests do not strictly rise.
        """
        if len(body) < SIGNATURE_BYTES:
            raise ValueError("too short for a signature")
        return cls(unpack_digests(body[:-SIGNATURE_BYTES]), body[-SIGNATURE_BYTES:])


@dataclass(frozen=True, slots=True)
class MemberSum:
    """The packed sum of a member's shares over a set, and its signature."""

    packed: bytes = field(repr=False)
    signature: bytes

    def pack(self) -> bytes:
        return self.packed + self.signature

    @classmethod
    def unpack(cls, body: bytes, session: OneShotSession) -> "MemberSum":
        """Return the sum in `body`; `opening.check_sum` checks its elements.

        Raises:
            ValueError: if the size is not that of the session.
        """
        size = session.sharing.sum_bytes + SIGNATURE_BYTES
        if len(body) != size:
            raise ValueError(f"a member's sum has {size} bytes, got {len(body)}")
        return cls(body[:-SIGNATURE_BYTES], body[-SIGNATURE_BYTES:])

"""Bytes of a secure sum, counted from its messages, and the parameters of a committee.

Bytes are those of the messages without HTTP headers; of a pairwise sum without the masked vector,
and no device drops out. `benchmarks/` measures the time of sums.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from random import SystemRandom
from typing import Any, Final

from protocol.api.messages_outside_sums import JoinRequest, Survivors
from secagg.keys import KEY_BYTES, SIGNATURE_BYTES, Identity, PublicKeys
from secagg.messages import (
    Complaints,
    KeyShares,
    SignedInput,
    UnmaskingShares,
    pack_signatures,
    pack_signed_inputs,
)
from secagg.oneshot.committee import Committee, OneShotSession, Operators
from secagg.oneshot.member import volunteer_again
from secagg.oneshot.message import Layout
from secagg.oneshot.moduli import Moduli
from secagg.oneshot.parameters import CommitteeParameters
from secagg.parameters import Assumptions, Parameters
from secagg.ring import Lane, Ring
from secagg.roster import (
    DIGEST_BYTES,
    RosterEntry,
    ShareCommitment,
    roster_bytes,
    share_commitments_bytes,
)
from secagg.session import Registry
from secagg.shares import SHARE_PAIR_BYTES, SharePair, received_shares_bytes

MAX_WORDS: Final = 100_000  # of a vector whose time is measured
_PLAN: Final = bytes(32)  # digest of a plan; costs do not depend on it


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
            "dealers": n * len(share_commitments_bytes({0: ShareCommitment(bytes(32), bytes(32))})),
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


@dataclass(frozen=True)
class CommitteeCost:
    """Costs of one-shot sums of `words` 16-bit words.

    The committee has operators, or members that a registrar draws from `volunteers` devices.
    """

    parameters: CommitteeParameters
    words: int
    has_registrar: bool
    volunteers: int | None = None

    @cached_property
    def _members(self) -> list[tuple[Identity, bytes]]:
        """The identities of the members, and the secret half of their keys for one sum."""
        rng = SystemRandom()
        count = self.parameters.members
        return [(Identity.generate(rng), rng.randbytes(KEY_BYTES)) for _ in range(count)]

    @cached_property
    def _registrar(self) -> Identity:
        return Identity.generate(SystemRandom())

    @cached_property
    def session(self) -> OneShotSession:
        """Return the facts of one sum, with fresh keys."""
        members = [volunteer_again(identity, key, _PLAN, 0) for identity, key in self._members]
        entries = tuple(member.register(_PLAN, 0) for member in members)
        identities = frozenset(entry.identity for entry in entries)
        p = Moduli.of(self.parameters).above(2**16 - 1)
        committee = Committee(_PLAN, 0, self.parameters, entries)
        authority = Operators(identities, self.parameters.corrupt)
        registry = Registry(self._registrar.public, _PLAN) if self.has_registrar else None
        return OneShotSession(committee, Ring((Lane(p, self.words),)), authority, 1, registry)

    @cached_property
    def layout(self) -> Layout:
        """Return the sizes of messages and columns."""
        return Layout.of(self.session)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON document."""
        p, layout = self.parameters, self.layout
        return {
            "members": p.members,
            "volunteers": self.volunteers,
            "corrupt_members": p.corrupt,
            "colluders_to_read": p.corrupt + 1,
            "absent_members": p.dropouts,
            "t": p.threshold,
            "packed_secrets": p.packed_secrets,
            "needed_sums": p.needed_sums,
            "needed_signatures": p.needed_signatures,
            "registrar": self.has_registrar,
            "words": self.words,
            "message_bytes": layout.message_bytes,
            "column_bytes": layout.largest_column,
            "sum_bytes": self.session.sharing.sum_bytes + SIGNATURE_BYTES,
        }

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield the rows of the table: name, value and reason."""
        p, layout = self.parameters, self.layout
        a, t = p.corrupt, p.threshold
        if self.volunteers is None:
            yield "members m", str(p.members), "operators, whose keys each device pins"
        else:
            yield "members m", str(p.members), "devices, which the registrar draws for each round"
            yield "volunteers V", f"{self.volunteers:,}", "devices from which it draws them"
        yield "colluders A", str(a), "members that work for the server learn only the sum"
        yield "readers", str(a + 1), f"members that collude with the server read some; {t} read all"
        yield "dropouts D", str(p.dropouts), "members that are absent or lie, and the sum opens"
        yield "threshold t", str(t), f"sums determine the total; t - A = {t - a} words in each"
        yield "sums", str(p.needed_sums), "t + A, so that false sums of A members are found"
        reason = "of members under one set, more than (m + A) / 2"
        yield "signatures", str(p.needed_signatures), reason
        yield "messages", "1", f"per device, {self.words:,} 16-bit words"
        yield (
            "  message",
            f"{layout.message_bytes:,} B",
            "from each device, shares of m - A members",
        )
        yield "  received", f"{layout.largest_column:,} B", "by each member for each device"
        sum_bytes = self.session.sharing.sum_bytes + SIGNATURE_BYTES
        yield "  sum", f"{sum_bytes:,} B", "from each member, once"

"""Parameters of a committee, and the bytes and time of one-shot sums with it.

Bytes are those of the messages without HTTP headers. Times are measured: a device makes its message
for a committee with fresh keys, and a member checks its part of a number of copies. They are of one
thread of this machine. A member decrypts and checks each message, so its time grows with the
number of devices.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from random import Random, SystemRandom
from typing import Any, Final

import numpy as np

from blindtally.console.tables import format_seconds
from blindtally.planning.sum_costs import fastest_seconds
from secagg.keys import KEY_BYTES, SIGNATURE_BYTES, Identity
from secagg.oneshot.committee import Committee, OneShotSession, Operators
from secagg.oneshot.member import volunteer_again
from secagg.oneshot.message import Layout, make_message
from secagg.oneshot.parameters import CommitteeParameters
from secagg.oneshot.sharing import prime_ring
from secagg.ring import Lane, Ring
from secagg.session import Registry

MAX_WORDS: Final = 100_000  # of a vector whose time is measured
_CHECKED_MESSAGES: Final = 64
_PLAN: Final = bytes(32)  # digest of a plan; costs do not depend on it


@dataclass(frozen=True, slots=True)
class CommitteeSeconds:
    """Seconds of a device for its message, and of one member for one device."""

    device: float
    member: float


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
        ring = prime_ring(Ring((Lane(2**16, self.words),)), self.parameters)
        committee = Committee(_PLAN, 0, self.parameters, entries)
        authority = Operators(identities, self.parameters.corrupt)
        registry = Registry(self._registrar.public, _PLAN) if self.has_registrar else None
        return OneShotSession(committee, ring, authority, 1, registry)

    @cached_property
    def layout(self) -> Layout:
        """Return the sizes of messages and columns."""
        return Layout.of(self.session)

    def measure(self, rng: Random) -> CommitteeSeconds:
        """Return the times on this machine; `rng` makes the secrets of the device."""
        session, identity = self.session, Identity.generate(rng)
        (lane,) = session.ring.lanes
        vector = session.ring.vector([np.arange(lane.length) % lane.q])
        enrolment = b""
        if session.registry is not None:
            enrolment = self._registrar.sign(session.registry.enrolment_statement(identity.public))
        message = make_message(session, identity, enrolment, vector, rng)
        columns = [message.column(session, 1)] * _CHECKED_MESSAGES
        member, key = self._members[0]
        return CommitteeSeconds(
            fastest_seconds(lambda: make_message(session, identity, enrolment, vector, rng)),
            fastest_seconds(lambda: volunteer_again(member, key, _PLAN, 0).check(session, columns))
            / _CHECKED_MESSAGES,
        )

    def as_json(self, seconds: CommitteeSeconds) -> dict[str, Any]:
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
            "column_bytes": layout.column_bytes,
            "sum_bytes": self.session.sharing.sum_bytes + SIGNATURE_BYTES,
            "seconds_of_device": seconds.device,
            "seconds_of_member_per_device": seconds.member,
        }

    def rows(self, seconds: CommitteeSeconds) -> Iterator[tuple[str, str, str]]:
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
        yield "  message", f"{layout.message_bytes:,} B", "from each device, shares of all members"
        yield "  received", f"{layout.column_bytes:,} B", "by each member for each device"
        sum_bytes = self.session.sharing.sum_bytes + SIGNATURE_BYTES
        yield "  sum", f"{sum_bytes:,} B", "from each member, once"
        yield "time", "", "one thread of this machine, measured"
        yield "  device", format_seconds(seconds.device), "makes its message"
        yield "  member", format_seconds(seconds.member), "checks one message"

"""Opening of a one-shot sum on the server: the set of messages, and the total of their vectors.

*The set.* Members complain about messages that they cannot use, and a member without a valid share
of a message cannot sum a set with it. A message with more than A complaints is excluded: an honest
member complained. The other complaints are settled between members and messages. In the first
design such a member counted as dropped out; then m / A malicious devices, which send A bad shares
each, would remove all honest members. So the server drops a member only while complaints would
exclude more than a hundredth of all messages, and drops at most `CommitteeParameters.droppable`.
Then it excludes all contested messages, in any number: the degree proof holds only if a device
could not choose the members that check it. Only if fewer than `minimum` messages would remain, it
drops more members, down to t + A, and the result says so (`ChosenMessages.is_beyond_bound`).

It drops the member with the largest weight, where a message with c complaints weighs 1 / c for
each: honest members never complain about honest devices. If fewer than `minimum` messages remain
so, it tries all sets of members, the smallest first, up to 2,000 of one size: liars whose false
complaints weigh less than true ones about malicious devices do not stop a sum. Members that remain
can exclude messages of honest devices, as long as `minimum` messages remain.

*The total.* The sums of the members are values of polynomials of degree t - 1, which have the
total at -1 .. -rho. With t + A sums or more, those of the honest members alone determine the
polynomials. If sums disagree, false ones are located in one disagreeing column after the other,
at most `CommitteeParameters.correctable`, and left out until all agree. With at most A lying
members the total is right, or `OpeningError` is raised.

Source: Reed-Solomon decoding [Gao03]; the settlement of complaints is an addition of blindtally.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, compress
from math import comb
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secagg.errors import FaultyParticipantError, ProtocolError
from secagg.keys import is_signed
from secagg.oneshot.committee import OneShotSession
from secagg.oneshot.field import Elements, FieldMatrix, lagrange_matrix
from secagg.oneshot.member import is_set_signed
from secagg.oneshot.member_messages import ComplaintList, MemberSum, are_rising
from secagg.oneshot.parameters import CommitteeParameters
from secagg.oneshot.sharing import secret_points
from secagg.reed_solomon import decode
from secagg.ring import Vector

EXCLUDED_SHARE: Final = 100  # one message in this number may be excluded before a member is
_MAX_TRIED_SETS: Final = 2_000  # of one size: all sets of 4 of 16 members


class OpeningError(ProtocolError):
    """A sum that does not open: too few sums, or too many false ones; nothing is published.

    Attributes:
        blamed: the members whose false sums were located, by number.
    """

    def __init__(self, what: str, blamed: Collection[int] = ()) -> None:
        super().__init__(f"the sum does not open: {what}")
        self.blamed = frozenset(blamed)


@dataclass(frozen=True, slots=True)
class ChosenMessages:
    """The messages to sum, by digest in rising order, and the members that can sum them.

    `is_beyond_bound` if more members were dropped than the bound of `degree_tests` allows.
    """

    included: tuple[bytes, ...]
    members: frozenset[int]
    is_beyond_bound: bool


@dataclass(frozen=True, slots=True)
class OpenedSum:
    """The total of the vectors, and the members whose sums were false."""

    total: Vector
    liars: frozenset[int]


def check_complaints(session: OneShotSession, member: int, complaints: ComplaintList) -> None:
    """Check the complaints of a member when they arrive.

    Raises:
        FaultyParticipantError: if the digests do not strictly rise, or the signature is not the
            member's, or the committee has no such member.
    """
    listed = complaints.messages
    if not are_rising(listed):
        raise FaultyParticipantError(member, "complained twice, or not in rising order")
    signed = session.complaints_statement(member, b"".join(listed))
    if not is_signed(session.member_identity(member), signed, complaints.signature):
        raise FaultyParticipantError(member, "did not sign its complaints")


def choose_messages(
    session: OneShotSession,
    messages: Collection[bytes],
    complaints: Iterable[tuple[int, ComplaintList]],
) -> ChosenMessages:
    """Return the messages to sum and the members to ask.

    `messages` are digests, each of another device. `complaints` are those of each member that
    checked, by number; they may be long, so each is used once.

    Raises:
        OpeningError: if fewer than t + A members checked, or fewer than `minimum` messages remain.
    """
    sent = sorted(set(messages))
    places = {digest: place for place, digest in enumerate(sent)}
    checked, contested = list[int](), dict[int, NDArray[np.bool_]]()  # by member
    for member, of_member in complaints:
        checked.append(member)
        named = [places[digest] for digest in of_member.messages if digest in places]
        if named:
            contested[member] = np.zeros(len(sent), np.bool_)
            contested[member][named] = True
    _check_count(len(checked), session.parameters)
    is_left = ~_excluded(session, len(checked), contested, len(sent))
    included = tuple(compress(sent, is_left.tolist()))
    if len(included) < session.minimum:
        raise OpeningError(f"{len(included)} messages remain of a minimum of {session.minimum}")
    unable = {member for member, named in contested.items() if (named & is_left).any()}
    is_beyond_bound = len(unable) > session.parameters.droppable(len(checked))
    return ChosenMessages(included, frozenset(checked) - unable, is_beyond_bound)


def _excluded(
    session: OneShotSession, checked: int, contested: Mapping[int, NDArray[np.bool_]], sent: int
) -> NDArray[np.bool_]:
    """Return whether each of the `sent` messages is excluded, by the complaints of members."""
    counts = np.zeros(sent, np.int64)
    for named in contested.values():
        counts += named
    excluded = counts > session.parameters.corrupt
    spare = max(0, sent - int(excluded.sum()) - session.minimum)
    members, counts = set(contested), np.where(excluded, 0, counts)
    for dropped in range(checked - session.parameters.needed_sums):
        is_within_bound = dropped < session.parameters.droppable(checked)
        limit = min(sent // EXCLUDED_SHARE, spare) if is_within_bound else spare
        if np.count_nonzero(counts) <= limit:
            break
        weights = np.divide(1, counts, where=counts > 0, out=np.zeros(sent))
        heaviest = max(sorted(members), key=lambda member: float(weights @ contested[member]))
        counts -= contested[heaviest] & (counts > 0)
        members.remove(heaviest)
    settled = excluded | (counts > 0)
    if sent - int(settled.sum()) >= session.minimum:
        return settled
    most = checked - session.parameters.needed_sums
    return _excluded_by_the_best_set(session.minimum, most, contested, excluded, settled)


def _excluded_by_the_best_set(
    minimum: int,
    most: int,
    contested: Mapping[int, NDArray[np.bool_]],
    excluded: NDArray[np.bool_],
    settled: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Return what is excluded without the fewest members, up to `most`, that leave `minimum`.

    If none do, or they are not among `_MAX_TRIED_SETS`, this is `settled`.
    """
    counts = sum(contested.values())
    for size in range(1, min(most, len(contested)) + 1):
        if comb(len(contested), size) > _MAX_TRIED_SETS:
            break
        sets = combinations(contested.values(), size)
        fewest = min((excluded | (counts > sum(each)) for each in sets), key=np.count_nonzero)
        if len(fewest) - np.count_nonzero(fewest) >= minimum:
            return fewest
    return settled


def check_set_signature(
    session: OneShotSession, member: int, set_digest: bytes, signature: bytes
) -> None:
    """Check a member's signature over the set; raises FaultyParticipantError if not valid."""
    if not is_set_signed(session, member, set_digest, signature):
        raise FaultyParticipantError(member, "did not sign the set of messages")


def check_sum(
    session: OneShotSession, member: int, set_digest: bytes, member_sum: MemberSum
) -> None:
    """Check the sum of a member when it arrives.

    Raises:
        FaultyParticipantError: if it is not a packed sum of the session, or the signature is not
            the member's under this set, or the committee has no such member.
    """
    try:
        session.sharing.unpack_sum(member_sum.packed)
    except ValueError as error:
        raise FaultyParticipantError(member, f"sent no sum: {error}") from error
    signed = session.sum_statement(member, set_digest, member_sum.packed)
    if not is_signed(session.member_identity(member), signed, member_sum.signature):
        raise FaultyParticipantError(member, "did not sign the sum of its shares")


def open_sum(session: OneShotSession, sums: Mapping[int, MemberSum]) -> OpenedSum:
    """Return the total of the vectors, and the members whose sums were false.

    `sums` are by member, each checked by `check_sum` under the same set.

    Raises:
        OpeningError: if there are fewer than t + A, or more are false than can be corrected.
    """
    parameters, sharing = session.parameters, session.sharing
    _check_count(len(sums), parameters)
    members = sorted(sums)
    unpacked = np.stack([sharing.unpack_sum(sums[member].packed) for member in members])
    liars = _locate_liars(sharing.lane.q, parameters, members, unpacked)
    honest = [row for row, member in enumerate(members) if member not in liars]
    used = honest[: parameters.threshold]
    nodes, points = [members[row] for row in used], secret_points(parameters)
    matrix = FieldMatrix(sharing.lane.q, lagrange_matrix(sharing.lane.q, nodes, points))
    return OpenedSum((sharing.elements_of(matrix @ unpacked[used]),), liars)


def _check_count(count: int, parameters: CommitteeParameters) -> None:
    if count < parameters.needed_sums:
        raise OpeningError(f"{count} members of the {parameters.needed_sums} needed")


def _locate_liars(
    p: int, parameters: CommitteeParameters, members: Sequence[int], sums: Elements
) -> frozenset[int]:
    """Return the members whose sums are false; the sums of all others agree.

    `sums` have one row per member and one column per polynomial.
    """
    liars, allowed = set[int](), parameters.correctable(len(members))
    while True:
        rows = [row for row, member in enumerate(members) if member not in liars]
        honest = [members[row] for row in rows]
        column = _disagreeing_column(p, honest, sums[rows], parameters.threshold)
        if column is None:
            return frozenset(liars)
        values = dict(zip(members, sums[:, column].tolist(), strict=True))
        decoded = decode(p, values, parameters.threshold)
        if decoded is None or len(decoded[1]) > allowed:
            raise OpeningError(
                f"{len(members)} sums disagree, and at most {allowed} false ones can be located",
                liars,
            )
        liars |= decoded[1]
        if len(liars) > parameters.corrupt:
            raise OpeningError(f"more than {parameters.corrupt} members lie", liars)


def _disagreeing_column(
    p: int, members: Sequence[int], sums: Elements, threshold: int
) -> int | None:
    """Return the first column of `sums` that is of no polynomial below degree `threshold`."""
    nodes, points = members[:threshold], members[threshold:]
    if not points:
        return None
    expected = FieldMatrix(p, lagrange_matrix(p, nodes, points)) @ sums[:threshold]
    differs = (expected != sums[threshold:]).any(axis=0)
    return int(differs.argmax()) if differs.any() else None

"""The work of the server: complaints are settled, and lying members are located.

The committee has 9 members, of which members 1 and 2 collude (A = 2). `Guards:` names the check
without which a test fails.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg.errors import FaultyParticipantError
from secagg.oneshot.member_messages import ComplaintList, MemberSum
from secagg.oneshot.opening import (
    OpeningError,
    check_complaints,
    check_set_signature,
    check_sum,
    choose_messages,
)
from secagg.oneshot.parameters import CommitteeParameters
from tests.secagg.oneshot.conftest import Round, assemble, badly_shared, same

COLLUDING = (1, 2)
HONEST = range(3, 10)
VICTIM = 0


# Messages with bad shares


def test_a_message_with_bad_shares_is_excluded_and_the_sum_is_exact(whole: Round) -> None:
    """Guards: the degree test in `Sharing.check`, and complaints in `choose_messages`."""
    badly_shared(whole, 1, HONEST)
    assert same(whole.total(), whole.plain_sum([0, 2, 3, 4, 5]))


def test_malicious_devices_with_few_bad_shares_each_do_not_remove_the_members(whole: Round) -> None:
    """Guards: messages are excluded, not members, once half of those beyond t + A are dropped."""
    for device, members in ((1, (3, 4)), (2, (5, 6)), (4, (7, 8))):
        badly_shared(whole, device, members)
    whole.check()
    assert [len(whole.complaints[member].messages) for member in range(2, 9)] == [0] + [1] * 6
    included, able = whole.choose()
    assert list(included) == whole.set_of([0, 3, 5])
    assert able == set(whole.members)
    whole.agree(included, able)
    whole.release()
    assert same(whole.open().total, whole.plain_sum([0, 3, 5]))


def test_a_message_with_a_bad_share_is_excluded_where_many_messages_remain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards: no member is dropped for a hundredth of the messages; here it is for a third."""
    monkeypatch.setattr("secagg.oneshot.opening.EXCLUDED_SHARE", 3)
    whole = assemble()
    whole.send()
    badly_shared(whole, 1, [3, 4])
    badly_shared(whole, 2, [3])
    whole.check()
    included, able = whole.choose()
    assert list(included) == whole.set_of([0, 3, 4, 5])
    assert able == set(whole.members)


@pytest.mark.parametrize(("count", "excluded"), [(99, 0), (100, 1)])
def test_one_message_in_a_hundred_is_excluded_before_a_member(
    whole: Round, count: int, excluded: int
) -> None:
    """Guards: the limit of messages that are excluded for the complaint of one member."""
    messages = [bytes([number]) * 32 for number in range(count)]
    complaints = {member: ComplaintList((), bytes(64)) for member in whole.members}
    complaints[3] = ComplaintList((messages[0],), bytes(64))
    chosen = choose_messages(whole.session, messages, complaints.items())
    assert len(chosen.included) == count - excluded
    assert (3 in chosen.members) == bool(excluded)


def test_one_lying_member_does_not_leave_too_few_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards: a member is dropped where its complaints would leave fewer than `minimum`."""
    monkeypatch.setattr("secagg.oneshot.opening.EXCLUDED_SHARE", 3)
    whole = assemble(minimum=5)
    whole.send()
    whole.check()
    complain(whole, 1, [0, 1])
    included, able = whole.choose()
    assert list(included) == whole.set_of()
    assert able == set(whole.members) - {1}


def test_a_member_whose_complaints_are_all_about_excluded_messages_sums(whole: Round) -> None:
    """Guards: members that were dropped without effect take part again."""
    for device, members in ((1, (3, 5)), (2, (3, 6))):
        badly_shared(whole, device, members)
    whole.check()
    included, able = whole.choose()  # drops 3, and excludes the messages of 1 and 2
    assert list(included) == whole.set_of([0, 3, 4, 5])
    assert able == set(whole.members)


@pytest.mark.parametrize(
    ("minimum", "included", "dropped"), [(3, [0, 1, 5], {3}), (4, [0, 1, 2, 5], {3, 4})]
)
def test_more_than_half_of_the_members_beyond_t_plus_a_are_dropped_only_for_the_minimum(
    minimum: int, included: list[int], dropped: set[int]
) -> None:
    """Guards: both limits in `_excluded`, and `is_beyond_bound`; of 9 members, 7 are needed."""
    whole = assemble(minimum=minimum)
    whole.send()
    for device, member in ((1, 3), (2, 4), (3, 5), (4, 6)):
        badly_shared(whole, device, [member])
    whole.check()
    chosen = choose_messages(whole.session, whole.set_of(), whole.complaints.items())
    assert list(chosen.included) == whole.set_of(included)
    assert chosen.members == set(whole.members) - dropped
    assert chosen.is_beyond_bound == (len(dropped) > 1)


def test_no_more_members_are_dropped_than_those_beyond_t_plus_a() -> None:
    """Guards: t + A members remain in `choose_messages`."""
    whole = assemble(minimum=5)
    whole.send()
    for device, member in ((1, 3), (2, 4), (3, 5), (4, 6)):
        badly_shared(whole, device, [member])
    whole.check()
    with pytest.raises(OpeningError, match="4 messages remain of a minimum of 5"):
        whole.choose()


def test_a_device_does_not_choose_the_members_that_check_it() -> None:
    """Guards: at most half of the surplus is dropped.

    With its coins, a device found t + 1 = 11 of 15 honest members whose shares on no polynomial
    agree with its proof. Once the other four are dropped, the sum would not open.
    """
    numbers = CommitteeParameters(members=20, corrupt=5, dropouts=5, threshold=10)
    session = assemble(1, numbers).session
    messages = [bytes([number]) * 32 for number in range(10)]
    complaints = {member: ComplaintList((), bytes(64)) for member in range(1, 21)}
    complaints |= {member: ComplaintList((messages[0],), bytes(64)) for member in range(17, 21)}
    chosen = choose_messages(session, messages, complaints.items())
    assert list(chosen.included) == messages[1:]
    assert not chosen.is_beyond_bound


# False complaints


def test_liars_with_malicious_devices_do_not_stop_a_sum_with_enough_honest_messages() -> None:
    """Guards: all sets of members are tried. The complaints of 8 and 9, who lie, weigh less."""
    session, messages = assemble(minimum=5).session, [bytes([n]) * 32 for n in range(8)]
    named = {3: messages[:3], 4: messages[:2], 8: messages[3:5], 9: messages[5:7]}
    lists = {each: ComplaintList(tuple(named.get(each, ())), bytes(64)) for each in range(1, 10)}
    chosen = choose_messages(session, messages, lists.items())
    assert (list(chosen.included), chosen.members) == (messages[3:], set(range(1, 8)))


def complain(whole: Round, member: int, devices: Any) -> None:
    """Let `member` complain about the messages of `devices`, without a reason."""
    listed = tuple(whole.set_of(devices))
    signed = whole.session.complaints_statement(member, b"".join(listed))
    identity = whole.states[member].identity
    whole.complaints[member] = ComplaintList(listed, identity.sign(signed))
    check_complaints(whole.session, member, whole.complaints[member])


def test_colluding_members_that_complain_about_every_device_are_dropped(whole: Round) -> None:
    """Guards: the weights in `choose_messages`: otherwise two members would exclude everything.

    One of them is half of the surplus, so that the sum is beyond the bound.
    """
    whole.check()
    for member in COLLUDING:
        complain(whole, member, range(6))
    included, members = whole.choose()
    assert list(included) == whole.set_of()
    assert members == set(HONEST)
    whole.agree(included, members)
    whole.release()
    assert same(whole.open().total, whole.plain_sum(range(6)))


def test_a_message_with_a_complaint_more_than_a_is_excluded(whole: Round) -> None:
    """Guards: the limit of A complaints."""
    whole.check()
    for member in (1, 2, 3):
        complain(whole, member, [VICTIM])
    included, members = whole.choose()
    assert list(included) == whole.set_of([1, 2, 3, 4, 5])
    assert members == set(whole.members)


def test_honest_members_are_not_dropped_for_a_message_that_is_proven_faulty() -> None:
    """Guards: the limit of A complaints, where more than A members can be dropped."""
    whole = assemble(parameters=CommitteeParameters(members=9, corrupt=1, dropouts=3, threshold=5))
    whole.send()
    badly_shared(whole, VICTIM, [3, 4])
    whole.check()
    included, able = whole.choose()
    assert list(included) == whole.set_of([1, 2, 3, 4, 5])
    assert able == set(whole.members)


def test_complaints_about_too_many_messages_open_no_sum(whole: Round) -> None:
    whole.check()
    for member in (1, 2, 3):
        complain(whole, member, range(5))
    with pytest.raises(OpeningError, match="does not open: 1 messages remain of a minimum of 2"):
        whole.choose()


def test_complaints_that_another_signed_or_that_repeat_are_refused(whole: Round) -> None:
    """Guards: `check_complaints`."""
    whole.check()
    session, digest = whole.session, whole.digest(VICTIM)
    complain(whole, 1, [VICTIM])
    with pytest.raises(FaultyParticipantError, match="participant 3 did not sign its complaints"):
        check_complaints(session, 3, whole.complaints[1])
    with pytest.raises(FaultyParticipantError, match="complained twice"):
        check_complaints(session, 1, replace(whole.complaints[1], messages=(digest, digest)))


def test_choices_ignore_complaints_about_unknown_messages(whole: Round) -> None:
    whole.check()
    listed = (bytes(32),)
    signed = whole.session.complaints_statement(3, bytes(32))
    whole.complaints[3] = ComplaintList(listed, whole.states[3].identity.sign(signed))
    chosen = choose_messages(whole.session, whole.set_of(), whole.complaints.items())
    assert list(chosen.included) == whole.set_of()
    assert chosen.members == set(whole.members)


def test_complaints_about_unknown_messages_exclude_no_other_message(whole: Round) -> None:
    """Guards: without the check, the two members that can be dropped are the colluding ones."""
    complaints = {member: ComplaintList((), bytes(64)) for member in whole.members}
    for member in COLLUDING:
        complaints[member] = ComplaintList((bytes([member]) * 32,), bytes(64))
    complaints[3] = ComplaintList((whole.digest(VICTIM),), bytes(64))
    chosen = choose_messages(whole.session, whole.set_of(), complaints.items())
    assert list(chosen.included) == whole.set_of()
    assert chosen.members == set(whole.members) - {3}


# Lying members


def test_colluding_members_cannot_make_an_honest_one_a_liar(whole: Round) -> None:
    """Guards: `- A` in `CommitteeParameters.correctable`.

    Of 8 sums, two colluding members move theirs by a polynomial that is zero at all honest members
    but one. A decoder that corrects (received - t) / 2 would name the honest one, and return a
    wrong sum.
    """
    whole.check()
    whole.agree(whole.set_of())
    members = range(1, 9)
    whole.release(members)
    sharing, session = whole.session.sharing, whole.session
    roots = [4, 5, 6, 7]  # degree t - 1 = 4; the honest member 3 and 8 are moved alone
    for member in COLLUDING:
        offset = int(np.prod([member - root for root in roots])) % sharing.lane.q
        sums = (sharing.unpack_sum(whole.sums[member].packed) + offset) % sharing.lane.q
        packed = sharing.add_columns(sums[np.newaxis])
        state = whole.agreed[member]
        signed = session.sum_statement(member, state.set_digest, packed)
        whole.sums[member] = replace(
            whole.sums[member], packed=packed, signature=state.identity.sign(signed)
        )
        check_sum(session, member, state.set_digest, whole.sums[member])
    with pytest.raises(OpeningError, match="at most 1 false ones") as failure:
        whole.open()
    assert not failure.value.blamed
    del whole.sums[8]  # 7 sums: 3 is the only honest one that is moved
    with pytest.raises(OpeningError, match="at most 0 false ones"):
        whole.open()


@pytest.mark.parametrize("member", [0, 10])
def test_a_member_does_not_count_twice_under_another_number(whole: Round, member: int) -> None:
    """Guards: `OneShotSession.member_identity`."""
    whole.check()
    whole.agree(whole.set_of())
    whole.release()
    session, digest, last = whole.session, whole.agreed[9].set_digest, whole.states[9].identity
    packed = whole.sums[9].packed
    signature = last.sign(session.sum_statement(member, digest, packed))
    with pytest.raises(FaultyParticipantError, match="is not in the committee"):
        check_sum(session, member, digest, MemberSum(packed, signature))
    complaint = last.sign(session.complaints_statement(member, b""))
    with pytest.raises(FaultyParticipantError, match="is not in the committee"):
        check_complaints(session, member, ComplaintList((), complaint))
    signed = last.sign(session.set_statement(member, digest))
    with pytest.raises(FaultyParticipantError, match="did not sign the set"):
        check_set_signature(session, member, digest, signed)


def test_more_liars_than_a_are_not_corrected(whole: Round) -> None:
    """Guards: the limit of A liars over all columns."""
    whole.check()
    whole.agree(whole.set_of())
    whole.release()
    sharing = whole.session.sharing
    for member, column in ((3, 0), (4, 0), (5, 1)):
        sums = sharing.unpack_sum(whole.sums[member].packed)[np.newaxis]
        sums[0, column] = (sums[0, column] + 1) % sharing.lane.q
        whole.sums[member] = replace(whole.sums[member], packed=sharing.add_columns(sums))
    with pytest.raises(OpeningError, match="more than 2 members lie"):
        whole.open()


def test_a_sum_that_its_member_did_not_sign_is_refused(whole: Round) -> None:
    """Guards: `check_sum`."""
    whole.check()
    whole.agree(whole.set_of())
    whole.release()
    session, digest, sums = whole.session, whole.agreed[3].set_digest, whole.sums
    for member, wrong, set_digest in (
        (3, sums[4], digest),
        (3, replace(sums[3], packed=sums[4].packed), digest),
        (3, sums[3], bytes(32)),
    ):
        with pytest.raises(FaultyParticipantError, match="participant 3 did not sign the sum"):
            check_sum(session, member, set_digest, wrong)
    for packed in (sums[3].packed[:-1], b"\xff" * len(sums[3].packed)):
        with pytest.raises(FaultyParticipantError, match="participant 3 sent no sum"):
            check_sum(session, 3, digest, replace(sums[3], packed=packed))

"""Attacks of a server, of colluding members and of malicious devices, and their defences.

The committee has 9 members, of which members 1 and 2 collude (A = 2). `Guards:` names the check
without which a test fails.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secagg.errors import FaultyParticipantError, OutOfPhaseError, UnsafeRequestError
from secagg.keys import Identity, KeyPair
from secagg.oneshot.committee import Committee, sign_committee
from secagg.oneshot.field import FieldMatrix, lagrange_matrix
from secagg.oneshot.member import Checked, volunteer_again
from secagg.oneshot.member_messages import ComplaintList
from secagg.oneshot.message import (
    DeviceMessage,
    FaultyMessageError,
    Layout,
    check_message,
    encrypt_shares,
    expand_shares,
    make_message,
)
from secagg.oneshot.opening import check_complaints, check_set_signature
from secagg.oneshot.sharing import secret_points
from secagg.ring import Vector
from tests.secagg.oneshot.conftest import (
    PARAMETERS,
    PLAN,
    Round,
    assemble,
    badly_shared,
    same,
    with_signature,
)

COLLUDING, P = (1, 2), 521
HONEST = range(3, 10)
VICTIM = 0


def test_sums_over_two_sets_would_reveal_a_device(whole: Round) -> None:
    """Guards nothing: it shows that the sums of members over different sets reveal a vector."""
    whole.check()
    session, sharing = whole.session, whole.session.sharing
    states, digest = [whole.checked[member] for member in range(3, 8)], whole.digest(VICTIM)
    differences = np.stack([state._shares[state.messages[digest].place] for state in states])
    matrix = lagrange_matrix(P, range(3, 8), secret_points(session.parameters))
    secrets = FieldMatrix(P, matrix) @ differences
    assert (sharing.elements_of(secrets) == whole.vector(VICTIM)[0]).all()


# Altered shares, and complaints that would open them


def altered(whole: Round, member: int, place: int, bit: int) -> list[bytes]:
    layout, columns = Layout.of(whole.session), whole.columns(member)
    parts = layout.split(columns[place], layout.column_sizes(member))
    parts[3] = bytes([parts[3][0] ^ 1 << bit]) + parts[3][1:]
    columns[place] = b"".join(parts)
    return columns


@pytest.mark.parametrize("bit", range(8))
def test_a_share_that_the_server_altered_is_left_out_without_a_complaint(
    whole: Round, bit: int
) -> None:
    """Guards: the signature in `_Checking._add_batch`. A complaint would be an oracle for bits."""
    whole.check([5], {5: altered(whole, 5, VICTIM, bit)})
    assert whole.complaints[5].messages == ()
    assert whole.digest(VICTIM) not in whole.checked[5].messages
    with pytest.raises(UnsafeRequestError, match="no valid share of"):
        whole.checked[5].agree(whole.set_of())


def test_an_alteration_that_the_degree_test_misses_is_left_out_too(whole: Round) -> None:
    """Guards: the path of the share in `_Checking._add_batch`.

    The server flips bits of two columns so that their combination with known coins is zero. Here
    the test does so with the share itself; the server needs a guess of four bits. With the path,
    the altered share has other coins.
    """
    session, member = whole.session, 5
    sharing, layout = session.sharing, Layout.of(session)
    columns = whole.columns(member)
    parts = layout.split(columns[VICTIM], layout.column_sizes(member))
    opening, share = whole.messages[VICTIM].opening(session), shares_of(whole, member)
    ((weights,),) = sharing.coins([opening.coin_key])[:, :1]
    forged = share.copy()
    forged[0] = (share[0] + 1) % P
    forged[sharing.columns :] = (share[sharing.columns :] + (P - weights)) % P
    proofs = np.frombuffer(parts[5] * 2, np.uint8).reshape(2, -1)
    rows = np.stack([forged, share])
    passes = sharing.check(member, rows, proofs, [opening.coin_key] * 2)
    assert passes.all()  # the degree test alone accepts it
    changes = np.bitwise_xor(*sharing.share_packing.pack(rows))
    parts[3] = bytes(a ^ b for a, b in zip(parts[3], changes.tolist(), strict=True))
    columns[VICTIM] = b"".join(parts)
    whole.check([member], {member: columns})
    assert whole.complaints[member].messages == ()
    assert whole.digest(VICTIM) not in whole.checked[member].messages


def shares_of(whole: Round, member: int) -> NDArray[np.uint64]:
    """Return the share of the victim's message that `member` decrypts or expands."""
    session, message = whole.session, whole.messages[VICTIM]
    opening = message.opening(session)
    secret = whole.states[member]._pair.agree(opening.key)  # type: ignore[union-attr]
    if member <= session.parameters.corrupt:
        key = session.expansion(opening.label, member).keystream(secret)
        return session.sharing.expand(key)
    encrypted = message.encrypted_shares(session)[member - 1]
    pad = session.share_purpose(opening.label, member).pad(secret, len(encrypted))
    share = bytes(a ^ b for a, b in zip(encrypted, pad, strict=True))
    packing = session.sharing.share_packing
    return packing.unpack(np.frombuffer(share, np.uint8)[np.newaxis])[0][0]


def guessing_message(whole: Round, guess: Vector, member: int) -> DeviceMessage:
    """Return the victim's message with a degree proof that holds if `guess` is its vector.

    The guess and the shares of the colluders determine the share of `member`, and the proof its
    blinds. An altered share of another makes other coins, for which a constant proof is right.
    """
    session, message = whole.session, whole.messages[VICTIM]
    changed = replace(message, shares=bytes([message.shares[0] ^ 1]) + message.shares[1:])
    sharing, parameters = session.sharing, session.parameters
    keys = [each.opening(session).coin_key for each in (message, changed)]
    nodes = [*secret_points(parameters), *COLLUDING]
    known = [shares_of(whole, member)[: sharing.columns] for member in COLLUDING]
    row = lagrange_matrix(P, nodes, [member]).astype(object)
    first, second = sharing.coins(keys).astype(object)
    (share,) = row @ np.vstack([sharing.arrange(guess[0]), *known]).astype(object) % P
    (tau,), _ = sharing.proof_packing.unpack(np.frombuffer(message.proof, np.uint8)[np.newaxis])
    (tau_of_member,) = row @ tau.reshape(-1, sharing.blinds).astype(object) % P
    constant = (tau_of_member + share @ (second - first)) % P
    values = np.tile(constant.astype(np.uint64), (1, parameters.threshold))
    proof = sharing.proof_packing.pack(values).tobytes()
    return replace(changed, proof=proof)


@pytest.mark.parametrize("is_right", [True, False])
def test_a_guess_of_a_vector_is_not_answered(whole: Round, is_right: bool) -> None:
    """Guards: the signature in `_Checking._add_batch`, of every message and before its proof.

    If the member signed a set with the message, or complained of it, this would answer the guess.
    """
    member, guess = 5, [lane.copy() for lane in whole.vector(VICTIM)]
    if not is_right:
        guess[0][0] = (int(guess[0][0]) + 1) % P
    message = guessing_message(whole, tuple(guess), member)
    assert is_valid(whole, message, member) == is_right  # without its signature
    whole.messages[VICTIM] = message
    whole.check()
    assert whole.complaints[member].messages == ()
    with pytest.raises(UnsafeRequestError, match="no valid share of"):
        whole.checked[member].agree(whole.set_of())


def is_valid(whole: Round, message: DeviceMessage, member: int) -> bool:
    """Return whether the victim's share for `member` agrees with the degree proof of `message`."""
    sharing, shares = whole.session.sharing, shares_of(whole, member)[np.newaxis]
    proofs = np.frombuffer(message.proof, np.uint8)[np.newaxis]
    coin_key = message.opening(whole.session).coin_key
    return bool(sharing.check(member, shares, proofs, [coin_key]))


def test_a_complaint_is_a_digest_and_a_signature_and_has_no_pad(whole: Round) -> None:
    """Guards: complaints open no share. A false one reveals only public bytes, and no answer."""
    bad = badly_shared(whole, 1, HONEST)
    whole.check()
    for member in HONEST:
        complaints = whole.complaints[member]
        assert complaints.messages == (bad.digest(whole.session),)
        signed = whole.session.complaints_statement(member, complaints.messages[0])
        assert complaints == ComplaintList(
            (bad.digest(whole.session),), whole.states[member].identity.sign(signed)
        )
    assert not hasattr(whole.states[3], "answer")
    assert not hasattr(whole.checked[3], "answer")


# Two sets, and releases without agreement


def test_two_sets_are_not_both_released(whole: Round) -> None:
    """Guards: m - D signatures, under one set (`Agreed.release`)."""
    whole.check()
    first, second = whole.set_of(), whole.set_of([1, 2, 3, 4, 5])
    whole.agree(first, [3, 4, 5, 6, 7])
    whole.agree(second, [8, 9])
    session = whole.session

    def signatures_of(included: list[bytes]) -> dict[int, bytes]:
        digest = session.set_digest(included)
        signed = {
            member: whole.states[member].identity.sign(session.set_statement(member, digest))
            for member in COLLUDING
        }
        return whole.signatures | signed

    def releases(member: int, signatures: dict[int, bytes]) -> bool:
        try:
            whole.agreed[member].release(signatures)
        except UnsafeRequestError:
            return False
        return True

    assert session.parameters.needed_signatures == 7
    assert not any(releases(member, signatures_of(second)) for member in HONEST)
    released = [member for member in HONEST if releases(member, signatures_of(first))]
    assert released == [3, 4, 5, 6, 7]


def test_an_early_release_is_refused(whole: Round) -> None:
    """Guards: the number of valid signatures, of listed members, under this set."""
    whole.check()
    included = whole.set_of()
    whole.agree(included)
    state, signatures = whole.agreed[9], whole.signatures
    six = {member: signatures[member] for member in range(4, 10)}
    stranger = Identity.of(b"s" * 32)
    for shown in (
        {},
        six,
        {**six, 3: signatures[5]},  # the signature of another member
        {**six, 10: signatures[9], 0: signatures[9], -1: signatures[9]},
        {**six, 3: stranger.sign(whole.session.set_statement(3, state.set_digest))},
        {**six, 3: bytes(64)},
        dict.fromkeys(range(1, 10), signatures[9]),
    ):
        with pytest.raises(UnsafeRequestError, match="signatures of my set"):
            state.release(shown)
    state.release({**six, 3: signatures[3]})


def test_a_member_signs_one_set_only(whole: Round) -> None:
    """Guards: `Checked` is spent by `agree`."""
    whole.check()
    state = whole.checked[4]
    state.agree(whole.set_of())
    for included in (whole.set_of(), whole.set_of([1, 2, 3])):
        with pytest.raises(OutOfPhaseError, match="has taken its step"):
            state.agree(included)


def test_a_member_that_starts_again_releases_the_sum_of_the_set_that_it_signed(
    whole: Round,
) -> None:
    """Guards: `agree_again` compares the set with the one in the journal, and needs its shares."""
    pair = whole.states[4]._pair
    assert pair is not None

    def restart(columns: list[bytes]) -> Checked:
        identity, number = whole.states[4].identity, whole.session.committee.number
        again = volunteer_again(identity, pair.secret, PLAN, number)
        return again.check(whole.session, columns)[0]

    whole.check()
    included = whole.set_of([1, 2, 3])
    whole.agree(included)
    whole.release()
    signed, columns = whole.session.set_digest(included), whole.columns(4)
    gap = altered(whole, 4, 2, 0)
    for shown, seen, fault in (
        (whole.set_of(), columns, "other messages than those that I signed"),
        (included, gap, "no valid share of"),
    ):
        with pytest.raises(UnsafeRequestError, match=fault):
            restart(seen).agree_again(shown, signed)
    again = restart(columns).agree_again(included, signed)
    assert again.release(whole.signatures) == whole.sums[4]


def test_a_member_that_refused_a_set_signs_no_other(whole: Round) -> None:
    """Guards: `agree` is spent before its checks: a server may not try sets until one passes."""
    whole.check()
    state = whole.checked[4]
    with pytest.raises(UnsafeRequestError):
        state.agree([])
    with pytest.raises(OutOfPhaseError):
        state.agree(whole.set_of())


def test_a_member_checks_once_and_releases_once(whole: Round) -> None:
    """Guards: `Volunteered` and `Agreed` are spent by their steps, and secrets are dropped."""
    whole.check()
    with pytest.raises(OutOfPhaseError, match="checked already"):
        whole.check([3])
    assert whole.states[3]._pair is None
    whole.agree(whole.set_of())
    whole.release()
    with pytest.raises(OutOfPhaseError, match="released already"):
        whole.agreed[3].release(whole.signatures)
    assert not whole.agreed[3]._shares.size
    assert not whole.checked[3]._shares.size


# Sets that hide forged devices


def forged_message(whole: Round, number: int) -> DeviceMessage:
    """Return a message of an identity that the server made up, and enrolled itself."""
    server = Identity.of(bytes([number]) * 32)
    assert whole.session.registry is not None
    enrolment = server.sign(whole.session.registry.enrolment_statement(server.public))
    return make_message(whole.session, server, enrolment, whole.session.ring.zero(), whole.rng)


@pytest.mark.parametrize("wrong", ["enrolment", "signature"])
def test_no_set_with_a_forged_device_is_signed(whole: Round, wrong: str) -> None:
    """Guards: the enrolment and the signature in `_Checking._add_batch`."""
    message = forged_message(whole, 7)
    with pytest.raises(FaultyMessageError, match="not enrolled"):
        check_message(whole.session, message)
    if wrong == "signature":
        enrolment = whole.enrolment(message.identity)
        message = replace(message, enrolment=enrolment, signature=bytes(64))
    whole.messages[9] = message
    whole.check()
    included = whole.set_of()
    assert whole.complaints[4].messages == ()
    with pytest.raises(UnsafeRequestError, match="no valid share of"):
        whole.checked[4].agree(included)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda listed: listed[::-1], "do not strictly rise"),
        (lambda listed: [listed[0], *listed], "do not strictly rise"),
        (lambda listed: listed[:1], "fewer than the minimum of 2"),
        (lambda _: [], "fewer than the minimum of 2"),
        (lambda listed: sorted([*listed, bytes(32)]), "no valid share of"),
    ],
)
def test_a_set_that_is_not_one_is_refused(
    whole: Round, change: Callable[[list[bytes]], list[bytes]], reason: str
) -> None:
    """Guards: distinctness, minimum and known messages in `Checked.agree`."""
    whole.check()
    with pytest.raises(UnsafeRequestError, match=reason):
        whole.checked[4].agree(change(whole.set_of()))


def test_two_messages_of_one_device_are_not_in_one_set(whole: Round) -> None:
    """Guards: distinct identities in `Checked.agree`: a victim alone with copies of one device."""
    whole.messages[9] = whole.make(3)
    whole.check()
    with pytest.raises(UnsafeRequestError, match="two messages of one device"):
        whole.checked[4].agree(whole.set_of())


# Copies and replays


def test_a_message_copied_under_another_name_decrypts_to_noise(whole: Round) -> None:
    """Guards: the identity in `OneShotSession.label`.

    With enough copies of the victim's message, the sum would be a multiple of its vector.
    """
    copier = Identity.of(b"c" * 32)
    copy = replace(whole.messages[VICTIM], enrolment=whole.enrolment(copier.public))
    whole.messages[9] = with_signature(copy, whole.session, copier)
    check_message(whole.session, whole.messages[9])
    whole.check()
    for member in whole.members:
        assert whole.complaints[member].messages == (whole.digest(9),)
    included, _ = whole.choose()
    assert whole.digest(9) not in included


def next_round(whole: Round, plan: bytes = PLAN, number: int = 1) -> Round:
    """Return another sum with the same people, whose members offer the same keys again."""
    entries = tuple(
        replace(state, _sum=None).register(plan, number) for state in whole.states.values()
    )
    committee = Committee(plan, number, PARAMETERS, entries)
    session = replace(whole.session, committee=sign_committee(committee, whole.registrar))
    return Round(session, whole.registrar, whole.states, whole.identities, whole.rng)


@pytest.mark.parametrize("other", [{"number": 1}, {"plan": b"p" * 32, "number": 0}])
def test_nothing_of_one_sum_counts_in_another(whole: Round, other: dict[str, Any]) -> None:
    """Guards: plan digest and number in `Committee.digest`, and `Volunteered._position`."""
    later = next_round(whole, **other)
    with pytest.raises(FaultyMessageError, match="not signed"):
        check_message(later.session, whole.messages[VICTIM])
    stale = sign_committee(
        replace(later.session.committee, entries=whole.session.committee.entries), whole.registrar
    )
    for session in (later.session, replace(later.session, committee=stale)):
        with pytest.raises(UnsafeRequestError, match="without my entry for this sum"):
            whole.states[3].check(session, [])
    registered = (later.session.committee.plan_digest, later.session.committee.number)
    state = replace(whole.states[4], _sum=registered)
    columns = whole.columns(4)
    checked, complaints = state.check(later.session, columns)
    assert (checked.messages, complaints.messages) == ({}, ())
    whole.check(range(5, 10))
    whole.agree(whole.set_of())
    digest = later.session.set_digest(whole.set_of())
    with pytest.raises(FaultyParticipantError, match="did not sign the set"):
        check_set_signature(later.session, 5, digest, whole.signatures[5])
    with pytest.raises(FaultyParticipantError, match="did not sign its complaints"):
        check_complaints(later.session, 5, whole.complaints[5])


def test_a_key_is_registered_for_one_sum_only(whole: Round) -> None:
    """Guards: `Volunteered.register`."""
    state = whole.states[3]
    assert state.register(PLAN, 0) == whole.session.committee.entries[2]
    for plan, number in ((PLAN, 1), (b"p" * 32, 0)):
        with pytest.raises(OutOfPhaseError, match="for one sum only"):
            state.register(plan, number)


def test_a_low_order_key_is_complained_about(whole: Round) -> None:
    """Guards: `_Checking._agree`. Members 1 and 2 would expand what everybody can compute."""
    wrong = replace(whole.messages[1], key=bytes(32))
    whole.messages[1] = with_signature(wrong, whole.session, whole.identities[1])
    for member in (1, 2, 3):
        whole.check([member])
        assert whole.complaints[member].messages == (whole.digest(1),)


def test_a_key_that_agrees_on_the_secret_of_another_learns_nothing(whole: Round) -> None:
    """Guards: the member's number in `OneShotSession.expansion`.

    1 / u is the key u with a point of order 2 added, and agrees with each device on the secret of
    u. Nobody can use it, but with equal shares of members 1 and 2, one of A = 2 random values of
    each polynomial would be missing, and two colluders would have an equation on the secrets.
    """
    committee, p = whole.session.committee, 2**255 - 19
    u = int.from_bytes(committee.entries[0].key, "little")
    key = pow(u, -1, p).to_bytes(32, "little")
    entry = replace(committee.entries[1], key=key)
    twins = replace(committee, entries=(committee.entries[0], entry, *committee.entries[2:]))
    session = replace(whole.session, committee=twins)
    pair = KeyPair.generate(whole.rng)
    secrets = [pair.agree(each.key) for each in twins.entries]
    assert secrets[0] == secrets[1]
    first, second = expand_shares(session, session.label(whole.identities[0].public), secrets)
    assert np.count_nonzero(first == second) <= 1  # 14 elements modulo 521


def test_members_whose_shares_were_expanded_may_be_absent(whole: Round) -> None:
    whole.check()
    whole.agree(whole.set_of(), range(3, 10))
    whole.release()
    assert sorted(whole.sums) == [*range(3, 10)]
    assert same(whole.open().total, whole.plain_sum(range(6)))


def test_a_member_that_was_replaced_expands_other_shares(whole: Round) -> None:
    """Guards: the committee's digest in the label, from which the shares of member 1 follow."""
    later = replace(whole.session.committee, number=1)
    sessions = whole.session, replace(whole.session, committee=later)
    identity, secrets = whole.identities[0].public, [b"s" * 32] * 9
    shares = [expand_shares(each, each.label(identity), secrets)[0] for each in sessions]
    assert not np.array_equal(*shares)


def test_a_column_of_another_size_is_the_callers_mistake(whole: Round) -> None:
    columns = whole.columns(3)
    for wrong in (columns[0][:-1], columns[0] + b"\0"):
        state = replace(whole.states[3])
        with pytest.raises(ValueError, match="a column of member 3 has"):
            state.check(whole.session, [wrong])


def test_messages_of_many_batches_are_all_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secagg.oneshot.member._BATCH_ROWS", 4)
    whole = assemble(devices=9)
    whole.send()
    badly_shared(whole, 5, whole.members)
    assert same(whole.total(), whole.plain_sum([0, 1, 2, 3, 4, 6, 7, 8]))


def test_pads_differ_for_members_and_labels(whole: Round) -> None:
    """Guards: member and label in `OneShotSession.share_purpose` and `OneShotSession.expansion`.

    All members agree on one secret here, as members can whose keys differ by a point of low order.
    """
    session, secrets = whole.session, [b"s" * 32] * 9
    labels, rows = (bytes(32), b"\1" * 32), np.zeros((7, 40), np.uint8)
    pads = [encrypt_shares(session, label, secrets, rows) for label in labels]
    assert len({row.tobytes() for of_label in pads for row in of_label}) == 14
    expanded = [expand_shares(session, label, secrets) for label in labels]
    assert len({share.tobytes() for of_label in expanded for share in of_label}) == 4

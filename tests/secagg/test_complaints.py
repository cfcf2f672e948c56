"""Dealers whose shares cannot be used are left out or answer; no honest dealer is left out."""

from collections.abc import Callable, Collection
from dataclasses import replace

import pytest

from secagg import aggregator
from secagg.errors import FaultyParticipantError, UnsafeRequestError
from secagg.keys import Identity
from secagg.messages import Answers, Complaints, MaskedInput
from secagg.parameters import Assumptions
from secagg.shamir import SHARE_BYTES, P
from secagg.shares import SharePair
from tests.secagg import lying
from tests.secagg.conftest import Group, assemble, same
from tests.secagg.faulty import with_entry
from tests.secagg.lying import assert_exact, finish

N = 15
LIAR = 0
FEW_DROPOUTS = Assumptions(0.2, 0.1)  # of 30: 12 holders, threshold 9
secrets = pytest.mark.parametrize("which", ["key", "seed", "both"])


@pytest.fixture
def group() -> Group:
    group = assemble(N)
    group.share()
    return group


def spoil(group: Group, count: int, which: str) -> Collection[int]:
    """Spoil the liar's shares for its first `count` holders; return these."""
    holders = group.shared[LIAR].holders[:count]
    pairs = {holder: lying.spoiled(group, LIAR, holder, which) for holder in holders}
    lying.replace_key_shares(group, LIAR, pairs)
    return holders


# A dealer that spoils shares


@pytest.mark.parametrize("which", ["key", "seed"])
def test_a_dealer_with_one_spoiled_share_too_many_is_left_out_of_an_exact_sum(which: str) -> None:
    """The fewest that would leave less than a threshold, and fewer than a threshold complain."""
    group = assemble(30, FEW_DROPOUTS)
    parameters = group.session.parameters
    count = parameters.holders - parameters.threshold + 1
    assert count < parameters.threshold
    group.share()
    holders = spoil(group, count, which)
    group.check()
    assert group.complaints_by_dealer.keys() == {LIAR}
    assert group.complaints_by_dealer[LIAR].keys() == set(holders)
    assert group.transcript.share_commitments.keys() == group.all_slots - {LIAR}
    assert_exact(group, finish(group, dropouts=[29]))
    assert group.masked_inputs.keys() == group.all_slots - {LIAR, 29}


@secrets
def test_a_single_spoiled_share_suffices_to_leave_its_dealer_out(group: Group, which: str) -> None:
    holders = spoil(group, 1, which)
    group.check()
    assert group.complaints_by_dealer == {
        LIAR: {h: group.complaints[h].signatures[LIAR] for h in holders}
    }
    assert LIAR not in group.transcript.share_commitments
    assert_exact(group, finish(group))


@pytest.mark.parametrize("how", ["swapped", "another commitment", "the other secret"])
def test_all_pairs_that_a_holder_cannot_use_are_complained_about(group: Group, how: str) -> None:
    first, second = group.shared[LIAR].holders[:2]
    pairs = lying.share_pairs(group, LIAR)
    if how == "swapped":
        wrong = {first: pairs[second], second: pairs[first]}
    elif how == "another commitment":
        wrong = {
            first: replace(pairs[first], seed=replace(pairs[first].seed, commitment=bytes(32)))
        }
    else:
        wrong = {first: replace(pairs[first], key=pairs[first].seed)}
    lying.replace_key_shares(group, LIAR, wrong)
    group.check()
    assert group.complaints_by_dealer[LIAR].keys() == wrong.keys()


@pytest.mark.parametrize("survives", [True, False])
def test_a_dealer_that_answers_with_its_shares_costs_nothing(group: Group, survives: bool) -> None:
    """No holder can decrypt a share of it, and its secret is recovered from its answers."""
    garbage = dict[int, SharePair]()
    for holder, pair in lying.share_pairs(group, LIAR).items():
        key, seed = (replace(share, ciphertext=bytes(33)) for share in (pair.key, pair.seed))
        garbage[holder] = SharePair(key, seed)
    lying.replace_key_shares(group, LIAR, garbage)
    group.check()
    assert group.complaints_by_dealer[LIAR].keys() == garbage.keys()
    assert LIAR in group.answer().share_commitments
    assert_exact(group, finish(group, dropouts=[] if survives else [LIAR]))


@pytest.mark.parametrize("which", ["key", "seed"])
def test_a_dealer_that_committed_to_garbage_cannot_answer(group: Group, which: str) -> None:
    spoil(group, 1, which)
    group.check()
    with pytest.raises(FaultyParticipantError, match="committed to another share"):
        group.answer()


def test_a_dealer_that_committed_to_no_field_element_cannot_answer(group: Group) -> None:
    outside, holder = P.to_bytes(SHARE_BYTES, "big"), group.shared[LIAR].holders[0]
    lying.send_shares(group, LIAR, "seed", {holder: outside})
    group.shared[LIAR].dealt.of_seed[0] = outside
    group.check()
    assert group.complaints_by_dealer[LIAR].keys() == {holder}
    with pytest.raises(FaultyParticipantError, match="committed to another share"):
        group.answer()


def test_a_masked_input_of_a_dealer_that_was_left_out_is_a_fault(group: Group) -> None:
    spoil(group, 1, "both")
    transcript = group.check()
    vector = b"signed by the dealer"
    signed = transcript.masked_input_statement(LIAR, MaskedInput(vector, b"").signed_input.digest)
    message = MaskedInput(vector, group.identities[LIAR].sign(signed))
    with pytest.raises(FaultyParticipantError, match="did not answer all complaints") as caught:
        aggregator.check_masked_input(transcript, LIAR, message)
    assert caught.value.participant == LIAR


# Complaints against an honest dealer


@pytest.mark.parametrize("survives", [True, False])
def test_false_complaints_of_all_corrupt_holders_leave_no_honest_dealer_out(survives: bool) -> None:
    """The most corrupt participants that are assumed complain about all others, then drop out."""
    group = assemble(30)
    group.check()
    corrupt = range(group.session.assumptions.max_corrupt(30))
    for liar in corrupt:
        lying.complain(group, liar, group.received[liar].dealers)
    transcript = group.answer()
    assert transcript.share_commitments.keys() == group.all_slots
    present = group.all_slots - set(corrupt)
    masking = present if survives else present - {29}
    group.mask(masking)
    group.reveal()
    assert same(group.unmask(), group.plain_sum(masking))


def test_answered_shares_replace_those_of_the_holders(group: Group) -> None:
    """A threshold of the liar's victim's holders complain: its seed needs their shares."""
    victim, t = 5, group.session.parameters.threshold
    group.check()
    holders = group.shared[victim].holders
    for holder in holders[: len(holders) + 2 - t]:
        lying.complain(group, holder, [victim])
        state = group.checked[holder]
        del state.key_shares[victim], state.seed_shares[victim]
    group.answer()
    assert_exact(group, finish(group))
    revealing = [h for h in holders if victim in group.unmasking_shares[h].seed_shares]
    assert len(revealing) + 1 < t
    group.answers.clear()
    group.complaints = {slot: Complaints({}) for slot in group.complaints}
    with pytest.raises(FaultyParticipantError, match=f"did not reveal the share of {victim}"):
        lying.unmask(group, group.unmasking_shares)


def test_complaints_about_a_dealer_that_did_not_check_count_for_nothing(group: Group) -> None:
    spoil(group, 1, "both")
    group.check(group.all_slots - {LIAR})
    assert not group.complaints_by_dealer
    assert group.transcript.share_commitments.keys() == group.all_slots - {LIAR}


# A server that provokes answers


def test_no_answer_to_a_complaint_about_another_pair_than_was_sent(group: Group) -> None:
    """Guards: the pair in `Session.complaint_statement`.

    A server alters a pair on its way, so that an honest holder complains: its share is a secret.
    """
    holder = group.shared[LIAR].holders[0]
    altered = {**group.received[holder], LIAR: lying.spoiled(group, LIAR, holder, "seed")}
    _, complaints = group.shared[holder].check(altered)
    assert complaints.signatures.keys() == {LIAR}
    group.check(group.all_slots - {holder})
    with pytest.raises(UnsafeRequestError, match="never made"):
        group.checked[LIAR].answer({holder: complaints.signatures[LIAR]})


def test_no_answer_to_a_complaint_under_another_roster(group: Group) -> None:
    """Guards: the label in `Session.complaint_statement`.

    A holder that was shown another roster cannot decrypt the true pair, and complains about it.
    """
    holder = group.shared[LIAR].holders[0]
    session = with_entry(group.session, 14 if holder != 14 else 13, signature=bytes(64))
    state = replace(group.shared[holder], session=session)
    _, complaints = state.check(group.received[holder])
    assert LIAR in complaints.signatures
    group.check(group.all_slots - {holder})
    with pytest.raises(UnsafeRequestError, match="never made"):
        group.checked[LIAR].answer({holder: complaints.signatures[LIAR]})


@pytest.mark.parametrize("who", ["no holder", "another holder", "forged"])
def test_only_complaints_of_holders_are_answered(who: str) -> None:
    group = assemble(30)
    group.check()
    victim, holders = group.checked[LIAR], group.shared[LIAR].holders
    others = sorted(group.all_slots - {LIAR, *holders})
    complaining = holders[0] if who != "no holder" else others[0]
    pair = lying.share_pairs(group, LIAR)[holders[0]].pack()
    signing = holders[1] if who == "another holder" else complaining
    signature = group.identities[signing].sign(
        group.session.complaint_statement(complaining, LIAR, pair)
    )
    shown = {complaining: bytes(64) if who == "forged" else signature}
    with pytest.raises(UnsafeRequestError, match=r"never made|not a holder"):
        victim.answer(shown)


# Messages that the server refuses


BAD_COMPLAINTS: dict[str, Callable[[Group, int, Complaints], Complaints]] = {
    "unsigned": lambda _g, _h, message: replace(message, signature=bytes(64)),
    "of another holder": lambda g, h, _: g.complaints[(h + 1) % N],
    "added to": lambda g, h, message: replace(
        message, signatures={g.received[h].dealers[0]: bytes(64)}
    ),
}


@pytest.mark.parametrize("how", BAD_COMPLAINTS)
def test_complaints_that_their_holder_did_not_sign_are_a_fault(group: Group, how: str) -> None:
    group.check()
    message = BAD_COMPLAINTS[how](group, 3, group.complaints[3])
    with pytest.raises(FaultyParticipantError, match="did not sign") as caught:
        aggregator.check_complaints(group.session, 3, group.received[3], message)
    assert caught.value.participant == 3


def test_complaints_about_other_pairs_than_were_sent_are_a_fault(group: Group) -> None:
    """Guards: the digest of all received pairs, and the pair in each complaint."""
    dealer = group.received[3].dealers[0]
    altered = {**group.received[3], dealer: lying.spoiled(group, dealer, 3, "key")}
    _, message = group.shared[3].check(altered)
    with pytest.raises(FaultyParticipantError, match="did not sign"):
        aggregator.check_complaints(group.session, 3, group.received[3], message)
    signed = group.session.complaints_statement(3, group.received[3].digest, message.signed_bytes())
    resigned = replace(message, signature=group.identities[3].sign(signed))
    with pytest.raises(FaultyParticipantError, match="did not sign"):
        aggregator.check_complaints(group.session, 3, group.received[3], resigned)


def test_a_holder_of_another_valid_pair_than_was_sent_counts_as_missing(group: Group) -> None:
    """Guards: the digest of all received pairs, so that a holder is not blamed later.

    The dealer lets a false pair be forwarded, which is encrypted correctly. The holder does not
    complain, and would reveal shares that differ from the dealer's commitments.
    """
    holder = group.shared[LIAR].holders[0]
    sent = group.received[holder]
    false = {holder: lying.false(lying.seed_shares(group, LIAR)[holder])}
    lying.send_shares(group, LIAR, "seed", false)
    _, message = group.shared[holder].check(group.received[holder])
    assert not message.signatures
    with pytest.raises(FaultyParticipantError, match="did not sign"):
        aggregator.check_complaints(group.session, holder, sent, message)


def test_a_complaint_about_a_participant_that_sent_nothing_is_a_fault() -> None:
    group = assemble(30)
    group.check()
    signatures = {next(s for s in group.all_slots - {3} if s not in group.received[3]): bytes(64)}
    signed = group.session.complaints_statement(
        3, group.received[3].digest, Complaints(signatures).signed_bytes()
    )
    message = Complaints(signatures, group.identities[3].sign(signed))
    with pytest.raises(FaultyParticipantError, match="which sent it no share"):
        aggregator.check_complaints(group.session, 3, group.received[3], message)


def falsely(answers: Answers, holder: int, which: str) -> Answers:
    if which == "key":
        return replace(answers, key_shares={**answers.key_shares, holder: bytes(SHARE_BYTES)})
    return replace(answers, seed_shares={**answers.seed_shares, holder: bytes(SHARE_BYTES)})


@pytest.mark.parametrize("how", ["key", "seed", "none", "more", "unsigned", "out of the field"])
def test_answers_that_do_not_settle_the_complaints_are_a_fault(group: Group, how: str) -> None:
    group.check()
    holder, other = group.shared[5].holders[:2]
    lying.complain(group, holder, [5])
    group.answer()
    answers = group.answers[5]
    if how in {"key", "seed"}:
        answers = falsely(answers, holder, how)
    elif how == "none":
        answers = Answers({}, {})
    elif how == "more":
        shares = lying.key_shares(group, 5)[other], lying.seed_shares(group, 5)[other]
        answers = Answers(
            {**answers.key_shares, other: shares[0]}, {**answers.seed_shares, other: shares[1]}
        )
    elif how == "out of the field":
        answers = replace(answers, seed_shares={holder: b"\xff" * SHARE_BYTES})
    signer = Identity.of(bytes(32)) if how == "unsigned" else group.identities[5]
    signed = group.session.answers_statement(5, answers.signed_bytes())
    group.answers[5] = replace(answers, signature=signer.sign(signed))
    with pytest.raises(FaultyParticipantError) as caught:
        group.check_answers(5)
    assert caught.value.participant == 5

"""Checks of arriving messages by the server, and the shares that it requests."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from secagg import aggregator
from secagg.errors import FaultyParticipantError
from secagg.messages import MaskedInput, ReceivedShares, UnmaskingShares
from secagg.shamir import SHARE_BYTES, P
from tests.secagg import lying
from tests.secagg.conftest import Group, assemble
from tests.secagg.faulty import with_commitment

N = 15
DROPOUT = 3  # shares, and drops out before it masks
ALL_SLOTS = frozenset(range(N))
SURVIVORS = ALL_SLOTS - {DROPOUT}


@pytest.fixture(scope="module")
def group() -> Group:
    """Return a group with one dropout that is ready to be unmasked; do not change it."""
    group = assemble(N)
    group.share()
    group.mask(SURVIVORS)
    group.confirm()
    group.reveal()
    return group


def assert_fault(slot: int, match: str, check: Callable[..., None], *args: object) -> None:
    with pytest.raises(FaultyParticipantError, match=match) as caught:
        check(*args)
    assert caught.value.participant == slot


# Key shares, masked inputs and confirmations


def test_key_shares_of_a_wrong_number_are_a_fault(group: Group) -> None:
    message, check = group.key_shares[0], partial(aggregator.check_key_shares, group.session, 0)
    check(message)
    shares = tuple(message.encrypted_shares)
    for wrong in (shares[:-1], (*shares, shares[0]), ()):
        match = f"sent {len(wrong)} shares to {len(shares)} holders"
        assert_fault(0, match, check, replace(message, encrypted_shares=wrong))


@pytest.mark.parametrize("field", ["graph_nonce", "encrypted_shares", "signature"])
def test_key_shares_that_their_dealer_did_not_sign_are_a_fault(group: Group, field: str) -> None:
    forged = replace(group.key_shares[0], **{field: getattr(group.key_shares[1], field)})
    assert_fault(0, "did not sign", aggregator.check_key_shares, group.session, 0, forged)


def test_key_shares_of_another_participant_or_cohort_are_a_fault(group: Group) -> None:
    check, message = aggregator.check_key_shares, group.key_shares[0]
    assert_fault(1, "did not sign", check, group.session, 1, message)
    other_session = replace(group.session, plan_digest=bytes(32))
    assert_fault(0, "did not sign", check, other_session, 0, message)


def with_seed_shares(masked_input: MaskedInput, **fields: object) -> MaskedInput:
    seed_shares = replace(masked_input.seed_shares, **fields)  # type: ignore[arg-type]
    return replace(masked_input, seed_shares=seed_shares)


def test_a_masked_input_with_a_wrong_number_of_seed_shares_is_a_fault(group: Group) -> None:
    message = group.masked_inputs[0]
    check = partial(aggregator.check_masked_input, group.transcript, 0)
    check(message)
    shares = tuple(message.seed_shares.encrypted_shares)
    for wrong in (shares[:-1], (*shares, shares[0])):
        match = f"sent {len(wrong)} shares of its seed to {len(shares)} holders"
        assert_fault(0, match, check, with_seed_shares(message, encrypted_shares=wrong))


def test_a_masked_input_that_its_sender_did_not_sign_is_a_fault(group: Group) -> None:
    message, other = group.masked_inputs[0], group.masked_inputs[1]
    check = aggregator.check_masked_input
    shares = message.seed_shares.encrypted_shares
    for forged in (
        replace(message, vector=other.vector),
        replace(message, signature=other.signature),
        with_seed_shares(message, seed_commitment=bytes(32)),
        with_seed_shares(message, own_share_commitment=bytes(32)),
        with_seed_shares(message, encrypted_shares=shares[::-1]),
    ):
        assert_fault(0, "did not sign", check, group.transcript, 0, forged)
    assert_fault(1, "did not sign|holders", check, group.transcript, 1, message)


def test_a_masked_input_under_another_transcript_is_a_fault(group: Group) -> None:
    other = with_commitment(group.transcript, 5, shares_digest=bytes(32))
    check = aggregator.check_masked_input
    assert_fault(0, "did not sign", check, other, 0, group.masked_inputs[0])


def test_a_confirmation_of_another_statement_is_a_fault(group: Group) -> None:
    check, signature = aggregator.check_confirmation, group.confirmations[0]
    check(group.transcript, 0, SURVIVORS, signature)
    for slot, survivors, shown in (
        (0, SURVIVORS - {1}, signature),
        (0, ALL_SLOTS, signature),
        (1, SURVIVORS, signature),
        (0, SURVIVORS, group.confirmations[1]),
        (0, SURVIVORS, b""),
    ):
        assert_fault(slot, "did not sign", check, group.transcript, slot, survivors, shown)


# The requested shares


def test_no_holder_receives_shares_of_both_secrets_of_a_dealer(group: Group) -> None:
    request, transcript = group.request, group.transcript
    assert request.survivors == SURVIVORS
    assert request.dropouts == {DROPOUT}
    for holder, received in request.received_shares.items():
        assert received.keys() == {o for o in ALL_SLOTS if holder in transcript.holders(o)}
        for dealer, encrypted in received.items():
            message = (
                group.key_shares[dealer]
                if dealer == DROPOUT
                else group.masked_inputs[dealer].seed_shares
            )
            assert encrypted in message.encrypted_shares
        assert ReceivedShares.unpack(received.pack()) == received  # in the order of holders
    assert request.own_share_commitments == {
        slot: message.seed_shares.own_share_commitment
        for slot, message in group.masked_inputs.items()
    }


def test_a_participant_that_did_not_share_receives_no_shares() -> None:
    group = assemble(N)
    group.share(ALL_SLOTS - {7})
    request = group.mask(ALL_SLOTS - {7, 8})
    assert request.dropouts == {8}
    assert 7 not in request.received_shares
    assert 7 not in request.own_share_commitments
    assert all(7 not in received for received in request.received_shares.values())
    holders = {holder for holder, received in request.received_shares.items() if 8 in received}
    assert holders == set(group.transcript.holders(8)) - {7}


def test_missing_key_shares_of_a_dropout_are_the_callers_mistake(group: Group) -> None:
    seeds = {slot: message.seed_shares for slot, message in group.masked_inputs.items()}
    keys = dict(group.key_shares)
    needed = {DROPOUT: keys.pop(DROPOUT)}
    with pytest.raises(ValueError, match=f"key shares of participant {DROPOUT} are missing"):
        aggregator.collect_masked_inputs(group.transcript, keys, seeds)
    aggregator.collect_masked_inputs(group.transcript, needed, seeds)


def test_one_share_too_many_does_not_make_up_for_one_too_few(group: Group) -> None:
    """Otherwise the shares of all dealers between the two would go to wrong holders."""
    seeds = {slot: message.seed_shares for slot, message in group.masked_inputs.items()}
    more, fewer = seeds[0], seeds[1]
    seeds[0] = replace(more, encrypted_shares=(*more.encrypted_shares, fewer.encrypted_shares[0]))
    seeds[1] = replace(fewer, encrypted_shares=fewer.encrypted_shares[1:])
    with pytest.raises(ValueError, match="participant 0 did not send one encrypted share to each"):
        aggregator.collect_masked_inputs(group.transcript, group.key_shares, seeds)


# Unmasking shares


def check(group: Group, slot: int, message: UnmaskingShares) -> None:
    """Check a message of `slot` with a valid signature."""
    aggregator.check_unmasking_shares(group.request, slot, lying.reveal(group, slot, message))


def holder_of(group: Group, dealer: int) -> int:
    return next(holder for holder in group.transcript.holders(dealer) if holder in SURVIVORS)


def without_seed(message: UnmaskingShares, dealer: int) -> UnmaskingShares:
    kept = {other: share for other, share in message.seed_shares.items() if other != dealer}
    return replace(message, seed_shares=kept)


def with_seed(message: UnmaskingShares, dealer: int) -> UnmaskingShares:
    return replace(message, seed_shares={**message.seed_shares, dealer: bytes(SHARE_BYTES)})


def renamed(message: UnmaskingShares, name: int) -> UnmaskingShares:
    """Return `message` with its last share of a seed under the slot of another dealer."""
    *kept, (_, share) = sorted(message.seed_shares.items())
    return replace(message, seed_shares=dict(kept) | {name: share})


WRONG_ANSWERS: dict[str, tuple[str, Callable[[UnmaskingShares, int], UnmaskingShares]]] = {
    "nothing": ("own share of its seed", lambda *_: UnmaskingShares({}, {})),
    "not its own share": ("own share of its seed", without_seed),
    "both secrets of a dealer": (
        f"wrong secret of participant {DROPOUT}",
        lambda message, _: with_seed(message, DROPOUT),
    ),
    "the seed of a dropout": (
        f"wrong secret of participant {DROPOUT}",
        lambda message, _: replace(with_seed(message, DROPOUT), key_shares={}),
    ),
    "the mask key of a survivor": (
        "wrong secret of participant",
        lambda message, slot: replace(
            message, key_shares={**message.key_shares, slot: bytes(SHARE_BYTES)}
        ),
    ),
    "a share of an unknown dealer": (
        f"wrong secret of participant {N}",
        lambda message, _: with_seed(message, N),
    ),
    "a true share under an unknown name": (
        "wrong secret of participant 4000",
        lambda message, _: renamed(message, 4000),
    ),
    "a true share under the name of a dropout": (
        f"wrong secret of participant {DROPOUT}",
        lambda message, _: renamed(message, DROPOUT),
    ),
    "a report of an unknown dealer": (
        f"share of participant {N}, which sent it none",
        lambda message, _: replace(message, invalid_dealers=frozenset({N})),
    ),
    "no share of a dropout": (
        f"did not reveal the share of {DROPOUT}",
        lambda message, _: replace(message, key_shares={}),
    ),
    "only its own share": (
        "did not reveal the share of",
        lambda message, slot: UnmaskingShares({slot: message.seed_shares[slot]}, {}),
    ),
}


@pytest.mark.parametrize(("match", "change"), WRONG_ANSWERS.values(), ids=WRONG_ANSWERS.keys())
def test_a_wrong_answer_is_a_fault(
    group: Group, match: str, change: Callable[[UnmaskingShares, int], UnmaskingShares]
) -> None:
    slot = holder_of(group, DROPOUT)
    answer = change(group.unmasking_shares[slot], slot)
    assert_fault(slot, match, check, group, slot, answer)


def test_a_share_that_is_held_back_or_of_the_wrong_kind_is_a_fault(group: Group) -> None:
    slot = holder_of(group, DROPOUT)
    honest = group.unmasking_shares[slot]
    dealer = next(dealer for dealer in honest.seed_shares if dealer != slot)
    held_back = without_seed(honest, dealer)
    assert_fault(slot, f"did not reveal the share of {dealer}", check, group, slot, held_back)
    as_key = replace(held_back, key_shares={dealer: honest.seed_shares[dealer]})
    assert_fault(slot, f"wrong secret of participant {dealer}", check, group, slot, as_key)


def test_a_share_of_a_dealer_that_sent_none_is_a_fault(group: Group) -> None:
    slot, dealer = next(
        (slot, dealer)
        for slot in SURVIVORS
        for dealer in SURVIVORS - {slot}
        if slot not in group.transcript.holders(dealer)
    )
    honest = group.unmasking_shares[slot]
    match = f"a share of participant {dealer}, which sent it none"
    assert_fault(slot, match, check, group, slot, with_seed(honest, dealer))
    report = replace(honest, invalid_dealers=frozenset({dealer}))
    assert_fault(slot, match, check, group, slot, report)


@pytest.mark.parametrize("kind", ["seed_shares", "key_shares"])
def test_a_share_outside_the_field_is_a_fault(group: Group, kind: str) -> None:
    slot = holder_of(group, DROPOUT)
    shares = getattr(group.unmasking_shares[slot], kind)
    for dealer in shares:
        match = f"a share of participant {dealer} that is not a field element"
        for value in (P, P + 1, 2**264 - 1):
            changed = {**shares, dealer: value.to_bytes(SHARE_BYTES, "big")}
            message = replace(group.unmasking_shares[slot], **{kind: changed})
            assert_fault(slot, match, check, group, slot, message)


def test_unmasking_shares_that_their_holder_did_not_sign_are_a_fault(group: Group) -> None:
    honest = group.unmasking_shares[0]
    check_message = partial(aggregator.check_unmasking_shares, group.request, 0)
    check_message(honest)
    unsigned = replace(honest, signature=group.unmasking_shares[1].signature)
    assert_fault(0, "did not sign", check_message, unsigned)
    dealer = next(dealer for dealer in honest.seed_shares if dealer)
    report = replace(without_seed(honest, dealer), invalid_dealers=frozenset({dealer}))
    assert_fault(0, "did not sign", check_message, report)


@pytest.mark.parametrize("slot", [DROPOUT, N, 4000])
def test_unmasking_shares_of_a_participant_that_did_not_survive_are_a_fault(
    group: Group, slot: int
) -> None:
    check_message = partial(aggregator.check_unmasking_shares, group.request, slot)
    assert_fault(slot, "is not a survivor", check_message, group.unmasking_shares[0])


def test_a_report_of_an_invalid_dealer_makes_no_objects_of_the_kept_shares(group: Group) -> None:
    """Otherwise one malicious dealer makes the memory of a cohort four times as large."""
    slot, request = holder_of(group, 0), group.request
    message = without_seed(group.unmasking_shares[slot], 0)
    report = lying.reveal(group, slot, replace(message, invalid_dealers=frozenset({0})))
    aggregator.check_unmasking_shares(request, slot, report)
    assert vars(request.received_shares[slot]).keys() == {"records"}

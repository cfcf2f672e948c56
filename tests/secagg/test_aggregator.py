"""Checks of arriving messages by the server, and the shares that it requests."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from secagg import aggregator
from secagg.errors import FaultyParticipantError
from secagg.messages import KeyShares, MaskedInput, ReceivedShares, UnmaskingShares
from secagg.shamir import SHARE_BYTES, P
from tests.secagg import lying
from tests.secagg.conftest import RING, Group, assemble

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


# The vectors of tests/vectors have other messages that the server refuses.


@pytest.mark.parametrize("place", [0, 32, 64, -65, -1])
def test_a_message_that_was_altered_after_signing_is_a_fault(group: Group, place: int) -> None:
    def altered(body: bytes) -> bytes:
        changed = bytearray(body)
        changed[place] ^= 1
        return bytes(changed)

    key_shares = KeyShares.unpack(altered(group.key_shares[0].pack()))
    check, match = aggregator.check_key_shares, "did not sign"
    assert_fault(0, match, check, group.session, 0, key_shares)
    masked_input = MaskedInput.unpack(altered(group.masked_inputs[0].pack()), RING.nbytes)
    assert_fault(0, match, aggregator.check_masked_input, group.transcript, 0, masked_input)
    if place in (32, 64, -1):  # within a share or the signature
        message = UnmaskingShares.unpack(altered(group.unmasking_shares[0].pack()))
        assert_fault(0, match, aggregator.check_unmasking_shares, group.request, 0, message)


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
    "the other secret of each dealer": (
        "own share of its seed",
        lambda message, _: replace(
            message, seed_shares=message.key_shares, key_shares=message.seed_shares
        ),
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

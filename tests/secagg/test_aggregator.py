"""Checks of arriving messages by the server, and the shares that it requests."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from secagg import aggregator
from secagg.errors import FaultyParticipantError
from secagg.messages import KeyShares, MaskedInput, UnmaskingShares
from secagg.shamir import SHARE_BYTES, P
from secagg.shares import ReceivedShares
from tests.secagg import lying
from tests.secagg.conftest import Group, assemble

N = 15
DROPOUT = 3  # shares, and drops out before it masks
ALL_SLOTS = frozenset(range(N))
SURVIVORS = ALL_SLOTS - {DROPOUT}


@pytest.fixture(scope="module")
def group() -> Group:
    """Return a group with one dropout that is ready to be unmasked; do not change it."""
    group = assemble(N)
    group.mask(SURVIVORS)
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
    masked_input = MaskedInput.unpack(altered(group.masked_inputs[0].pack()))
    assert_fault(0, match, aggregator.check_masked_input, group.transcript, 0, masked_input)
    if place in (32, 64, -1):  # within a share or the signature
        message = UnmaskingShares.unpack(altered(group.unmasking_shares[0].pack()))
        assert_fault(0, match, aggregator.check_unmasking_shares, group.request, 0, message)


# The forwarded and the requested shares


def test_each_holder_receives_the_pairs_that_are_for_it(group: Group) -> None:
    transcript = group.transcript
    for holder, received in group.received.items():
        assert received.keys() == {o for o in ALL_SLOTS if holder in transcript.holders(o)}
        for dealer, pair in received.items():
            index = transcript.holders(dealer).index(holder)
            assert pair == group.key_shares[dealer].share_pairs[index]
        assert ReceivedShares.unpack(received.pack()) == received
        assert received.keys() == group.request.dealers_of(holder)


def test_a_participant_that_did_not_share_receives_no_shares() -> None:
    group = assemble(N)
    group.share(ALL_SLOTS - {7})
    request = group.mask(ALL_SLOTS - {7, 8})
    assert (request.survivors, request.dropouts) == (ALL_SLOTS - {7, 8}, {8})
    assert 7 not in group.received
    assert all(7 not in received for received in group.received.values())


def test_shares_of_a_participant_that_did_not_check_are_not_requested() -> None:
    group = assemble(N)
    group.check(ALL_SLOTS - {7})
    request = group.mask()
    assert 7 not in request.survivors | request.dropouts
    assert 7 not in request.transcript.dealers_of
    assert all(7 not in request.dealers_of(holder) for holder in request.survivors)


def test_survivors_that_did_not_share_are_the_callers_mistake(group: Group) -> None:
    with pytest.raises(ValueError, match=f"survivor {N} did not share"):
        replace(group.request, survivors=ALL_SLOTS | {N})


def test_one_pair_too_many_does_not_make_up_for_one_too_few(group: Group) -> None:
    """Otherwise the shares of all dealers between the two would go to wrong holders."""
    changed = dict(group.key_shares)
    more, fewer = changed[0], changed[1]
    changed[0] = replace(more, share_pairs=(*more.share_pairs, fewer.share_pairs[0]))
    changed[1] = replace(fewer, share_pairs=fewer.share_pairs[1:])
    with pytest.raises(ValueError, match="participant 0 did not send one share pair to each"):
        aggregator.route_shares(group.session, changed)


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


def test_shares_with_a_first_byte_are_field_elements_up_to_the_largest() -> None:
    for value, is_element in ((2**256 - 1, True), (2**256, True), (P - 1, True), (P, False)):
        shares = {0: bytes(SHARE_BYTES), 1: value.to_bytes(SHARE_BYTES, "big")}
        assert UnmaskingShares(shares, {}).are_field_elements is is_element


@pytest.mark.parametrize("slot", [DROPOUT, N, 4000])
def test_unmasking_shares_of_a_participant_that_did_not_survive_are_a_fault(
    group: Group, slot: int
) -> None:
    check_message = partial(aggregator.check_unmasking_shares, group.request, slot)
    assert_fault(slot, "is not a survivor", check_message, group.unmasking_shares[0])

"""Refusals to confirm survivors and to reveal shares; a participant does both only once."""

from dataclasses import replace
from typing import Any

import pytest

from secagg.errors import OutOfPhaseError, UnsafeRequestError
from secagg.parameters import Assumptions
from secagg.participant import Confirmed, Masked
from secagg.shamir import P
from tests.secagg.conftest import Group, assemble
from tests.secagg.lying import seal, unseal

N = 12
ALL_SLOTS = frozenset(range(N))


@pytest.fixture
def masked(group: Group) -> Masked:
    group.share()
    group.mask()
    return group.masked[0]


@pytest.fixture
def confirmed(group: Group, masked: Masked) -> Confirmed:
    group.confirm()
    return group.confirmed[masked.slot]


# Masked: the survivors


@pytest.mark.parametrize(
    ("survivors", "match"),
    [
        ([*range(N), 1], "twice"),
        (ALL_SLOTS | {N}, "did not share"),
        (ALL_SLOTS | {-1}, "did not share"),
        (ALL_SLOTS - {0}, "left my vector out"),
        (ALL_SLOTS - {1, 2, 3}, "named only 9 of 12 participants, fewer than the quorum of 10"),
        (frozenset(), "left my vector out"),
    ],
)
def test_survivors_that_would_reveal_a_vector_are_refused(
    masked: Masked, survivors: Any, match: str
) -> None:
    with pytest.raises(UnsafeRequestError, match=match):
        masked.confirm(survivors)


def test_a_survivor_that_did_not_share_is_refused(group: Group) -> None:
    group.share(range(11))
    group.mask()
    with pytest.raises(UnsafeRequestError, match="did not share"):
        group.masked[0].confirm(ALL_SLOTS)


def test_survivors_with_too_few_of_my_holders_are_refused() -> None:
    group = assemble(18, Assumptions(0.05, 0.4, sigma=3, eta=2))  # threshold 3, 7 dropouts
    group.share()
    group.mask()
    holders = group.transcript.holders(0)
    with pytest.raises(UnsafeRequestError, match="named only 1 of my holders: too few"):
        group.masked[0].confirm(group.all_slots - set(holders[:7]))
    group.masked[0].confirm(group.all_slots - set(holders[:6]))


def test_a_sum_of_one_vector_is_never_confirmed() -> None:
    group = assemble(2, Assumptions(0, 0.3, mode="semi-honest"))
    group.share()
    group.mask()
    with pytest.raises(UnsafeRequestError, match="quorum"):
        group.masked[0].confirm([0])


def test_survivors_are_confirmed_once(masked: Masked) -> None:
    masked.confirm(ALL_SLOTS)
    for again in (ALL_SLOTS, ALL_SLOTS - {3}):
        with pytest.raises(OutOfPhaseError, match="Masked"):
            masked.confirm(again)


def test_a_refusal_of_survivors_does_not_spend_the_state(masked: Masked) -> None:
    with pytest.raises(UnsafeRequestError):
        masked.confirm(ALL_SLOTS - {0})
    masked.confirm(ALL_SLOTS)


# Confirmed: the signatures and the shares


def test_a_share_of_oneself_or_of_a_dealer_that_did_not_share_is_refused(
    group: Group, confirmed: Confirmed
) -> None:
    received = group.request.received_shares[0]
    encrypted = next(iter(received.values()))
    for dealer in (0, -1, N):
        with pytest.raises(UnsafeRequestError, match="sent me none"):
            confirmed.unmask(group.confirmations, {**received, dealer: encrypted}, group.rng)


def test_fewer_signatures_than_a_quorum_are_refused(group: Group, confirmed: Confirmed) -> None:
    few = dict(list(group.confirmations.items())[:9])
    with pytest.raises(UnsafeRequestError, match=r"showed 9 signatures .* quorum of 10"):
        confirmed.unmask(few, {}, group.rng)


def test_the_signature_of_a_dropout_is_refused(group: Group) -> None:
    group.share()
    group.mask(ALL_SLOTS - {3})
    group.confirm()
    more = {**group.confirmations, 3: bytes(64)}
    with pytest.raises(UnsafeRequestError, match="did not survive"):
        group.confirmed[0].unmask(more, {}, group.rng)


def test_a_false_signature_in_the_spot_check_is_refused(group: Group, confirmed: Confirmed) -> None:
    # Of 12, nine of the eleven others are checked, and only six are not forged.
    forged = {**group.confirmations, **{slot: bytes(64) for slot in range(1, 6)}}
    with pytest.raises(UnsafeRequestError, match=r"that participant [1-5] did not sign"):
        confirmed.unmask(forged, {}, group.rng)


def test_a_quorum_of_signatures_suffices(group: Group, confirmed: Confirmed) -> None:
    confirmed.unmask(dict(list(group.confirmations.items())[:10]), {}, group.rng)


def test_the_own_signature_counts_and_is_not_checked(group: Group, confirmed: Confirmed) -> None:
    confirmed.unmask({**group.confirmations, 0: b""}, {}, group.rng)


def test_shares_are_revealed_once(group: Group, confirmed: Confirmed) -> None:
    group.reveal([0])
    with pytest.raises(OutOfPhaseError, match="Confirmed"):
        confirmed.unmask(group.confirmations, {}, group.rng)


def test_a_server_that_showed_forged_signatures_has_no_second_try(
    group: Group, confirmed: Confirmed
) -> None:
    # A second request would draw other spot checks, until one misses all forged signatures.
    forged = {**group.confirmations, **{slot: bytes(64) for slot in range(1, 6)}}
    with pytest.raises(UnsafeRequestError, match="did not sign"):
        confirmed.unmask(forged, {}, group.rng)
    for again in (forged, group.confirmations):
        with pytest.raises(OutOfPhaseError, match="Confirmed"):
            confirmed.unmask(again, {}, group.rng)


def test_one_secret_of_each_dealer_is_revealed(group: Group) -> None:
    group.share()
    group.mask(ALL_SLOTS - {3, 4})
    group.confirm()
    group.reveal()
    for slot, reveal in group.unmasking_shares.items():
        held = {dealer for dealer in ALL_SLOTS if slot in group.transcript.holders(dealer)}
        assert reveal.key_shares.keys() == held & {3, 4}
        assert reveal.seed_shares.keys() == (held | {slot}) - {3, 4}
        assert not reveal.invalid_dealers


@pytest.mark.parametrize(
    "noise",
    [b"\xff" * 33, P.to_bytes(33, "big")],
    ids=["far above P", "P"],
)
def test_a_share_outside_the_field_is_reported_and_not_revealed(
    group: Group, confirmed: Confirmed, noise: bytes
) -> None:
    dealer, encrypted = next(iter(group.request.received_shares[0].items()))
    purpose, secret = group.transcript.seed_share_purpose(dealer, 0), group.agree(0, dealer)
    sealed = seal(secret, purpose, noise)
    assert unseal(secret, purpose, encrypted) is not None  # the secret and the purpose are right
    reveal = confirmed.unmask(group.confirmations, {dealer: sealed}, group.rng)
    assert reveal.invalid_dealers == {dealer}
    assert reveal.seed_shares.keys() == {0}


def test_a_share_that_differs_from_its_commitment_is_reported(
    group: Group, confirmed: Confirmed
) -> None:
    dealer, encrypted = next(iter(group.request.received_shares[0].items()))
    for bad in (replace(encrypted, commitment=bytes(32)), replace(encrypted, ciphertext=bytes(33))):
        reveal = confirmed.unmask(group.confirmations, {dealer: bad}, group.rng)
        assert reveal.invalid_dealers == {dealer}
        confirmed = replace(confirmed)  # a state that has not taken its step


def test_all_secrets_differ(group: Group, confirmed: Confirmed) -> None:
    group.reveal(ALL_SLOTS - {0})
    secrets = {
        pair.secret
        for joined in group.joined
        for pair in (joined.mask_pair, joined.encryption_pair)
    }
    secrets |= {state.own_share for state in group.masked.values()} | {confirmed.masked.own_share}
    secrets |= {message.graph_nonce for message in group.key_shares.values()}
    assert len(secrets) == 4 * N

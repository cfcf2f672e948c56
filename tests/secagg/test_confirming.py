"""What a participant refuses to confirm and to give, and that it does either only once."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from secagg.errors import OutOfPhaseError, UnsafeRequestError
from secagg.parameters import Assumptions
from secagg.participant import Confirmed, Masked
from secagg.shamir import P
from tests.secagg.conftest import Group
from tests.secagg.lying import seal, unseal

N = 12
EVERYBODY = frozenset(range(N))
Gather = Callable[..., Group]


@pytest.fixture
def group(gather: Gather) -> Group:
    return gather(N)


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
        (EVERYBODY | {N}, "did not share"),
        (EVERYBODY | {-1}, "did not share"),
        (EVERYBODY - {0}, "left my vector out"),
        (EVERYBODY - {1, 2, 3}, "named only 9 of 12 participants, fewer than the quorum of 10"),
        (frozenset(), "left my vector out"),
    ],
)
def test_survivors_that_would_open_a_vector_are_refused(
    masked: Masked, survivors: Any, match: str
) -> None:
    with pytest.raises(UnsafeRequestError, match=match):
        masked.confirm(survivors)


def test_a_survivor_who_did_not_share_is_refused(group: Group) -> None:
    group.share(range(11))
    group.mask()
    with pytest.raises(UnsafeRequestError, match="did not share"):
        group.masked[0].confirm(EVERYBODY)


def test_survivors_without_enough_of_my_holders_are_refused(gather: Gather) -> None:
    group = gather(18, Assumptions(0.05, 0.4, sigma=3, eta=2))  # 8 holders, threshold 3, 7 lost
    group.share()
    group.mask()
    holders = group.view.holders(0)
    with pytest.raises(UnsafeRequestError, match="named only 1 of my holders: too few"):
        group.masked[0].confirm(group.everybody - set(holders[:7]))
    group.masked[0].confirm(group.everybody - set(holders[:6]))


def test_a_sum_of_one_is_never_confirmed(gather: Gather) -> None:
    group = gather(2, Assumptions(0, 0.3, mode="semi-honest"))
    group.share()
    group.mask()
    with pytest.raises(UnsafeRequestError, match="quorum"):
        group.masked[0].confirm([0])


def test_survivors_are_confirmed_once(masked: Masked) -> None:
    masked.confirm(EVERYBODY)
    for again in (EVERYBODY, EVERYBODY - {3}):
        with pytest.raises(OutOfPhaseError, match="Masked"):
            masked.confirm(again)


def test_refused_survivors_spend_nothing(masked: Masked) -> None:
    with pytest.raises(UnsafeRequestError):
        masked.confirm(EVERYBODY - {0})
    masked.confirm(EVERYBODY)


# Confirmed: the signatures and the parcels


def test_a_parcel_of_one_who_did_not_share_or_of_mine_is_refused(
    group: Group, confirmed: Confirmed
) -> None:
    inbox = group.settled.received_shares[0]
    parcel = next(iter(inbox.values()))
    for owner in (0, -1, N):
        with pytest.raises(UnsafeRequestError, match="sent me none"):
            confirmed.unmask(group.confirmations, {**inbox, owner: parcel}, group.rng)


def test_fewer_signatures_than_a_quorum_are_refused(group: Group, confirmed: Confirmed) -> None:
    few = dict(list(group.confirmations.items())[:9])
    with pytest.raises(UnsafeRequestError, match=r"showed 9 signatures .* quorum of 10"):
        confirmed.unmask(few, {}, group.rng)


def test_the_signature_of_one_who_is_no_survivor_is_refused(group: Group) -> None:
    group.share()
    group.mask(EVERYBODY - {3})
    group.confirm()
    more = {**group.confirmations, 3: bytes(64)}
    with pytest.raises(UnsafeRequestError, match="did not survive"):
        group.confirmed[0].unmask(more, {}, group.rng)


def test_a_witness_who_did_not_sign_is_refused(group: Group, confirmed: Confirmed) -> None:
    # Of 12, nine of the eleven others are checked: five forged ones leave six to pick from.
    forged = {**group.confirmations, **{slot: bytes(64) for slot in range(1, 6)}}
    with pytest.raises(UnsafeRequestError, match=r"that participant [1-5] did not sign"):
        confirmed.unmask(forged, {}, group.rng)


def test_one_quorum_of_signatures_will_do(group: Group, confirmed: Confirmed) -> None:
    confirmed.unmask(dict(list(group.confirmations.items())[:10]), {}, group.rng)


def test_my_own_signature_counts_and_is_not_asked_for(group: Group, confirmed: Confirmed) -> None:
    confirmed.unmask({**group.confirmations, 0: b""}, {}, group.rng)


def test_shares_are_given_once(group: Group, confirmed: Confirmed) -> None:
    group.reveal([0])
    with pytest.raises(OutOfPhaseError, match="Confirmed"):
        confirmed.unmask(group.confirmations, {}, group.rng)


def test_a_server_that_showed_a_forged_witness_has_no_second_try(
    group: Group, confirmed: Confirmed
) -> None:
    # Asked again, a participant would draw other witnesses, and one day miss all the forged.
    forged = {**group.confirmations, **{slot: bytes(64) for slot in range(1, 6)}}
    with pytest.raises(UnsafeRequestError, match="did not sign"):
        confirmed.unmask(forged, {}, group.rng)
    for again in (forged, group.confirmations):
        with pytest.raises(OutOfPhaseError, match="Confirmed"):
            confirmed.unmask(again, {}, group.rng)


def test_one_secret_of_each_owner_is_given_never_both(group: Group) -> None:
    group.share()
    group.mask(EVERYBODY - {3, 4})
    group.confirm()
    group.reveal()
    for slot, reveal in group.reveals.items():
        held = {owner for owner in EVERYBODY if slot in group.view.holders(owner)}
        assert reveal.key_shares.keys() == held & {3, 4}
        assert reveal.seed_shares.keys() == (held | {slot}) - {3, 4}
        assert not reveal.invalid_dealers


@pytest.mark.parametrize(
    "noise",
    [b"\xff" * 33, P.to_bytes(33, "big")],
    ids=["far above P", "P"],
)
def test_what_is_no_share_is_reported_not_passed_on_as_mine(
    group: Group, confirmed: Confirmed, noise: bytes
) -> None:
    owner, parcel = next(iter(group.settled.received_shares[0].items()))
    purpose, secret = group.view.seed_share_purpose(owner, 0), agreed(group, 0, owner)
    sealed = seal(secret, purpose, noise)
    assert unseal(secret, purpose, parcel) is not None  # or the test seals for nobody
    reveal = confirmed.unmask(group.confirmations, {owner: sealed}, group.rng)
    assert reveal.invalid_dealers == {owner}
    assert reveal.seed_shares.keys() == {0}


def test_a_share_that_is_not_the_one_committed_to_is_reported(
    group: Group, confirmed: Confirmed
) -> None:
    owner, parcel = next(iter(group.settled.received_shares[0].items()))
    for bad in (replace(parcel, commitment=bytes(32)), replace(parcel, ciphertext=bytes(33))):
        reveal = confirmed.unmask(group.confirmations, {owner: bad}, group.rng)
        assert reveal.invalid_dealers == {owner}
        confirmed = fresh_copy(confirmed)


def agreed(group: Group, one: int, other: int) -> bytes:
    return group.joined[one].encryption_pair.agree(group.cohort.roster[other].keys.encryption)


def fresh_copy(state: Confirmed) -> Confirmed:
    """Return the state unspent, for tests that ask twice."""
    facts = (state.slot, state.transcript, state.joined, state.agreed_secrets, state.own_share)
    return Confirmed(*facts, state.survivors)


def test_nobody_draws_the_same_secrets(group: Group, confirmed: Confirmed) -> None:
    group.reveal(EVERYBODY - {0})
    secrets = {
        pair.secret
        for joined in group.joined
        for pair in (joined.mask_pair, joined.encryption_pair)
    }
    secrets |= {state.own_share for state in group.masked.values()} | {confirmed.own_share}
    secrets |= {deal.graph_nonce for deal in group.deals.values()}
    assert len(secrets) == 4 * N

"""The server refuses what is false as it comes, and never asks for both secrets of one."""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

import pytest

from secagg import aggregator
from secagg.aggregator import UnmaskingRequest
from secagg.errors import FaultyParticipantError
from secagg.messages import UnmaskingShares
from secagg.session import Transcript
from secagg.shamir import SHARE_BYTES, P
from secagg.shares import ReceivedShares
from tests.secagg.conftest import Group

N = 15
LOST = 3  # shares, and is lost before it masks
EVERYBODY = frozenset(range(N))
SURVIVORS = EVERYBODY - {LOST}
Gather = Callable[..., Group]


@pytest.fixture(scope="module")
def group(gather: Gather) -> Group:
    """Return a group that lost one and is ready to be summed; leave it as it is."""
    found = gather(N)
    found.share()
    found.mask(SURVIVORS)
    found.confirm()
    found.reveal()
    return found


@pytest.fixture
def settled(group: Group) -> UnmaskingRequest:
    return group.settled


def resigned(group: Group, slot: int, reveal: UnmaskingShares) -> UnmaskingShares:
    """Return what `slot` would have said, had it wished to say `reveal`."""
    settled = group.settled
    inbox = settled.received_shares[slot].digest
    answer = settled.transcript.unmasking_statement(
        slot, settled.survivors, inbox, reveal.signed_bytes()
    )
    return reveal.signed(group.identities[slot], answer)


def faulty(slot: int, match: str, check: Callable[[], None]) -> None:
    with pytest.raises(FaultyParticipantError, match=match) as caught:
        check()
    assert caught.value.participant == slot


def a_holder(group: Group, owner: int, given: Collection[int] = SURVIVORS) -> int:
    return next(holder for holder in group.view.holders(owner) if holder in given)


# As they come: deals, uploads, confirmations


def test_a_deal_of_another_number_of_parcels_is_a_fault(group: Group) -> None:
    deal, check = group.deals[0], aggregator.check_key_shares
    check(group.cohort, 0, deal)
    k = len(deal.encrypted_shares)
    for parcels in (
        deal.encrypted_shares[:-1],
        (*deal.encrypted_shares, deal.encrypted_shares[0]),
        (),
    ):
        other = replace(deal, encrypted_shares=parcels)
        faulty(
            0,
            f"sent {len(parcels)} shares to {k} holders",
            lambda d=other: check(group.cohort, 0, d),
        )


@pytest.mark.parametrize("field", ["graph_nonce", "encrypted_shares", "signature"])
def test_a_deal_that_its_dealer_did_not_sign_is_a_fault(group: Group, field: str) -> None:
    others = replace(group.deals[0], **{field: getattr(group.deals[1], field)})
    faulty(0, "did not sign", lambda: aggregator.check_key_shares(group.cohort, 0, others))


def test_a_deal_of_another_participant_or_cohort_is_a_fault(group: Group) -> None:
    check, elsewhere = aggregator.check_key_shares, replace(group.cohort, plan_digest=bytes(32))
    faulty(1, "did not sign", lambda: check(group.cohort, 1, group.deals[0]))
    faulty(0, "did not sign", lambda: check(elsewhere, 0, group.deals[0]))


def test_an_upload_with_another_number_of_parcels_is_a_fault(group: Group) -> None:
    upload, check = group.uploads[0], aggregator.check_masked_input
    check(group.view, 0, upload)
    k = len(upload.seed_shares.encrypted_shares)
    for parcels in (
        upload.seed_shares.encrypted_shares[:-1],
        (*upload.seed_shares.encrypted_shares, upload.seed_shares.encrypted_shares[0]),
    ):
        other = replace(upload, seed_shares=replace(upload.seed_shares, encrypted_shares=parcels))
        match = f"sent {len(parcels)} shares of its seed to {k} holders"
        faulty(0, match, lambda u=other: check(group.view, 0, u))


def test_an_upload_that_its_sender_did_not_sign_is_a_fault(group: Group) -> None:
    upload, check = group.uploads[0], aggregator.check_masked_input
    other = group.uploads[1]
    changed = [
        replace(upload, vector=other.vector),
        replace(upload, signature=other.signature),
        replace(upload, seed_shares=replace(upload.seed_shares, seed_commitment=bytes(32))),
        replace(upload, seed_shares=replace(upload.seed_shares, own_share_commitment=bytes(32))),
        replace(
            upload,
            seed_shares=replace(
                upload.seed_shares, encrypted_shares=upload.seed_shares.encrypted_shares[::-1]
            ),
        ),
    ]
    for bad in changed:
        faulty(0, "did not sign", lambda u=bad: check(group.view, 0, u))
    faulty(1, "did not sign|dealt", lambda: check(group.view, 1, upload))


def test_an_upload_under_another_view_is_a_fault(group: Group) -> None:
    sharer = replace(group.view.share_commitments[5], shares_digest=bytes(32))
    other = Transcript(group.cohort, {**group.view.share_commitments, 5: sharer})
    check = aggregator.check_masked_input
    faulty(0, "did not sign", lambda: check(other, 0, group.uploads[0]))


def test_a_confirmation_of_anything_else_is_a_fault(group: Group) -> None:
    check, signature = aggregator.check_confirmation, group.confirmations[0]
    check(group.view, 0, SURVIVORS, signature)
    for slot, survivors, said in (
        (0, SURVIVORS - {1}, signature),
        (0, EVERYBODY, signature),
        (1, SURVIVORS, signature),
        (0, SURVIVORS, group.confirmations[1]),
        (0, SURVIVORS, b""),
    ):
        said_by = partial(check, group.view, slot, survivors, said)
        faulty(slot, "did not sign", said_by)


# UnmaskingRequest: which shares matter


def test_nobody_is_handed_both_secrets_of_one_owner(
    group: Group, settled: UnmaskingRequest
) -> None:
    assert settled.survivors == SURVIVORS
    assert settled.dropouts == {LOST}
    view = group.view
    for holder, inbox in settled.received_shares.items():
        assert inbox.keys() == {o for o in EVERYBODY if holder in view.holders(o)}
        for owner, parcel in inbox.items():
            deal = group.deals[owner] if owner == LOST else group.uploads[owner].seed_shares
            assert parcel in deal.encrypted_shares
        assert ReceivedShares.unpack(inbox.pack()) == inbox  # in the order in which holders take it
    assert settled.own_share_commitments == {
        slot: upload.seed_shares.own_share_commitment for slot, upload in group.uploads.items()
    }


def test_whoever_never_shared_holds_nothing_and_is_asked_nothing(gather: Gather) -> None:
    group = gather(N)
    group.share(EVERYBODY - {7})
    settled = group.mask(EVERYBODY - {7, 8})
    assert settled.dropouts == {8}
    assert 7 not in settled.received_shares
    assert 7 not in settled.own_share_commitments
    assert all(7 not in inbox for inbox in settled.received_shares.values())
    holders = {holder for holder, inbox in settled.received_shares.items() if 8 in inbox}
    assert holders == set(group.view.holders(8)) - {7}


def test_a_deal_that_is_missing_is_a_callers_mistake(group: Group) -> None:
    seeds = {slot: upload.seed_shares for slot, upload in group.uploads.items()}
    keys = {slot: deal for slot, deal in group.deals.items() if slot != LOST}
    with pytest.raises(ValueError, match=f"key shares of participant {LOST} are missing"):
        aggregator.collect_masked_inputs(group.view, keys, seeds)
    aggregator.collect_masked_inputs(group.view, {LOST: group.deals[LOST]}, seeds)


def test_a_parcel_too_many_does_not_make_up_for_one_too_few(group: Group) -> None:
    """Else the parcels of all dealers between the two would go to holders of others."""
    seeds = {slot: upload.seed_shares for slot, upload in group.uploads.items()}
    more, fewer = seeds[0], seeds[1]
    seeds[0] = replace(more, encrypted_shares=(*more.encrypted_shares, fewer.encrypted_shares[0]))
    seeds[1] = replace(fewer, encrypted_shares=fewer.encrypted_shares[1:])
    with pytest.raises(ValueError, match="participant 0 did not send one encrypted share to each"):
        aggregator.collect_masked_inputs(group.view, {LOST: group.deals[LOST]}, seeds)


# Reveals as they come


def check(group: Group, settled: UnmaskingRequest, slot: int, reveal: UnmaskingShares) -> None:
    aggregator.check_unmasking_shares(settled, slot, resigned(group, slot, reveal))


def test_a_reveal_without_the_share_of_ones_own_seed_is_a_fault(
    group: Group, settled: UnmaskingRequest
) -> None:
    good = group.reveals[0]
    without = {owner: share for owner, share in good.seed_shares.items() if owner}
    left_out = replace(good, seed_shares=without)
    faulty(0, "own share of its seed", lambda: check(group, settled, 0, left_out))


def test_the_other_secret_than_was_asked_for_is_a_fault(
    group: Group, settled: UnmaskingRequest
) -> None:
    slot = a_holder(group, LOST)
    good = group.reveals[slot]
    share = good.key_shares[LOST]
    as_seed = replace(good, seed_shares={**good.seed_shares, LOST: share}, key_shares={})
    faulty(
        slot, f"wrong secret of participant {LOST}", lambda: check(group, settled, slot, as_seed)
    )
    owner = next(owner for owner in good.seed_shares if owner != slot)
    seeds = {o: s for o, s in good.seed_shares.items() if o != owner}
    as_key = replace(good, seed_shares=seeds, key_shares={owner: good.seed_shares[owner]})
    faulty(
        slot, f"wrong secret of participant {owner}", lambda: check(group, settled, slot, as_key)
    )


def test_both_kinds_for_one_owner_are_a_fault(group: Group, settled: UnmaskingRequest) -> None:
    slot = a_holder(group, LOST)
    good = group.reveals[slot]
    share = good.key_shares[LOST]
    both = replace(good, seed_shares={**good.seed_shares, LOST: share})
    faulty(slot, "wrong secret", lambda: check(group, settled, slot, both))


def test_a_share_for_a_stranger_is_a_fault(group: Group, settled: UnmaskingRequest) -> None:
    slot, owner = next(
        (s, o) for s in SURVIVORS for o in SURVIVORS - {s} if is_no_holder(group, s, o)
    )
    good = group.reveals[slot]
    more = replace(good, seed_shares={**good.seed_shares, owner: bytes(SHARE_BYTES)})
    none = f"a share of participant {owner}, which sent it none"
    faulty(slot, none, lambda: check(group, settled, slot, more))
    complaint = replace(good, invalid_dealers=frozenset({owner}))
    faulty(
        slot, f"share of participant {owner}, which", lambda: check(group, settled, slot, complaint)
    )
    nobody = replace(good, invalid_dealers=frozenset({N}))
    faulty(slot, f"share of participant {N}, which", lambda: check(group, settled, slot, nobody))


def is_no_holder(group: Group, slot: int, owner: int) -> bool:
    return slot not in group.view.holders(owner)


@pytest.mark.parametrize("kind", ["seed_shares", "key_shares"])
def test_a_share_outside_the_field_is_a_fault(
    group: Group, settled: UnmaskingRequest, kind: str
) -> None:
    slot = a_holder(group, LOST)
    given = getattr(group.reveals[slot], kind)
    for owner in given:
        for value in (P, P + 1, 2**264 - 1):
            bad = {**given, owner: value.to_bytes(SHARE_BYTES, "big")}
            reveal = replace(group.reveals[slot], **{kind: bad})
            match = f"a share of participant {owner} that is not a field element"
            faulty(slot, match, lambda r=reveal: check(group, settled, slot, r))


def test_a_reveal_that_its_giver_did_not_sign_is_a_fault(
    group: Group, settled: UnmaskingRequest
) -> None:
    good, check_reveal = group.reveals[0], aggregator.check_unmasking_shares
    check_reveal(settled, 0, good)
    unsigned = replace(good, signature=group.reveals[1].signature)
    faulty(0, "did not sign", lambda: check_reveal(settled, 0, unsigned))
    owner = next(owner for owner in good.seed_shares if owner)
    shares = {o: s for o, s in good.seed_shares.items() if o != owner}
    complaining = replace(good, seed_shares=shares, invalid_dealers=frozenset({owner}))
    faulty(0, "did not sign", lambda: check_reveal(settled, 0, complaining))


def test_a_share_that_is_held_back_is_a_fault(group: Group, settled: UnmaskingRequest) -> None:
    slot = a_holder(group, LOST)
    good = group.reveals[slot]
    owner = next(owner for owner in good.seed_shares if owner != slot)
    seeds = {o: s for o, s in good.seed_shares.items() if o != owner}
    match = f"did not reveal the share of {owner}"
    faulty(slot, match, lambda: check(group, settled, slot, replace(good, seed_shares=seeds)))
    silent = replace(good, key_shares={})
    faulty(slot, f"share of {LOST}", lambda: check(group, settled, slot, silent))


def test_complaints_leave_no_parcels_behind_in_what_is_kept(
    group: Group, settled: UnmaskingRequest
) -> None:
    """Else one dealer of garbage makes what is kept of a cohort four times as large."""
    slot = a_holder(group, 0)
    shares = {o: s for o, s in group.reveals[slot].seed_shares.items() if o != 0}
    complaint = replace(group.reveals[slot], seed_shares=shares, invalid_dealers=frozenset({0}))
    before = vars(settled.received_shares[slot]).keys()
    check(group, settled, slot, complaint)
    assert vars(settled.received_shares[slot]).keys() == before == {"records"}

"""Lying participants, field by field and phase by phase: refused, outvoted, or harmless.

What a dealer of false shares can do is in `test_unmasking`; here are all other lies.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from secagg import aggregator, unmasking
from secagg.errors import FaultyParticipantError, RecoveryError
from secagg.keys import KeyPair
from secagg.messages import UnmaskingShares
from secagg.shamir import SHARE_BYTES
from secagg.shares import EncryptedShare, commit_share
from secagg.unmasking import FALSE_DEALER, FALSE_HOLDER, UnmaskedSum, Unmasking
from tests.secagg import lying
from tests.secagg.conftest import ASSUMPTIONS, RING, Group, same

N = 15
LIAR = 0
EVERYBODY = frozenset(range(N))
GARBAGE = EncryptedShare(bytes(32), bytes(33))
Gather = Callable[..., Group]
Reveals = dict[int, UnmaskingShares]


@pytest.fixture
def group(gather: Gather) -> Group:
    return gather(N)


def finish(
    group: Group, lost: Collection[int] = (), given: Callable[[Reveals], Reveals] | None = None
) -> UnmaskedSum:
    """Go on from masking, all uploads checked; `given` changes what is revealed."""
    if not group.uploads:
        group.mask(EVERYBODY - set(lost))
    for slot, upload in group.uploads.items():
        aggregator.check_masked_input(group.view, slot, upload)
    group.confirm()
    group.reveal()
    settled = group.settled
    reveals = given(group.reveals) if given else group.reveals
    for slot, reveal in reveals.items():
        aggregator.check_unmasking_shares(settled, slot, reveal)
    return unmasking.unmask(settled, RING, reveals, group.masked_sum())


def assert_exact_and_quiet(group: Group, found: UnmaskedSum) -> None:
    assert same(found.total, group.plain_sum(group.uploads))
    assert not found.blamed


def refused(slot: int, match: str, check: Callable[[], None]) -> None:
    with pytest.raises(FaultyParticipantError, match=match) as caught:
        check()
    assert caught.value.participant == slot


def room(group: Group, owner: int) -> int:
    """Return how many of the owner's holders are more than a threshold."""
    return len(group.view.holders(owner)) - group.cohort.parameters.threshold


# Dealing a mask key


def first_holders(group: Group, count: int) -> list[int]:
    return list(
        group.cohort.neighbour_selection.holders(LIAR, group.deals[LIAR].graph_nonce)[:count]
    )


def test_a_few_garbage_envelopes_of_a_mask_key_are_reported_and_the_sum_is_exact(
    group: Group,
) -> None:
    group.share()
    spoiled = first_holders(group, room(group, LIAR))
    lying.deal_keys(group, LIAR, dict.fromkeys(spoiled, GARBAGE))
    found = finish(group, lost=[LIAR])
    assert_exact_and_quiet(group, found)
    complaints = {slot for slot, reveal in group.reveals.items() if LIAR in reveal.invalid_dealers}
    assert complaints == set(spoiled)


def test_garbage_envelopes_of_a_mask_key_for_all_cost_the_sum_once_their_dealer_is_lost(
    group: Group,
) -> None:
    group.share()
    lying.deal_keys(group, LIAR, dict.fromkeys(first_holders(group, N), GARBAGE))
    with pytest.raises(RecoveryError, match="0 shares of the") as caught:
        finish(group, lost=[LIAR])
    assert (caught.value.dealer, set(caught.value.blamed)) == (LIAR, {LIAR})


def test_garbage_envelopes_of_a_mask_key_matter_to_nobody_if_their_dealer_stays(
    group: Group,
) -> None:
    group.share()
    lying.deal_keys(group, LIAR, dict.fromkeys(first_holders(group, N), GARBAGE))
    assert_exact_and_quiet(group, finish(group))


def test_envelopes_of_a_mask_key_in_a_wrong_order_are_reported(group: Group) -> None:
    group.share()
    one, two = first_holders(group, 2)
    parcels = lying.key_parcels(group, LIAR)
    lying.deal_keys(group, LIAR, {one: parcels[two], two: parcels[one]})
    assert_exact_and_quiet(group, finish(group, lost=[LIAR]))
    assert all(LIAR in group.reveals[slot].invalid_dealers for slot in (one, two))


def test_commitments_to_other_shares_than_were_dealt_are_reported(group: Group) -> None:
    group.share()
    parcels = lying.key_parcels(group, LIAR)
    bad = {h: replace(parcels[h], commitment=bytes(32)) for h in first_holders(group, 2)}
    lying.deal_keys(group, LIAR, bad)
    assert_exact_and_quiet(group, finish(group, lost=[LIAR]))
    assert all(LIAR in group.reveals[slot].invalid_dealers for slot in bad)


def test_a_share_of_a_seed_dealt_as_one_of_a_mask_key_is_reported(group: Group) -> None:
    group.share()
    holder = first_holders(group, 1)[0]
    share = lying.key_shares(group, LIAR)[holder]
    mixed = lying.sealed(group, LIAR, holder, share, lying.seed_purpose(group, LIAR, holder))
    lying.deal_keys(group, LIAR, {holder: mixed})
    assert_exact_and_quiet(group, finish(group, lost=[LIAR]))
    assert LIAR in group.reveals[holder].invalid_dealers


def test_a_contribution_of_ones_own_choice_harms_nobody(group: Group) -> None:
    # It says whom the liar trusts with its own secrets; the others' picks are theirs.
    group.share(EVERYBODY - {LIAR})

    class Chosen(Random):
        def randbytes(self, n: int) -> bytes:
            return bytes(n) if n == 32 else super().randbytes(n)

    group.shared[LIAR], group.deals[LIAR] = group.joined[LIAR].share(LIAR, group.cohort, Chosen(1))
    assert group.deals[LIAR].graph_nonce == bytes(32)
    assert_exact_and_quiet(group, finish(group))


def test_a_deal_signed_over_other_bytes_is_refused_at_once(group: Group) -> None:
    group.share()
    signature = group.deals[LIAR].signature
    lying.deal_keys(group, LIAR, dict.fromkeys(first_holders(group, 1), GARBAGE))
    bad = replace(group.deals[LIAR], signature=signature)
    refused(LIAR, "did not sign", lambda: aggregator.check_key_shares(group.cohort, LIAR, bad))


# Dealing a seed, with the vector


def test_a_few_garbage_envelopes_of_a_seed_are_reported_and_the_sum_is_exact(
    group: Group,
) -> None:
    group.share()
    group.mask()
    spoiled = first_holders(group, room(group, LIAR))
    lying.upload(group, LIAR, dict.fromkeys(spoiled, GARBAGE))
    assert_exact_and_quiet(group, finish(group))
    assert all(LIAR in group.reveals[slot].invalid_dealers for slot in spoiled)


def test_garbage_envelopes_of_a_seed_for_all_cost_the_sum_and_name_their_dealer(
    group: Group,
) -> None:
    group.share()
    group.mask()
    lying.upload(group, LIAR, dict.fromkeys(first_holders(group, N), GARBAGE))
    with pytest.raises(RecoveryError, match="1 shares of the") as caught:
        finish(group)
    assert (caught.value.dealer, set(caught.value.blamed)) == (LIAR, {LIAR})


def test_a_commitment_to_another_own_share_binds_its_dealer(group: Group) -> None:
    group.share()
    group.mask()
    lying.upload(group, LIAR, own=commit_share(bytes(SHARE_BYTES)))
    # One more that is false, so that the shares of the liar's seed are looked at.
    holder = group.view.holders(LIAR)[0]
    found = finish(group, given=lying_of(group, LIAR, liar=holder))
    assert same(found.total, group.plain_sum(EVERYBODY))
    assert found.blamed == {LIAR: FALSE_HOLDER, holder: FALSE_HOLDER}


def test_an_own_share_that_does_not_fit_is_corrected_and_its_dealer_blamed(group: Group) -> None:
    group.share()
    group.mask()
    group.masked[LIAR].own_share = bytes(SHARE_BYTES)
    lying.upload(group, LIAR, own=commit_share(bytes(SHARE_BYTES)))
    found = finish(group)
    assert same(found.total, group.plain_sum(EVERYBODY))
    assert set(found.blamed) == {LIAR}


@pytest.mark.parametrize("change", ["vector", "commitment", "own", "parcels"])
def test_an_upload_signed_over_other_bytes_is_refused_at_once(group: Group, change: str) -> None:
    group.share()
    group.mask()
    honest = group.uploads[LIAR]
    if change == "vector":
        lying.upload(group, LIAR, vector=bytes(RING.nbytes))
    elif change == "parcels":
        lying.upload(group, LIAR, dict.fromkeys(first_holders(group, 1), GARBAGE))
    else:
        lying.upload(group, LIAR, **{change: bytes(32)})
    bad = replace(group.uploads[LIAR], signature=honest.signature)
    refused(LIAR, "did not sign", lambda: aggregator.check_masked_input(group.view, LIAR, bad))


def test_a_vector_outside_the_ring_is_no_vector(group: Group) -> None:
    group.share()
    group.mask()
    first, second = (lane.nbytes for lane in RING.lanes[:2])
    above = bytes(first) + (2 ** (17 * 5) - 1).to_bytes(second, "little")
    rest = bytes(RING.nbytes - len(above))
    for vector, match in ((above + rest, "not below 131071"), (b"\xff" * RING.nbytes, "pad")):
        lying.upload(group, LIAR, vector=vector)
        with pytest.raises(ValueError, match=match):
            RING.unpack(group.uploads[LIAR].vector)


def test_a_vector_of_garbage_is_the_liars_own_input(group: Group) -> None:
    # Nobody can tell it from a masked one: that inputs are honest is never claimed.
    group.share()
    group.mask()
    lying.upload(group, LIAR, vector=bytes(RING.nbytes))
    found = finish(group)
    assert not found.blamed
    assert not same(found.total, group.plain_sum(EVERYBODY))


# Confirming and revealing


def test_who_confirms_another_set_is_refused(group: Group) -> None:
    group.share()
    group.mask()
    _, signature = group.masked[LIAR].confirm(EVERYBODY - {5})
    check = aggregator.check_confirmation
    refused(LIAR, "did not sign", lambda: check(group.view, LIAR, EVERYBODY, signature))


def revealing(
    group: Group, change: Callable[[UnmaskingShares], UnmaskingShares]
) -> Callable[[Reveals], Reveals]:
    """Return what is heard if the liar says something else than it should."""
    return lambda reveals: {
        **reveals,
        LIAR: lying.reveal(group, LIAR, change(reveals[LIAR])),
    }


LOST = 3


def renamed(reveal: UnmaskingShares, name: int) -> UnmaskingShares:
    """Return `reveal` with the last seed's share, which is as dealt, under another's name."""
    *kept, last = sorted(reveal.seed_shares.items())
    return replace(reveal, seed_shares=dict(kept) | {name: last[1]})


def another(reveal: UnmaskingShares, *owners: int) -> UnmaskingShares:
    """Return `reveal` with other shares of `owners` than were dealt, as good to look at."""
    seeds, keys = (
        {o: lying.false(s) if o in owners else s for o, s in shares.items()}
        for shares in (reveal.seed_shares, reveal.key_shares)
    )
    return replace(reveal, seed_shares=seeds, key_shares=keys)


def lying_of(group: Group, *owners: int, liar: int = LIAR) -> Callable[[Reveals], Reveals]:
    """Return what is heard if `liar` gives other shares of `owners` than it was dealt."""
    return lambda of: {**of, liar: lying.reveal(group, liar, another(of[liar], *owners))}


@pytest.mark.parametrize("owners", [(LIAR,), tuple(range(N))], ids=["its own", "all"])
def test_other_shares_than_were_dealt_are_left_out_and_their_giver_is_named(
    group: Group, owners: tuple[int, ...]
) -> None:
    group.share()
    found = finish(group, [LOST], lying_of(group, *owners))
    assert same(found.total, group.plain_sum(EVERYBODY - {LOST}))
    assert found.blamed == {LIAR: FALSE_HOLDER}


def test_another_share_of_a_mask_key_is_left_out_and_its_giver_is_named(group: Group) -> None:
    group.share()
    liar = group.view.holders(LOST)[0]
    found = finish(group, [LOST], lying_of(group, LOST, liar=liar))
    assert same(found.total, group.plain_sum(EVERYBODY - {LOST}))
    assert found.blamed == {liar: FALSE_HOLDER}


def test_a_false_share_that_no_secret_is_recovered_from_changes_nothing(group: Group) -> None:
    """Those of whom t came before it: nobody looks at it."""
    group.share()
    finish(group)
    t, liar = group.cohort.parameters.threshold, group.view.holders(5)[-1]
    assert len(group.view.holders(5)) >= t
    reveals = lying_of(group, 5, liar=liar)(group.reveals)
    aggregator.check_unmasking_shares(group.settled, liar, reveals[liar])
    assert_exact_and_quiet(
        group, unmasking.unmask(group.settled, RING, reveals, group.masked_sum())
    )


def test_many_liars_are_all_named_and_true_shares_will_do(group: Group) -> None:
    group.share()
    finish(group)
    t, holders = group.cohort.parameters.threshold, group.view.holders(5)
    liars = holders[: len(holders) + 1 - t]  # t shares are left, with the dealer's own
    reveals = group.reveals
    for liar in liars:
        reveals = lying_of(group, 5, liar=liar)(reveals)
    found = unmasking.unmask(group.settled, RING, reveals, group.masked_sum())
    assert same(found.total, group.plain_sum(EVERYBODY))
    assert found.blamed == dict.fromkeys(liars, FALSE_HOLDER)
    one_more = holders[len(liars)]
    reveals = lying_of(group, 5, liar=one_more)(reveals)
    with pytest.raises(RecoveryError, match=f"{t - 1} shares of the {t} needed") as caught:
        unmasking.unmask(group.settled, RING, reveals, group.masked_sum())
    assert caught.value.blamed == dict.fromkeys((*liars, one_more), FALSE_HOLDER)


def test_shares_left_out_do_not_hide_a_dealer_of_false_ones(group: Group) -> None:
    """A holder lies, and what is left meets in another seed than the dealer committed to."""
    group.share()
    group.mask()
    lying.upload(group, 5, commitment=bytes(32))
    liar = group.view.holders(5)[0]
    with pytest.raises(RecoveryError, match="another secret than it committed to") as caught:
        finish(group, given=lying_of(group, 5, liar=liar))
    assert caught.value.blamed == {liar: FALSE_HOLDER, 5: FALSE_DEALER}


REFUSED: dict[str, tuple[str, Callable[[UnmaskingShares], UnmaskingShares]]] = {
    "nothing at all": ("own share of its seed", lambda _: UnmaskingShares({}, {})),
    "not its own share": (
        "own share of its seed",
        lambda r: replace(r, seed_shares={o: s for o, s in r.seed_shares.items() if o != LIAR}),
    ),
    "both secrets of one": (
        f"wrong secret of participant {LOST}",
        lambda r: replace(r, seed_shares={**r.seed_shares, LOST: bytes(SHARE_BYTES)}),
    ),
    "the mask key of a survivor": (
        f"wrong secret of participant {LIAR}",
        lambda r: replace(r, key_shares={**r.key_shares, LIAR: bytes(SHARE_BYTES)}),
    ),
    "a share of nobody": (
        f"wrong secret of participant {N}",
        lambda r: replace(r, seed_shares={**r.seed_shares, N: bytes(SHARE_BYTES)}),
    ),
    "a share as it was dealt, under the name of nobody": (
        "wrong secret of participant 4000",
        lambda r: renamed(r, 4000),
    ),
    "the same under the name of a lost one": (
        f"wrong secret of participant {LOST}",
        lambda r: renamed(r, LOST),
    ),
    "a complaint of nobody": (
        "which sent it none",
        lambda r: replace(r, invalid_dealers=frozenset({N})),
    ),
}


@pytest.mark.parametrize(("match", "change"), REFUSED.values(), ids=REFUSED.keys())
def test_a_reveal_of_anything_else_is_refused_at_once(
    group: Group, match: str, change: Callable[[UnmaskingShares], UnmaskingShares]
) -> None:
    group.share()
    with pytest.raises(FaultyParticipantError, match=match) as caught:
        finish(group, lost=[LOST], given=revealing(group, change))
    assert caught.value.participant == LIAR


@pytest.mark.parametrize("stranger", [LOST, N, 4000])
def test_a_reveal_of_no_survivor_is_refused(group: Group, stranger: int) -> None:
    group.share()
    finish(group, lost=[LOST])
    reveal = group.reveals[LIAR]
    with pytest.raises(FaultyParticipantError, match="is not a survivor"):
        aggregator.check_unmasking_shares(group.settled, stranger, reveal)


def test_false_complaints_of_everybody_are_harmless(group: Group) -> None:
    def complain(reveal: UnmaskingShares) -> UnmaskingShares:
        others = frozenset(reveal.seed_shares) | frozenset(reveal.key_shares)
        return UnmaskingShares({LIAR: reveal.seed_shares[LIAR]}, {}, others - {LIAR})

    group.share()
    found = finish(group, lost=[LOST], given=revealing(group, complain))
    assert_exact_and_quiet(group, found)


def test_who_holds_back_its_shares_counts_as_lost(group: Group) -> None:
    def keep(reveal: UnmaskingShares) -> UnmaskingShares:
        return UnmaskingShares({LIAR: reveal.seed_shares[LIAR]}, {})

    group.share()
    with pytest.raises(FaultyParticipantError, match="did not reveal the share of"):
        finish(group, lost=[LOST], given=revealing(group, keep))
    rest = {slot: reveal for slot, reveal in group.reveals.items() if slot != LIAR}
    found = unmasking.unmask(group.settled, RING, rest, group.masked_sum())
    assert_exact_and_quiet(group, found)


def test_nobody_is_blamed_for_its_answer_to_parcels_that_were_altered_on_their_way(
    group: Group,
) -> None:
    # Who has t shares of a seed, or dealt it, knows the other shares, and so the pads on them.
    group.share()
    owner, victim = LIAR, group.view.holders(LIAR)[0]
    group.mask()
    group.confirm()
    group.reveal(EVERYBODY - {victim})
    share = lying.seed_shares(group, owner)[victim]
    purpose = lying.seed_purpose(group, owner, victim)
    other = lying.sealed(group, owner, victim, lying.false(share), purpose)
    settled = group.settled
    for parcel in (other, GARBAGE):
        handed = {**settled.received_shares[victim], owner: parcel}
        state = replace(group.confirmed[victim])  # not spent
        reveal = state.unmask(group.confirmations, handed, group.rng)
        assert reveal.seed_shares.get(owner) == (lying.false(share) if parcel is other else None)
        check = partial(aggregator.check_unmasking_shares, settled, victim, reveal)
        refused(victim, "did not sign this", check)
    found = unmasking.unmask(settled, RING, group.reveals, group.masked_sum())
    assert_exact_and_quiet(group, found)


def test_an_honest_dealer_is_not_named_if_its_holders_were_told_that_it_is_lost(
    gather: Gather,
) -> None:
    # In the semi-honest mode nobody confirms the survivors. Whoever alters that list on its way
    # makes holders try the other pad, under which no parcel opens.
    group = gather(N, replace(ASSUMPTIONS, mode="semi-honest"))
    group.share()
    settled = group.mask()
    told = EVERYBODY - {LIAR}
    for slot in told:
        state, _ = group.masked[slot].confirm(told)
        reveal = state.unmask({}, settled.received_shares[slot], group.rng)
        assert reveal.invalid_dealers == settled.received_shares[slot].keys() & {LIAR}
        check = partial(aggregator.check_unmasking_shares, settled, slot, reveal)
        refused(slot, "did not sign this", check)


def complaining(group: Group, count: int) -> Callable[[Reveals], Reveals]:
    """Return what is heard if so many of the liar's holders complain of it."""
    holders = group.view.holders(LIAR)[:count]

    def complain(reveal: UnmaskingShares) -> UnmaskingShares:
        shares = {owner: share for owner, share in reveal.seed_shares.items() if owner != LIAR}
        return replace(reveal, seed_shares=shares, invalid_dealers=frozenset({LIAR}))

    return lambda reveals: {
        slot: lying.reveal(group, slot, complain(reveal)) if slot in holders else reveal
        for slot, reveal in reveals.items()
    }


def test_fewer_complaints_than_a_threshold_blame_nobody(group: Group) -> None:
    # So many corrupt holders may anybody have: an honest dealer must not be named for them.
    t = group.cohort.parameters.threshold
    group.share()
    assert len(group.view.holders(LIAR)) + 1 - (t - 1) >= t  # there are shares enough then
    assert_exact_and_quiet(group, finish(group, given=complaining(group, t - 1)))


def test_fewer_complaints_than_that_blame_nobody_for_a_sum_that_failed(group: Group) -> None:
    t = group.cohort.parameters.threshold
    group.share()
    finish(group)
    said = complaining(group, t - 1)(group.reveals)
    few = {slot: said[slot] for slot in group.view.holders(LIAR)[: t + 1]}  # two gave a share
    with pytest.raises(RecoveryError, match="2 shares of the") as caught:
        Unmasking(group.settled, RING, few, RING.zero()).remove_self_mask(LIAR)
    assert (caught.value.dealer, caught.value.blamed) == (LIAR, {})


def test_a_threshold_of_complaints_names_the_dealer(group: Group) -> None:
    group.share()
    with pytest.raises(RecoveryError) as caught:
        finish(group, given=complaining(group, len(group.view.holders(LIAR))))
    assert (caught.value.dealer, set(caught.value.blamed)) == (LIAR, {LIAR})


def test_a_mask_key_that_nobody_has_costs_the_sum_only_if_its_owner_is_lost(group: Group) -> None:
    # A key copied from elsewhere: its owner can neither mask with it nor share it.
    stolen = KeyPair.of(b"\7" * 32).public
    mask = group.joined[LIAR].mask_pair
    group.joined[LIAR].mask_pair = KeyPair(stolen, mask.secret, mask._key)
    roster, liar = list(group.cohort.roster), group.joined[LIAR]
    signature = liar.advertise(group.cohort.plan_digest)
    roster[LIAR] = replace(roster[LIAR], keys=liar.public_keys, signature=signature)
    group.cohort = replace(group.cohort, roster=tuple(roster))
    group.share()
    with pytest.raises(RecoveryError) as caught:
        finish(group, lost=[LIAR])
    assert (caught.value.dealer, set(caught.value.blamed)) == (LIAR, {LIAR})

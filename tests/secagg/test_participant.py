"""What a participant refuses to share and to mask for, and that it does either only once."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from secagg.errors import SERVER, OutOfPhaseError, UnsafeRequestError
from secagg.keys import Identity, PublicKeys
from secagg.parameters import Assumptions
from secagg.session import Session, Transcript, advertisement_statement
from tests.secagg.conftest import RING, Group

N = 12
EVERYBODY = frozenset(range(N))
FEW_WILL_DO = Assumptions(0.05, 0.4, sigma=3, eta=2)  # of 18: 8 holders, threshold 3, 7 lost
Gather = Callable[..., Group]


@pytest.fixture
def group(gather: Gather) -> Group:
    return gather(N)


def with_entry(cohort: Session, slot: int, **facts: Any) -> Session:
    entries = list(cohort.roster)
    entries[slot] = replace(entries[slot], **facts)
    return replace(cohort, roster=tuple(entries))


def with_sharer(view: Transcript, slot: int, **facts: Any) -> Transcript:
    return Transcript(
        view.session,
        {**view.share_commitments, slot: replace(view.share_commitments[slot], **facts)},
    )


def refuses_to_share(group: Group, cohort: Session, match: str, slot: int = 0) -> None:
    with pytest.raises(UnsafeRequestError, match=match) as caught:
        group.joined[0].share(slot, cohort, group.rng)
    assert caught.value.participant == SERVER


def refuses_to_mask(group: Group, view: Transcript, match: str) -> None:
    with pytest.raises(UnsafeRequestError, match=match) as caught:
        group.shared[0].mask(view, RING, RING.zero(), group.rng)
    assert caught.value.participant == SERVER


# Joined: the roster


@pytest.mark.parametrize("slot", [-1, 1, N, 2**40])
def test_a_roster_without_me_in_my_slot_is_refused(group: Group, slot: int) -> None:
    refuses_to_share(group, group.cohort, "another than me", slot)


def test_a_roster_with_my_identity_but_other_keys_is_refused(group: Group) -> None:
    other = PublicKeys(group.cohort.roster[0].keys.mask, bytes([7] * 32))
    refuses_to_share(group, with_entry(group.cohort, 0, keys=other), "another than me")


def test_a_roster_with_my_keys_but_another_identity_is_refused(group: Group) -> None:
    stranger = Identity.of(b"\7" * 32).public
    refuses_to_share(group, with_entry(group.cohort, 0, identity=stranger), "another than me")


def test_an_identity_twice_is_refused(group: Group) -> None:
    twice = with_entry(group.cohort, 3, identity=group.cohort.roster[4].identity)
    refuses_to_share(group, twice, "same identity twice")


def test_a_key_twice_is_refused_whatever_it_is_for(group: Group) -> None:
    one, other, mine = (group.cohort.roster[slot].keys for slot in (3, 4, 0))
    for keys in (
        PublicKeys(other.mask, one.encryption),
        PublicKeys(one.mask, other.encryption),
        PublicKeys(other.encryption, one.encryption),
        PublicKeys(mine.mask, one.encryption),
    ):
        refuses_to_share(group, with_entry(group.cohort, 3, keys=keys), "same key twice")


def test_a_refused_roster_spends_nothing(group: Group) -> None:
    refuses_to_share(group, group.cohort, "another than me", 1)
    group.share()


def test_a_mask_key_is_shared_once(group: Group) -> None:
    group.share()
    with pytest.raises(OutOfPhaseError, match="Joined"):
        group.joined[0].share(0, group.cohort, group.rng)


def picks(cohort: Session, holder: int) -> bool:
    """Return whether slot 0 picks `holder` with the first chance."""
    return holder in cohort.neighbour_selection.holders(0, Random(1).randbytes(32))


def test_a_holder_that_did_not_sign_its_keys_is_refused_before_it_is_dealt_anything(
    group: Group,
) -> None:
    # The signature is part of the label and moves the picks: try until it is of a holder.
    for slot in range(1, N):
        forged = with_entry(group.cohort, slot, signature=bytes(64))
        if picks(forged, slot):
            break
    with pytest.raises(UnsafeRequestError, match=f"participant {slot} with keys not its own"):
        group.joined[0].share(0, forged, Random(1))


def test_a_holder_whose_keys_another_signed_is_refused(group: Group) -> None:
    plan = group.cohort.plan_digest
    for slot in range(1, N):
        keys = PublicKeys(bytes([7] * 32), bytes([8] * 32))
        signature = group.identities[0].sign(advertisement_statement(plan, keys))
        forged = with_entry(group.cohort, slot, keys=keys, signature=signature)
        if picks(forged, slot):
            break
    with pytest.raises(UnsafeRequestError, match="keys not its own"):
        group.joined[0].share(0, forged, Random(1))


def test_a_holder_that_is_not_enrolled_is_refused(gather: Gather) -> None:
    group = gather(N, registrar=Identity.of(b"r" * 32))
    for slot in range(1, N):
        forged = with_entry(group.cohort, slot, registrar_signature=bytes(64))
        if picks(forged, slot):
            break
    with pytest.raises(UnsafeRequestError, match=f"participant {slot} with keys not its own"):
        group.joined[0].share(0, forged, Random(1))


def test_who_picked_a_holder_with_forged_keys_picks_no_second_time(group: Group) -> None:
    # Asked again, it would pick others, and one day none of the forged.
    roster = tuple(replace(entry, signature=bytes(64)) for entry in group.cohort.roster)
    with pytest.raises(UnsafeRequestError, match="keys not its own"):
        group.joined[0].share(0, replace(group.cohort, roster=roster), group.rng)
    with pytest.raises(OutOfPhaseError, match="Joined"):
        group.joined[0].share(0, group.cohort, group.rng)


def test_with_a_registry_the_enrolled_go_on(gather: Gather) -> None:
    group = gather(N, registrar=Identity.of(b"r" * 32))
    group.share()
    group.mask()


# Shared: the view


def test_a_view_of_another_cohort_is_refused(group: Group) -> None:
    sharers = group.share().share_commitments
    refuses_to_mask(group, Transcript(replace(group.cohort), sharers), "left out what I shared")


def test_a_view_without_me_is_refused(group: Group) -> None:
    sharers = dict(group.share().share_commitments)
    del sharers[0]
    refuses_to_mask(group, Transcript(group.cohort, sharers), "left out what I shared")


@pytest.mark.parametrize("what", ["graph_nonce", "shares_digest"])
def test_a_view_in_which_i_shared_otherwise_is_refused(group: Group, what: str) -> None:
    view = with_sharer(group.share(), 0, **{what: bytes(32)})
    refuses_to_mask(group, view, "other shares than I sent")


def test_fewer_sharers_than_a_quorum_are_refused(group: Group) -> None:
    group.share(range(group.cohort.quorum - 1))
    refuses_to_mask(
        group, group.view, "named only 9 of 12 participants, fewer than the quorum of 10"
    )


def test_fewer_holders_than_a_threshold_are_refused_and_just_enough_will_do(
    gather: Gather,
) -> None:
    group = gather(18, FEW_WILL_DO)
    sharers = dict(group.share().share_commitments)
    lost = group.cohort.n - group.cohort.quorum
    holders = group.view.holders(0)
    assert lost == len(holders) - 1
    for slot in holders[:lost]:
        del sharers[slot]
    thin = Transcript(group.cohort, sharers)
    refuses_to_mask(group, thin, "named only 1 of my holders with threshold 3")
    enough = Transcript(
        group.cohort, {**sharers, holders[0]: group.view.share_commitments[holders[0]]}
    )
    state, upload = group.shared[0].mask(enough, RING, RING.zero(), group.rng)
    assert len(upload.seed_shares.encrypted_shares) == 2
    assert state.transcript is enough


def test_a_vector_of_another_ring_is_a_callers_mistake(group: Group) -> None:
    view = group.share()
    with pytest.raises(ValueError, match="lanes expected"):
        group.shared[0].mask(view, RING, (np.zeros(5, np.uint32),), group.rng)


def test_a_refused_view_spends_nothing(group: Group) -> None:
    view = group.share()
    refuses_to_mask(group, with_sharer(view, 0, shares_digest=bytes(32)), "other shares")
    group.mask()


def test_a_vector_is_masked_once_and_left_as_it_is(group: Group) -> None:
    view, vector = group.share(), RING.zero()
    _, upload = group.shared[0].mask(view, RING, vector, group.rng)
    assert not any(lane.any() for lane in vector)
    assert all(lane.any() for lane in RING.unpack(upload.vector))
    with pytest.raises(OutOfPhaseError, match="Shared"):
        group.shared[0].mask(view, RING, vector, group.rng)


def test_a_semi_honest_server_is_taken_at_its_word(gather: Gather) -> None:
    group = gather(N, Assumptions(0.1, 0.2, mode="semi-honest"))
    unsigned = tuple(replace(entry, signature=bytes(64)) for entry in group.cohort.roster)
    group.cohort = replace(group.cohort, roster=unsigned)
    group.share()
    group.mask()
    state, _ = group.masked[0].confirm(EVERYBODY)
    assert state.unmask({}, {}, group.rng).seed_shares.keys() == {0}

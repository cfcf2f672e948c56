"""Refusals to share and to mask; a participant does both only once."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from secagg.errors import SERVER, OutOfPhaseError, UnsafeRequestError
from secagg.keys import Identity, PublicKeys
from secagg.parameters import Assumptions
from secagg.roster import Roster
from secagg.session import Session, Transcript, advertisement_statement
from tests.secagg.conftest import RING, Group, assemble
from tests.secagg.faulty import with_commitment, with_entry, without

N = 12
ALL_SLOTS = frozenset(range(N))
SPARSE_ASSUMPTIONS = Assumptions(0.05, 0.4, sigma=3, eta=2)  # of 18: 8 holders, threshold 3


def assert_refuses_to_share(group: Group, session: Session, match: str, slot: int = 0) -> None:
    with pytest.raises(UnsafeRequestError, match=match) as caught:
        group.joined[0].share(slot, session, group.rng)
    assert caught.value.participant == SERVER


def assert_refuses_to_mask(group: Group, transcript: Transcript, match: str) -> None:
    with pytest.raises(UnsafeRequestError, match=match) as caught:
        group.shared[0].mask(transcript, RING, RING.zero(), group.rng)
    assert caught.value.participant == SERVER


# Joined: the roster


@pytest.mark.parametrize("slot", [-1, 1, N, 2**40])
def test_a_roster_without_me_in_my_slot_is_refused(group: Group, slot: int) -> None:
    assert_refuses_to_share(group, group.session, "another than me", slot)


def test_a_key_twice_is_refused_for_either_use(group: Group) -> None:
    keys, others, mine = (group.session.roster[slot].keys for slot in (3, 4, 0))
    for repeated in (
        PublicKeys(others.mask, keys.encryption),
        PublicKeys(keys.mask, others.encryption),
        PublicKeys(others.encryption, keys.encryption),
        PublicKeys(mine.mask, keys.encryption),
        PublicKeys(keys.mask, mine.encryption),
    ):
        session = with_entry(group.session, 3, keys=repeated)
        assert_refuses_to_share(group, session, "same key twice")


def test_a_refusal_of_a_roster_does_not_spend_the_state(group: Group) -> None:
    assert_refuses_to_share(group, group.session, "another than me", 1)
    group.share()


def test_a_mask_key_is_shared_once(group: Group) -> None:
    group.share()
    with pytest.raises(OutOfPhaseError, match="Joined"):
        group.joined[0].share(0, group.session, group.rng)


@pytest.mark.parametrize("signer", [None, 0])
def test_a_holder_whose_keys_it_did_not_sign_is_refused(group: Group, signer: int | None) -> None:
    # The entry is part of the label and so of the selection: try until it is one of a holder.
    for slot in range(1, N):
        keys, signature = PublicKeys(bytes([7] * 32), bytes([8] * 32)), bytes(64)
        if signer is not None:
            signed = advertisement_statement(group.session.plan_digest, keys)
            signature = group.identities[signer].sign(signed)
        forged = with_entry(group.session, slot, keys=keys, signature=signature)
        if slot in forged.neighbour_selection.holders(0, Random(1).randbytes(32)):
            break
    with pytest.raises(UnsafeRequestError, match=f"participant {slot} with keys not its own"):
        group.joined[0].share(0, forged, Random(1))


def test_with_a_registry_enrolled_participants_continue() -> None:
    group = assemble(N, registrar=Identity.of(b"r" * 32))
    group.share()
    group.mask()


# Shared: the transcript


def test_a_transcript_of_another_session_is_refused(group: Group) -> None:
    commitments = group.share().share_commitments
    other = Transcript(replace(group.session), commitments)
    assert_refuses_to_mask(group, other, "left out what I shared")


def test_a_transcript_without_me_is_refused(group: Group) -> None:
    assert_refuses_to_mask(group, without(group.share(), [0]), "left out what I shared")


@pytest.mark.parametrize("what", ["graph_nonce", "shares_digest"])
def test_a_transcript_with_other_key_shares_of_mine_is_refused(group: Group, what: str) -> None:
    transcript = with_commitment(group.share(), 0, **{what: bytes(32)})
    assert_refuses_to_mask(group, transcript, "other shares than I sent")


def test_fewer_dealers_than_a_quorum_are_refused(group: Group) -> None:
    group.share(range(group.session.quorum - 1))
    assert_refuses_to_mask(
        group, group.transcript, "named only 9 of 12 participants, fewer than the quorum of 10"
    )


def test_fewer_holders_than_a_threshold_are_refused_and_a_threshold_suffices() -> None:
    group = assemble(18, SPARSE_ASSUMPTIONS)
    transcript = group.share()
    count = group.session.n - group.session.quorum
    holders = transcript.holders(0)
    assert count == len(holders) - 1
    refused, enough = without(transcript, holders[:count]), without(transcript, holders[1:count])
    assert_refuses_to_mask(group, refused, "named only 1 of my holders with threshold 3")
    state, upload = group.shared[0].mask(enough, RING, RING.zero(), group.rng)
    assert len(upload.seed_shares.encrypted_shares) == 2
    assert state.transcript is enough


def test_a_vector_of_another_ring_is_a_callers_mistake(group: Group) -> None:
    transcript = group.share()
    with pytest.raises(ValueError, match="lanes expected"):
        group.shared[0].mask(transcript, RING, (np.zeros(5, np.uint32),), group.rng)


def test_a_refusal_of_a_transcript_does_not_spend_the_state(group: Group) -> None:
    transcript = group.share()
    assert_refuses_to_mask(
        group, with_commitment(transcript, 0, shares_digest=bytes(32)), "other shares"
    )
    group.mask()


def test_a_vector_is_masked_once_and_does_not_change(group: Group) -> None:
    transcript, vector = group.share(), RING.zero()
    _, upload = group.shared[0].mask(transcript, RING, vector, group.rng)
    assert not any(lane.any() for lane in vector)
    assert all(lane.any() for lane in RING.unpack(upload.vector))
    with pytest.raises(OutOfPhaseError, match="Shared"):
        group.shared[0].mask(transcript, RING, vector, group.rng)


def test_in_the_semi_honest_mode_no_signature_is_checked() -> None:
    group = assemble(N, Assumptions(0.1, 0.2, mode="semi-honest"))
    unsigned = [replace(entry, signature=bytes(64)) for entry in group.session.roster]
    group.session = replace(group.session, roster=Roster.of(unsigned))
    group.share()
    group.mask()
    state, _ = group.masked[0].confirm(ALL_SLOTS)
    assert state.unmask({}, {}, group.rng).seed_shares.keys() == {0}

"""Refusals to share, mask, confirm and reveal; a participant does each only once.

Most requests that a participant refuses are in tests/vectors.
"""

from dataclasses import replace

import numpy as np
import pytest

from secagg.errors import SERVER, OutOfPhaseError, UnsafeRequestError
from secagg.keys import PublicKeys
from secagg.parameters import Assumptions
from secagg.participant import Confirmed, Masked
from secagg.session import Session, Transcript
from tests.secagg.conftest import RING, Group, assemble, same
from tests.secagg.faulty import with_commitment, with_entry, without

N = 12
ALL_SLOTS = frozenset(range(N))
SPARSE_ASSUMPTIONS = Assumptions(0.05, 0.4, sigma=3, eta=2)  # of 24: 10 holders, threshold 4


@pytest.fixture
def masked(group: Group) -> Masked:
    group.mask()
    return group.masked[0]


@pytest.fixture
def confirmed(group: Group, masked: Masked) -> Confirmed:
    group.confirm()
    return group.confirmed[masked.checked.shared.slot]


def assert_refuses_to_share(group: Group, session: Session, match: str, slot: int = 0) -> None:
    with pytest.raises(UnsafeRequestError, match=match) as caught:
        group.joined[0].share(slot, session, group.rng)
    assert caught.value.participant == SERVER


def assert_refuses_to_mask(group: Group, transcript: Transcript, match: str) -> None:
    with pytest.raises(UnsafeRequestError, match=match) as caught:
        group.checked[0].mask(transcript, RING, RING.zero())
    assert caught.value.participant == SERVER


# Joined: the roster


@pytest.mark.parametrize("slot", [-1, 1, N, 2**40])
def test_a_roster_without_me_in_my_slot_is_refused(group: Group, slot: int) -> None:
    assert_refuses_to_share(group, group.session, "another than me", slot)


def test_the_last_participant_is_not_in_slot_minus_one(group: Group) -> None:
    with pytest.raises(UnsafeRequestError, match="another than me in slot -1"):
        group.joined[N - 1].share(-1, group.session, group.rng)


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


# Shared: the share pairs


@pytest.mark.parametrize("dealer", [0, N, 2**32 - 1])
def test_shares_of_a_participant_that_sends_me_none_are_refused(group: Group, dealer: int) -> None:
    group.share()
    pairs = {**group.received[0], dealer: group.received[0][group.received[0].dealers[0]]}
    with pytest.raises(UnsafeRequestError, match="that sent me none"):
        group.shared[0].check(pairs)
    group.check()


def test_a_participant_that_receives_no_shares_has_nothing_to_complain_about(group: Group) -> None:
    group.share()
    _, complaints = group.shared[0].check({})
    assert not complaints.signatures


# Checked: the transcript


def test_a_transcript_of_another_session_is_refused(group: Group) -> None:
    commitments = group.check().share_commitments
    other = Transcript(replace(group.session), commitments)
    assert_refuses_to_mask(group, other, "left out what I shared")


def test_fewer_holders_than_a_threshold_are_refused_and_a_threshold_suffices() -> None:
    group = assemble(24, SPARSE_ASSUMPTIONS)
    transcript = group.check()
    count = group.session.n - group.session.quorum
    holders = transcript.holders(0)
    assert count == len(holders) - 1
    refused, enough = without(transcript, holders[1:count]), without(transcript, holders[2:count])
    assert_refuses_to_mask(group, refused, "named only 2 of my holders with threshold 4")
    state, _ = group.checked[0].mask(enough, RING, RING.zero())
    assert state.transcript is enough


def test_a_vector_of_another_ring_is_a_callers_mistake(group: Group) -> None:
    transcript = group.check()
    with pytest.raises(ValueError, match="lanes expected"):
        group.checked[0].mask(transcript, RING, (np.zeros(5, np.uint32),))


def test_a_refusal_of_a_transcript_does_not_spend_the_state(group: Group) -> None:
    transcript = group.check()
    assert_refuses_to_mask(
        group, with_commitment(transcript, 0, shares_digest=bytes(32)), "other shares"
    )
    group.mask()


def test_masking_does_not_change_the_vector(group: Group) -> None:
    transcript, vector = group.check(), RING.zero()
    _, upload = group.checked[0].mask(transcript, RING, vector)
    assert not any(lane.any() for lane in vector)
    assert all(lane.any() for lane in RING.unpack(upload.vector))


# Masked: the survivors


def test_survivors_with_too_few_of_my_holders_are_refused() -> None:
    group = assemble(24, SPARSE_ASSUMPTIONS)
    group.mask()
    holders = group.transcript.holders(0)
    with pytest.raises(UnsafeRequestError, match="named only 1 of my holders: too few"):
        group.masked[0].confirm(group.all_slots - set(holders[:9]))
    group.masked[0].confirm(group.all_slots - set(holders[:7]))


def test_a_sum_of_two_vectors_is_confirmed_and_of_one_never() -> None:
    group = assemble(2, Assumptions(0, 0.3))
    group.mask()
    with pytest.raises(UnsafeRequestError, match="quorum"):
        group.masked[0].confirm([0])
    group.reveal()
    assert same(group.unmask(), group.plain_sum([0, 1]))


def test_a_refusal_of_survivors_does_not_spend_the_state(masked: Masked) -> None:
    with pytest.raises(UnsafeRequestError):
        masked.confirm(ALL_SLOTS - {0})
    masked.confirm(ALL_SLOTS)


# Confirmed: the signatures and the shares


def test_a_quorum_of_signatures_suffices(group: Group, confirmed: Confirmed) -> None:
    confirmations = dict(list(group.confirmations.items())[:10])
    confirmed.unmask(confirmations, group.signed_inputs, group.rng)


def test_the_signature_of_a_dropout_is_refused(group: Group) -> None:
    group.mask(ALL_SLOTS - {3})
    group.confirm()
    more = {**group.confirmations, 3: bytes(64)}
    with pytest.raises(UnsafeRequestError, match="did not survive"):
        group.confirmed[0].unmask(more, group.signed_inputs, group.rng)


def test_the_own_signature_counts_and_is_not_checked(group: Group, confirmed: Confirmed) -> None:
    confirmed.unmask({**group.confirmations, 0: b""}, group.signed_inputs, group.rng)


def test_a_server_that_showed_forged_signatures_has_no_second_try(
    group: Group, confirmed: Confirmed
) -> None:
    # A second request would draw other spot checks, until one misses all forged signatures.
    forged = {**group.confirmations, **{slot: bytes(64) for slot in range(1, 6)}}
    with pytest.raises(UnsafeRequestError, match="did not sign"):
        confirmed.unmask(forged, group.signed_inputs, group.rng)
    for again in (forged, group.confirmations):
        with pytest.raises(OutOfPhaseError, match="Confirmed"):
            confirmed.unmask(again, group.signed_inputs, group.rng)


def test_all_secrets_differ(group: Group) -> None:
    group.share()
    secrets = {
        pair.secret
        for joined in group.joined
        for pair in (joined.mask_pair, joined.encryption_pair)
    }
    for state in group.shared.values():
        secrets |= {state.dealt.seed, state.dealt.own_share, state.dealt.key_shares.graph_nonce}
        secrets |= {*state.dealt.of_key, *state.dealt.of_seed}
    assert len(secrets) == (5 + 2 * group.session.parameters.holders) * N


# All states


def test_each_step_is_taken_once(group: Group) -> None:
    transcript = group.share()
    group.mask()
    group.reveal()
    joined, shared, checked = group.joined[0], group.shared[0], group.checked[0]
    with pytest.raises(OutOfPhaseError, match="Joined"):
        joined.share(0, group.session, group.rng)
    with pytest.raises(OutOfPhaseError, match="Shared"):
        shared.check(group.received[0])
    with pytest.raises(OutOfPhaseError, match="Checked"):
        checked.mask(transcript, RING, RING.zero())
    with pytest.raises(OutOfPhaseError, match="before the masked input"):
        checked.answer({})
    for survivors in (ALL_SLOTS, ALL_SLOTS - {3}):
        with pytest.raises(OutOfPhaseError, match="Masked"):
            group.masked[0].confirm(survivors)
    with pytest.raises(OutOfPhaseError, match="Confirmed"):
        group.confirmed[0].unmask(group.confirmations, group.signed_inputs, group.rng)

"""Participants that send false messages: they are detected, or do no harm.

Dealers that commit to false shares are in `test_unmasking`, and messages that the server refuses
in `test_aggregator`.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from random import Random

import pytest

from secagg import aggregator
from secagg.errors import FaultyParticipantError, RecoveryError
from secagg.messages import EncryptedShare, UnmaskingShares, commit_share
from secagg.shamir import SHARE_BYTES
from secagg.unmasking import FALSE_DEALER, FALSE_HOLDER, Unmasking
from tests.secagg import lying
from tests.secagg.conftest import ASSUMPTIONS, RING, Group, assemble, same
from tests.secagg.lying import assert_exact, finish

N = 15
LIAR = 0
DROPOUT = 3
ALL_SLOTS = frozenset(range(N))
GARBAGE = EncryptedShare(bytes(32), bytes(33))
Change = Callable[[int, UnmaskingShares], UnmaskingShares]


@pytest.fixture
def group() -> Group:
    """Return a group that has shared."""
    group = assemble(N)
    group.share()
    return group


@pytest.fixture
def masked(group: Group) -> Group:
    group.mask()
    return group


def holders_of_liar(group: Group) -> tuple[int, ...]:
    """Return the holders of the liar, before any participant has computed the transcript."""
    graph_nonce = group.key_shares[LIAR].graph_nonce
    return group.session.neighbour_selection.holders(LIAR, graph_nonce)


def spare_holders(group: Group) -> tuple[int, ...]:
    """Return the holders of the liar that the threshold does not need."""
    return holders_of_liar(group)[: -group.session.parameters.threshold]


def assert_reported_by(group: Group, holders: Collection[int]) -> None:
    messages = group.unmasking_shares.items()
    assert {slot for slot, m in messages if LIAR in m.invalid_dealers} == set(holders)


def assert_liar_costs_the_sum(group: Group, match: str, dropouts: Collection[int] = ()) -> None:
    with pytest.raises(RecoveryError, match=match) as caught:
        finish(group, dropouts)
    assert (caught.value.dealer, set(caught.value.blamed)) == (LIAR, {LIAR})


# Shares of a mask key


def test_a_dropout_that_sent_only_garbage_shares_costs_the_sum(group: Group) -> None:
    lying.replace_key_shares(group, LIAR, dict.fromkeys(holders_of_liar(group), GARBAGE))
    assert_liar_costs_the_sum(group, "0 shares of the", [LIAR])


@pytest.mark.parametrize("how", ["swapped", "another commitment", "a share of a seed"])
def test_wrong_shares_of_a_mask_key_are_reported(group: Group, how: str) -> None:
    first, second = holders_of_liar(group)[:2]
    encrypted = lying.encrypted_key_shares(group, LIAR)
    if how == "swapped":
        wrong = {first: encrypted[second], second: encrypted[first]}
    elif how == "another commitment":
        wrong = {h: replace(encrypted[h], commitment=bytes(32)) for h in (first, second)}
    else:
        purpose = lying.seed_purpose(group, LIAR, first)
        share = lying.key_shares(group, LIAR)[first]
        wrong = {first: lying.sealed(group, LIAR, first, share, purpose)}
    lying.replace_key_shares(group, LIAR, wrong)
    assert_exact(group, finish(group, [LIAR]))
    assert_reported_by(group, wrong)


def test_a_graph_nonce_that_is_not_random_does_no_harm() -> None:
    # The nonce determines the holders of the liar's secrets; the others' holders do not change.
    group = assemble(N)
    group.share(ALL_SLOTS - {LIAR})

    class Chosen(Random):
        def randbytes(self, n: int) -> bytes:
            return bytes(n) if n == 32 else super().randbytes(n)

    state, message = group.joined[LIAR].share(LIAR, group.session, Chosen(1))
    group.shared[LIAR], group.key_shares[LIAR] = state, message
    assert message.graph_nonce == bytes(32)
    assert_exact(group, finish(group))


# Shares of a seed, with the vector


def test_few_garbage_shares_of_a_seed_are_reported_and_the_sum_is_exact(masked: Group) -> None:
    holders = spare_holders(masked)
    lying.replace_masked_input(masked, LIAR, dict.fromkeys(holders, GARBAGE))
    assert_exact(masked, finish(masked))
    assert_reported_by(masked, holders)


def test_only_garbage_shares_of_a_seed_cost_the_sum_and_blame_their_dealer(masked: Group) -> None:
    garbage = dict.fromkeys(holders_of_liar(masked), GARBAGE)
    lying.replace_masked_input(masked, LIAR, garbage)
    assert_liar_costs_the_sum(masked, "1 shares of the")


def test_a_commitment_to_another_own_share_binds_its_dealer(masked: Group) -> None:
    commitment = commit_share(bytes(SHARE_BYTES))
    lying.replace_masked_input(masked, LIAR, own_share_commitment=commitment)
    # A second false share, so that the server compares the liar's shares with the commitments.
    holder = holders_of_liar(masked)[0]
    unmasked = finish(masked, change=lying_about(masked, [LIAR], liars=[LIAR, holder]))
    assert_exact(masked, unmasked, {LIAR: FALSE_HOLDER, holder: FALSE_HOLDER})


def test_a_false_own_share_is_corrected_and_its_dealer_blamed(masked: Group) -> None:
    false = masked.masked[LIAR].own_share = bytes(SHARE_BYTES)
    lying.replace_masked_input(masked, LIAR, own_share_commitment=commit_share(false))
    assert_exact(masked, finish(masked), {LIAR: FALSE_DEALER})


def test_a_vector_of_garbage_is_an_input_of_the_liar(masked: Group) -> None:
    # Garbage looks like a masked vector: the sum is not protected against dishonest inputs.
    lying.replace_masked_input(masked, LIAR, vector=bytes(RING.nbytes))
    unmasked = finish(masked)
    assert not unmasked.blamed
    assert not same(unmasked.total, masked.plain_sum(ALL_SLOTS))


# Revealed shares


def lying_about(group: Group, dealers: Collection[int], liars: Collection[int]) -> Change:
    """Return a change: `liars` reveal false shares of `dealers`, which are field elements."""

    def falsified(shares: dict[int, bytes]) -> dict[int, bytes]:
        return {d: lying.false(share) if d in dealers else share for d, share in shares.items()}

    def change(slot: int, message: UnmaskingShares) -> UnmaskingShares:
        if slot not in liars:
            return message
        seeds, keys = falsified(message.seed_shares), falsified(message.key_shares)
        false = replace(message, seed_shares=seeds, key_shares=keys)
        return lying.reveal(group, slot, false)

    return change


@pytest.mark.parametrize("dealers", [[LIAR], range(N)], ids=["its own", "all"])
def test_false_revealed_shares_are_left_out_and_their_holder_blamed(
    group: Group, dealers: Collection[int]
) -> None:
    unmasked = finish(group, [DROPOUT], lying_about(group, dealers, [LIAR]))
    assert_exact(group, unmasked, {LIAR: FALSE_HOLDER})


def test_a_false_revealed_share_of_a_mask_key_is_left_out_and_its_holder_blamed(
    group: Group,
) -> None:
    liar = group.transcript.holders(DROPOUT)[0]
    unmasked = finish(group, [DROPOUT], lying_about(group, [DROPOUT], [liar]))
    assert_exact(group, unmasked, {liar: FALSE_HOLDER})


def test_a_false_share_that_is_not_needed_changes_nothing(group: Group) -> None:
    """The first t shares recover the secret, and the liar has the last."""
    liar = group.transcript.holders(5)[-1]
    assert_exact(group, finish(group, change=lying_about(group, [5], [liar])))


def test_all_liars_are_blamed_while_enough_shares_are_true(group: Group) -> None:
    finish(group)
    t, holders = group.session.parameters.threshold, group.transcript.holders(5)
    most = len(holders) + 1 - t  # t shares are left, with the dealer's own

    def messages(liars: Collection[int]) -> dict[int, UnmaskingShares]:
        change = lying_about(group, [5], liars)
        return {slot: change(slot, m) for slot, m in group.unmasking_shares.items()}

    liars = holders[:most]
    unmasked = lying.unmask(group, messages(liars))
    assert_exact(group, unmasked, dict.fromkeys(liars, FALSE_HOLDER))
    liars = holders[: most + 1]
    with pytest.raises(RecoveryError, match=f"{t - 1} shares of the {t} needed") as caught:
        lying.unmask(group, messages(liars))
    assert caught.value.blamed == dict.fromkeys(liars, FALSE_HOLDER)


def test_a_lying_holder_does_not_hide_a_lying_dealer(masked: Group) -> None:
    """The other shares give another seed than the dealer committed to."""
    lying.replace_masked_input(masked, 5, seed_commitment=bytes(32))
    liar = masked.transcript.holders(5)[0]
    with pytest.raises(RecoveryError, match="another secret than it committed to") as caught:
        finish(masked, change=lying_about(masked, [5], [liar]))
    assert caught.value.blamed == {liar: FALSE_HOLDER, 5: FALSE_DEALER}


# Reports of invalid shares


def test_false_reports_about_all_dealers_do_no_harm(group: Group) -> None:
    def report(slot: int, message: UnmaskingShares) -> UnmaskingShares:
        if slot != LIAR:
            return message
        others = frozenset({**message.seed_shares, **message.key_shares}) - {LIAR}
        own = {LIAR: message.seed_shares[LIAR]}
        return lying.reveal(group, LIAR, UnmaskingShares(own, {}, others))

    assert_exact(group, finish(group, [DROPOUT], report))


def assert_not_signed(group: Group, slot: int, message: UnmaskingShares) -> None:
    with pytest.raises(FaultyParticipantError, match="did not sign this") as caught:
        aggregator.check_unmasking_shares(group.request, slot, message)
    assert caught.value.participant == slot


def test_a_holder_is_not_blamed_for_shares_that_were_altered_in_transit(masked: Group) -> None:
    # The dealer, or anyone with t shares of the seed, knows the others, and so their pads.
    victim = masked.transcript.holders(LIAR)[0]
    masked.confirm()
    masked.reveal(ALL_SLOTS - {victim})
    false = lying.false(lying.seed_shares(masked, LIAR)[victim])
    purpose = lying.seed_purpose(masked, LIAR, victim)
    for encrypted, share in (
        (lying.sealed(masked, LIAR, victim, false, purpose), false),
        (GARBAGE, None),
    ):
        altered = {**masked.request.received_shares[victim], LIAR: encrypted}
        state = replace(masked.confirmed[victim])  # a state that has not taken its step
        message = state.unmask(masked.confirmations, altered, masked.rng)
        assert message.seed_shares.get(LIAR) == share
        assert_not_signed(masked, victim, message)
    assert_exact(masked, lying.unmask(masked, masked.unmasking_shares))


def test_a_survivor_that_others_believe_to_be_a_dropout_is_not_blamed() -> None:
    # In the semi-honest mode no participant confirms the survivors. If that list is altered in
    # transit, holders use the wrong pad, and no share can be decrypted.
    group = assemble(N, replace(ASSUMPTIONS, mode="semi-honest"))
    group.share()
    request = group.mask()
    survivors = ALL_SLOTS - {LIAR}
    for slot in survivors:
        state, _ = group.masked[slot].confirm(survivors)
        message = state.unmask({}, request.received_shares[slot], group.rng)
        assert message.invalid_dealers == request.received_shares[slot].keys() & {LIAR}
        assert_not_signed(group, slot, message)


def reports(group: Group, count: int) -> Change:
    """Return a change: `count` of the liar's holders report its share as invalid."""
    holders = holders_of_liar(group)[:count]

    def change(slot: int, message: UnmaskingShares) -> UnmaskingShares:
        if slot not in holders:
            return message
        kept = {dealer: s for dealer, s in message.seed_shares.items() if dealer != LIAR}
        report = replace(message, seed_shares=kept, invalid_dealers=frozenset({LIAR}))
        return lying.reveal(group, slot, report)

    return change


def test_fewer_reports_than_a_threshold_blame_nobody(group: Group) -> None:
    # An honest dealer may have this many corrupt holders, and must not be blamed for them.
    t = group.session.parameters.threshold
    assert len(holders_of_liar(group)) + 1 - (t - 1) >= t  # enough shares are left
    assert_exact(group, finish(group, change=reports(group, t - 1)))


@pytest.mark.parametrize(("below", "blamed"), [(1, {}), (0, {LIAR: FALSE_DEALER})])
def test_of_a_sum_that_fails_a_threshold_of_reports_blames_the_dealer_and_fewer_nobody(
    group: Group, below: int, blamed: dict[int, str]
) -> None:
    t = group.session.parameters.threshold
    finish(group)
    change, messages = reports(group, t - below), group.unmasking_shares
    few = {slot: change(slot, messages[slot]) for slot in holders_of_liar(group)[: t + 1]}
    with pytest.raises(RecoveryError, match=f"{1 + below} shares of the") as caught:
        Unmasking(group.request, RING, few, RING.zero()).remove_self_mask(LIAR)
    assert (caught.value.dealer, caught.value.blamed) == (LIAR, blamed)


def test_a_threshold_of_reports_blames_the_dealer(group: Group) -> None:
    with pytest.raises(RecoveryError) as caught:
        finish(group, change=reports(group, N))
    assert (caught.value.dealer, set(caught.value.blamed)) == (LIAR, {LIAR})

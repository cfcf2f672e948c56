"""Participants that send false messages: they are detected, or do no harm.

Dealers that commit to false shares are in `test_unmasking`, those whose shares cannot be used in
`test_complaints`, and messages that the server refuses in `test_aggregator`.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from random import Random

import pytest

from secagg import aggregator
from secagg.errors import FaultyParticipantError, RecoveryError
from secagg.messages import UnmaskingShares
from secagg.shamir import SHARE_BYTES
from secagg.shares import commit_share
from secagg.unmasking import FALSE_DEALER, FALSE_HOLDER
from tests.secagg import lying
from tests.secagg.conftest import RING, Group, assemble, same
from tests.secagg.lying import assert_exact, finish

N = 15
LIAR = 0
DROPOUT = 3
ALL_SLOTS = frozenset(range(N))
Change = Callable[[int, UnmaskingShares], UnmaskingShares]


@pytest.fixture
def group() -> Group:
    group = assemble(N)
    group.share()
    return group


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


# A dealer's own share


def test_a_commitment_to_another_own_share_binds_its_dealer(group: Group) -> None:
    lying.replace_key_shares(group, LIAR, own_share_commitment=commit_share(bytes(SHARE_BYTES)))
    # A second false share, so that the server compares the liar's shares with the commitments.
    holder = group.shared[LIAR].holders[0]
    unmasked = finish(group, change=lying_about(group, [LIAR], liars=[LIAR, holder]))
    assert_exact(group, unmasked, {LIAR: FALSE_HOLDER, holder: FALSE_HOLDER})


def test_a_false_own_share_is_corrected_and_its_dealer_blamed(group: Group) -> None:
    false, state = bytes(SHARE_BYTES), group.shared[LIAR]
    state.dealt = replace(state.dealt, own_share=false)
    lying.replace_key_shares(group, LIAR, own_share_commitment=commit_share(false))
    assert_exact(group, finish(group), {LIAR: FALSE_DEALER})


def test_a_vector_of_garbage_is_an_input_of_the_liar(group: Group) -> None:
    # Garbage looks like a masked vector: the sum is not protected against dishonest inputs.
    group.mask()
    lying.replace_vector(group, LIAR, bytes(RING.nbytes))
    unmasked = finish(group)
    assert not unmasked.blamed
    assert not same(unmasked.total, group.plain_sum(ALL_SLOTS))


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


def test_a_lying_holder_does_not_hide_a_lying_dealer(group: Group) -> None:
    """The other shares give another seed than the dealer committed to."""
    lying.replace_key_shares(group, 5, seed_commitment=bytes(32))
    liar = group.shared[5].holders[0]
    with pytest.raises(RecoveryError, match="another secret than it committed to") as caught:
        finish(group, change=lying_about(group, [5], [liar]))
    assert caught.value.blamed == {liar: FALSE_HOLDER, 5: FALSE_DEALER}


# Other survivors


def test_a_survivor_that_others_believe_to_be_a_dropout_is_not_blamed() -> None:
    # If the list of survivors is altered in transit for all, they confirm it, and reveal shares of
    # the other secret, under a signature that names the list.
    group = assemble(N)
    request = group.mask()
    survivors = ALL_SLOTS - {LIAR}
    confirmed = {slot: group.masked[slot].confirm(survivors) for slot in survivors}
    confirmations = {slot: signature for slot, (_, signature) in confirmed.items()}
    for slot, (state, _) in confirmed.items():
        message = state.unmask(confirmations, group.signed_inputs, group.rng)
        with pytest.raises(
            FaultyParticipantError, match=r"did not sign this|wrong secret"
        ) as caught:
            aggregator.check_unmasking_shares(request, slot, message)
        assert caught.value.participant == slot

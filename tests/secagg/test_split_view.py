"""A server that has all vectors and reports different survivors to the participants.

Slot 0 is the victim. `Guards:` names the check without which a test fails.
"""

from dataclasses import replace

import pytest

from secagg.errors import RecoveryError, UnsafeRequestError
from secagg.messages import UnmaskingShares
from secagg.parameters import Assumptions
from secagg.participant import Confirmed, join
from secagg.roster import Roster
from secagg.shares import SharePair
from secagg.unmasking import Unmasking
from tests.secagg import faulty
from tests.secagg.conftest import RING, Group, assemble, same
from tests.secagg.lying import share_pairs

N = 30  # 14 holders each, threshold 6; 3 corrupt, 6 dropouts, quorum 24, 23 spot checks
VICTIM = 0
ALL_SLOTS = frozenset(range(N))
SLOTS_WITHOUT_VICTIM = ALL_SLOTS - {VICTIM}
# Of 62: 14 holders, threshold 5; 3 corrupt, 24 dropouts, which may be all neighbours of a device.
SPARSE_ASSUMPTIONS = Assumptions(0.05, 0.4, sigma=1, eta=1)


@pytest.fixture
def group() -> Group:
    group = assemble(N)
    group.mask()
    return group


def collude(group: Group) -> faulty.MaliciousServer:
    """Return a server whose colluders have decrypted their shares of the victim's secrets."""
    server = faulty.collude(group, VICTIM)
    server.decrypt_shares_of(VICTIM)
    return server


def confirmed(
    group: Group, slots: frozenset[int], survivors: frozenset[int]
) -> tuple[dict[int, Confirmed], dict[int, bytes]]:
    """Let `slots` confirm `survivors`; return their states and signatures."""
    states, signatures = {}, {}
    for slot in slots:
        states[slot], signatures[slot] = group.masked[slot].confirm(survivors)
    return states, signatures


# Two sets of survivors


@pytest.mark.parametrize("fill", ["forged", "of the other set", "of another slot"])
def test_two_sets_of_survivors_do_not_both_have_a_quorum(group: Group, fill: str) -> None:
    """Guards: the spot check of signatures in `Confirmed.unmask`, and the statements they cover.

    Half of the honest participants learn that the victim survived, half that it dropped out: the
    first would reveal shares of its seed, the others of its mask key. Each receives a full list,
    in which only those that received the same set and the corrupt signed.
    """
    server = collude(group)
    honest = sorted(ALL_SLOTS - server.corrupt)
    sets = ((frozenset(honest[:14]), ALL_SLOTS), (frozenset(honest[14:]), SLOTS_WITHOUT_VICTIM))
    confirmations = [confirmed(group, slots, survivors) for slots, survivors in sets]
    all_signatures = {**confirmations[0][1], **confirmations[1][1]}
    refused = 0
    for (states, signatures), (_, survivors) in zip(confirmations, sets, strict=True):
        shown = {**signatures, **server.sign(group.transcript, survivors)}
        for slot in survivors - shown.keys():
            shown[slot] = {
                "forged": bytes(64),
                "of the other set": all_signatures[slot],
                "of another slot": next(iter(signatures.values())),
            }[fill]
        for slot, state in states.items():
            with pytest.raises(UnsafeRequestError, match="did not sign"):
                server.receive(slot, state.unmask(shown, group.signed_inputs, group.rng))
            refused += 1
    assert refused == len(honest)
    assert server.seed(VICTIM) is None
    assert server.pair(VICTIM) is None


def test_signatures_of_an_earlier_sum_are_refused() -> None:
    """Guards: the transcript in `Transcript.confirmation_statement`.

    The same devices sum twice, and the same survive; those that signed in the first sum are
    silent in the second.
    """
    first = assemble(N)
    first.mask()
    first.confirm()
    plan, joined = b"\7" * 32, [join(identity, first.rng) for identity in first.identities]
    roster = [
        replace(entry, keys=state.public_keys, signature=state.advertise(plan))
        for entry, state in zip(first.session.roster, joined, strict=True)
    ]
    session = replace(first.session, plan_digest=plan, roster=Roster.of(roster))
    second = Group(session, first.identities, joined, first.rng)
    second.mask()
    states, signatures = confirmed(second, ALL_SLOTS, ALL_SLOTS)
    shown = {**first.confirmations, VICTIM: signatures[VICTIM]}
    with pytest.raises(UnsafeRequestError, match="did not sign"):
        states[VICTIM].unmask(shown, second.signed_inputs, second.rng)


def test_signatures_under_another_transcript_are_refused(group: Group) -> None:
    """Guards: the transcript in `Transcript.confirmation_statement`: one set, but two graphs."""
    survivors = ALL_SLOTS - {29}
    _, signatures = confirmed(group, survivors, survivors)
    other = replace(group.masked[VICTIM], transcript=faulty.without(group.transcript, [29]))
    with pytest.raises(UnsafeRequestError, match="did not sign"):
        other.confirm(survivors)[0].unmask(signatures, group.signed_inputs, group.rng)


# Both secrets of one dealer


def request_shares(
    group: Group, survivors: frozenset[int]
) -> tuple[faulty.MaliciousServer, set[int]]:
    """Let all confirm `survivors` and reveal; return the server with their shares.

    Return also the honest holders that revealed a share of the victim.
    """
    server = collude(group)
    states, signatures = confirmed(group, survivors - server.corrupt, survivors)
    shown = {**signatures, **server.sign(group.transcript, survivors)}
    revealing = set()
    for slot, state in states.items():
        message = state.unmask(shown, group.signed_inputs, group.rng)
        server.receive(slot, message)
        if slot != VICTIM and VICTIM in {**message.seed_shares, **message.key_shares}:
            revealing.add(slot)
    return server, revealing


def assert_hidden(group: Group, server: faulty.MaliciousServer) -> None:
    assert server.vector(VICTIM, group.transcript, group.masked_inputs[VICTIM]) is None


@pytest.mark.parametrize("survivors", [ALL_SLOTS, SLOTS_WITHOUT_VICTIM], ids=["seed", "mask key"])
def test_one_secret_of_a_dealer_is_revealed(group: Group, survivors: frozenset[int]) -> None:
    """Guards: the one set of survivors, which chooses the secret in `Confirmed.unmask`.

    A holder has shares of both secrets.
    """
    server, revealing = request_shares(group, survivors)
    assert revealing == set(group.transcript.holders(VICTIM)) - server.corrupt
    assert (server.seed(VICTIM) is not None) == (VICTIM in survivors)
    assert (server.pair(VICTIM) is not None) == (VICTIM not in survivors)
    assert_hidden(group, server)


# Encrypted shares for another sender, holder or purpose


def test_my_own_share_reflected_to_me_cannot_be_decrypted() -> None:
    """Guards: sender and receiver in `Purpose.info`, in this order, and the two purposes.

    The server sends the victim its own shares as if its holders had sent them: as a holder of
    dropouts it would reveal its own mask key. Or it swaps the shares of the two secrets.
    """
    group = assemble(N)
    group.share()
    pairs = share_pairs(group, VICTIM)
    state, complaints = group.shared[VICTIM].check(pairs)
    assert (complaints.signatures.keys(), state.key_shares) == (pairs.keys(), {})
    holder = group.transcript.holders(VICTIM)[0]
    swapped = SharePair(pairs[holder].seed, pairs[holder].key)
    state, complaints = group.shared[holder].check({VICTIM: swapped})
    assert (complaints.signatures.keys(), state.seed_shares) == ({VICTIM}, {})


# A device without neighbours


def isolated() -> tuple[Group, frozenset[int]]:
    """Return a sparse group, and all honest neighbours of the victim.

    They are fewer than the allowed dropouts, and the others can reveal their mask keys.
    """
    for seed in range(100):
        group = assemble(62, SPARSE_ASSUMPTIONS, seed)
        group.share()
        dropouts = group.transcript.neighbours(VICTIM) - faulty.collude(group, VICTIM).corrupt
        others = group.all_slots.difference(dropouts, {VICTIM})
        holders = [len(others.intersection(group.transcript.holders(slot))) for slot in dropouts]
        few = len(dropouts) < group.session.n - group.session.quorum
        if few and min(holders) >= group.session.parameters.threshold:
            group.mask()
            return group, dropouts
    raise AssertionError("most seeds suffice")


def continue_without(group: Group, dropouts: frozenset[int]) -> frozenset[int]:
    """Name `dropouts`; let all others except the victim continue; return the survivors."""
    survivors = group.all_slots - dropouts
    for slot in dropouts:
        del group.masked_inputs[slot]
    group.confirm(survivors - {VICTIM})
    group.reveal(survivors - {VICTIM})
    return survivors


def test_a_device_whose_neighbours_are_all_named_as_dropouts_keeps_its_own_mask() -> None:
    """Guards: the threshold, above the shares of corrupt holders and of the victim itself.

    All masks of the victim with others are known then, and it is named as a survivor; but its
    honest holders are the dropouts. It confirms nothing (guards: the threshold of surviving
    holders in `Masked.confirm`).
    """
    group, dropouts = isolated()
    with pytest.raises(UnsafeRequestError, match="too few to unmask me"):
        group.masked[VICTIM].confirm(group.all_slots - dropouts)
    survivors = continue_without(group, dropouts)
    server = collude(group)
    for slot, message in group.unmasking_shares.items():
        server.receive(slot, message)
    own = UnmaskingShares({VICTIM: group.shared[VICTIM].dealt.own_share}, {})
    server.receive(VICTIM, own)  # even if it had confirmed
    assert all(server.pair(slot) is not None for slot in group.transcript.neighbours(VICTIM))
    assert server.seed(VICTIM) is None
    assert_hidden(group, server)
    with pytest.raises(RecoveryError) as caught:
        group.unmask()
    assert caught.value.dealer == VICTIM
    assert VICTIM in survivors


def test_an_isolated_device_can_be_left_out_of_the_one_sum() -> None:
    """Guards nothing: the claim "one set of n - D survivors" does not exclude this.

    Only colluders' vectors have masks of the victim, so the server can leave its vector out: it
    learns the sum of the others, one fewer than confirmed, instead of the sum of all.
    """
    group, dropouts = isolated()
    survivors = continue_without(group, dropouts)
    transcript, keys = group.transcript, group.session.roster[VICTIM].keys
    del group.masked_inputs[VICTIM]
    summing = Unmasking(group.request, RING, group.messages(), group.masked_sum())
    for slot in survivors - {VICTIM}:
        summing.remove_self_mask(slot)
    for slot in dropouts:
        summing.remove_pairwise_masks(slot)
    for slot in survivors & transcript.neighbours(VICTIM):  # colluders
        stream = transcript.pairwise_mask_purpose(VICTIM, slot).keystream(
            group.joined[slot].mask_pair.agree(keys.mask)
        )
        summing.total.add(stream)  # the victim's slot is the lowest
    assert same(summing.total.lanes, group.plain_sum(survivors - {VICTIM}))

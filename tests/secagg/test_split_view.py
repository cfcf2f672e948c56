"""A server that has all vectors tells two stories of who survived: played, and refused.

Slot 0 is the victim. `Guards:` names the check without which the test fails.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from secagg.errors import OutOfPhaseError, RecoveryError, UnsafeRequestError
from secagg.masks import MaskApplier
from secagg.messages import UnmaskingShares
from secagg.parameters import Assumptions
from secagg.participant import Confirmed, join
from secagg.shares import EncryptedShare
from secagg.unmasking import Unmasking
from tests.secagg.conftest import RING, Group, same
from tests.secagg.faulty import Crooked, without
from tests.secagg.lying import unseal

N = 30  # 14 holders each, threshold 6; 3 corrupt, 6 lost, quorum 24, 23 witnesses
VICTIM = 0
EVERYBODY = frozenset(range(N))
WITHOUT_VICTIM = EVERYBODY - {VICTIM}
# Of 62: 14 holders, threshold 5; 3 corrupt, 24 lost: a device's 24 partners may all be named.
SPARSE = Assumptions(0.05, 0.4, sigma=1, eta=1)
Gather = Callable[..., Group]


@pytest.fixture
def group(gather: Gather) -> Group:
    """Return a group whose vectors have arrived."""
    found = gather(N)
    found.share()
    found.mask()
    return found


def collude(group: Group) -> Crooked:
    count = group.cohort.assumptions.max_corrupt(group.cohort.n)
    server = Crooked(group, group.view.holders(VICTIM)[:count])
    server.open_deals(VICTIM, group.view, group.uploads[VICTIM])
    return server


def confirmed(
    group: Group, slots: frozenset[int], survivors: frozenset[int]
) -> tuple[dict[int, Confirmed], dict[int, bytes]]:
    """Let `slots` confirm `survivors`; return their states and signatures."""
    both = {slot: group.masked[slot].confirm(survivors) for slot in slots}
    return {s: state for s, (state, _) in both.items()}, {s: said for s, (_, said) in both.items()}


def key_parcel(group: Group, owner: int, holder: int) -> EncryptedShare:
    return group.deals[owner].encrypted_shares[group.view.holders(owner).index(holder)]


def seed_parcel(group: Group, owner: int, holder: int) -> EncryptedShare:
    return group.uploads[owner].seed_shares.encrypted_shares[
        group.view.holders(owner).index(holder)
    ]


# Two sets of survivors


@pytest.mark.parametrize("fill", ["forged", "of the other story", "of another slot"])
def test_two_sets_of_survivors_find_no_two_quorums(group: Group, fill: str) -> None:
    """Guards: the signatures of witnesses in `Confirmed.reveal`, and what they are under.

    Half of the honest are told that the victim survived, half that it did not: the first
    would give shares of its seed, the others of its mask key. Each is shown a full list, in
    which only those who were told the same and the corrupt signed.
    """
    server = collude(group)
    honest = sorted(EVERYBODY - server.corrupt)
    stories = (
        (frozenset(honest[:14]), EVERYBODY),
        (frozenset(honest[14:]), WITHOUT_VICTIM),
    )
    told = [confirmed(group, slots, survivors) for slots, survivors in stories]
    said = {**told[0][1], **told[1][1]}
    refused = 0
    for (states, signatures), (_, survivors) in zip(told, stories, strict=True):
        shown = {**signatures, **server.sign(group.view, survivors)}
        for slot in survivors - shown.keys():
            shown[slot] = {
                "forged": bytes(64),
                "of the other story": said[slot],
                "of another slot": next(iter(signatures.values())),
            }[fill]
        for slot, state in states.items():
            inbox = (
                {VICTIM: seed_parcel(group, VICTIM, slot)} if slot in seed_holders(group) else {}
            )
            with pytest.raises(UnsafeRequestError, match="did not sign"):
                server.hear(slot, state.unmask(shown, inbox, group.rng))
            refused += 1
    assert refused == len(honest)
    assert server.seed(VICTIM) is None
    assert server.pair(VICTIM) is None


def seed_holders(group: Group) -> set[int]:
    return set(group.view.holders(VICTIM))


def test_the_signatures_of_half_are_no_quorum(group: Group) -> None:
    """Guards: the quorum of signatures in `Confirmed.reveal`."""
    server = collude(group)
    half = frozenset(sorted(EVERYBODY - server.corrupt)[:14])
    states, signatures = confirmed(group, half, EVERYBODY)
    shown = {**signatures, **server.sign(group.view, EVERYBODY)}
    for state in states.values():
        with pytest.raises(UnsafeRequestError, match=r"17 signatures .* quorum of 24"):
            state.unmask(shown, {}, group.rng)


def test_signatures_of_those_that_are_lost_do_not_count(group: Group) -> None:
    """Guards: that only survivors confirm, in `Confirmed.reveal`."""
    lost = frozenset(range(24, 30))
    states, signatures = confirmed(group, EVERYBODY - lost, EVERYBODY - lost)
    del signatures[1]
    shown = {**signatures, 24: bytes(64)}
    with pytest.raises(UnsafeRequestError, match="did not survive"):
        states[VICTIM].unmask(shown, {}, group.rng)


def test_signatures_of_an_earlier_sum_are_no_signatures(gather: Gather) -> None:
    """Guards: the view in `View.confirmation`.

    The same devices sum twice, and the same survive; those who signed in the first sum are
    silent in the second.
    """
    first = gather(N)
    first.share()
    first.mask()
    first.confirm()
    plan, joined = b"\7" * 32, [join(identity, first.rng) for identity in first.identities]
    roster = tuple(
        replace(entry, keys=state.public_keys, signature=state.advertise(plan))
        for entry, state in zip(first.cohort.roster, joined, strict=True)
    )
    cohort = replace(first.cohort, plan_digest=plan, roster=roster)
    again = Group(cohort, first.identities, joined, first.rng)
    again.share()
    again.mask()
    states, signatures = confirmed(again, EVERYBODY, EVERYBODY)
    with pytest.raises(UnsafeRequestError, match="did not sign"):
        states[VICTIM].unmask({**first.confirmations, VICTIM: signatures[VICTIM]}, {}, again.rng)


def test_signatures_under_another_view_are_no_signatures(group: Group) -> None:
    """Guards: the view in `View.confirmation`: one set of survivors, but of two graphs."""
    told = without(group.view, [29])
    twin = Group(group.cohort, group.identities, group.joined, group.rng)
    survivors = EVERYBODY - {29}
    _, signatures = confirmed(group, survivors, survivors)
    state = group.masked[VICTIM]
    other = type(state)(VICTIM, told, state.joined, state.agreed_secrets, state.own_share)
    with pytest.raises(UnsafeRequestError, match="did not sign"):
        other.confirm(survivors)[0].unmask(signatures, {}, twin.rng)


def test_one_set_is_signed_and_no_other(group: Group) -> None:
    """Guards: `_spend` in `Masked.confirm`."""
    state = group.masked[VICTIM]
    state.confirm(EVERYBODY)
    with pytest.raises(OutOfPhaseError):
        state.confirm(EVERYBODY - {5})


# Both secrets of one


def asked(
    group: Group, survivors: frozenset[int], parcels: Mapping[int, EncryptedShare]
) -> tuple[Crooked, set[int]]:
    """Let all confirm `survivors` and open `parcels` of the victim, by holder.

    Return what the server has then, and which honest holders gave a share of the victim.
    """
    server = collude(group)
    states, signatures = confirmed(group, survivors - server.corrupt, survivors)
    shown, gave = {**signatures, **server.sign(group.view, survivors)}, set()
    for slot, state in states.items():
        inbox = {VICTIM: parcels[slot]} if slot in parcels else {}
        reveal = state.unmask(shown, inbox, group.rng)
        server.hear(slot, reveal)
        if slot != VICTIM and VICTIM in {**reveal.seed_shares, **reveal.key_shares}:
            gave.add(slot)
    return server, gave


def assert_hidden(group: Group, server: Crooked) -> None:
    assert server.vector(VICTIM, group.view, group.uploads[VICTIM]) is None


def test_a_mask_key_is_not_given_in_the_place_of_a_seed(group: Group) -> None:
    """Guards: that survivors' parcels open as seed shares only, in `Confirmed._pad`."""
    holders = group.view.holders(VICTIM)
    server, gave = asked(group, EVERYBODY, {h: key_parcel(group, VICTIM, h) for h in holders})
    assert not gave
    assert_hidden(group, server)


def test_a_seed_is_not_given_in_the_place_of_a_mask_key(group: Group) -> None:
    """Guards: that parcels of the lost open as shares of mask keys only, in `Confirmed._pad`."""
    parcels = {h: seed_parcel(group, VICTIM, h) for h in group.view.holders(VICTIM)}
    server, gave = asked(group, WITHOUT_VICTIM, parcels)
    assert not gave
    assert_hidden(group, server)


def test_half_of_the_holders_are_not_asked_for_the_other_secret(group: Group) -> None:
    """Guards: as above: one set of survivors settles for everybody which secret is given."""
    holders = group.view.holders(VICTIM)
    parcels = {
        h: (seed_parcel if place % 2 else key_parcel)(group, VICTIM, h)
        for place, h in enumerate(holders)
    }
    server, gave = asked(group, EVERYBODY, parcels)
    assert gave == set(holders[1::2]) - server.corrupt
    assert server.seed(VICTIM) is not None
    assert_hidden(group, server)


def test_a_second_reveal_is_out_of_phase(group: Group) -> None:
    """Guards: `_spend` in `Confirmed.reveal`."""
    states, signatures = confirmed(group, EVERYBODY, EVERYBODY)
    states[1].unmask(signatures, {}, group.rng)
    with pytest.raises(OutOfPhaseError):
        states[1].unmask(signatures, {}, group.rng)


# Envelopes that are moved


def test_an_envelope_of_mine_reflected_to_me_does_not_open(group: Group) -> None:
    """Guards: sender and receiver in `Purpose.info`, in this order.

    The server names as many of the victim's holders lost as it may, and hands the victim its
    own shares back as if these had dealt them: it would give away its own mask key.
    """
    lost = frozenset(group.view.holders(VICTIM)[3:9])
    mine = {holder: key_parcel(group, VICTIM, holder) for holder in lost}
    survivors = EVERYBODY - lost
    server = collude(group)
    states, signatures = confirmed(group, survivors - server.corrupt, survivors)
    shown = {**signatures, **server.sign(group.view, survivors)}
    for slot, state in states.items():
        is_holder = slot in seed_holders(group)
        inbox = {VICTIM: seed_parcel(group, VICTIM, slot)} if is_holder else {}
        reveal = state.unmask(shown, mine if slot == VICTIM else inbox, group.rng)
        server.hear(slot, reveal)
        if slot != VICTIM:
            continue
        for holder, share in reveal.key_shares.items():
            server.keep(VICTIM, holder, key_share=share)
        assert reveal.invalid_dealers == lost
    assert server.pair(VICTIM) is None
    assert_hidden(group, server)


def test_envelopes_of_two_senders_swapped_do_not_open(group: Group) -> None:
    """Guards: that an envelope opens for one sender's key only, in `Confirmed._pad`."""
    states, signatures = confirmed(group, EVERYBODY, EVERYBODY)
    one, two = [owner for owner in EVERYBODY if VICTIM in group.view.holders(owner)][:2]
    swapped = {one: seed_parcel(group, two, VICTIM), two: seed_parcel(group, one, VICTIM)}
    assert states[VICTIM].unmask(signatures, swapped, group.rng).invalid_dealers == {one, two}


def test_an_envelope_moved_to_another_holder_does_not_open(group: Group) -> None:
    """Guards: the key of the receiver under an envelope."""
    states, signatures = confirmed(group, EVERYBODY, EVERYBODY)
    meant, other = group.view.holders(VICTIM)[:2]
    moved = {VICTIM: seed_parcel(group, VICTIM, meant)}
    assert states[other].unmask(signatures, moved, group.rng).invalid_dealers == {VICTIM}


def test_an_envelope_under_the_name_of_another_sender_does_not_open(group: Group) -> None:
    """Guards: the sender in `Purpose.info`, even if both agree on one secret."""
    view, (holder, colluder) = group.view, group.view.holders(VICTIM)[:2]
    secret = group.joined[holder].encryption_pair.agree(group.cohort.roster[VICTIM].keys.encryption)
    parcel = seed_parcel(group, VICTIM, holder)
    assert unseal(secret, view.seed_share_purpose(VICTIM, holder), parcel) is not None
    assert unseal(secret, view.seed_share_purpose(colluder, holder), parcel) is None
    assert unseal(secret, view.seed_share_purpose(VICTIM, colluder), parcel) is None


# One device alone


def isolated(gather: Gather) -> tuple[Group, frozenset[int]]:
    """Return a sparse group, and all honest partners of the victim.

    These are fewer than may be lost, and their mask keys can be had from the others.
    """
    for seed in range(100):
        group = gather(62, SPARSE, seed)
        server = Crooked(group, group.share().holders(VICTIM)[:3])
        lost = group.view.neighbours(VICTIM) - server.corrupt
        there = [
            len(group.everybody.difference(lost, {VICTIM}) & set(group.view.holders(slot)))
            for slot in lost
        ]
        few = len(lost) < group.cohort.n - group.cohort.quorum
        if few and min(there) >= group.cohort.parameters.threshold:
            group.mask()
            return group, lost
    raise AssertionError("most seeds will do")


def go_on_without(group: Group, lost: frozenset[int]) -> frozenset[int]:
    """Name `lost` lost; let all others but the victim go on; return the survivors."""
    survivors = group.everybody - lost
    group.uploads = {slot: sent for slot, sent in group.uploads.items() if slot in survivors}
    group.confirm(survivors - {VICTIM})
    group.reveal(survivors - {VICTIM})
    return survivors


def test_a_device_whose_holders_are_all_named_lost_confirms_nothing(gather: Gather) -> None:
    """Guards: the threshold of surviving holders in `Masked.confirm`."""
    group, lost = isolated(gather)
    with pytest.raises(UnsafeRequestError, match="too few to unmask me"):
        group.masked[VICTIM].confirm(group.everybody - lost)


def test_a_device_whose_partners_are_all_named_lost_keeps_its_own_mask(gather: Gather) -> None:
    """Guards: the threshold, above what corrupt holders and the victim itself have.

    The victim's masks with others are all known then, and it is named a survivor; but those
    of its holders that are honest are the lost ones.
    """
    group, lost = isolated(gather)
    survivors = go_on_without(group, lost)
    server = collude(group)
    for slot, reveal in group.reveals.items():
        server.hear(slot, reveal)
    own = UnmaskingShares({VICTIM: group.masked[VICTIM].own_share}, {})
    server.hear(VICTIM, own)  # even if it had confirmed
    assert all(server.pair(slot) is not None for slot in group.view.neighbours(VICTIM))
    assert server.seed(VICTIM) is None
    assert_hidden(group, server)
    with pytest.raises(RecoveryError) as caught:
        group.unmask()
    assert caught.value.dealer == VICTIM
    assert VICTIM in survivors


def test_naming_more_lost_than_assumed_is_refused(gather: Gather) -> None:
    """Guards: the quorum in `Masked.confirm`."""
    group, lost = isolated(gather)
    others = sorted(group.everybody - lost - {VICTIM})
    more = lost.union(others[: group.cohort.n - group.cohort.quorum + 1 - len(lost)])
    with pytest.raises(UnsafeRequestError, match="fewer than the quorum"):
        group.masked[VICTIM].confirm(group.everybody - more)


def test_an_isolated_device_can_be_left_out_of_the_one_sum(gather: Gather) -> None:
    """Guards nothing: it says what "one set of n - D survivors" does not exclude.

    Only colluders' vectors wear masks of the victim's, so the server can leave its vector out:
    it learns the sum of the others, one fewer than confirmed, instead of the sum of all.
    """
    group, lost = isolated(gather)
    survivors = go_on_without(group, lost)
    partners, keys = group.view.neighbours(VICTIM), group.cohort.roster[VICTIM].keys
    del group.uploads[VICTIM]
    summing = Unmasking(group.settled, RING, group.reveals, group.masked_sum())
    for slot in survivors - {VICTIM}:
        summing.remove_self_mask(slot)
    for slot in lost:
        summing.remove_pairwise_masks(slot)
    for slot in survivors & partners:  # colluders
        stream = group.view.pairwise_mask_purpose(VICTIM, slot).keystream(
            group.joined[slot].mask_pair.agree(keys.mask)
        )
        MaskApplier(RING).add_mask(summing.total, stream)  # the victim's slot is the lowest
    assert same(summing.total, group.plain_sum(survivors - {VICTIM}))

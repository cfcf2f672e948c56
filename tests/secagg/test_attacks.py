"""Each attack of a server that says to each what it likes, played, and what makes it fail.

Slot 0 is the victim. The server colludes with as many participants as are assumed, the worst
for the victim: its holders. `Guards:` names the check without which the test fails.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from secagg import aggregator
from secagg.errors import FaultyParticipantError, OutOfPhaseError, UnsafeRequestError
from secagg.keys import Identity, KeyPair, PublicKeys, check_identity
from secagg.messages import MaskedInput
from secagg.participant import Joined, join
from secagg.session import Session, Transcript
from secagg.shares import EncryptedShare
from tests.secagg.conftest import RING, Group, same
from tests.secagg.faulty import Crooked, with_entry, with_sharer, without
from tests.secagg.lying import unseal

N = 30  # 14 holders each, threshold 6; 3 corrupt, 6 lost, quorum 24, 23 witnesses
VICTIM = 0
EVERYBODY = frozenset(range(N))
Gather = Callable[..., Group]


@pytest.fixture
def group(gather: Gather) -> Group:
    return gather(N)


def collude(group: Group) -> Crooked:
    """Return a server with the victim's first holders on its side."""
    count = group.cohort.assumptions.max_corrupt(group.cohort.n)
    return Crooked(group, group.view.holders(VICTIM)[:count])


def honest_holders(group: Group, server: Crooked) -> list[int]:
    return [h for h in group.view.holders(VICTIM) if h not in server.corrupt]


def test_a_server_with_both_secrets_would_read_the_vector(group: Group) -> None:
    """Guards nothing: it shows that what the attacks below end in is a vector if they work."""
    view = group.share()
    group.mask()
    server = collude(group)
    upload = group.uploads[VICTIM]
    server.open_deals(VICTIM, view, upload)
    assert server.vector(VICTIM, view, upload) is None
    group.confirm()
    group.reveal()
    for slot, reveal in group.reveals.items():
        server.hear(slot, reveal)
    assert server.seed(VICTIM) is not None
    assert server.vector(VICTIM, view, upload) is None
    for holder in honest_holders(group, server)[:3]:
        parcel = group.deals[VICTIM].encrypted_shares[view.holders(VICTIM).index(holder)]
        purpose = view.session.key_share_purpose(VICTIM, holder)
        public = view.session.roster[VICTIM].keys.encryption
        share = unseal(group.joined[holder].encryption_pair.agree(public), purpose, parcel)
        assert share is not None
        server.keep(VICTIM, holder, key_share=share)
    found = server.vector(VICTIM, view, upload)
    assert found is not None
    assert same(found, group.vector(VICTIM))


# Two rosters


def test_who_is_shown_another_roster_deals_shares_that_nobody_else_can_open(group: Group) -> None:
    """Guards: the roster in `Session.label`, under which envelopes are sealed.

    A colluder signs two pairs of keys: one for the victim to see, one for the others.
    """
    colluder = group.joined[29]
    twin = join(colluder.identity, group.rng)
    signature = twin.advertise(group.cohort.plan_digest)
    cohort = with_entry(group, 29, keys=twin.public_keys, signature=signature).cohort
    assert cohort.is_authentic(29)
    state, deal = group.joined[VICTIM].share(VICTIM, cohort, group.rng)
    true = group.share(EVERYBODY - {VICTIM})
    told = Transcript(cohort, {**true.share_commitments, VICTIM: deal.share_commitment})
    _, upload = state.mask(told, RING, RING.zero(), group.rng)
    group.deals[VICTIM] = deal
    for parcels, purpose in (
        (deal.encrypted_shares, group.cohort.key_share_purpose),
        (upload.seed_shares.encrypted_shares, group.view.seed_share_purpose),
    ):
        for holder, parcel in zip(told.holders(VICTIM), parcels, strict=True):
            secret = group.joined[holder].encryption_pair.agree(
                cohort.roster[VICTIM].keys.encryption
            )
            assert unseal(secret, purpose(VICTIM, holder), parcel) is None
    with pytest.raises(FaultyParticipantError, match="did not sign"):
        aggregator.check_key_shares(group.cohort, VICTIM, deal)
    with pytest.raises(FaultyParticipantError, match="did not sign"):
        aggregator.check_masked_input(group.view, VICTIM, upload)


def test_a_roster_that_reads_as_another_is_refused(group: Group) -> None:
    """Guards: one size of all enrolments in `Session`, whose label joins the entries."""
    entries = group.cohort.roster
    joined = replace(entries[1], registrar_signature=entries[2].pack())
    with pytest.raises(ValueError, match="different sizes"):
        replace(group.cohort, roster=(entries[0], joined, *entries[3:], entries[2]))


@pytest.mark.parametrize("what", ["identity", "keys"])
def test_a_server_that_sits_in_my_slot_is_refused(group: Group, what: str) -> None:
    """Guards: `Joined._is_mine`."""
    theirs = getattr(group.cohort.roster[5], what)
    if what == "keys":
        theirs = PublicKeys(
            KeyPair.of(b"\1" * 32).public, group.cohort.roster[VICTIM].keys.encryption
        )
    else:
        theirs = Identity.of(b"\1" * 32).public
    seated = with_entry(group, VICTIM, **{what: theirs})
    with pytest.raises(UnsafeRequestError, match="another than me"):
        seated.joined[VICTIM].share(VICTIM, seated.cohort, group.rng)


def test_one_device_in_two_slots_is_refused(group: Group) -> None:
    """Guards: distinct identities in `_check_roster` (a Sybil counts once)."""
    seated = with_entry(group, 29, identity=group.cohort.roster[28].identity)
    with pytest.raises(UnsafeRequestError, match="same identity twice"):
        group.joined[VICTIM].share(VICTIM, seated.cohort, group.rng)


def test_a_key_of_mine_in_another_slot_is_refused(group: Group) -> None:
    """Guards: distinct keys in `_check_roster`: I would agree with myself."""
    mine, theirs = group.cohort.roster[VICTIM].keys, group.cohort.roster[29].keys
    seated = with_entry(group, 29, keys=PublicKeys(theirs.mask, mine.encryption))
    with pytest.raises(UnsafeRequestError, match="same key twice"):
        group.joined[VICTIM].share(VICTIM, seated.cohort, group.rng)


@pytest.mark.parametrize("key", [bytes(32), (1).to_bytes(32, "little")])
def test_keys_that_agree_with_everybody_are_in_no_roster(key: bytes) -> None:
    """Guards: points of low order in `PublicKeys` and `check_identity`."""
    with pytest.raises(ValueError, match="low order"):
        PublicKeys(key, b"\7" * 32)
    with pytest.raises(ValueError, match="low order"):
        check_identity(key)


# Holders that are the server's


def surrounded(group: Group, **forged: Callable[[int], object]) -> tuple[Session, Random]:
    """Return a roster with six forged entries, and chance by which the victim picks three."""
    slots = range(24, 30)
    for slot in slots:
        group = with_entry(group, slot, **{fact: of(slot) for fact, of in forged.items()})
    picking = group.cohort.neighbour_selection
    for seed in range(1000):
        picked = picking.holders(VICTIM, Random(seed).randbytes(32))
        if len(set(slots).intersection(picked)) >= 3:
            return group.cohort, Random(seed)
    raise AssertionError("half of all seeds will do")


@pytest.mark.parametrize("which", ["mask", "seal", "both"])
def test_honest_holders_with_keys_of_the_servers_are_refused(group: Group, which: str) -> None:
    """Guards: `Session.vouches` in `Joined.share`, before anything is dealt.

    The server seats honest identities with keys of its own, and will name them lost: with
    three of the victim's holders and three colluders it would open a threshold of shares.
    """

    def own(slot: int) -> PublicKeys:
        true = group.cohort.roster[slot].keys
        forged = join(group.identities[slot], Random(slot)).public_keys
        return {
            "mask": PublicKeys(forged.mask, true.encryption),
            "seal": PublicKeys(true.mask, forged.encryption),
            "both": forged,
        }[which]

    cohort, chance = surrounded(group, keys=own)
    with pytest.raises(UnsafeRequestError, match="with keys not its own"):
        group.joined[VICTIM].share(VICTIM, cohort, chance)
    with pytest.raises(OutOfPhaseError):  # it picks no second time
        group.joined[VICTIM].share(VICTIM, group.cohort, group.rng)


def test_holders_that_no_registrar_let_in_are_refused(gather: Gather) -> None:
    """Guards: the registry in `Session.vouches`: Sybils sign their own keys."""
    group = gather(N, registrar=Identity.of(b"r" * 32))
    sybils = [join(Identity.of(bytes([x]) * 32), Random(x)) for x in range(N)]
    plan, registry = group.cohort.plan_digest, group.cohort.registry
    assert registry is not None
    cohort, chance = surrounded(
        group,
        identity=lambda slot: sybils[slot].identity.public,
        keys=lambda slot: sybils[slot].public_keys,
        signature=lambda slot: sybils[slot].advertise(plan),
        registrar_signature=lambda slot: sybils[slot].identity.sign(
            registry.enrolment_statement(sybils[slot].identity.public)
        ),
    )
    with pytest.raises(UnsafeRequestError, match="with keys not its own"):
        group.joined[VICTIM].share(VICTIM, cohort, chance)


# A replayed round


def test_keys_of_an_earlier_round_are_refused(group: Group) -> None:
    """Guards: the plan in `advertisement`.

    The server knows the mask keys of those that were lost then, and seats them again.
    """
    again = join(group.identities[VICTIM], group.rng)
    plan = b"\7" * 32
    seated = with_entry(group, VICTIM, keys=again.public_keys, signature=again.advertise(plan))
    later = replace(seated.cohort, plan_digest=plan)
    with pytest.raises(UnsafeRequestError, match="with keys not its own"):
        again.share(VICTIM, later, group.rng)


@pytest.mark.parametrize("other", [{"plan_digest": b"\7" * 32}, {"cohort_number": 1}])
def test_envelopes_of_another_sum_do_not_open(group: Group, other: dict[str, Any]) -> None:
    """Guards: plan and number of the cohort in `Session.label`."""
    view, later = group.share(), replace(group.cohort, **other)
    holder = view.holders(VICTIM)[0]
    secret = group.joined[holder].encryption_pair.agree(group.cohort.roster[VICTIM].keys.encryption)
    parcel = group.deals[VICTIM].encrypted_shares[0]
    assert unseal(secret, view.session.key_share_purpose(VICTIM, holder), parcel) is not None
    assert unseal(secret, later.key_share_purpose(VICTIM, holder), parcel) is None
    assert Transcript(later, view.share_commitments).label != view.label


# The graph


def test_nobody_steers_the_holders_of_another(group: Group) -> None:
    """Guards: `Picking.holders`, which reads one contribution only.

    Colluders speak last, and choose among many contributions; the victim's holders are as
    they were, and only the colluders' own picks follow.
    """
    view = group.share()
    before = view.holders(VICTIM)
    server, chance = collude(group), Random(1)
    for _ in range(100):
        told = view
        for slot in server.corrupt:
            told = with_sharer(told, slot, graph_nonce=chance.randbytes(32))
        assert told.holders(VICTIM) == before
        honest = told.neighbours(VICTIM) - server.corrupt
        assert honest == view.neighbours(VICTIM) - server.corrupt


def test_nobody_knows_a_participants_holders_before_it_speaks(group: Group) -> None:
    """Guards: the fresh contribution in `Joined.share`.

    Else a server would try rosters until the victim's holders are its own.
    """
    state = group.joined[VICTIM]
    picked = set()
    for seed in range(20):
        again = Joined(state.identity, state.mask_pair, state.encryption_pair)
        _, deal = again.share(VICTIM, group.cohort, Random(seed))
        picked.add(group.cohort.neighbour_selection.holders(VICTIM, deal.graph_nonce))
    assert len(picked) == 20


# Two lists of sharers


def tell_the_others(group: Group, server: Crooked, told: Transcript, upload: MaskedInput) -> None:
    """Take the victim, who was told another view, for a survivor; hear what the others give."""
    view = group.view
    heard = [holder for holder in view.holders(VICTIM) if holder in told.share_commitments]
    dealt = dict(zip(heard, upload.seed_shares.encrypted_shares, strict=True))
    nothing = EncryptedShare(bytes(32), bytes(33))
    parcels = tuple(dealt.get(holder, nothing) for holder in view.holders(VICTIM))
    group.mask(EVERYBODY - {VICTIM})
    group.uploads[VICTIM] = replace(
        upload, seed_shares=replace(upload.seed_shares, encrypted_shares=parcels)
    )
    group.confirm(EVERYBODY - {VICTIM})
    group.reveal(EVERYBODY - {VICTIM})
    for slot, reveal in group.reveals.items():
        server.hear(slot, reveal)
    assert {h for h, reveal in group.reveals.items() if VICTIM in reveal.invalid_dealers} == {
        holder for holder in view.holders(VICTIM) if holder in group.reveals
    }


def test_seeds_of_who_was_told_of_fewer_sharers_open_for_nobody_else(group: Group) -> None:
    """Guards: the view in the label of seed shares (`Transcript.seed_share`).

    The victim is left as few honest holders as a quorum lets. The others are told the truth
    and take it for a survivor, so they would give the shares of its seed that they can open.
    """
    view = group.share()
    server = collude(group)
    gone = honest_holders(group, server)[: group.cohort.n - group.cohort.quorum]
    told = without(view, gone)
    _, upload = group.shared[VICTIM].mask(told, RING, group.vector(VICTIM), group.rng)
    server.open_deals(VICTIM, told, upload)
    tell_the_others(group, server, told, upload)
    assert server.seed(VICTIM) is None
    assert server.vector(VICTIM, told, upload) is None


@pytest.mark.parametrize("is_holder", [True, False])
def test_an_edge_hidden_from_the_victim_makes_it_a_stranger(group: Group, is_holder: bool) -> None:
    """Guards: contributions in `Transcript.label`.

    One that picked the victim is given a contribution with which it did not, so that the
    victim leaves out a mask; or a holder of the victim's, another one's.
    """
    view, chance = group.share(), Random(3)
    server = collude(group)
    suitor = next(
        slot
        for slot in view.neighbours(VICTIM)
        if (slot in view.holders(VICTIM)) == is_holder and VICTIM in view.holders(slot)
    )
    told = next(
        other
        for _ in range(100)  # odds of a half each time
        for other in [with_sharer(view, suitor, graph_nonce=chance.randbytes(32))]
        if VICTIM not in other.holders(suitor)
    )
    _, upload = group.shared[VICTIM].mask(told, RING, RING.zero(), group.rng)
    tell_the_others(group, server, told, upload)
    assert server.seed(VICTIM) is None


def test_a_deal_hidden_from_the_victim_makes_it_a_stranger(group: Group) -> None:
    """Guards: digests of what was dealt in `Transcript.label`."""
    view = group.share()
    server = collude(group)
    other = next(
        slot for slot in view.share_commitments if slot not in {VICTIM, *view.holders(VICTIM)}
    )
    told = with_sharer(view, other, shares_digest=bytes(32))
    _, upload = group.shared[VICTIM].mask(told, RING, RING.zero(), group.rng)
    tell_the_others(group, server, told, upload)
    assert server.seed(VICTIM) is None


def test_masks_under_two_views_do_not_cancel(group: Group) -> None:
    """Guards: the view in the label of masks (`Transcript.pairwise`, `Transcript.own`).

    Else a server could tell each of a crowd of another few lost partners, so that the crowd
    shares no mask with the others, and read two sums.
    """
    view = group.share()
    told = without(view, [29])
    other = next(slot for slot in view.neighbours(VICTIM) if slot in told.share_commitments)
    secret = group.joined[VICTIM].mask_pair.agree(group.cohort.roster[other].keys.mask)
    for purpose in (Transcript.pairwise_mask_purpose, lambda v, slot, _: v.self_mask_purpose(slot)):
        one, two = (purpose(v, VICTIM, other).derive(secret) for v in (view, told))
        assert one != two


def test_a_list_of_sharers_below_the_quorum_is_refused(group: Group) -> None:
    """Guards: the quorum in `Shared.mask`."""
    view = group.share()
    server = collude(group)
    gone = honest_holders(group, server)[: group.cohort.n - group.cohort.quorum + 1]
    with pytest.raises(UnsafeRequestError, match="fewer than the quorum"):
        group.shared[VICTIM].mask(without(view, gone), RING, RING.zero(), group.rng)


def test_a_vector_that_was_lost_on_purpose_keeps_its_own_mask(group: Group) -> None:
    """Guards: one secret of each owner in `Confirmed.reveal`.

    The victim's vector arrived, but the others are told that it did not: its mask key is
    given away, and only its seed still hides it.
    """
    view = group.share()
    group.mask()
    server = collude(group)
    upload = group.uploads.pop(VICTIM)
    server.open_deals(VICTIM, view, upload)
    group.confirm(EVERYBODY - {VICTIM})
    group.reveal(EVERYBODY - {VICTIM})
    for slot, reveal in group.reveals.items():
        server.hear(slot, reveal)
    assert server.pair(VICTIM) is not None
    assert server.seed(VICTIM) is None
    assert server.vector(VICTIM, view, upload) is None
    with pytest.raises(UnsafeRequestError, match="left my vector out"):
        group.masked[VICTIM].confirm(EVERYBODY - {VICTIM})

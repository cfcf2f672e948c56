"""Each attack of a server that says to each what it likes, played, and what makes it fail.

Slot 0 is the victim. The server colludes with as many participants as are assumed, the worst
for the victim: its holders. `Guards:` names the check without which the test fails.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from secagg.cohort import Cohort, View
from secagg.deals import Parcel, Upload
from secagg.errors import RefusedError
from secagg.keys import Identity, KeyPair, PublicKeys, check_identity
from secagg.participant import Joined, join
from tests.secagg.conftest import RING, Group, same
from tests.secagg.crooked import Crooked, with_entry, with_sharer, without

N = 30  # 14 holders each, threshold 6; 3 corrupt, 6 lost, quorum 24, 23 witnesses
VICTIM = 0
EVERYBODY = frozenset(range(N))
Gather = Callable[..., Group]


@pytest.fixture
def group(gather: Gather) -> Group:
    return gather(N)


def collude(group: Group) -> Crooked:
    """Return a server with the victim's first holders on its side."""
    count = group.cohort.assumptions.corrupted(group.cohort.n)
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
        parcel = group.deals[VICTIM].parcels[view.holders(VICTIM).index(holder)]
        purpose = view.cohort.key_share(VICTIM, holder)
        public = view.cohort.roster[VICTIM].keys.seal
        share = purpose.open(group.joined[holder].seal.agree(public), parcel.envelope)
        assert share is not None
        server.keep(VICTIM, holder, key_share=share)
    found = server.vector(VICTIM, view, upload)
    assert found is not None
    assert same(found, group.vector(VICTIM))


# Two rosters


def other_roster(group: Group) -> Cohort:
    """Return the cohort with other keys of one corrupt participant."""
    keys = PublicKeys(KeyPair.of(b"\1" * 32).public, KeyPair.of(b"\2" * 32).public)
    return with_entry(group, 29, keys=keys).cohort


def test_who_is_shown_another_roster_sends_no_vector(group: Group) -> None:
    """Guards: the roster in `Cohort.label`, and the signatures of holders in `Shared.mask`."""
    cohort = other_roster(group)
    assert cohort.label != group.cohort.label
    state, deal = group.joined[VICTIM].share(VICTIM, cohort, group.rng)
    sharers = group.share(EVERYBODY - {VICTIM}).sharers
    told = View(cohort, {**sharers, VICTIM: deal.sharer})
    with pytest.raises(RefusedError, match="did not sign"):
        state.mask(told, RING, RING.zero(), group.rng)


def test_who_was_shown_another_roster_deals_shares_that_nobody_else_can_open(group: Group) -> None:
    """Guards: the roster in `Cohort.label`, under which deals are sealed and signed.

    Whoever picked the victim sees that, and refuses: more are lost than a quorum lets.
    """
    _, deal = group.joined[VICTIM].share(VICTIM, other_roster(group), group.rng)
    group.share(EVERYBODY - {VICTIM})
    group.deals[VICTIM] = deal
    view = group.view
    for holder, parcel in zip(view.holders(VICTIM), deal.parcels, strict=True):
        secret = group.joined[holder].seal.agree(group.cohort.roster[VICTIM].keys.seal)
        purpose = view.cohort.key_share(VICTIM, holder)
        assert purpose.open(secret, parcel.envelope) is None
    suitors = [slot for slot in EVERYBODY - {VICTIM} if VICTIM in view.holders(slot)]
    for slot in suitors:
        with pytest.raises(RefusedError, match="participant 0 did not sign"):
            group.mask([slot])
    assert len(suitors) > group.cohort.n - group.cohort.quorum


def test_a_roster_that_reads_as_another_is_refused(group: Group) -> None:
    """Guards: one size of all enrolments in `Cohort`, whose label joins the entries."""
    entries = group.cohort.roster
    joined = replace(entries[1], enrolment=entries[2].pack())
    with pytest.raises(ValueError, match="different sizes"):
        replace(group.cohort, roster=(entries[0], joined, *entries[3:], entries[2]))


@pytest.mark.parametrize("what", ["identity", "keys"])
def test_a_server_that_sits_in_my_slot_is_refused(group: Group, what: str) -> None:
    """Guards: `Joined._is_mine`."""
    theirs = getattr(group.cohort.roster[5], what)
    if what == "keys":
        theirs = PublicKeys(KeyPair.of(b"\1" * 32).public, group.cohort.roster[VICTIM].keys.seal)
    else:
        theirs = Identity.of(b"\1" * 32).public
    seated = with_entry(group, VICTIM, **{what: theirs})
    with pytest.raises(RefusedError, match="another than me"):
        seated.joined[VICTIM].share(VICTIM, seated.cohort, group.rng)


def test_one_device_in_two_slots_is_refused(group: Group) -> None:
    """Guards: distinct identities in `_check_roster` (a Sybil counts once)."""
    seated = with_entry(group, 29, identity=group.cohort.roster[28].identity)
    with pytest.raises(RefusedError, match="same identity twice"):
        group.joined[VICTIM].share(VICTIM, seated.cohort, group.rng)


def test_a_key_of_mine_in_another_slot_is_refused(group: Group) -> None:
    """Guards: distinct keys in `_check_roster`: I would agree with myself."""
    mine, theirs = group.cohort.roster[VICTIM].keys, group.cohort.roster[29].keys
    seated = with_entry(group, 29, keys=PublicKeys(theirs.mask, mine.seal))
    with pytest.raises(RefusedError, match="same key twice"):
        group.joined[VICTIM].share(VICTIM, seated.cohort, group.rng)


@pytest.mark.parametrize("key", [bytes(32), (1).to_bytes(32, "little"), b"\xec" + b"\xff" * 31])
def test_keys_that_agree_with_everybody_are_in_no_roster(key: bytes) -> None:
    """Guards: points of low order in `PublicKeys` and `check_identity`."""
    with pytest.raises(ValueError, match="low order"):
        PublicKeys(key, b"\7" * 32)
    with pytest.raises(ValueError, match="low order"):
        check_identity(key)


# Sybils and the unsigned


def test_holders_that_no_registrar_let_in_are_refused(gather: Gather) -> None:
    """Guards: `Registry.admits` in `Shared.mask`."""
    group = gather(N, registrar=Identity.of(b"r" * 32))
    sybil = group.cohort.roster[29]
    forged = Identity.of(b"s" * 32).sign(group.cohort.registry.enrolment(sybil.identity))  # type: ignore[union-attr]
    group.cohort = with_entry(group, 29, enrolment=forged).cohort
    view = group.share()
    surrounded = next(slot for slot in view.sharers if 29 in view.holders(slot))
    with pytest.raises(RefusedError, match="participant 29, who is not enrolled"):
        group.mask([surrounded])


def test_holders_that_signed_nothing_are_refused(group: Group) -> None:
    """Guards: `View.is_signed` of each holder in `Shared.mask`."""
    view = group.share()
    holder = view.holders(VICTIM)[0]
    made_up = with_sharer(view, holder, contribution=bytes(32), signature=bytes(64))
    with pytest.raises(RefusedError, match=f"participant {holder} did not sign"):
        group.shared[VICTIM].mask(made_up, RING, RING.zero(), group.rng)


def test_the_contribution_of_a_holder_cannot_be_swapped(group: Group) -> None:
    """Guards: the contribution in `Sharer.said`, which its owner signed."""
    view = group.share()
    holder, other = view.holders(VICTIM)[:2]
    swapped = with_sharer(view, holder, contribution=view.sharers[other].contribution)
    with pytest.raises(RefusedError, match=f"participant {holder} did not sign"):
        group.shared[VICTIM].mask(swapped, RING, RING.zero(), group.rng)


# A replayed round


def test_deals_of_an_earlier_round_are_refused(group: Group) -> None:
    """Guards: the label in what is signed as `shares`.

    The server knows keys of those that were lost then; it seats them again.
    """
    old = group.share()
    again = Random(99)
    fresh = join(group.identities[VICTIM], again)
    seated = with_entry(group, VICTIM, keys=fresh.public).cohort
    cohort = replace(seated, session=b"\7" * 32)
    state, deal = fresh.share(VICTIM, cohort, again)
    told = View(cohort, {**old.sharers, VICTIM: deal.sharer})
    with pytest.raises(RefusedError, match="did not sign"):
        state.mask(told, RING, RING.zero(), again)


def test_envelopes_of_an_earlier_round_do_not_open(group: Group) -> None:
    """Guards: the session in `Cohort.label`, under which envelopes are sealed."""
    old = group.share()
    later = replace(group.cohort, session=b"\7" * 32)
    holder = old.holders(VICTIM)[0]
    secret = group.joined[holder].seal.agree(group.cohort.roster[VICTIM].keys.seal)
    envelope = group.deals[VICTIM].parcels[0].envelope
    assert old.cohort.key_share(VICTIM, holder).open(secret, envelope) is not None
    assert later.key_share(VICTIM, holder).open(secret, envelope) is None


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
            told = with_sharer(told, slot, contribution=chance.randbytes(32))
        assert told.holders(VICTIM) == before
        honest = told.partners(VICTIM) - server.corrupt
        assert honest == view.partners(VICTIM) - server.corrupt


def test_nobody_knows_a_participants_holders_before_it_speaks(group: Group) -> None:
    """Guards: the fresh contribution in `Joined.share`.

    Else a server would try rosters until the victim's holders are its own.
    """
    state = group.joined[VICTIM]
    picked = set()
    for seed in range(20):
        again = Joined(state.identity, state.mask, state.seal)
        _, deal = again.share(VICTIM, group.cohort, Random(seed))
        picked.add(group.cohort.picking.holders(VICTIM, deal.contribution))
    assert len(picked) == 20


# Two lists of sharers


def tell_the_others(group: Group, server: Crooked, told: View, upload: Upload) -> None:
    """Take the victim, who was told another view, for a survivor; hear what the others give."""
    view = group.view
    heard = [holder for holder in view.holders(VICTIM) if holder in told.sharers]
    dealt = dict(zip(heard, upload.deal.parcels, strict=True))
    nothing = Parcel(bytes(32), bytes(49))
    parcels = tuple(dealt.get(holder, nothing) for holder in view.holders(VICTIM))
    group.mask(EVERYBODY - {VICTIM})
    group.uploads[VICTIM] = replace(upload, deal=replace(upload.deal, parcels=parcels))
    group.confirm(EVERYBODY - {VICTIM})
    group.reveal(EVERYBODY - {VICTIM})
    for slot, reveal in group.reveals.items():
        server.hear(slot, reveal)
    assert {h for h, reveal in group.reveals.items() if VICTIM in reveal.faulty} == {
        holder for holder in view.holders(VICTIM) if holder in group.reveals
    }


def test_seeds_of_who_was_told_of_fewer_sharers_open_for_nobody_else(group: Group) -> None:
    """Guards: the view in the label of seed shares (`View.seed_share`).

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


def test_an_edge_hidden_from_the_victim_makes_it_a_stranger(group: Group) -> None:
    """Guards: contributions in `View.label`.

    One that picked the victim is given a contribution with which it did not, so that the
    victim leaves out a mask. It is no holder of the victim's, who cannot check its signature.
    """
    view, chance = group.share(), Random(3)
    server = collude(group)
    suitor = next(
        slot
        for slot in view.partners(VICTIM)
        if slot not in view.holders(VICTIM) and VICTIM in view.holders(slot)
    )
    told = view
    while suitor in told.partners(VICTIM):
        told = with_sharer(view, suitor, contribution=chance.randbytes(32))
    _, upload = group.shared[VICTIM].mask(told, RING, RING.zero(), group.rng)
    tell_the_others(group, server, told, upload)
    assert server.seed(VICTIM) is None


def test_a_deal_hidden_from_the_victim_makes_it_a_stranger(group: Group) -> None:
    """Guards: digests of what was dealt in `View.label`."""
    view = group.share()
    server = collude(group)
    other = next(slot for slot in view.sharers if slot not in {VICTIM, *view.holders(VICTIM)})
    told = with_sharer(view, other, digest=bytes(32))
    _, upload = group.shared[VICTIM].mask(told, RING, RING.zero(), group.rng)
    tell_the_others(group, server, told, upload)
    assert server.seed(VICTIM) is None


def test_masks_under_two_views_do_not_cancel(group: Group) -> None:
    """Guards: the view in the label of masks (`View.pairwise`, `View.own`).

    Else a server could tell each of a crowd of another few lost partners, so that the crowd
    shares no mask with the others, and read two sums.
    """
    view = group.share()
    told = without(view, [29])
    other = next(slot for slot in view.partners(VICTIM) if slot in told.sharers)
    secret = group.joined[VICTIM].mask.agree(group.cohort.roster[other].keys.mask)
    for purpose in (View.pairwise, lambda v, one, _: v.own(one)):
        one, two = (purpose(v, VICTIM, other).derive(secret, 16) for v in (view, told))
        assert one != two


def test_a_list_of_sharers_below_the_quorum_is_refused(group: Group) -> None:
    """Guards: the quorum in `Shared.mask`."""
    view = group.share()
    server = collude(group)
    gone = honest_holders(group, server)[: group.cohort.n - group.cohort.quorum + 1]
    with pytest.raises(RefusedError, match="fewer than the quorum"):
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
    with pytest.raises(RefusedError, match="left my vector out"):
        group.masked[VICTIM].confirm(EVERYBODY - {VICTIM})

"""Attacks of a server that sends different messages to each participant, and their defences.

Slot 0 is the victim. The server colludes with the largest number of participants that is assumed,
and with the worst for the victim: its holders. `Guards:` names the check without which a test
fails.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from secagg import aggregator
from secagg.errors import FaultyParticipantError, OutOfPhaseError, UnsafeRequestError
from secagg.keys import Identity, PublicKeys
from secagg.messages import MaskedInput, SignedInput
from secagg.participant import Joined, join
from secagg.roster import ShareCommitments
from secagg.session import Session, Transcript
from tests.secagg import lying
from tests.secagg.conftest import RING, Group, assemble, same
from tests.secagg.faulty import MaliciousServer, collude, with_commitment, with_entry, without
from tests.secagg.lying import unseal

N = 30  # 14 holders each, threshold 6; 3 corrupt, 6 dropouts, quorum 24, 23 spot checks
VICTIM = 0
ALL_SLOTS = frozenset(range(N))


def honest_holders(group: Group, server: MaliciousServer) -> list[int]:
    return [h for h in group.transcript.holders(VICTIM) if h not in server.corrupt]


def test_a_server_with_both_secrets_would_read_the_vector(group: Group) -> None:
    """Guards nothing: it shows that the attacks below would reveal a vector if they worked."""
    transcript = group.share()
    group.mask()
    server = collude(group, VICTIM)
    upload = group.masked_inputs[VICTIM]
    server.decrypt_shares_of(VICTIM)
    assert server.vector(VICTIM, transcript, upload) is None
    group.reveal()
    for slot, reveal in group.unmasking_shares.items():
        server.receive(slot, reveal)
    assert server.seed(VICTIM) is not None
    assert server.vector(VICTIM, transcript, upload) is None
    for holder in honest_holders(group, server)[:3]:
        encrypted = lying.share_pairs(group, VICTIM)[holder].key
        purpose = transcript.session.key_share_purpose(VICTIM, holder)
        share = unseal(group.agree(holder, VICTIM), purpose, encrypted)
        assert share is not None
        server.keep(VICTIM, holder, key_share=share)
    vector = server.vector(VICTIM, transcript, upload)
    assert vector is not None
    assert same(vector, group.vector(VICTIM))


# Two rosters


def test_shares_under_another_roster_cannot_be_decrypted(group: Group) -> None:
    """Guards: the roster in `Session.label`, from which the pads on shares are derived.

    A colluder signs two pairs of keys: the victim receives one, the others receive the other.
    """
    colluder = group.joined[29]
    twin = join(colluder.identity, group.rng)
    signature = twin.advertise(group.session.plan_digest)
    session = with_entry(group.session, 29, keys=twin.public_keys, signature=signature)
    assert session.is_authentic(29)
    state, key_shares = group.joined[VICTIM].share(VICTIM, session, group.rng)
    true = group.share(ALL_SLOTS - {VICTIM})
    commitments = {**true.share_commitments, VICTIM: key_shares.share_commitment}
    shown = Transcript(session, ShareCommitments.of(commitments))
    checked, _ = state.check({})
    _, upload = checked.mask(shown, RING, RING.zero())
    for holder, pair in zip(shown.holders(VICTIM), key_shares.share_pairs, strict=True):
        secret = group.joined[holder].encryption_pair.agree(session.roster[VICTIM].keys.encryption)
        for encrypted, purpose in (
            (pair.key, group.session.key_share_purpose),
            (pair.seed, group.session.seed_share_purpose),
        ):
            assert unseal(secret, purpose(VICTIM, holder), encrypted) is None
    group.key_shares[VICTIM] = key_shares
    with pytest.raises(FaultyParticipantError, match="did not sign"):
        aggregator.check_key_shares(group.session, VICTIM, key_shares)
    with pytest.raises(FaultyParticipantError, match="did not sign"):
        aggregator.check_masked_input(group.transcript, VICTIM, upload)


# Holders that are the server's


def surrounded(group: Group, **forged: Callable[[int], object]) -> tuple[Session, Random]:
    """Return a roster with six forged entries, and a generator that makes three of them holders."""
    slots, session = range(24, 30), group.session
    for slot in slots:
        session = with_entry(session, slot, **{fact: of(slot) for fact, of in forged.items()})
    selection = session.neighbour_selection
    for seed in range(1000):
        selected = selection.holders(VICTIM, Random(seed).randbytes(32))
        if len(set(slots).intersection(selected)) >= 3:
            return session, Random(seed)
    raise AssertionError("half of all seeds suffice")


@pytest.mark.parametrize("which", ["mask", "seal", "both"])
def test_honest_holders_with_keys_of_the_servers_are_refused(group: Group, which: str) -> None:
    """Guards: `Session.is_authentic` in `Joined.share`, before any share is encrypted.

    The server gives honest identities its own keys, and will name them as dropouts: with three of
    the victim's holders and three colluders it could decrypt a threshold of shares.
    """

    def own(slot: int) -> PublicKeys:
        true = group.session.roster[slot].keys
        forged = join(group.identities[slot], Random(slot)).public_keys
        return {
            "mask": PublicKeys(forged.mask, true.encryption),
            "seal": PublicKeys(true.mask, forged.encryption),
            "both": forged,
        }[which]

    session, chance = surrounded(group, keys=own)
    with pytest.raises(UnsafeRequestError, match="with keys not its own"):
        group.joined[VICTIM].share(VICTIM, session, chance)
    with pytest.raises(OutOfPhaseError):  # holders are selected once
        group.joined[VICTIM].share(VICTIM, group.session, group.rng)


def test_holders_that_are_not_enrolled_are_refused() -> None:
    """Guards: the registry in `Session.is_authentic`: Sybils sign their own keys."""
    group = assemble(N, registrar=Identity.of(b"r" * 32))
    sybils = [join(Identity.of(bytes([x]) * 32), Random(x)) for x in range(N)]
    plan, registry = group.session.plan_digest, group.session.registry
    assert registry is not None
    session, chance = surrounded(
        group,
        identity=lambda slot: sybils[slot].identity.public,
        keys=lambda slot: sybils[slot].public_keys,
        signature=lambda slot: sybils[slot].advertise(plan),
        registrar_signature=lambda slot: sybils[slot].identity.sign(
            registry.enrolment_statement(sybils[slot].identity.public)
        ),
    )
    with pytest.raises(UnsafeRequestError, match="with keys not its own"):
        group.joined[VICTIM].share(VICTIM, session, chance)


# A replayed round


def test_keys_of_an_earlier_round_are_refused(group: Group) -> None:
    """Guards: the plan in `advertisement_statement`.

    The server knows the mask keys of the dropouts of that round, and uses them again.
    """
    again = join(group.identities[VICTIM], group.rng)
    plan = b"\7" * 32
    seated = with_entry(
        group.session, VICTIM, keys=again.public_keys, signature=again.advertise(plan)
    )
    later = replace(seated, plan_digest=plan)
    with pytest.raises(UnsafeRequestError, match="with keys not its own"):
        again.share(VICTIM, later, group.rng)


@pytest.mark.parametrize("other", [{"plan_digest": b"\7" * 32}, {"cohort_number": 1}])
def test_shares_of_another_sum_cannot_be_decrypted(group: Group, other: dict[str, Any]) -> None:
    """Guards: plan and number of the cohort in `Session.label`."""
    transcript, later = group.share(), replace(group.session, **other)
    holder = transcript.holders(VICTIM)[0]
    secret = group.agree(holder, VICTIM)
    encrypted = group.key_shares[VICTIM].share_pairs[0].key
    assert (
        unseal(secret, transcript.session.key_share_purpose(VICTIM, holder), encrypted) is not None
    )
    assert unseal(secret, later.key_share_purpose(VICTIM, holder), encrypted) is None
    assert Transcript(later, transcript.share_commitments).label != transcript.label


# The graph


def test_no_participant_influences_the_holders_of_another(group: Group) -> None:
    """Guards: `NeighbourSelection.holders`, which uses one graph nonce only.

    Colluders share last and try many graph nonces. The victim's holders do not change: only the
    colluders' own holders do.
    """
    transcript = group.share()
    before = transcript.holders(VICTIM)
    server, chance = collude(group, VICTIM), Random(1)
    for _ in range(100):
        shown = transcript
        for slot in server.corrupt:
            shown = with_commitment(shown, slot, graph_nonce=chance.randbytes(32))
        assert shown.holders(VICTIM) == before
        honest = shown.neighbours(VICTIM) - server.corrupt
        assert honest == transcript.neighbours(VICTIM) - server.corrupt


def test_holders_are_not_known_before_their_participant_shares(group: Group) -> None:
    """Guards: the fresh graph nonce in `Joined.share`.

    Otherwise a server would try rosters until the victim's holders are its own.
    """
    state = group.joined[VICTIM]
    selected = set()
    for seed in range(20):
        again = Joined(state.identity, state.mask_pair, state.encryption_pair)
        _, key_shares = again.share(VICTIM, group.session, Random(seed))
        selected.add(group.session.neighbour_selection.holders(VICTIM, key_shares.graph_nonce))
    assert len(selected) == 20


# Two lists of share commitments


def continue_with_the_others(group: Group, server: MaliciousServer, upload: MaskedInput) -> None:
    """Treat the victim with its false transcript as a survivor; receive the others' shares.

    Its honest holders refuse to reveal its seed. The others do not notice.
    """
    transcript = group.transcript
    group.mask(ALL_SLOTS - {VICTIM})
    group.masked_inputs[VICTIM] = upload
    group.confirm(ALL_SLOTS - {VICTIM})
    for slot, state in group.confirmed.items():
        if slot in transcript.holders(VICTIM):
            with pytest.raises(UnsafeRequestError, match=f"named survivor {VICTIM}"):
                state.unmask(group.confirmations, group.signed_inputs, group.rng)
        else:
            message = state.unmask(group.confirmations, group.signed_inputs, group.rng)
            server.receive(slot, message)


def mask_victim(group: Group, shown: Transcript) -> MaskedInput:
    _, upload = group.checked[VICTIM].mask(shown, RING, group.vector(VICTIM))
    return upload


def test_a_shorter_list_of_dealers_does_not_open_a_seed(group: Group) -> None:
    """Guards: `Confirmed._check_transcript_of`: the victim signed under another transcript.

    It receives a list in which the number of its honest holders that a quorum allows is missing: it
    does not mask with them. The others receive the true list and treat it as a survivor, so they
    would reveal their shares of its seed. The rest of its neighbours are named as dropouts.
    """
    transcript = group.check()
    server = collude(group, VICTIM)
    server.decrypt_shares_of(VICTIM)
    hidden = honest_holders(group, server)[: group.session.n - group.session.quorum]
    shown = without(transcript, hidden)
    upload = mask_victim(group, shown)
    continue_with_the_others(group, server, upload)
    assert server.seed(VICTIM) is None
    assert server.vector(VICTIM, shown, upload) is None


@pytest.mark.parametrize("forged", ["none", "empty", "of another survivor"])
def test_a_signature_of_a_transcript_cannot_be_forged(group: Group, forged: str) -> None:
    """Guards: `Confirmed._check_transcript_of`."""
    group.check()
    group.mask()
    group.confirm()
    holder = group.transcript.holders(VICTIM)[0]
    shown = dict(group.signed_inputs)
    if forged == "none":
        del shown[VICTIM]
    else:
        shown[VICTIM] = shown[5] if forged != "empty" else SignedInput(bytes(32), bytes(64))
    with pytest.raises(UnsafeRequestError, match=f"named survivor {VICTIM}"):
        group.confirmed[holder].unmask(group.confirmations, shown, group.rng)


@pytest.mark.parametrize("is_holder", [True, False])
def test_a_victim_with_an_edge_hidden_from_it_stays_masked(group: Group, is_holder: bool) -> None:
    """Guards: graph nonces in `Transcript.label`.

    The victim receives a false graph nonce of a participant that selected it, with which that
    participant did not, so that the victim leaves out a mask; or of one of the victim's holders.
    """
    transcript, chance = group.check(), Random(3)
    server = collude(group, VICTIM)
    selecting = next(
        slot
        for slot in transcript.neighbours(VICTIM)
        if (slot in transcript.holders(VICTIM)) == is_holder and VICTIM in transcript.holders(slot)
    )
    shown = next(
        other
        for _ in range(100)  # probability of a half each time
        for other in [with_commitment(transcript, selecting, graph_nonce=chance.randbytes(32))]
        if VICTIM not in other.holders(selecting)
    )
    continue_with_the_others(group, server, mask_victim(group, shown))
    assert server.seed(VICTIM) is None


def test_a_victim_with_key_shares_hidden_from_it_stays_masked(group: Group) -> None:
    """Guards: digests of key shares in `Transcript.label`."""
    transcript = group.check()
    server = collude(group, VICTIM)
    other = next(
        slot
        for slot in transcript.share_commitments
        if slot not in {VICTIM, *transcript.holders(VICTIM)}
    )
    shown = with_commitment(transcript, other, shares_digest=bytes(32))
    continue_with_the_others(group, server, mask_victim(group, shown))
    assert server.seed(VICTIM) is None


def test_masks_under_two_transcripts_do_not_cancel(group: Group) -> None:
    """Guards: the transcript in the label of masks (`Transcript.pairwise_mask_purpose`).

    Otherwise a server could name different neighbours as dropouts to each member of a group, so
    that the group shares no mask with the others, and read two sums.
    """
    transcript = group.share()
    shown = without(transcript, [29])
    other = next(slot for slot in transcript.neighbours(VICTIM) if slot in shown.share_commitments)
    secret = group.joined[VICTIM].mask_pair.agree(group.session.roster[other].keys.mask)
    for purpose in (Transcript.pairwise_mask_purpose, lambda t, slot, _: t.self_mask_purpose(slot)):
        keys = [purpose(t, VICTIM, other).derive(secret) for t in (transcript, shown)]
        assert keys[0] != keys[1]


def test_a_vector_that_the_server_withholds_keeps_its_own_mask(group: Group) -> None:
    """Guards: one secret of each dealer in `Confirmed.unmask`.

    The victim's vector arrived, but the server names it as a dropout to the others: its mask key
    is revealed, and only its seed still hides it.
    """
    transcript = group.share()
    group.mask()
    server = collude(group, VICTIM)
    upload = group.masked_inputs.pop(VICTIM)
    server.decrypt_shares_of(VICTIM)
    group.confirm(ALL_SLOTS - {VICTIM})
    group.reveal(ALL_SLOTS - {VICTIM})
    for slot, reveal in group.unmasking_shares.items():
        server.receive(slot, reveal)
    assert server.pair(VICTIM) is not None
    assert server.seed(VICTIM) is None
    assert server.vector(VICTIM, transcript, upload) is None
    with pytest.raises(UnsafeRequestError, match="left my vector out"):
        group.masked[VICTIM].confirm(ALL_SLOTS - {VICTIM})

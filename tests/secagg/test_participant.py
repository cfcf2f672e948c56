"""What a participant refuses: weaker parameters, foreign rosters, second answers, bad lists."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg import aggregator
from secagg.aggregator import Heard
from secagg.errors import FaultyParticipantError, OutOfPhaseError, RecoveryError, RefusedError
from secagg.graph import Parameters
from secagg.participant import ENVELOPE_BYTES, Masked, Reveal
from secagg.ring import Lane, Ring

N = 12
RING = Ring((Lane(2**13, 4),))


@pytest.fixture
def group(gather: Callable[..., Any]) -> Any:
    return gather(N)


@pytest.fixture
def masked(group: Any) -> Masked:
    shared, inbox = group.share(range(N))
    return shared[0].mask(inbox[0], RING, RING.zero())[0]


def neighbourhood(group: Any, slot: int = 0) -> dict[int, Any]:
    return {other: group.keys[other] for other in group.cohort.graph.neighbours(slot)}


@pytest.mark.parametrize(
    "other",
    [
        lambda p: replace(p, threshold=p.threshold - 1),
        lambda p: replace(p, degree=p.degree - 2),
        lambda p: replace(p, degree=p.degree + 2),  # more neighbours to collude, same threshold
        lambda p: replace(p, threshold=p.threshold + 1),
        lambda p: replace(p, degree=N),  # no graph has it
    ],
)
def test_parameters_other_than_the_computed_ones_are_refused(
    group: Any, other: Callable[[Parameters], Parameters]
) -> None:
    cohort = replace(group.cohort, parameters=other(group.cohort.parameters))
    with pytest.raises(RefusedError, match="offered"):
        group.joined[0].share(0, cohort, neighbourhood(group), group.rng)


def test_a_roster_of_others_than_the_neighbours_is_refused(group: Any) -> None:
    keys = neighbourhood(group)
    missing = dict(list(keys.items())[1:])
    with pytest.raises(RefusedError, match="others than the neighbours"):
        group.joined[0].share(0, group.cohort, missing, group.rng)
    with pytest.raises(RefusedError, match="others than the neighbours"):
        group.joined[0].share(0, group.cohort, {**keys, 0: group.keys[0]}, group.rng)


@pytest.mark.parametrize("slot", [-1, N, 2**40])
def test_a_slot_outside_the_cohort_is_refused(group: Any, slot: int) -> None:
    with pytest.raises(RefusedError, match="slot"):
        group.joined[0].share(slot, group.cohort, neighbourhood(group), group.rng)


def test_a_roster_with_a_key_twice_or_my_own_is_refused(group: Any) -> None:
    keys = neighbourhood(group)
    first, second = list(keys)[:2]
    for impostor in (keys[second], group.keys[0]):
        with pytest.raises(RefusedError, match="same key twice"):
            group.joined[0].share(0, group.cohort, {**keys, first: impostor}, group.rng)


def test_secrets_are_shared_once(group: Any) -> None:
    group.joined[0].share(0, group.cohort, neighbourhood(group), group.rng)
    with pytest.raises(OutOfPhaseError, match="Joined"):
        group.joined[0].share(0, group.cohort, neighbourhood(group), group.rng)


def test_a_vector_is_masked_once(group: Any) -> None:
    shared, inbox = group.share(range(N))
    shared[0].mask(inbox[0], RING, RING.zero())
    with pytest.raises(OutOfPhaseError, match="Shared"):
        shared[0].mask(inbox[0], RING, RING.zero())


def test_masking_leaves_the_input_as_it_is(group: Any) -> None:
    shared, inbox = group.share(range(N))
    vector = RING.zero()
    _, out = shared[0].mask(inbox[0], RING, vector)
    assert not vector[0].any()
    assert out[0].any()


def test_an_envelope_of_a_stranger_is_refused(group: Any) -> None:
    shared, inbox = group.share(range(N))
    with pytest.raises(RefusedError, match="no neighbour"):
        shared[0].mask({**inbox[0], 0: bytes(ENVELOPE_BYTES)}, RING, RING.zero())


def test_too_few_envelopes_are_refused(group: Any) -> None:
    shared, inbox = group.share(range(N))
    few = dict(list(inbox[0].items())[: group.cohort.parameters.threshold - 2])
    with pytest.raises(RefusedError, match="threshold"):
        shared[0].mask(few, RING, RING.zero())


def test_just_enough_envelopes_will_do(group: Any) -> None:
    shared, inbox = group.share(range(N))
    enough = dict(list(inbox[0].items())[: group.cohort.parameters.threshold - 1])
    shared[0].mask(enough, RING, RING.zero())  # with my own share they are a threshold


def test_a_vector_of_another_ring_is_refused(group: Any) -> None:
    shared, inbox = group.share(range(N))
    with pytest.raises(ValueError, match="lane 0"):
        shared[0].mask(inbox[0], RING, (np.zeros(5, np.uint32),))


EVERYBODY = frozenset(range(N))


@pytest.mark.parametrize(
    ("survivors", "lost", "match"),
    [
        (EVERYBODY, {3}, "twice"),  # overlapping: both secrets of 3
        ([*range(N), 1], set(), "twice"),
        (EVERYBODY | {N}, set(), "not in the cohort"),
        (EVERYBODY, {-1}, "not in the cohort"),
        (EVERYBODY - {0}, {0}, "left my vector out"),
        (EVERYBODY - {1, 2, 3}, {1, 2, 3}, "quorum"),
    ],
)
def test_lists_that_would_open_a_vector_are_refused(
    masked: Masked, survivors: Any, lost: Any, match: str
) -> None:
    with pytest.raises(RefusedError, match=match):
        masked.reveal(survivors, lost)


def test_a_neighbour_that_shared_must_be_in_one_of_the_lists(group: Any, masked: Masked) -> None:
    left_out = group.cohort.graph.neighbours(0)[0]
    with pytest.raises(RefusedError, match="other neighbours"):
        masked.reveal(EVERYBODY - {left_out}, set())


def test_a_neighbour_that_never_shared_may_not_be_named(group: Any) -> None:
    absent = group.cohort.graph.neighbours(0)[0]
    shared, inbox = group.share(set(range(N)) - {absent})
    state = shared[0].mask(inbox[0], RING, RING.zero())[0]
    with pytest.raises(RefusedError, match="other neighbours"):
        state.reveal(EVERYBODY, set())


def test_shares_are_given_once(masked: Masked) -> None:
    masked.reveal(EVERYBODY, set())
    with pytest.raises(OutOfPhaseError, match="Masked"):
        masked.reveal(EVERYBODY - {3}, {3})


def test_a_refused_request_spends_nothing(masked: Masked) -> None:
    with pytest.raises(RefusedError):
        masked.reveal(EVERYBODY, {3})
    assert masked.reveal(EVERYBODY, set()).seed_shares


def test_one_secret_of_each_neighbour_is_given_never_both(group: Any) -> None:
    shared, inbox = group.share(range(N))
    state = shared[0].mask(inbox[0], RING, RING.zero())[0]
    lost = {group.cohort.graph.neighbours(0)[0]}
    reveal = state.reveal(EVERYBODY - lost, lost)
    assert reveal.key_shares.keys() == lost
    assert reveal.seed_shares.keys() == {0, *group.cohort.graph.neighbours(0)} - lost


def test_an_envelope_that_does_not_open_gives_no_share_and_stops_nobody(group: Any) -> None:
    shared, inbox = group.share(range(N))
    sender = group.cohort.graph.neighbours(0)[0]
    spoiled = {**inbox[0], sender: bytes(ENVELOPE_BYTES)}
    state = shared[0].mask(spoiled, RING, RING.zero())[0]
    assert sender not in state.reveal(EVERYBODY, set()).seed_shares


@pytest.mark.parametrize("noise", [b"\xff" * 66, bytes(33) + b"\xff" * 33, bytes(65), b""])
def test_noise_sealed_as_shares_is_not_passed_on_as_mine(group: Any, noise: bytes) -> None:
    shared, inbox = group.share(range(N))
    sender = group.cohort.graph.neighbours(0)[0]
    sealed = group.cohort.envelope(sender, 0).seal(shared[0].sealing[sender], noise, group.rng)
    state = shared[0].mask({**inbox[0], sender: sealed}, RING, RING.zero())[0]
    assert sender not in state.reveal(EVERYBODY, set()).seed_shares


def test_states_show_no_secret(group: Any) -> None:
    shared, inbox = group.share(range(N))
    joined, state = group.joined[0], shared[0]
    after = state.mask(inbox[0], RING, RING.zero())[0]
    reveal = after.reveal(EVERYBODY, set())
    shown = repr(joined) + repr(state) + repr(after) + repr(reveal)
    secrets = [joined.mask.secret, joined.seal.secret, state.seed, *state.own_shares]
    secrets += state.sealing.values()
    secrets += [share for pair in after.held.values() for share in pair or ()]
    for secret in secrets:
        assert repr(secret) not in shown
        assert secret.hex() not in shown


def test_envelopes_to_a_stranger_or_not_to_a_neighbour_are_faults(group: Any) -> None:
    good = {other: bytes(ENVELOPE_BYTES) for other in group.cohort.graph.neighbours(0)}
    first = min(good)
    aggregator.check_envelopes(group.cohort, 0, good)
    for bad, match in (
        ({**good, 0: bytes(ENVELOPE_BYTES)}, "stranger"),
        ({slot: sealed for slot, sealed in good.items() if slot != first}, "left out"),
        ({**good, first: bytes(ENVELOPE_BYTES - 1)}, "bytes"),
    ):
        with pytest.raises(FaultyParticipantError, match=match) as caught:
            aggregator.check_envelopes(group.cohort, 0, bad)
        assert caught.value.participant == 0


def test_shares_of_a_stranger_or_of_the_wrong_secret_are_faults(group: Any) -> None:
    near = group.cohort.graph.neighbours(0)[0]
    own = {0: bytes(33)}
    share = {near: bytes(33)}
    check = aggregator.check_reveal
    check(group.cohort, 0, EVERYBODY, EVERYBODY, Reveal(own | share, {}))
    check(group.cohort, 0, EVERYBODY, EVERYBODY - {near}, Reveal(own, share))
    with pytest.raises(FaultyParticipantError, match="wrong secret"):
        check(group.cohort, 0, EVERYBODY, EVERYBODY, Reveal(own, share))
    with pytest.raises(FaultyParticipantError, match="wrong secret"):
        check(group.cohort, 0, EVERYBODY, EVERYBODY - {near}, Reveal(own | share, {}))
    with pytest.raises(FaultyParticipantError, match="stranger"):
        check(group.cohort, 0, EVERYBODY - {near}, EVERYBODY, Reveal(own | share, {}))
    for nothing in ({}, share):
        with pytest.raises(FaultyParticipantError, match="its own seed"):
            check(group.cohort, 0, EVERYBODY, EVERYBODY, Reveal(nothing, {}))
    for noise in (b"\xff" * 33, bytes(32)):  # one such share would cost the cohort its sum
        with pytest.raises(FaultyParticipantError, match="noise"):
            check(group.cohort, 0, EVERYBODY, EVERYBODY, Reveal(own | {near: noise}, {}))
        with pytest.raises(FaultyParticipantError, match="noise"):
            check(group.cohort, 0, EVERYBODY, EVERYBODY - {near}, Reveal(own, {near: noise}))


def test_a_recovered_key_must_be_the_advertised_one(group: Any) -> None:
    shared, inbox = group.share(range(N))
    states = {slot: shared[slot].mask(inbox[slot], RING, RING.zero())[0] for slot in range(1, N)}
    reveals = {slot: state.reveal(EVERYBODY - {0}, {0}) for slot, state in states.items()}
    swapped = {**group.keys, 0: group.keys[1]}
    heard = Heard(swapped, group.commitments, EVERYBODY, EVERYBODY - {0}, reveals)
    with pytest.raises(RecoveryError, match="another secret") as caught:
        aggregator.unmask(group.cohort, RING, heard, RING.zero())
    assert caught.value.owner == 0


def test_unmasking_wants_a_quorum_of_sharers(group: Any) -> None:
    for shared, survivors in ((EVERYBODY, {1, 2}), ({1, 2}, EVERYBODY)):
        heard = Heard(group.keys, group.commitments, shared, survivors, {})
        with pytest.raises(ValueError, match="survivors"):
            aggregator.unmask(group.cohort, RING, heard, RING.zero())


def test_a_roster_has_another_digest_with_any_other_key(group: Any) -> None:
    swapped = {**group.keys, 0: group.keys[1], 1: group.keys[0]}
    fewer = {slot: keys for slot, keys in group.keys.items() if slot}
    resealed = {**group.keys, 0: replace(group.keys[0], seal=group.keys[1].seal)}
    digests = {aggregator.digest(keys) for keys in (group.keys, swapped, fewer, resealed)}
    assert len(digests) == 4


def test_participants_shown_different_facts_get_noise(group: Any) -> None:
    facts = group.cohort
    for other in (
        replace(facts, session=bytes(32)),
        replace(facts, seed=bytes(32)),
        replace(facts, digest=bytes(32)),
        replace(facts, parameters=replace(facts.parameters, threshold=11)),
    ):
        assert other.label != facts.label


def test_public_facts_are_32_bytes_each(group: Any) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        replace(group.cohort, session=b"short")

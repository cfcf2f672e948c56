"""Secrets are in no representation, no message and no error."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from secagg.errors import OutOfPhaseError, ProtocolError
from secagg.messages import Answers
from tests.secagg.conftest import ASSUMPTIONS, RING, Group, assemble
from tests.secagg.faulty import without

N = 12


@pytest.fixture(scope="module")
def group() -> Group:
    """Return a group with one dropout that has revealed its shares."""
    group = assemble(N, ASSUMPTIONS)
    group.mask(set(range(N)) - {3})
    group.reveal()
    return group


def secrets(group: Group) -> set[bytes]:
    secrets = {
        pair.secret
        for joined in group.joined
        for pair in (joined.mask_pair, joined.encryption_pair)
    }
    for state in group.shared.values():
        secrets |= {state.dealt.seed, state.dealt.own_share}
        secrets |= set(state.dealt.of_key) | set(state.dealt.of_seed)
        secrets |= set(state.dealt.agreed_secrets.values())
    for checked in group.checked.values():
        secrets |= set(checked.key_shares.values()) | set(checked.seed_shares.values())
    for reveal in group.unmasking_shares.values():
        secrets |= set(reveal.seed_shares.values()) | set(reveal.key_shares.values())
    return secrets


def assert_quiet(group: Group, shown: Iterable[object]) -> None:
    for text in (text for value in shown for text in (repr(value), str(value), f"{value}")):
        for secret in secrets(group):
            assert repr(secret) not in text
            assert repr(secret)[2:-1] not in text
            assert secret.hex() not in text
            assert str(int.from_bytes(secret, "big")) not in text


def test_states_messages_and_requests_show_no_secret_and_no_vector(group: Group) -> None:
    assert_quiet(group, [*group.joined, *group.identities])
    by_slot = (group.shared, group.checked, group.complaints, group.masked, group.confirmed)
    by_slot += (group.key_shares, group.masked_inputs, group.unmasking_shares)
    assert_quiet(group, [value for values in by_slot for value in values.values()])
    assert_quiet(group, [group.request, group.transcript, group.session])
    assert "Ed25519PrivateKey" not in repr(group.identities)
    assert "X25519PrivateKey" not in repr(group.joined)
    for upload in group.masked_inputs.values():
        assert repr(upload.vector) not in repr(upload)


def test_answers_to_complaints_show_no_share(group: Group) -> None:
    dealt = group.shared[0].dealt
    assert_quiet(group, [Answers(dict(enumerate(dealt.of_key)), dict(enumerate(dealt.of_seed)))])


def test_messages_carry_no_secret_unencrypted(group: Group) -> None:
    bodies = [message.pack() for message in group.key_shares.values()]
    bodies += [message.pack() for message in group.complaints.values()]
    bodies += [message.pack() for message in group.masked_inputs.values()]
    for secret in secrets(group):
        assert not any(secret in body for body in bodies)


def test_errors_show_no_secret() -> None:
    group = assemble(N)
    caught: list[BaseException] = []

    def attempt(step: Callable[[], object]) -> None:
        with pytest.raises((ProtocolError, ValueError)) as error:
            step()
        caught.append(error.value)

    attempt(lambda: group.joined[0].share(1, group.session, group.rng))
    transcript = group.share()
    attempt(lambda: group.joined[0].share(0, group.session, group.rng))
    attempt(lambda: group.shared[0].check({**group.received[1]}))
    group.check()
    attempt(lambda: group.checked[0].answer({1: bytes(64)}))
    attempt(lambda: group.checked[0].mask(without(transcript, range(N)), RING, RING.zero()))
    attempt(lambda: group.checked[0].mask(transcript, RING, ()))
    group.mask()
    attempt(lambda: group.masked[0].confirm([]))
    group.confirm()
    attempt(lambda: group.confirmed[0].unmask({}, {}, group.rng))
    group.reveal(set(range(1, N)))
    request = group.request
    few = {slot: replace(r, seed_shares={}) for slot, r in group.unmasking_shares.items()}
    group.unmasking_shares, kept = few, group.unmasking_shares
    attempt(group.unmask)
    group.unmasking_shares = kept
    assert_quiet(group, [*caught, request])
    assert any(isinstance(error, OutOfPhaseError) for error in caught)

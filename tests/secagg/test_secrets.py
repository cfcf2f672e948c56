"""What is secret is in no representation, no message and no error."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from secagg.errors import OutOfPhaseError, ProtocolError
from secagg.messages import UnmaskingShares
from secagg.parameters import Assumptions
from secagg.session import Transcript
from tests.secagg.conftest import RING, Group

N = 12
Gather = Callable[..., Group]


@pytest.fixture(scope="module")
def group(gather: Gather) -> Group:
    """Return a group that lost one, up to the reveals."""
    found = gather(N)
    found.share()
    found.mask(set(range(N)) - {3})
    found.confirm()
    found.reveal()
    return found


def secrets(group: Group) -> set[bytes]:
    """Return all that must stay inside: keys, agreements, shares, seeds' shares."""
    found = {
        pair.secret
        for joined in group.joined
        for pair in (joined.mask_pair, joined.encryption_pair)
    }
    for state in group.shared.values():
        found |= set(state.agreed_secrets.values())
    found |= {state.own_share for state in group.masked.values()}
    for reveal in group.reveals.values():
        found |= set(reveal.seed_shares.values()) | set(reveal.key_shares.values())
    return found


def texts(shown: object) -> Iterable[str]:
    return (repr(shown), str(shown), f"{shown}")


def assert_quiet(group: Group, shown: Iterable[object]) -> None:
    for text in (text for value in shown for text in texts(value)):
        for secret in secrets(group):
            assert repr(secret) not in text
            assert repr(secret)[2:-1] not in text
            assert secret.hex() not in text
            assert str(int.from_bytes(secret, "big")) not in text


def test_states_show_no_secret(group: Group) -> None:
    for states in (group.joined, group.shared.values(), group.masked.values()):
        assert_quiet(group, states)
    assert_quiet(group, group.confirmed.values())


def test_identities_show_no_secret(group: Group) -> None:
    assert_quiet(group, group.identities)
    assert "Ed25519PrivateKey" not in repr(group.identities)


def test_messages_show_no_secret_and_no_vector(group: Group) -> None:
    for messages in (group.deals, group.uploads, group.reveals):
        assert_quiet(group, messages.values())
    for upload in group.uploads.values():
        assert repr(upload.vector) not in repr(upload)


def test_what_is_settled_and_summed_shows_no_secret(group: Group) -> None:
    assert_quiet(group, [group.settled, group.view, group.cohort])


def test_deals_and_uploads_carry_no_secret_in_the_open(group: Group) -> None:
    said = [deal.pack() for deal in group.deals.values()]
    said += [upload.pack() for upload in group.uploads.values()]
    for secret in secrets(group):
        assert not any(secret in body for body in said)


def test_errors_show_no_secret(gather: Gather) -> None:
    group = gather(N)
    caught: list[BaseException] = []

    def attempt(step: Callable[[], object]) -> None:
        with pytest.raises((ProtocolError, ValueError)) as error:
            step()
        caught.append(error.value)

    attempt(lambda: group.joined[0].share(1, group.cohort, group.rng))
    view = group.share()
    attempt(lambda: group.joined[0].share(0, group.cohort, group.rng))
    attempt(
        lambda: group.shared[0].mask(Transcript(group.cohort, {}), RING, RING.zero(), group.rng)
    )
    attempt(lambda: group.shared[0].mask(view, RING, (), group.rng))
    group.mask()
    attempt(lambda: group.masked[0].confirm([]))
    group.confirm()
    attempt(lambda: group.confirmed[0].unmask({}, {}, group.rng))
    group.reveal(set(range(1, N)))
    settled = group.settled
    few = {slot: replace(r, seed_shares={}) for slot, r in group.reveals.items()}
    group.reveals, kept = few, group.reveals
    attempt(group.unmask)
    group.reveals = kept
    assert_quiet(group, [*caught, settled])
    assert any(isinstance(error, OutOfPhaseError) for error in caught)


def test_a_reveal_shows_whom_it_complains_of_only() -> None:
    reveal = UnmaskingShares({1: b"\x17" * 33}, {2: b"\x18" * 33}, frozenset({3}))
    assert "x17" not in repr(reveal)
    assert "x18" not in repr(reveal)
    assert "frozenset({3})" in repr(reveal)


def test_a_semi_honest_sum_is_as_quiet(gather: Gather) -> None:
    group = gather(N, Assumptions(0.1, 0.2, mode="semi-honest"))
    group.share()
    group.mask()
    group.confirm()
    group.reveal()
    for states in (group.shared, group.masked, group.confirmed, group.reveals):
        assert_quiet(group, states.values())

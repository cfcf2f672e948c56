"""The sum is exact; false shares are corrected and their dealer blamed; or there is no sum."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from secagg import unmasking
from secagg.errors import RecoveryError
from secagg.messages import EncryptedShare, commit_seed, commit_share
from secagg.shamir import split
from secagg.unmasking import FALSE_DEALER, UnmaskedSum, Unmasking
from tests.examples import fewer
from tests.secagg import lying
from tests.secagg.conftest import RING, Group, assemble, same
from tests.secagg.lying import assert_exact, finish

N = 15
DROPOUT = 3  # shares, and drops out before it masks
LIAR = 0
SURVIVORS = frozenset(range(N)) - {DROPOUT}


@pytest.fixture
def shared() -> Group:
    group = assemble(N)
    group.share()
    return group


@pytest.fixture
def masked(shared: Group) -> Group:
    shared.mask(SURVIVORS)
    return shared


def correctable(group: Group, dealer: int) -> int:
    """Return the largest number of false shares of `dealer` that can be corrected."""
    revealing = SURVIVORS.intersection((dealer, *group.transcript.holders(dealer)))
    return (len(revealing) - group.session.parameters.threshold) // 2


def test_unmasking_does_not_change_the_masked_sum(masked: Group) -> None:
    finish(masked)
    before = masked.masked_sum()
    unmasking.unmask(masked.request, RING, masked.unmasking_shares, before)
    assert same(before, masked.masked_sum())


def test_a_threshold_of_shares_suffices_and_one_fewer_does_not(masked: Group) -> None:
    finish(masked)
    t = masked.session.parameters.threshold
    holders = [slot for slot in (LIAR, *masked.transcript.holders(LIAR)) if slot in SURVIVORS]

    def remove_mask(count: int) -> None:
        few = {slot: masked.unmasking_shares[slot] for slot in holders[-count:]}
        Unmasking(masked.request, RING, few, RING.zero()).remove_self_mask(LIAR)

    remove_mask(t)
    with pytest.raises(RecoveryError, match=f"{t - 1} shares of the {t} needed") as caught:
        remove_mask(t - 1)
    assert (caught.value.dealer, caught.value.blamed) == (LIAR, {})


def test_fewer_survivors_than_a_quorum_have_no_sum(masked: Group) -> None:
    finish(masked)
    few = dict(list(masked.request.seed_commitments.items())[: masked.session.quorum - 1])
    request = replace(masked.request, seed_commitments=few)
    with pytest.raises(ValueError, match="fewer than a quorum"):
        unmasking.unmask(request, RING, masked.unmasking_shares, RING.zero())


# Dealers that commit to false shares


def send_seed_shares(
    group: Group, dealer: int, shares: Mapping[int, bytes], **commitments: bytes
) -> None:
    """Replace shares of the seed of `dealer`, by holder."""
    lying.replace_masked_input(
        group, dealer, encrypted(group, dealer, shares, is_seed=True), **commitments
    )


def encrypted(
    group: Group, dealer: int, shares: Mapping[int, bytes], *, is_seed: bool
) -> dict[int, EncryptedShare]:
    purpose = lying.seed_purpose if is_seed else lying.key_purpose
    return {
        holder: lying.sealed(group, dealer, holder, share, purpose(group, dealer, holder))
        for holder, share in shares.items()
    }


def falsify(group: Group, dealer: int, count: int) -> None:
    """Falsify `count` shares: of the mask key if `dealer` drops out, otherwise of the seed."""
    holders = [h for h in group.transcript.holders(dealer) if h in SURVIVORS][:count]
    if dealer == DROPOUT:
        shares = lying.key_shares(group, dealer)
        false = {holder: lying.false(shares[holder]) for holder in holders}
        changed = encrypted(group, dealer, false, is_seed=False)
        lying.replace_key_shares(group, dealer, changed)
    else:
        shares = lying.seed_shares(group, dealer)
        send_seed_shares(group, dealer, {h: lying.false(shares[h]) for h in holders})


def shared_or_masked(group: Group, dealer: int) -> None:
    """Continue to the phase in which `dealer` sends the shares that the server will request."""
    if dealer != DROPOUT:
        group.mask(SURVIVORS)


secrets = pytest.mark.parametrize("dealer", [LIAR, DROPOUT], ids=["seed", "mask key"])


@secrets
def test_false_shares_are_corrected_and_their_dealer_blamed(shared: Group, dealer: int) -> None:
    count = correctable(shared, dealer)
    assert count >= 1
    shared_or_masked(shared, dealer)
    falsify(shared, dealer, count)
    assert_exact(shared, finish(shared, [DROPOUT]), {dealer: FALSE_DEALER})


@secrets
def test_only_false_shares_cost_the_sum_and_blame_the_dealer(shared: Group, dealer: int) -> None:
    shared_or_masked(shared, dealer)
    falsify(shared, dealer, N)
    with pytest.raises(RecoveryError, match=rf"participant {dealer} .* another secret") as caught:
        finish(shared, [DROPOUT])
    assert (caught.value.dealer, set(caught.value.blamed)) == (dealer, {dealer})


def test_other_liars_are_blamed_where_the_sum_fails(masked: Group) -> None:
    for dealer, count in ((1, 1), (2, N), (5, 1), (6, N)):
        falsify(masked, dealer, count)
    with pytest.raises(RecoveryError) as caught:
        finish(masked)
    assert (caught.value.dealer, set(caught.value.blamed)) == (2, {1, 2, 5, 6})


def test_after_a_failure_no_shares_are_corrected(
    masked: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    for dealer in (1, 2, 5, 6):
        falsify(masked, dealer, N)
    corrections = list[int]()

    def correct(shares: dict[int, bytes], threshold: int) -> None:
        corrections.append(len(shares) - threshold)  # by far the slowest step

    monkeypatch.setattr(unmasking, "correct_errors", correct)
    with pytest.raises(RecoveryError) as caught:
        finish(masked)
    assert set(caught.value.blamed) == {1, 2, 5, 6}
    assert len(corrections) == 1


# Dealers whose shares give another secret


def another_secret(group: Group, dealer: int) -> dict[int, bytes]:
    t, holders = group.session.parameters.threshold, group.transcript.holders(dealer)
    shares = split(bytes(32), len(holders) + 1, t, Random(5))
    return dict(zip((dealer, *holders), shares, strict=True))


def assert_blamed(group: Group, dealer: int) -> None:
    with pytest.raises(RecoveryError) as caught:
        finish(group, [DROPOUT])
    assert (caught.value.dealer, set(caught.value.blamed)) == (dealer, {dealer})


def test_a_dealer_that_shares_another_seed_than_it_committed_to_is_blamed(masked: Group) -> None:
    shares = another_secret(masked, LIAR)
    own = masked.masked[LIAR].own_share = shares.pop(LIAR)
    send_seed_shares(masked, LIAR, shares, own_share_commitment=commit_share(own))
    assert_blamed(masked, LIAR)


def test_a_dealer_that_commits_to_another_seed_than_it_shared_is_blamed(masked: Group) -> None:
    lying.replace_masked_input(masked, LIAR, seed_commitment=commit_seed(bytes(32)))
    assert_blamed(masked, LIAR)


def test_a_dealer_that_shares_another_key_than_it_advertised_is_blamed(shared: Group) -> None:
    shares = another_secret(shared, DROPOUT)
    del shares[DROPOUT]
    changed = encrypted(shared, DROPOUT, shares, is_seed=False)
    lying.replace_key_shares(shared, DROPOUT, changed)
    assert_blamed(shared, DROPOUT)


@fewer(0.2, suppress_health_check=[HealthCheck.too_slow])
@given(liars=st.dictionaries(st.integers(0, N - 1), st.integers(0, 4), max_size=4))
def test_with_any_false_shares_the_sum_is_exact_or_there_is_none(liars: dict[int, int]) -> None:
    group = assemble(N)
    group.share()
    for dealer in sorted(liars, key=lambda dealer: dealer != DROPOUT):
        if dealer != DROPOUT and not group.masked_inputs:
            group.mask(SURVIVORS)
        falsify(group, dealer, liars[dealer])
    result: UnmaskedSum | RecoveryError
    try:
        result = finish(group, [DROPOUT])
    except RecoveryError as error:
        result = error
    assert result.blamed.keys() <= liars.keys()
    if isinstance(result, RecoveryError):
        assert result.dealer in liars
    else:
        assert_exact(group, result, result.blamed)

"""The sum is exact; false shares are corrected and their dealer blamed; or there is no sum."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from secagg import unmasking
from secagg.errors import RecoveryError
from secagg.shamir import split
from secagg.shares import commit_seed, commit_share
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
    unmasking.unmask(masked.request, RING, masked.messages(), before)
    assert same(before, masked.masked_sum())


def test_a_threshold_of_shares_suffices_and_one_fewer_does_not(masked: Group) -> None:
    finish(masked)
    t = masked.session.parameters.threshold
    holders = [slot for slot in (LIAR, *masked.transcript.holders(LIAR)) if slot in SURVIVORS]

    def remove_mask(count: int) -> None:
        few = {slot: masked.unmasking_shares[slot] for slot in holders[-count:]}
        Unmasking(masked.request, RING, masked.messages(few), RING.zero()).remove_self_mask(LIAR)

    remove_mask(t)
    with pytest.raises(RecoveryError, match=f"{t - 1} shares of the {t} needed") as caught:
        remove_mask(t - 1)
    assert (caught.value.dealer, caught.value.blamed) == (LIAR, {})


def test_fewer_survivors_than_a_quorum_have_no_sum(masked: Group) -> None:
    finish(masked)
    few = sorted(masked.request.survivors)[: masked.session.quorum - 1]
    request = replace(masked.request, survivors=frozenset(few))
    with pytest.raises(ValueError, match="fewer than a quorum"):
        unmasking.unmask(request, RING, masked.messages(), RING.zero())


# Dealers that commit to false shares


def falsify(group: Group, dealer: int, count: int) -> None:
    """Falsify `count` shares: of the mask key if `dealer` drops out, otherwise of the seed."""
    state = group.shared[dealer]
    holders = [holder for holder in state.holders if holder in SURVIVORS][:count]
    is_dropout = dealer == DROPOUT
    shares = (lying.key_shares if is_dropout else lying.seed_shares)(group, dealer)
    false = {holder: lying.false(shares[holder]) for holder in holders}
    lying.send_shares(group, dealer, "key" if is_dropout else "seed", false)


secrets = pytest.mark.parametrize("dealer", [LIAR, DROPOUT], ids=["seed", "mask key"])


@secrets
def test_false_shares_are_corrected_and_their_dealer_blamed(shared: Group, dealer: int) -> None:
    count = correctable(shared, dealer)
    assert count >= 1
    falsify(shared, dealer, count)
    assert_exact(shared, finish(shared, [DROPOUT]), {dealer: FALSE_DEALER})


@secrets
def test_only_false_shares_cost_the_sum_and_blame_the_dealer(shared: Group, dealer: int) -> None:
    falsify(shared, dealer, N)
    with pytest.raises(RecoveryError, match=rf"participant {dealer} .* another secret") as caught:
        finish(shared, [DROPOUT])
    assert (caught.value.dealer, set(caught.value.blamed)) == (dealer, {dealer})


def test_other_liars_are_blamed_where_the_sum_fails(shared: Group) -> None:
    for dealer, count in ((1, 1), (2, N), (5, 1), (6, N)):
        falsify(shared, dealer, count)
    with pytest.raises(RecoveryError) as caught:
        finish(shared)
    assert (caught.value.dealer, set(caught.value.blamed)) == (2, {1, 2, 5, 6})


def test_after_a_failure_no_shares_are_corrected(
    shared: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    for dealer in (1, 2, 5, 6):
        falsify(shared, dealer, N)
    corrections = list[int]()

    def correct(shares: dict[int, bytes], threshold: int) -> None:
        corrections.append(len(shares) - threshold)  # by far the slowest step

    monkeypatch.setattr(unmasking, "correct_errors", correct)
    with pytest.raises(RecoveryError) as caught:
        finish(shared)
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


def test_a_dealer_that_shares_another_seed_than_it_committed_to_is_blamed(shared: Group) -> None:
    shares = another_secret(shared, LIAR)
    own = shares.pop(LIAR)
    state = shared.shared[LIAR]
    state.dealt = replace(state.dealt, own_share=own)
    lying.send_shares(shared, LIAR, "seed", shares, own_share_commitment=commit_share(own))
    assert_blamed(shared, LIAR)


def test_a_dealer_that_commits_to_another_seed_than_it_shared_is_blamed(shared: Group) -> None:
    lying.replace_key_shares(shared, LIAR, seed_commitment=commit_seed(bytes(32)))
    assert_blamed(shared, LIAR)


def test_a_dealer_that_shares_another_key_than_it_advertised_is_blamed(shared: Group) -> None:
    shares = another_secret(shared, DROPOUT)
    del shares[DROPOUT]
    lying.send_shares(shared, DROPOUT, "key", shares)
    assert_blamed(shared, DROPOUT)


@fewer(0.1, suppress_health_check=[HealthCheck.too_slow])
@given(liars=st.dictionaries(st.integers(0, N - 1), st.integers(0, 4), max_size=4))
def test_with_any_false_shares_the_sum_is_exact_or_there_is_none(liars: dict[int, int]) -> None:
    group = assemble(N)
    group.share()
    for dealer, count in liars.items():
        falsify(group, dealer, count)
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

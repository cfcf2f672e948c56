"""The sum is exact; false shares are corrected and their dealer named; or there is none."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from secagg import aggregator, unmasking
from secagg.errors import RecoveryError
from secagg.messages import commit_seed
from secagg.shamir import split
from secagg.shares import commit_share
from secagg.unmasking import UnmaskedSum, Unmasking
from tests.examples import fewer
from tests.secagg import lying
from tests.secagg.conftest import RING, Group, same

N = 15
LOST = 3  # shares, and is lost before it masks
LIAR = 0
EVERYBODY = frozenset(range(N))
SURVIVORS = EVERYBODY - {LOST}
Gather = Callable[..., Group]
Before = Callable[[Group], None]


def honest(group: Group) -> None:
    """Lie about nothing."""


def play(group: Group, share: Before = honest, mask: Before = honest) -> UnmaskedSum:
    """Run the sum in which somebody lies after sharing, or after masking."""
    group.share()
    share(group)
    for slot, deal in group.deals.items():
        aggregator.check_key_shares(group.cohort, slot, deal)
    group.mask(SURVIVORS)
    mask(group)
    for slot, upload in group.uploads.items():
        aggregator.check_masked_input(group.view, slot, upload)
    group.confirm()
    group.reveal()
    return unmasking.unmask(group.settled, RING, group.reveals, group.masked_sum())


def assert_exact(group: Group, found: UnmaskedSum) -> None:
    assert same(found.total, group.plain_sum(SURVIVORS))


def room(group: Group, owner: int) -> int:
    """Return how many false shares of `owner` can be corrected."""
    given = sum(holder in SURVIVORS for holder in (owner, *group.view.holders(owner)))
    return (given - group.cohort.parameters.threshold) // 2


@pytest.fixture
def group(gather: Gather) -> Group:
    return gather(N)


def test_the_sum_is_exact_and_nobody_is_blamed_among_the_honest(group: Group) -> None:
    found = play(group)
    assert_exact(group, found)
    assert not found.blamed


def test_unmasking_leaves_the_masked_sum_as_it_is(group: Group) -> None:
    play(group)
    before = group.masked_sum()
    unmasking.unmask(group.settled, RING, group.reveals, before)
    assert same(before, group.masked_sum())


def test_a_threshold_of_shares_will_do_and_one_less_does_not(group: Group) -> None:
    play(group)
    t = group.cohort.parameters.threshold
    givers = [slot for slot in (LIAR, *group.view.holders(LIAR)) if slot in SURVIVORS]

    def take_off(count: int) -> None:
        few = {slot: group.reveals[slot] for slot in givers[-count:]}
        Unmasking(group.settled, RING, few, RING.zero()).remove_self_mask(LIAR)

    take_off(t)
    with pytest.raises(RecoveryError, match=f"{t - 1} shares of the {t} needed") as caught:
        take_off(t - 1)
    assert caught.value.dealer == LIAR
    assert not caught.value.blamed  # who gave too few is not the dealer's fault


def test_fewer_survivors_than_a_quorum_are_no_sum(group: Group) -> None:
    play(group)
    few = dict(list(group.settled.seed_commitments.items())[: group.cohort.quorum - 1])
    with pytest.raises(ValueError, match="fewer than a quorum"):
        unmasking.unmask(
            replace(group.settled, seed_commitments=few), RING, group.reveals, RING.zero()
        )


# A dealer that commits to false shares


def falsify_seed(group: Group, count: int, owner: int = LIAR) -> None:
    holders = [h for h in group.view.holders(owner) if h in SURVIVORS][:count]
    shares = lying.seed_shares(group, owner)
    parcel = {
        h: lying.sealed(
            group,
            owner,
            h,
            lying.false(shares[h]),
            lying.seed_purpose(group, owner, h),
        )
        for h in holders
    }
    lying.upload(group, owner, parcel)


def falsify_key(group: Group, count: int, owner: int = LOST) -> None:
    holders = [h for h in group.view.holders(owner) if h in SURVIVORS][:count]
    shares = lying.key_shares(group, owner)
    parcel = {
        h: lying.sealed(
            group,
            owner,
            h,
            lying.false(shares[h]),
            lying.key_purpose(group, owner, h),
        )
        for h in holders
    }
    lying.deal_keys(group, owner, parcel)


def test_false_shares_of_a_seed_are_corrected_and_their_dealer_blamed(group: Group) -> None:
    def lie(group: Group) -> None:
        assert room(group, LIAR) >= 1
        falsify_seed(group, room(group, LIAR))

    found = play(group, mask=lie)
    assert_exact(group, found)
    assert set(found.blamed) == {LIAR}


def test_false_shares_of_a_mask_key_are_corrected_and_their_dealer_blamed(group: Group) -> None:
    def lie(group: Group) -> None:
        assert room(group, LOST) >= 1
        falsify_key(group, room(group, LOST))

    found = play(group, share=lie)
    assert_exact(group, found)
    assert set(found.blamed) == {LOST}


def test_more_false_shares_of_a_seed_cost_the_sum_and_name_the_dealer(group: Group) -> None:
    lie = partial(falsify_seed, count=N)
    with pytest.raises(RecoveryError, match=r"participant 0 .* another secret") as caught:
        play(group, mask=lie)
    assert caught.value.dealer == LIAR
    assert set(caught.value.blamed) == {LIAR}


def test_more_false_shares_of_a_mask_key_cost_the_sum_and_name_the_dealer(group: Group) -> None:
    lie = partial(falsify_key, count=N)
    with pytest.raises(RecoveryError, match=r"participant 3 .* another secret") as caught:
        play(group, share=lie)
    assert caught.value.dealer == LOST
    assert set(caught.value.blamed) == {LOST}


def test_one_false_share_too_many_costs_the_sum_and_names_the_dealer(group: Group) -> None:
    def lie(group: Group) -> None:
        falsify_seed(group, room(group, LIAR) + 1)

    with pytest.raises(RecoveryError) as caught:
        play(group, mask=lie)
    assert caught.value.dealer == LIAR


def test_two_dealers_of_few_false_shares_are_both_blamed(group: Group) -> None:
    def lie(group: Group) -> None:
        falsify_seed(group, 1, owner=1)
        falsify_seed(group, 1, owner=2)

    found = play(group, mask=lie)
    assert_exact(group, found)
    assert set(found.blamed) == {1, 2}


def test_whoever_else_lied_is_named_where_the_sum_fails(group: Group) -> None:
    def lie(group: Group) -> None:
        falsify_seed(group, 1, owner=1)
        falsify_seed(group, N, owner=2)
        falsify_seed(group, 1, owner=5)
        falsify_seed(group, N, owner=6)

    with pytest.raises(RecoveryError) as caught:
        play(group, mask=lie)
    assert caught.value.dealer == 2
    assert set(caught.value.blamed) == {1, 2, 5, 6}


def test_once_a_sum_failed_no_time_is_spent_on_what_liars_dealt(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lie(group: Group) -> None:
        for owner in (1, 2, 5, 6):
            falsify_seed(group, N, owner=owner)

    tried = list[int]()

    def correct(shares: dict[int, bytes], threshold: int) -> None:
        tried.append(len(shares) - threshold)  # the slowest step by far: it grows with their square

    monkeypatch.setattr(unmasking, "correct_errors", correct)
    with pytest.raises(RecoveryError) as caught:
        play(group, mask=lie)
    assert set(caught.value.blamed) == {1, 2, 5, 6}
    assert len(tried) == 1


# A dealer whose shares meet, but in another secret


def another_secret(group: Group, owner: int) -> dict[int, bytes]:
    t, holders = group.cohort.parameters.threshold, group.view.holders(owner)
    shares = split(bytes(32), len(holders) + 1, t, Random(5))
    return dict(zip((owner, *holders), shares, strict=True))


def test_a_dealer_of_another_seed_than_it_committed_to_is_named(group: Group) -> None:
    def lie(group: Group) -> None:
        shares = another_secret(group, LIAR)
        own = group.masked[LIAR].own_share = shares.pop(LIAR)
        parcels = {
            h: lying.sealed(group, LIAR, h, share, lying.seed_purpose(group, LIAR, h))
            for h, share in shares.items()
        }
        lying.upload(group, LIAR, parcels, own=commit_share(own))

    with pytest.raises(RecoveryError) as caught:
        play(group, mask=lie)
    assert (caught.value.dealer, set(caught.value.blamed)) == (LIAR, {LIAR})


def test_a_seed_committed_to_that_is_not_the_one_dealt_is_named(group: Group) -> None:
    with pytest.raises(RecoveryError) as caught:
        play(
            group,
            mask=lambda group: lying.upload(group, LIAR, commitment=commit_seed(bytes(32))),
        )
    assert (caught.value.dealer, set(caught.value.blamed)) == (LIAR, {LIAR})


def test_a_dealer_of_another_key_than_it_advertised_is_named(group: Group) -> None:
    def lie(group: Group) -> None:
        parcels = {
            h: lying.sealed(group, LOST, h, share, lying.key_purpose(group, LOST, h))
            for h, share in another_secret(group, LOST).items()
            if h != LOST
        }
        lying.deal_keys(group, LOST, parcels)

    with pytest.raises(RecoveryError) as caught:
        play(group, share=lie)
    assert (caught.value.dealer, set(caught.value.blamed)) == (LOST, {LOST})


@fewer(0.2, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_is_dealt_the_sum_is_exact_or_there_is_none(
    gather: Gather, data: st.DataObject
) -> None:
    group = gather(N)
    liars = data.draw(st.sets(st.sampled_from(sorted(EVERYBODY)), max_size=4))

    def lie(group: Group) -> None:
        for liar in liars & SURVIVORS:
            falsify_seed(group, data.draw(st.integers(0, 4)), owner=liar)

    def lie_before(group: Group) -> None:
        if LOST in liars:
            falsify_key(group, data.draw(st.integers(0, 4)))

    found = play_or_fail(group, lie_before, lie)
    assert found.blamed.keys() <= liars
    if isinstance(found, RecoveryError):
        assert found.dealer in liars
    else:
        assert_exact(group, found)


def play_or_fail(group: Group, share: Before, mask: Before) -> UnmaskedSum | RecoveryError:
    try:
        return play(group, share, mask)
    except RecoveryError as error:
        return error

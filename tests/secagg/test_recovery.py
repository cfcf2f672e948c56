"""What was given of whose secret: all that was asked for, numbered as it was dealt."""

from collections.abc import Callable

import pytest

from secagg import unmasking
from secagg.messages import commit_seed
from secagg.unmasking import RecoveredSecrets
from tests.secagg.conftest import Group
from tests.vectors.reference import recover

N = 15
LOST = N - 1  # shares, and is lost before it masks; holds the last share of all others'
Gather = Callable[..., Group]


@pytest.fixture
def group(gather: Gather) -> Group:
    group = gather(N)
    group.share()
    group.mask(group.everybody - {LOST})
    group.confirm()
    group.reveal()
    return group


def dealt(group: Group, owner: int) -> dict[int, bytes]:
    """Return the shares of the secret of `owner` that were given, by number."""
    found = {}
    for number, holder in enumerate((owner, *group.view.holders(owner)), start=1):
        if holder in group.reveals:
            reveal = group.reveals[holder]
            share = (reveal.key_shares if owner == LOST else reveal.seed_shares).get(owner)
            if share is not None:
                found[number] = share
    return found


def given_of(group: Group) -> RecoveredSecrets:
    return RecoveredSecrets(group.view, group.settled.survivors, group.reveals)


def test_all_shares_given_are_found_by_number(group: Group) -> None:
    given = given_of(group)
    for owner in group.view.share_commitments:
        shares = dealt(group, owner)
        assert list(given.shares(owner).items()) == sorted(shares.items())
        assert len(shares) >= given.threshold


@pytest.mark.parametrize("silent", [0, 1, 2])
@pytest.mark.parametrize("block", [1, 4, 1_000])  # secrets
def test_secrets_are_the_same_however_many_are_recovered_together(
    group: Group, silent: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threshold = group.cohort.parameters.threshold
    monkeypatch.setattr(unmasking, "_RECOVERY_BATCH", block * threshold)
    monkeypatch.setattr(unmasking, "_SEARCH_BATCH", 2 * block)
    for slot in range(silent):  # whoever holds shares 1 to t differs from owner to owner then
        del group.reveals[slot]
    given = given_of(group)
    together = {owner: given.secret(owner) for owner in group.view.share_commitments}
    for owner, secret in together.items():
        first = sorted(dealt(group, owner).items())[: given.threshold]
        assert secret == recover(dict(first))
    assert together[LOST] == group.joined[LOST].mask_pair.secret


def test_fewer_shares_than_a_threshold_are_no_secret(group: Group) -> None:
    threshold = group.cohort.parameters.threshold
    group.reveals = dict(list(group.reveals.items())[: threshold - 2])
    given = given_of(group)
    assert all(given.secret(owner) is None for owner in group.view.share_commitments)


def test_a_threshold_of_shares_is_a_secret(group: Group) -> None:
    """Were it none, the shares would be corrected, and an honest dealer named for it."""
    threshold, givers = group.cohort.parameters.threshold, (0, *group.view.holders(0))
    some = [slot for slot in givers if slot in group.reveals][:threshold]
    group.reveals = {slot: group.reveals[slot] for slot in some}
    given = given_of(group)
    secret = given.secret(0)
    assert len(given.shares(0)) == threshold
    assert secret is not None
    assert commit_seed(secret) == group.uploads[0].seed_shares.seed_commitment


def test_nothing_given_is_no_secret(group: Group) -> None:
    group.reveals.clear()
    given = given_of(group)
    assert all(not given.shares(owner) for owner in group.view.share_commitments)
    assert all(given.secret(owner) is None for owner in group.view.share_commitments)


def test_shares_of_the_other_secret_are_not_looked_at(group: Group) -> None:
    given = RecoveredSecrets(group.view, group.settled.survivors | {LOST}, group.reveals)
    assert given.secret(LOST) is None
    assert not given.shares(LOST)

"""Recovery of secrets from all revealed shares, in the order of the dealers' shares."""

from dataclasses import replace

import pytest

from secagg import unmasking
from secagg.unmasking import RecoveredSecrets
from tests.secagg.conftest import Group, assemble
from tests.vectors.reference import recover

N = 15
DROPOUT = N - 1  # drops out before it masks, and holds the last share of all others


@pytest.fixture
def group() -> Group:
    group = assemble(N)
    group.mask(group.all_slots - {DROPOUT})
    group.reveal()
    return group


def revealed_shares(group: Group, dealer: int) -> dict[int, bytes]:
    """Return the revealed shares of the secret of `dealer`, by number."""
    shares = {}
    for number, holder in enumerate((dealer, *group.transcript.holders(dealer)), start=1):
        if holder in group.unmasking_shares:
            reveal = group.unmasking_shares[holder]
            share = (reveal.key_shares if dealer == DROPOUT else reveal.seed_shares).get(dealer)
            if share is not None:
                shares[number] = share
    return shares


def recovered(group: Group) -> RecoveredSecrets:
    return RecoveredSecrets(group.request, group.unmasking_shares)


def test_all_revealed_shares_are_returned_by_number(group: Group) -> None:
    given = recovered(group)
    for dealer in group.transcript.share_commitments:
        shares = revealed_shares(group, dealer)
        assert list(given.shares(dealer).items()) == sorted(shares.items())
        assert len(shares) >= given.threshold


@pytest.mark.parametrize("silent", [0, 1, 2])
@pytest.mark.parametrize("batch", [1, 4, 1_000])  # secrets
def test_secrets_do_not_depend_on_the_batch_size(
    group: Group, silent: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threshold = group.session.parameters.threshold
    monkeypatch.setattr(unmasking, "_RECOVERY_BATCH", batch * threshold)
    monkeypatch.setattr(unmasking, "_SEARCH_BATCH", 2 * batch)
    for slot in range(silent):  # then each dealer has other holders of shares 1 to t
        del group.unmasking_shares[slot]
    given = recovered(group)
    together = {dealer: given.secret(dealer) for dealer in group.transcript.share_commitments}
    for dealer, secret in together.items():
        first = sorted(revealed_shares(group, dealer).items())[: given.threshold]
        assert secret == recover(dict(first))
    assert together[DROPOUT] == group.joined[DROPOUT].mask_pair.secret


def test_shares_of_the_other_secret_are_not_used(group: Group) -> None:
    request = replace(group.request, survivors=group.request.survivors | {DROPOUT})
    given = RecoveredSecrets(request, group.unmasking_shares)
    assert given.secret(DROPOUT) is None
    assert not given.shares(DROPOUT)

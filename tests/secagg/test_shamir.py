"""Any threshold of shares meets in the secret; fewer say nothing; bad ones are refused."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.shamir import SHARE_BYTES, P, correct, recover, split

SECRET = bytes(range(32))


@given(st.binary(min_size=32, max_size=32), st.data())
def test_any_threshold_of_shares_recovers_the_secret(secret: bytes, data: st.DataObject) -> None:
    holders = data.draw(st.lists(st.integers(1, 2**21 - 1), min_size=1, max_size=25, unique=True))
    threshold = data.draw(st.integers(1, len(holders)))
    shares = split(secret, holders, threshold, Random(1))
    assert all(len(share) == SHARE_BYTES for share in shares.values())
    chosen = data.draw(st.permutations(holders))[:threshold]
    assert recover({x: shares[x] for x in chosen}) == secret


def test_one_share_short_any_secret_is_possible() -> None:
    # Through threshold - 1 points and any value at zero goes a polynomial: each candidate
    # secret has its own completing share, so the points alone exclude none.
    shares = split(SECRET, [1, 2, 3], 3, Random(1))
    two = {x: shares[x] for x in (1, 2)}
    completions = [(y * (P // 5)).to_bytes(SHARE_BYTES, "big") for y in range(1, 5)]
    assert len({recover({**two, 3: share}) for share in completions}) == len(completions)


def test_polynomials_are_drawn_from_the_whole_field() -> None:
    rng = Random(1)
    slopes = set()
    for _ in range(50):
        shares = split(SECRET, [1, 2], 2, rng)
        one, two = (int.from_bytes(share, "big") for share in shares.values())
        slopes.add((two - one) % P)
    assert len(slopes) == 50
    assert max(slopes) > P // 2  # odds of 2^-50 to be otherwise
    assert min(slopes) > 2**128  # odds of 50 * 2^-128


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(33)])
def test_only_32_byte_secrets_are_shared(secret: bytes) -> None:
    with pytest.raises(ValueError, match="32-byte"):
        split(secret, [1, 2], 2, Random(1))


@pytest.mark.parametrize("holders", [[1, 1], [0, 1], [-1, 1], [1, 2**21]])
def test_holders_must_be_distinct_and_in_range(holders: list[int]) -> None:
    with pytest.raises(ValueError, match="distinct"):
        split(SECRET, holders, 1, Random(1))


@pytest.mark.parametrize("threshold", [0, 3])
def test_a_threshold_nobody_can_meet_is_refused(threshold: int) -> None:
    with pytest.raises(ValueError, match="threshold"):
        split(SECRET, [1, 2], threshold, Random(1))


@pytest.mark.parametrize("share", [b"", bytes(32), bytes(34), P.to_bytes(33, "big"), b"\xff" * 33])
def test_a_share_that_is_no_field_element_is_refused(share: bytes) -> None:
    with pytest.raises(ValueError, match="field element"):
        recover({1: share})


def test_no_shares_recover_nothing() -> None:
    with pytest.raises(ValueError, match="needed"):
        recover({})


def test_shares_that_meet_outside_the_secrets_give_none() -> None:
    assert recover({1: (2**256).to_bytes(SHARE_BYTES, "big")}) is None


@given(st.binary(min_size=32, max_size=32), st.data())
def test_as_many_false_shares_as_a_code_allows_are_found(
    secret: bytes, data: st.DataObject
) -> None:
    holders = data.draw(st.lists(st.integers(1, 2**21 - 1), min_size=1, max_size=15, unique=True))
    threshold = data.draw(st.integers(1, len(holders)))
    shares = split(secret, holders, threshold, Random(1))
    room = (len(holders) - threshold) // 2
    liars = data.draw(st.permutations(holders))[:room]
    for liar in liars:
        y = int.from_bytes(shares[liar], "big")
        shares[liar] = ((y + data.draw(st.integers(1, P - 1))) % P).to_bytes(SHARE_BYTES, "big")
    assert correct(shares, threshold) == (secret, frozenset(liars))


def test_more_false_shares_than_that_are_no_secret() -> None:
    # Three of five at threshold 3: two true ones lie on no common line with the others. The
    # odds that random ones do are 1 / P.
    shares = split(SECRET, range(1, 6), 3, Random(1))
    false = split(bytes(32), range(1, 6), 5, Random(2))
    assert correct({**shares, 1: false[1], 2: false[2], 3: false[3]}, 3) is None

"""Any threshold of shares gives the secret, fewer reveal nothing, false ones are refused."""

from itertools import combinations
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.shamir import SHARE_BYTES, P, correct_errors, is_share, recover_many, split
from tests.secagg.conftest import Script
from tests.vectors.reference import interpolate, recover
from tests.vectors.reference import split as split_by_definition

SECRET = bytes(range(32))
secrets = st.binary(min_size=32, max_size=32)


def integer(share: bytes) -> int:
    return int.from_bytes(share, "big")


def share_of(y: int) -> bytes:
    return (y % P).to_bytes(SHARE_BYTES, "big")


def numbered(secret: bytes, count: int, threshold: int, seed: int = 1) -> dict[int, bytes]:
    return dict(enumerate(split(secret, count, threshold, Random(seed)), start=1))


@given(secrets, st.data())
def test_any_threshold_of_shares_recovers_the_secret(secret: bytes, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    threshold = data.draw(st.integers(1, count))
    shares = numbered(secret, count, threshold)
    assert all(is_share(share) for share in shares.values())
    chosen = data.draw(st.permutations(range(1, count + 1)))[:threshold]
    assert together([{x: integer(shares[x]) for x in chosen}]) == [secret]


@given(st.integers(1, 30), st.data())
def test_all_shares_lie_on_one_polynomial_of_degree_below_the_threshold(
    count: int, data: st.DataObject
) -> None:
    threshold = data.draw(st.integers(1, count))
    points = {x: integer(y) for x, y in numbered(SECRET, count, threshold).items()}
    points[0] = integer(SECRET)
    first = {x: points[x] for x in range(threshold)}
    assert all(interpolate(first, x) == y for x, y in points.items())


Row = dict[int, int]  # values by number


def together(rows: list[Row]) -> list[bytes | None]:
    """Return the secrets that `recover_many` gives, one per row of values."""
    numbers = [sorted(row) for row in rows]
    packed = b"".join(share_of(row[x]) for row, xs in zip(rows, numbers, strict=True) for x in xs)
    shares = np.frombuffer(packed, np.uint8).reshape(len(rows), -1, SHARE_BYTES)
    return recover_many(shares, np.array(numbers))


def one_by_one(rows: list[Row]) -> list[bytes | None]:
    return [recover({x: share_of(y) for x, y in row.items()}) for row in rows]


@given(
    st.integers(1, 12),
    st.sampled_from([14, 60, 400]),
    st.sampled_from([2**8, 2**255, P]),
    st.data(),
)
def test_secrets_recovered_together_are_those_recovered_one_by_one(
    count: int, last: int, below: int, data: st.DataObject
) -> None:
    """Each row has its own numbers: in some none is missing, in others hundreds."""
    chance = data.draw(st.randoms())
    spans = data.draw(st.lists(st.integers(count, max(count, last)), min_size=1, max_size=5))
    rows = [
        {
            x: chance.choice((0, below - 1, chance.randrange(below)))
            for x in chance.sample(range(1, span + 1), count)
        }
        for span in spans
    ]
    assert together(rows) == one_by_one(rows)


@pytest.mark.parametrize("top", [True, False])
@pytest.mark.parametrize("count", [1, 2, 62, 500, 1_000])
def test_the_largest_and_smallest_sums_do_not_overflow(count: int, top: bool) -> None:
    signs = range(count)  # weights alternate
    row = {i + 1: P - 1 if (i % 2 == 0) is top else 0 for i in signs}
    gapped = {2 * i + 1: P - 1 if (i % 2 == 0) is top else 0 for i in signs[:62]}
    assert together([row]) == one_by_one([row])
    assert together([gapped]) == one_by_one([gapped])


def test_every_share_of_a_fixed_secret_is_uniform() -> None:
    # 2,000 sharings of one secret at threshold 3: the lowest and highest bytes of each of the
    # five shares, 16 bins each, chi-squared with 15 degrees of freedom: it exceeds 50.5
    # with probability 1e-5, and one of ten with 1e-4. The seed is fixed.
    rng = Random(3)
    drawn = [split(SECRET, 5, 3, rng) for _ in range(2000)]
    for place in range(5):
        for part in (lambda y: y % 16, lambda y: y * 16 // P):
            bins = [0] * 16
            for shares in drawn:
                bins[part(integer(shares[place]))] += 1
            assert sum((count - 125) ** 2 / 125 for count in bins) < 50.5


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(33)])
def test_only_32_byte_secrets_are_shared(secret: bytes) -> None:
    with pytest.raises(ValueError, match="32-byte"):
        split(secret, 2, 2, Random(1))


@pytest.mark.parametrize(("count", "threshold"), [(2, 0), (2, 3), (0, 0), (2**12 + 1, 2), (2, -1)])
def test_an_impossible_threshold_is_refused(count: int, threshold: int) -> None:
    with pytest.raises(ValueError, match="threshold"):
        split(SECRET, count, threshold, Random(1))


def test_the_largest_number_of_shares_is_split() -> None:
    assert len(split(SECRET, 2**12, 1, Random(1))) == 2**12


def test_the_largest_draws_do_not_overflow() -> None:
    largest = b"\xff" * 32 * 99
    assert split(SECRET, 100, 100, Script(largest)) == split_by_definition(
        SECRET, 100, 100, largest
    )


def test_shares_of_more_than_32_bytes_give_no_secret() -> None:
    assert together([{1: 2**256 - 1}, {1: 2**256}, {1: P - 1}]) == [b"\xff" * 32, None, None]
    assert correct_errors({1: share_of(2**256 - 1)}, 1) == (b"\xff" * 32, frozenset())
    assert correct_errors({x: share_of(2**256) for x in (1, 2, 3)}, 1) is None


@given(secrets, st.data())
def test_false_shares_are_detected_up_to_the_limit_of_the_code(
    secret: bytes, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, 15))
    threshold = data.draw(st.integers(1, count))
    shares = numbered(secret, count, threshold)
    given_up = data.draw(st.sets(st.sampled_from(sorted(shares)), max_size=count - threshold))
    kept = {x: share for x, share in shares.items() if x not in given_up}
    liars = data.draw(st.permutations(sorted(kept)))[: (len(kept) - threshold) // 2]
    for liar in liars:
        kept[liar] = share_of(integer(kept[liar]) + data.draw(st.integers(1, P - 1)))
    assert correct_errors(kept, threshold) == (secret, frozenset(liars))


def test_more_false_shares_give_no_secret() -> None:
    # Three of five at threshold 3: two true ones lie on no common line with the others. Random
    # ones do with probability 1 / P.
    shares, false = numbered(SECRET, 5, 3), numbered(bytes(32), 5, 5, seed=2)
    for liars in combinations(shares, 3):
        assert correct_errors({**shares, **{x: false[x] for x in liars}}, 3) is None


def test_shares_of_two_secrets_decode_to_neither_or_to_that_of_most_shares() -> None:
    first, second = numbered(SECRET, 9, 3), numbered(bytes(32), 9, 3, seed=2)
    half = {x: (first if x <= 4 else second)[x] for x in range(1, 9)}
    assert correct_errors(half, 3) is None
    most = {x: (first if x <= 6 else second)[x] for x in range(1, 10)}
    assert correct_errors(most, 3) == (SECRET, frozenset({7, 8, 9}))


def test_a_secret_of_zeros_is_recovered_and_corrected() -> None:
    shares = numbered(bytes(32), 5, 3)
    assert recover({x: shares[x] for x in (2, 3, 5)}) == bytes(32)
    assert correct_errors(shares, 3) == (bytes(32), frozenset())
    assert correct_errors({x: bytes(SHARE_BYTES) for x in (1, 2, 3)}, 2) == (bytes(32), frozenset())

"""Messages are restored from their bytes; bytes of any other form are refused."""

from hypothesis import given
from hypothesis import strategies as st

from secagg.messages import (
    CIPHERTEXT_BYTES,
    ENCRYPTED_SHARE_BYTES,
    REVEALED_SHARE_BYTES,
    KeyShares,
    SeedShares,
    UnmaskingShares,
)
from secagg.shamir import SHARE_BYTES


def exactly(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


slots = st.integers(0, 2**32 - 1)


@st.composite
def unmasking_shares(draw: st.DrawFn) -> UnmaskingShares:
    dealers = draw(st.dictionaries(slots, st.integers(0, 2), max_size=8))
    of = {kind: [o for o, k in dealers.items() if k == kind] for kind in range(3)}
    seeds, keys = ({o: draw(exactly(SHARE_BYTES)) for o in of[kind]} for kind in (0, 1))
    return UnmaskingShares(seeds, keys, frozenset(of[2]), draw(exactly(64)))


def test_sizes_are_those_of_the_definition() -> None:
    assert (SHARE_BYTES, CIPHERTEXT_BYTES) == (33, 33)
    assert (ENCRYPTED_SHARE_BYTES, REVEALED_SHARE_BYTES) == (65, 38)
    assert [KeyShares.nbytes(k) for k in (0, 10)] == [96, 96 + 650]
    assert [SeedShares.nbytes(k) for k in (0, 10)] == [64, 64 + 650]
    assert [UnmaskingShares.nbytes(k) for k in (0, 10)] == [64, 64 + 380]


@given(unmasking_shares())
def test_unmasking_shares_are_restored_in_the_order_of_dealers(
    message: UnmaskingShares,
) -> None:
    packed = message.pack()
    count = len(message.seed_shares) + len(message.key_shares) + len(message.invalid_dealers)
    assert len(packed) == UnmaskingShares.nbytes(count)
    starts = range(0, count * REVEALED_SHARE_BYTES, REVEALED_SHARE_BYTES)
    dealers = [int.from_bytes(packed[start : start + 4], "big") for start in starts]
    assert dealers == sorted(dealers)
    assert UnmaskingShares.unpack(packed) == message

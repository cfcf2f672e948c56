"""Messages are restored from their bytes; bytes of any other form are refused."""

from collections.abc import Callable
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.messages import (
    CIPHERTEXT_BYTES,
    ENCRYPTED_SHARE_BYTES,
    REVEALED_SHARE_BYTES,
    EncryptedShare,
    KeyShares,
    MaskedInput,
    SeedShares,
    UnmaskingShares,
    commit_seed,
    commit_share,
)
from secagg.shamir import SHARE_BYTES


def exactly(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


slots = st.integers(0, 2**32 - 1)
encrypted_shares = st.builds(EncryptedShare, exactly(32), exactly(CIPHERTEXT_BYTES))
many = st.lists(encrypted_shares, max_size=6).map(tuple)
key_shares = st.builds(KeyShares, exactly(32), many, exactly(64))
seed_shares = st.builds(SeedShares, exactly(32), exactly(32), many)


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


@given(encrypted_shares)
def test_an_encrypted_share_is_restored(encrypted: EncryptedShare) -> None:
    assert encrypted.pack() == encrypted.commitment + encrypted.ciphertext
    assert EncryptedShare.unpack(encrypted.pack()) == encrypted


@given(st.one_of(key_shares, seed_shares))
def test_key_shares_and_seed_shares_are_restored(message: KeyShares | SeedShares) -> None:
    packed = message.pack()
    assert len(packed) == message.nbytes(len(message.encrypted_shares))
    assert type(message).unpack(packed) == message


@given(seed_shares, st.binary(max_size=200), exactly(64))
def test_a_masked_input_is_restored(shares: SeedShares, vector: bytes, signature: bytes) -> None:
    message = MaskedInput(shares, vector, signature)
    assert message.pack() == shares.pack() + vector + signature
    assert MaskedInput.unpack(message.pack(), len(vector)) == message


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


@given(key_shares)
def test_a_share_commitment_covers_the_encrypted_shares(message: KeyShares) -> None:
    joined = b"".join(encrypted.pack() for encrypted in message.encrypted_shares)
    assert message.share_commitment.graph_nonce == message.graph_nonce
    assert message.share_commitment.shares_digest == sha256(joined).digest()


def test_commitments_to_seeds_and_shares_differ() -> None:
    assert commit_seed(bytes(33)) != commit_share(bytes(33))
    assert len({commit_share(bytes([x]) * 33) for x in range(10)}) == 10


@given(st.binary(max_size=4 * ENCRYPTED_SHARE_BYTES))
def test_an_encrypted_share_of_another_size_is_refused(body: bytes) -> None:
    if len(body) == ENCRYPTED_SHARE_BYTES:
        assert EncryptedShare.unpack(body).pack() == body
        return
    with pytest.raises(ValueError, match="65 bytes"):
        EncryptedShare.unpack(body)


UNPACKERS: dict[str, tuple[Callable[[bytes], object], int]] = {
    "key shares": (KeyShares.unpack, 96),
    "seed shares": (SeedShares.unpack, 64),
    "masked input of ten bytes": (lambda body: MaskedInput.unpack(body, 10), 138),
}


@pytest.mark.parametrize(("unpack", "empty"), UNPACKERS.values(), ids=UNPACKERS.keys())
@given(size=st.integers(0, 6 * ENCRYPTED_SHARE_BYTES))
def test_a_body_without_a_whole_number_of_encrypted_shares_is_refused(
    unpack: Callable[[bytes], object], empty: int, size: int
) -> None:
    if size >= empty and (size - empty) % ENCRYPTED_SHARE_BYTES == 0:
        unpack(bytes(size))
        return
    with pytest.raises(ValueError, match=r"bytes|too short"):
        unpack(bytes(size))


@given(st.integers(0, 10 * REVEALED_SHARE_BYTES))
def test_unmasking_shares_without_a_whole_number_of_records_are_refused(size: int) -> None:
    if size >= 64 and (size - 64) % REVEALED_SHARE_BYTES == 0 and size <= 64 + REVEALED_SHARE_BYTES:
        UnmaskingShares.unpack(bytes(size))
        return
    with pytest.raises(ValueError, match=r"38 bytes each|strictly rise"):
        UnmaskingShares.unpack(bytes(size))


def record(dealer: int, kind: int) -> bytes:
    return dealer.to_bytes(4, "big") + bytes([kind]) + bytes(SHARE_BYTES)


@pytest.mark.parametrize("kinds", [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 1)])
def test_two_records_about_one_dealer_are_refused(kinds: tuple[int, int]) -> None:
    body = b"".join(record(7, kind) for kind in kinds) + bytes(64)
    with pytest.raises(ValueError, match="strictly rise"):
        UnmaskingShares.unpack(body)


@given(st.lists(slots, min_size=2, max_size=6))
def test_dealers_out_of_order_are_refused(dealers: list[int]) -> None:
    body = b"".join(record(dealer, 0) for dealer in dealers) + bytes(64)
    if dealers == sorted(set(dealers)):
        assert list(UnmaskingShares.unpack(body).seed_shares) == dealers
        return
    with pytest.raises(ValueError, match="strictly rise"):
        UnmaskingShares.unpack(body)


@given(exactly(SHARE_BYTES))
def test_a_report_of_an_invalid_share_has_one_form(share: bytes) -> None:
    body = (7).to_bytes(4, "big") + b"\2" + share + bytes(64)
    if not any(share):
        assert UnmaskingShares.unpack(body).invalid_dealers == {7}
        return
    with pytest.raises(ValueError, match="with zeros"):
        UnmaskingShares.unpack(body)


@pytest.mark.parametrize("kind", [3, 255])
def test_an_unknown_kind_is_refused(kind: int) -> None:
    with pytest.raises(ValueError, match="0, 1 or 2"):
        UnmaskingShares.unpack(record(1, kind) + bytes(64))

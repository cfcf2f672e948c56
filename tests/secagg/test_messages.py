"""Deals, uploads and reveals come back from their bytes; bytes of any other shape do not."""

from collections.abc import Callable
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.messages import (
    REVEALED_SHARE_BYTES,
    KeyShares,
    MaskedInput,
    SeedShares,
    UnmaskingShares,
    commit_seed,
)
from secagg.shamir import SHARE_BYTES
from secagg.shares import CIPHERTEXT_BYTES, ENCRYPTED_SHARE_BYTES, EncryptedShare, commit_share


def exactly(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


slots = st.integers(0, 2**32 - 1)
parcels = st.builds(EncryptedShare, exactly(32), exactly(CIPHERTEXT_BYTES))
many = st.lists(parcels, max_size=6).map(tuple)
key_deals = st.builds(KeyShares, exactly(32), many, exactly(64))
seed_deals = st.builds(SeedShares, exactly(32), exactly(32), many)


@st.composite
def reveals(draw: st.DrawFn) -> UnmaskingShares:
    owners = draw(st.dictionaries(slots, st.integers(0, 2), max_size=8))
    of = {kind: [o for o, k in owners.items() if k == kind] for kind in range(3)}
    seeds, keys = ({o: draw(exactly(SHARE_BYTES)) for o in of[kind]} for kind in (0, 1))
    return UnmaskingShares(seeds, keys, frozenset(of[2]), draw(exactly(64)))


def test_sizes_are_those_of_the_page() -> None:
    assert (SHARE_BYTES, CIPHERTEXT_BYTES, ENCRYPTED_SHARE_BYTES, REVEALED_SHARE_BYTES) == (
        33,
        33,
        65,
        38,
    )
    assert [KeyShares.nbytes(k) for k in (0, 10)] == [96, 96 + 650]
    assert [SeedShares.nbytes(k) for k in (0, 10)] == [64, 64 + 650]
    assert [UnmaskingShares.nbytes(k) for k in (0, 10)] == [64, 64 + 380]


@given(parcels)
def test_a_parcel_comes_back(parcel: EncryptedShare) -> None:
    assert parcel.pack() == parcel.commitment + parcel.ciphertext
    assert EncryptedShare.unpack(parcel.pack()) == parcel


@given(key_deals)
def test_a_key_deal_comes_back(deal: KeyShares) -> None:
    packed = deal.pack()
    assert len(packed) == KeyShares.nbytes(len(deal.encrypted_shares))
    assert KeyShares.unpack(packed) == deal


@given(seed_deals)
def test_a_seed_deal_comes_back(deal: SeedShares) -> None:
    packed = deal.pack()
    assert len(packed) == SeedShares.nbytes(len(deal.encrypted_shares))
    assert SeedShares.unpack(packed) == deal


@given(seed_deals, st.binary(max_size=200), exactly(64))
def test_an_upload_comes_back(deal: SeedShares, vector: bytes, signature: bytes) -> None:
    upload = MaskedInput(deal, vector, signature)
    assert upload.pack() == deal.pack() + vector + signature
    assert MaskedInput.unpack(upload.pack(), len(vector)) == upload


@given(reveals())
def test_a_reveal_comes_back_with_its_owners_in_rising_order(reveal: UnmaskingShares) -> None:
    packed = reveal.pack()
    count = len(reveal.seed_shares) + len(reveal.key_shares) + len(reveal.invalid_dealers)
    assert len(packed) == UnmaskingShares.nbytes(count)
    starts = range(0, count * REVEALED_SHARE_BYTES, REVEALED_SHARE_BYTES)
    owners = [int.from_bytes(packed[start : start + 4], "big") for start in starts]
    assert owners == sorted(owners)
    assert UnmaskingShares.unpack(packed) == reveal


@given(key_deals)
def test_others_are_told_a_digest_of_the_parcels(deal: KeyShares) -> None:
    joined = b"".join(parcel.pack() for parcel in deal.encrypted_shares)
    assert deal.share_commitment.graph_nonce == deal.graph_nonce
    assert deal.share_commitment.shares_digest == sha256(joined).digest()


def test_a_commitment_to_a_seed_is_none_to_a_share() -> None:
    assert commit_seed(bytes(33)) != commit_share(bytes(33))
    assert len({commit_share(bytes([x]) * 33) for x in range(10)}) == 10


@given(st.binary(max_size=4 * ENCRYPTED_SHARE_BYTES))
def test_a_parcel_of_another_size_is_refused(body: bytes) -> None:
    if len(body) == ENCRYPTED_SHARE_BYTES:
        assert EncryptedShare.unpack(body).pack() == body
        return
    with pytest.raises(ValueError, match="65 bytes"):
        EncryptedShare.unpack(body)


UNPACKERS: dict[str, tuple[Callable[[bytes], object], int]] = {
    "key deal": (KeyShares.unpack, 96),
    "seed deal": (SeedShares.unpack, 64),
    "upload of ten bytes": (lambda body: MaskedInput.unpack(body, 10), 138),
}


@pytest.mark.parametrize(("unpack", "empty"), UNPACKERS.values(), ids=UNPACKERS.keys())
@given(size=st.integers(0, 6 * ENCRYPTED_SHARE_BYTES))
def test_a_body_with_no_whole_number_of_parcels_is_refused(
    unpack: Callable[[bytes], object], empty: int, size: int
) -> None:
    if size >= empty and (size - empty) % ENCRYPTED_SHARE_BYTES == 0:
        unpack(bytes(size))
        return
    with pytest.raises(ValueError, match=r"bytes|too short"):
        unpack(bytes(size))


@given(st.integers(0, 10 * REVEALED_SHARE_BYTES))
def test_a_reveal_with_no_whole_number_of_records_is_refused(size: int) -> None:
    if size >= 64 and (size - 64) % REVEALED_SHARE_BYTES == 0 and size <= 64 + REVEALED_SHARE_BYTES:
        UnmaskingShares.unpack(bytes(size))
        return
    with pytest.raises(ValueError, match=r"38 bytes each|strictly rise"):
        UnmaskingShares.unpack(bytes(size))


def record(owner: int, kind: int) -> bytes:
    return owner.to_bytes(4, "big") + bytes([kind]) + bytes(SHARE_BYTES)


@pytest.mark.parametrize("kinds", [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 1)])
def test_two_records_about_one_owner_are_refused(kinds: tuple[int, int]) -> None:
    body = b"".join(record(7, kind) for kind in kinds) + bytes(64)
    with pytest.raises(ValueError, match="strictly rise"):
        UnmaskingShares.unpack(body)


@given(st.lists(slots, min_size=2, max_size=6))
def test_owners_out_of_order_are_refused(owners: list[int]) -> None:
    body = b"".join(record(owner, 0) for owner in owners) + bytes(64)
    if owners == sorted(set(owners)):
        assert list(UnmaskingShares.unpack(body).seed_shares) == owners
        return
    with pytest.raises(ValueError, match="strictly rise"):
        UnmaskingShares.unpack(body)


@given(exactly(SHARE_BYTES))
def test_a_share_that_is_none_has_one_form(share: bytes) -> None:
    body = (7).to_bytes(4, "big") + b"\2" + share + bytes(64)
    if not any(share):
        assert UnmaskingShares.unpack(body).invalid_dealers == {7}
        return
    with pytest.raises(ValueError, match="with zeros"):
        UnmaskingShares.unpack(body)


@pytest.mark.parametrize("kind", [3, 255])
def test_a_kind_that_is_none_is_refused(kind: int) -> None:
    with pytest.raises(ValueError, match="0, 1 or 2"):
        UnmaskingShares.unpack(record(1, kind) + bytes(64))

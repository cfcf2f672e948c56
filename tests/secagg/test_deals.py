"""Deals, uploads and reveals come back from their bytes; bytes of any other shape do not."""

from collections.abc import Callable
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.deals import REVEALED_BYTES, KeyDeal, Reveal, SeedDeal, Upload, commit_seed
from secagg.parcels import ENVELOPE_BYTES, PARCEL_BYTES, Parcel, commit_share
from secagg.shamir import SHARE_BYTES


def exactly(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


slots = st.integers(0, 2**32 - 1)
parcels = st.builds(Parcel, exactly(32), exactly(ENVELOPE_BYTES))
many = st.lists(parcels, max_size=6).map(tuple)
key_deals = st.builds(KeyDeal, exactly(32), many, exactly(64))
seed_deals = st.builds(SeedDeal, exactly(32), exactly(32), many)


@st.composite
def reveals(draw: st.DrawFn) -> Reveal:
    owners = draw(st.dictionaries(slots, st.integers(0, 2), max_size=8))
    of = {kind: [o for o, k in owners.items() if k == kind] for kind in range(3)}
    seeds, keys = ({o: draw(exactly(SHARE_BYTES)) for o in of[kind]} for kind in (0, 1))
    return Reveal(seeds, keys, frozenset(of[2]), draw(exactly(64)))


def test_sizes_are_those_of_the_page() -> None:
    assert (SHARE_BYTES, ENVELOPE_BYTES, PARCEL_BYTES, REVEALED_BYTES) == (33, 33, 65, 38)
    assert [KeyDeal.nbytes(k) for k in (0, 10)] == [96, 96 + 650]
    assert [SeedDeal.nbytes(k) for k in (0, 10)] == [64, 64 + 650]
    assert [Reveal.nbytes(k) for k in (0, 10)] == [64, 64 + 380]


@given(parcels)
def test_a_parcel_comes_back(parcel: Parcel) -> None:
    assert parcel.pack() == parcel.commitment + parcel.envelope
    assert Parcel.unpack(parcel.pack()) == parcel


@given(key_deals)
def test_a_key_deal_comes_back(deal: KeyDeal) -> None:
    packed = deal.pack()
    assert len(packed) == KeyDeal.nbytes(len(deal.parcels))
    assert KeyDeal.unpack(packed) == deal


@given(seed_deals)
def test_a_seed_deal_comes_back(deal: SeedDeal) -> None:
    packed = deal.pack()
    assert len(packed) == SeedDeal.nbytes(len(deal.parcels))
    assert SeedDeal.unpack(packed) == deal


@given(seed_deals, st.binary(max_size=200), exactly(64))
def test_an_upload_comes_back(deal: SeedDeal, vector: bytes, signature: bytes) -> None:
    upload = Upload(deal, vector, signature)
    assert upload.pack() == deal.pack() + vector + signature
    assert Upload.unpack(upload.pack(), len(vector)) == upload


@given(reveals())
def test_a_reveal_comes_back_with_its_owners_in_rising_order(reveal: Reveal) -> None:
    packed = reveal.pack()
    count = len(reveal.seed_shares) + len(reveal.key_shares) + len(reveal.faulty)
    assert len(packed) == Reveal.nbytes(count)
    starts = range(0, count * REVEALED_BYTES, REVEALED_BYTES)
    owners = [int.from_bytes(packed[start : start + 4], "big") for start in starts]
    assert owners == sorted(owners)
    assert Reveal.unpack(packed) == reveal


@given(key_deals)
def test_others_are_told_a_digest_of_the_parcels(deal: KeyDeal) -> None:
    joined = b"".join(parcel.pack() for parcel in deal.parcels)
    assert deal.sharer.contribution == deal.contribution
    assert deal.sharer.digest == sha256(joined).digest()


def test_a_commitment_to_a_seed_is_none_to_a_share() -> None:
    assert commit_seed(bytes(33)) != commit_share(bytes(33))
    assert len({commit_share(bytes([x]) * 33) for x in range(10)}) == 10


@given(st.binary(max_size=4 * PARCEL_BYTES))
def test_a_parcel_of_another_size_is_refused(body: bytes) -> None:
    if len(body) == PARCEL_BYTES:
        assert Parcel.unpack(body).pack() == body
        return
    with pytest.raises(ValueError, match="65 bytes"):
        Parcel.unpack(body)


UNPACKERS: dict[str, tuple[Callable[[bytes], object], int]] = {
    "key deal": (KeyDeal.unpack, 96),
    "seed deal": (SeedDeal.unpack, 64),
    "upload of ten bytes": (lambda body: Upload.unpack(body, 10), 138),
}


@pytest.mark.parametrize(("unpack", "empty"), UNPACKERS.values(), ids=UNPACKERS.keys())
@given(size=st.integers(0, 6 * PARCEL_BYTES))
def test_a_body_with_no_whole_number_of_parcels_is_refused(
    unpack: Callable[[bytes], object], empty: int, size: int
) -> None:
    if size >= empty and (size - empty) % PARCEL_BYTES == 0:
        unpack(bytes(size))
        return
    with pytest.raises(ValueError, match=r"bytes|too short"):
        unpack(bytes(size))


@given(st.integers(0, 10 * REVEALED_BYTES))
def test_a_reveal_with_no_whole_number_of_records_is_refused(size: int) -> None:
    if size >= 64 and (size - 64) % REVEALED_BYTES == 0 and size <= 64 + REVEALED_BYTES:
        Reveal.unpack(bytes(size))
        return
    with pytest.raises(ValueError, match=r"38 bytes each|strictly rise"):
        Reveal.unpack(bytes(size))


def record(owner: int, kind: int) -> bytes:
    return owner.to_bytes(4, "big") + bytes([kind]) + bytes(SHARE_BYTES)


@pytest.mark.parametrize("kinds", [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 1)])
def test_two_records_about_one_owner_are_refused(kinds: tuple[int, int]) -> None:
    body = b"".join(record(7, kind) for kind in kinds) + bytes(64)
    with pytest.raises(ValueError, match="strictly rise"):
        Reveal.unpack(body)


@given(st.lists(slots, min_size=2, max_size=6))
def test_owners_out_of_order_are_refused(owners: list[int]) -> None:
    body = b"".join(record(owner, 0) for owner in owners) + bytes(64)
    if owners == sorted(set(owners)):
        assert list(Reveal.unpack(body).seed_shares) == owners
        return
    with pytest.raises(ValueError, match="strictly rise"):
        Reveal.unpack(body)


@given(exactly(SHARE_BYTES))
def test_a_share_that_is_none_has_one_form(share: bytes) -> None:
    body = (7).to_bytes(4, "big") + b"\2" + share + bytes(64)
    if not any(share):
        assert Reveal.unpack(body).faulty == {7}
        return
    with pytest.raises(ValueError, match="all zeros"):
        Reveal.unpack(body)


@pytest.mark.parametrize("kind", [3, 255])
def test_a_kind_that_is_none_is_refused(kind: int) -> None:
    with pytest.raises(ValueError, match="0, 1 or 2"):
        Reveal.unpack(record(1, kind) + bytes(64))

"""What devices say that do not keep to the protocol: all of it properly signed."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from unittest.mock import patch

from secagg.deals import Reveal, SeedDeal, Upload
from secagg.keys import statement
from secagg.parcels import Parcel
from secagg.shamir import SHARE_BYTES, split
from tests.server.device import Device

Shares = Mapping[int, bytes]


@contextmanager
def false_shares(*numbers: int) -> Iterator[None]:
    """Let whoever deals meanwhile deal false shares under these numbers, and commit to them."""

    def deal(secret: bytes, count: int, threshold: int, rng: Random) -> list[bytes]:
        shares = split(secret, count, threshold, rng)
        for number in numbers:
            shares[number - 1] = bytes([0]) + rng.randbytes(SHARE_BYTES - 1)
        return shares

    with patch("secagg.participant.split", deal):
        yield


def signed_upload(device: Device, vector: bytes, deal: SeedDeal) -> bytes:
    """Return the upload of `deal` and `vector`, signed by the device."""
    upload = Upload(deal, vector, b"")
    slot, view = device.masked.slot, device.masked.view
    said = statement("vector", view.label, slot, upload.said())
    return replace(upload, signature=device.identity.sign(said)).pack()


def with_vector(device: Device, body: bytes, vector: bytes) -> bytes:
    """Return the upload in `body` with another vector."""
    return signed_upload(device, vector, Upload.unpack(body, device.ring.nbytes).deal)


def with_envelope(device: Device, body: bytes, number: int, envelope: bytes) -> bytes:
    """Return the upload in `body` with another envelope in the parcel of this place."""
    upload = Upload.unpack(body, device.ring.nbytes)
    parcels = list(upload.deal.parcels)
    parcels[number] = Parcel(parcels[number].commitment, envelope)
    deal = replace(upload.deal, parcels=tuple(parcels))
    return signed_upload(device, upload.vector, deal)


def signed_reveal(device: Device, reveal: Reveal) -> bytes:
    """Return `reveal`, signed by the device."""
    state, inbox = device.confirmed, device.parcels.digest
    answer = state.view.answer(state.slot, state.survivors, inbox, reveal.said())
    return reveal.signed(device.identity, answer).pack()


def altered(shares: Shares, owner: int, change: Callable[[bytes], bytes]) -> dict[int, bytes]:
    """Return `shares` with another one of `owner`."""
    return dict(shares) | {owner: change(shares[owner])}

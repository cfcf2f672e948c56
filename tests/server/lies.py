"""Messages of malicious devices, with valid signatures."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from unittest.mock import patch

from secagg.keys import statement
from secagg.messages import EncryptedShare, MaskedInput, SeedShares, UnmaskingShares
from secagg.shamir import SHARE_BYTES, split
from tests.server.device import Device

Shares = Mapping[int, bytes]


@contextmanager
def false_shares(*numbers: int) -> Iterator[None]:
    """Let all dealers make false shares with these numbers, and commit to them."""

    def false_split(secret: bytes, count: int, threshold: int, rng: Random) -> list[bytes]:
        shares = split(secret, count, threshold, rng)
        for number in numbers:
            shares[number - 1] = bytes([0]) + rng.randbytes(SHARE_BYTES - 1)
        return shares

    with patch("secagg.participant.split", false_split):
        yield


def signed_upload(device: Device, vector: bytes, seed_shares: SeedShares) -> bytes:
    """Return the upload of `seed_shares` and `vector`, signed by the device."""
    upload = MaskedInput(seed_shares, vector, b"")
    slot, view = device.masked.slot, device.masked.transcript
    signed = statement("masked input", view.label, slot, upload.signed_bytes())
    return replace(upload, signature=device.identity.sign(signed)).pack()


def with_vector(device: Device, body: bytes, vector: bytes) -> bytes:
    """Return the upload in `body` with another vector."""
    return signed_upload(device, vector, MaskedInput.unpack(body, device.ring.nbytes).seed_shares)


def with_envelope(device: Device, body: bytes, number: int, envelope: bytes) -> bytes:
    """Return the upload in `body` with another envelope in the encrypted share of this index."""
    upload = MaskedInput.unpack(body, device.ring.nbytes)
    shares = list(upload.seed_shares.encrypted_shares)
    shares[number] = EncryptedShare(shares[number].commitment, envelope)
    seed_shares = replace(upload.seed_shares, encrypted_shares=tuple(shares))
    return signed_upload(device, upload.vector, seed_shares)


def signed_reveal(device: Device, reveal: UnmaskingShares) -> bytes:
    """Return `reveal`, signed by the device."""
    state, received = device.confirmed, device.parcels.digest
    answer = state.masked.transcript.unmasking_statement(
        state.masked.slot, state.survivors, received, reveal.signed_bytes()
    )
    return reveal.signed(device.identity, answer).pack()


def altered(shares: Shares, owner: int, change: Callable[[bytes], bytes]) -> dict[int, bytes]:
    """Return `shares` with another one of `owner`."""
    return dict(shares) | {owner: change(shares[owner])}

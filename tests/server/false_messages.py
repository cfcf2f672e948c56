"""Messages of malicious devices, with valid signatures."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from unittest.mock import patch

from secagg.messages import KeyShares, MaskedInput, UnmaskingShares
from secagg.roster import DIGEST_BYTES
from secagg.shamir import SHARE_BYTES, split
from secagg.shares import CIPHERTEXT_BYTES
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


def with_vector(device: Device, vector: bytes) -> bytes:
    """Return the masked input of `vector`, signed by the device."""
    upload, transcript = MaskedInput(vector, b""), device.masked.transcript
    signed = transcript.masked_input_statement(device.seat.slot, upload.signed_input.digest)
    return replace(upload, signature=device.identity.sign(signed)).pack()


def spoiled(device: Device, body: bytes, *numbers: int, committed: bool = False) -> bytes:
    """Return the key shares in `body` with garbage for the holders of these indices.

    `committed`: whether the commitments are those of the shares, so that the device can answer.
    """
    message = KeyShares.unpack(body)
    pairs = list(message.share_pairs)
    for number in numbers:
        seed = replace(pairs[number].seed, ciphertext=bytes(CIPHERTEXT_BYTES))
        if not committed:
            seed = replace(seed, commitment=bytes(DIGEST_BYTES))
        pairs[number] = replace(pairs[number], seed=seed)
    message = replace(message, share_pairs=tuple(pairs))
    signed = device.cohort.key_shares_statement(device.seat.slot, message.share_commitment)
    message = replace(message, signature=device.identity.sign(signed))
    device.shared.dealt = replace(device.shared.dealt, key_shares=message)
    return message.pack()


def signed_reveal(device: Device, reveal: UnmaskingShares) -> bytes:
    """Return `reveal`, signed by the device."""
    state, slot = device.confirmed, device.seat.slot
    answer = state.masked.transcript.unmasking_statement(
        slot, state.survivors, reveal.signed_bytes()
    )
    return reveal.signed(device.identity, answer).pack()


def altered(shares: Shares, owner: int, change: Callable[[bytes], bytes]) -> dict[int, bytes]:
    """Return `shares` with another one of `owner`."""
    return dict(shares) | {owner: change(shares[owner])}

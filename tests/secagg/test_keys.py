"""Keys agree, are told apart by every label, and refuse what is not theirs."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from secagg.keys import _LOW_ORDER, KeyPair, PublicKeys, Purpose, Stream

ONE = KeyPair.of(b"\1" * 32)
OTHER = KeyPair.of(b"\2" * 32)
PURPOSE = Purpose(b"L" * 32, "seal", 3, 5)
ELSEWHERE = [
    replace(PURPOSE, label=b"M" * 32),
    replace(PURPOSE, name="mask"),
    replace(PURPOSE, sender=4),
    replace(PURPOSE, receiver=6),
    replace(PURPOSE, sender=5, receiver=3),  # reflected
]


def test_both_ends_agree_on_one_secret() -> None:
    assert ONE.agree(OTHER.public) == OTHER.agree(ONE.public)


@pytest.mark.parametrize("elsewhere", ELSEWHERE)
def test_each_part_of_a_purpose_changes_the_key(elsewhere: Purpose) -> None:
    assert elsewhere.derive(b"s" * 32, 32) != PURPOSE.derive(b"s" * 32, 32)


@pytest.mark.parametrize("elsewhere", ELSEWHERE)
def test_an_envelope_opens_for_its_purpose_only(elsewhere: Purpose) -> None:
    sealed = PURPOSE.seal(b"s" * 32, b"shares", Random(1))
    assert PURPOSE.open(b"s" * 32, sealed) == b"shares"
    assert elsewhere.open(b"s" * 32, sealed) is None
    assert PURPOSE.open(b"x" * 32, sealed) is None


def test_an_envelope_that_was_touched_anywhere_does_not_open() -> None:
    sealed = PURPOSE.seal(b"s" * 32, b"shares", Random(1))
    for position in range(len(sealed)):
        touched = bytearray(sealed)
        touched[position] ^= 1
        assert PURPOSE.open(b"s" * 32, bytes(touched)) is None
    for size in (0, 11, 12, 27, len(sealed) - 1):
        assert PURPOSE.open(b"s" * 32, sealed[:size]) is None


def test_sealing_twice_never_repeats_a_nonce() -> None:
    rng = Random(1)
    assert len({PURPOSE.seal(b"s" * 32, b"", rng)[:12] for _ in range(100)}) == 100


@pytest.mark.parametrize("point", sorted(_LOW_ORDER))
@pytest.mark.parametrize("high_bit", [0, 2**255])
def test_each_point_of_low_order_is_refused(point: int, high_bit: int) -> None:
    encoded = (point + high_bit).to_bytes(32, "little")
    with pytest.raises(ValueError):  # the library's own opinion of the point
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(encoded))
    with pytest.raises(ValueError, match="low order"):
        PublicKeys(encoded, ONE.public)
    with pytest.raises(ValueError, match="low order"):
        PublicKeys(ONE.public, encoded)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_the_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        PublicKeys(ONE.public, bytes(size))


def test_one_key_for_both_purposes_is_refused() -> None:
    with pytest.raises(ValueError, match="differ"):
        PublicKeys(ONE.public, ONE.public)


def test_secrets_stay_out_of_representations() -> None:
    assert repr(ONE.secret) not in repr(ONE)
    assert "secret" not in repr(ONE)


def test_a_stream_goes_on_where_it_stopped_across_its_buffer() -> None:
    whole, parts = np.empty(200_000, np.uint8), np.empty(200_000, np.uint8)
    Stream(b"k" * 16).fill(whole)
    stream = Stream(b"k" * 16)
    for start, stop in ((0, 1), (1, 70_001), (70_001, 200_000)):
        stream.fill(parts[start:stop])
    assert np.array_equal(whole, parts)

"""Keys agree, signatures bind, and each label and purpose has its own key."""

from hashlib import sha512
from itertools import product
from random import Random

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numpy.typing import NDArray

from secagg.keys import (
    Identity,
    KeyPair,
    Keystream,
    PublicKeys,
    check_identity,
    is_signed,
    pass_quick_check,
    permute_blocks,
    verifying_once,
)

Q = 2**255 - 19  # both curves are over GF(Q)
PAIR = KeyPair.of(b"\1" * 32)
OTHER_PAIR = KeyPair.of(b"\2" * 32)
DEVICE = Identity.of(b"\3" * 32)


def roots(square: int) -> set[int]:
    """Return the square roots modulo Q = 5 mod 8."""
    root = pow(square, (Q + 3) // 8, Q)
    candidates = {root, root * pow(2, (Q - 1) // 4, Q) % Q}
    solutions = {x for x in candidates if x * x % Q == square % Q}
    return solutions | {-x % Q for x in solutions}


def of_order_dividing_8_on_curve25519() -> set[int]:
    """Solve y^2 = x^3 + A x^2 + x, on either sign of y^2, for the x of small order.

    Doubling takes x to (x^2 - 1)^2 / 4 x (x^2 + A x + 1): to infinity from 0, to 0 from 1 and
    -1, and to 1 or -1 where w = x + 1/x has w^2 - 4 = 4 (w + A) or w^2 - 4 = -4 (w + A).
    """
    a = 486662
    eighth = {
        (w + z) * pow(2, -1, Q) % Q
        for sign in (1, -1)
        for root in roots(8 + sign * 4 * a)
        for w in [sign * 2 + root]
        for z in roots(w * w - 4)
    }
    return {0, 1, Q - 1} | eighth


def of_order_dividing_8_on_edwards25519() -> set[int]:
    """Solve -x^2 + y^2 = 1 + d x^2 y^2 for the y of small order.

    These are 1, -1 (where x = 0), 0, and those whose double has y = 0, so that x^2 = -y^2
    and d y^4 + 2 y^2 = 1.
    """
    d = -121665 * pow(121666, -1, Q) % Q
    squares = {(root - 1) * pow(d, -1, Q) % Q for root in roots(1 + d)}
    return {0, 1, Q - 1}.union(*(roots(square) for square in squares))


def encodings(coordinate: int) -> list[bytes]:
    """Return all 32 bytes that decode to `coordinate`, with either top bit."""
    below = [x for x in (coordinate, coordinate + Q) if x < 2**255]
    return [(x + high).to_bytes(32, "little") for x, high in product(below, (0, 2**255))]


def test_all_encodings_of_the_points_of_low_order_are_refused_as_keys() -> None:
    points = of_order_dividing_8_on_curve25519()
    low = [encoded for point in points for encoded in encodings(point)]
    assert (len(points), len(low)) == (5, 14)  # 0 and 1 are below 2^255 - Q: two encodings more
    for encoded in low:
        with pytest.raises(ValueError):  # the library refuses the point too
            X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(encoded))
        with pytest.raises(ValueError, match=r"low order|unused bit"):
            PublicKeys(encoded, PAIR.public)
        with pytest.raises(ValueError, match=r"low order|unused bit"):
            PublicKeys(PAIR.public, encoded)


def test_one_key_for_both_purposes_is_refused() -> None:
    with pytest.raises(ValueError, match="differ"):
        PublicKeys(PAIR.public, PAIR.public)


def test_all_points_of_low_order_are_refused_as_identities() -> None:
    points = of_order_dividing_8_on_edwards25519()
    assert len(points) == 5
    for encoded in (encoded for point in points for encoded in encodings(point)):
        with pytest.raises(ValueError, match="low order"):
            check_identity(encoded)
    check_identity(DEVICE.public)


def strong_keys() -> NDArray[np.uint8]:
    """Return the keys of two participants, which pass the quick check."""
    keys = np.frombuffer(Random(4).randbytes(2 * 3 * 32), np.uint8).reshape(2, 3, 32).copy()
    keys[:, :, -1] &= 2**7 - 1
    assert pass_quick_check(keys)
    return keys


@pytest.mark.parametrize(("which", "passes"), [(0, True), (1, False), (2, False)])
def test_the_unused_bit_fails_the_quick_check_except_in_an_identity(
    which: int, passes: bool
) -> None:
    keys = strong_keys()
    keys[1, which, -1] = 2**7
    assert pass_quick_check(keys) is passes


def test_a_list_with_one_weak_key_does_not_pass_the_quick_check() -> None:
    strong = strong_keys()
    weak = of_order_dividing_8_on_curve25519(), of_order_dividing_8_on_edwards25519()
    for encoded in (encoded for points in weak for point in points for encoded in encodings(point)):
        for place in product(range(2), range(3)):
            keys = strong.copy()
            keys[place] = np.frombuffer(encoded, np.uint8)
            assert not pass_quick_check(keys)


def test_a_signature_under_an_identity_of_low_order_proves_nothing() -> None:
    # R = the neutral point and S = 0 satisfy S B = R + h A for every message where A is the
    # neutral point too: the library accepts it, so such identities must be refused.
    neutral = (1).to_bytes(32, "little")
    forged = neutral + bytes(32)
    assert is_signed(neutral, b"anything", forged)
    with pytest.raises(ValueError, match="low order"):
        check_identity(neutral)


def test_a_signature_with_r_of_low_order_counts_and_one_with_s_beyond_the_order_does_not() -> None:
    # The rule of docs/protocol.md. libsodium refuses the first, so it must not replace OpenSSL.
    order = 2**252 + 27742317777372353535851937790883648493
    digest = sha512(b"\3" * 32).digest()
    secret = int.from_bytes(digest[:32], "little") & ~7 & (2**254 - 1) | 2**254
    neutral, statement = (1).to_bytes(32, "little"), b"this"
    challenge = int.from_bytes(sha512(neutral + DEVICE.public + statement).digest(), "little")
    s = challenge * secret % order
    assert is_signed(DEVICE.public, statement, neutral + s.to_bytes(32, "little"))
    assert not is_signed(DEVICE.public, statement, neutral + (s + order).to_bytes(32, "little"))


@pytest.mark.parametrize("identity", [b"", bytes(31), b"\xff" * 32])
def test_malformed_identities_have_signed_nothing(identity: bytes) -> None:
    assert not is_signed(identity, b"this", DEVICE.sign(b"this"))


def test_blocks_are_permuted_by_aes_128() -> None:
    # The example of FIPS 197, appendix C.1, twice.
    key, plain = bytes(range(16)), bytes.fromhex("00112233445566778899aabbccddeeff")
    blocks = np.frombuffer(plain * 2, "<u4").reshape(1, 8)
    expected = bytes.fromhex("69c4e0d86a7b0430d8cdb78070b4c55a")
    assert permute_blocks(key, blocks).tobytes() == expected * 2


def test_fresh_keys_are_drawn_from_the_given_generator() -> None:
    assert KeyPair.generate(Random(1)) == KeyPair.of(Random(1).randbytes(32))
    assert Identity.generate(Random(1)) == Identity.of(Random(1).randbytes(32))


def test_a_stream_continues_where_it_stopped_across_its_buffer() -> None:
    whole, parts = np.empty(200_000, np.uint8), np.empty(200_000, np.uint8)
    Keystream(b"k" * 16).fill(whole)
    stream = Keystream(b"k" * 16)
    for start, stop in ((0, 1), (1, 70_001), (70_001, 200_000)):
        stream.fill(parts[start:stop])
    assert np.array_equal(whole, parts)


def test_a_signature_is_verified_once_only_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verified = list[bytes]()

    class Counted:
        def __init__(self, public: bytes) -> None:
            self._key = Ed25519PublicKey.from_public_bytes(public)

        @classmethod
        def from_public_bytes(cls, public: bytes) -> "Counted":
            return cls(public)

        def verify(self, signature: bytes, statement: bytes) -> None:
            verified.append(statement)
            self._key.verify(signature, statement)

    monkeypatch.setattr("secagg.keys.Ed25519PublicKey", Counted)
    signer, other = Identity.of(b"s" * 32), Identity.of(b"o" * 32)
    signature = signer.sign(b"yes")
    with verifying_once():
        for _ in range(3):
            assert is_signed(signer.public, b"yes", signature)
            assert not is_signed(signer.public, b"no", signature)
            assert not is_signed(other.public, b"yes", signature)
    assert verified.count(b"yes") == 1 + 3
    assert verified.count(b"no") == 3
    for _ in range(2):
        assert is_signed(signer.public, b"yes", signature)
    assert verified.count(b"yes") == 1 + 3 + 2

"""Keys agree, signatures bind, and each label and purpose has its own key."""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from hashlib import sha512
from itertools import accumulate, product
from random import Random
from types import SimpleNamespace
from typing import TypeAlias

import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numpy.typing import NDArray

from secagg import keys
from secagg.keys import (
    Identity,
    KeyPair,
    Keystream,
    PublicKeys,
    check_identity,
    is_signed,
    pass_quick_check,
    permute_blocks,
    sharing_work,
)

Q = 2**255 - 19  # both curves are over GF(Q)
PAIR = KeyPair.of(b"\1" * 32)
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
    squares = {(root - 1) * pow(D, -1, Q) % Q for root in roots(1 + D)}
    return {0, 1, Q - 1}.union(*(roots(square) for square in squares))


def encodings(coordinate: int) -> list[bytes]:
    """Return all 32 bytes that decode to `coordinate`, with either top bit."""
    below = [x for x in (coordinate, coordinate + Q) if x < 2**255]
    return [(x + high).to_bytes(32, "little") for x, high in product(below, (0, 2**255))]


Point: TypeAlias = tuple[int, int]
D = -121665 * pow(121666, -1, Q) % Q
ORDER = 2**252 + 27742317777372353535851937790883648493
BASE_Y = 4 * pow(5, -1, Q) % Q


def add(left: Point, right: Point) -> Point:
    (x, y), (u, v) = left, right
    product = D * x * u * y * v % Q
    quotients = pow(1 + product, -1, Q), pow(1 - product, -1, Q)
    return (x * v + y * u) * quotients[0] % Q, (y * v + x * u) * quotients[1] % Q


def multiply(factor: int, point: Point) -> Point:
    result = 0, 1
    for bit in f"{factor:b}":
        result = add(result, result)
        result = add(result, point) if bit == "1" else result
    return result


def point_at(y: int) -> Point:
    return next(x for x in roots((y * y - 1) * pow(D * y * y + 1, -1, Q)) if x % 2 == 0), y


def point_of_order_8() -> Point:
    points = map(point_at, of_order_dividing_8_on_edwards25519() - {0, 1, Q - 1})
    return next(point for point in points if multiply(4, point) != (0, 1))


def encode(point: Point) -> bytes:
    return (point[1] + (point[0] % 2 << 255)).to_bytes(32, "little")


BASE = point_at(BASE_Y)
DEVICE_SCALAR = (
    int.from_bytes(sha512(b"\3" * 32).digest()[:32], "little") & ~7 & 2**254 - 1 | 2**254
)


def challenge(r: bytes, identity: bytes, statement: bytes) -> int:
    return int.from_bytes(sha512(r + identity + statement).digest(), "little")


def is_accepted_by_openssl(identity: bytes, statement: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


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
    # The rule of docs/protocol.md. libsodium refuses the first, so OpenSSL must decide.
    neutral, statement = (1).to_bytes(32, "little"), b"this"
    s = challenge(neutral, DEVICE.public, statement) * DEVICE_SCALAR % ORDER
    assert is_signed(DEVICE.public, statement, neutral + s.to_bytes(32, "little"))
    assert not is_signed(DEVICE.public, statement, neutral + (s + ORDER).to_bytes(32, "little"))


@pytest.mark.parametrize("has_libsodium", [True, False])
def test_openssl_decides_where_points_of_low_order_are_added_to_key_and_r(
    monkeypatch: pytest.MonkeyPatch, has_libsodium: bool
) -> None:
    if not has_libsodium:
        monkeypatch.setattr(keys, "libsodium_verify", lambda: lambda _signed, _identity: False)
    point, secret, nonce, statement = point_of_order_8(), 2**200 + 7, 2**201 + 9, b"this"
    multiples = list(accumulate([point] * 7, add, initial=(0, 1)))
    key, r_point, accepted = multiply(secret, BASE), multiply(nonce, BASE), 0
    for of_key, of_nonce in product(multiples, repeat=2):
        identity = encode(add(key, of_key))
        r = encode(add(r_point, of_nonce))
        s = (nonce + challenge(r, identity, statement) * secret) % ORDER
        for signature in (r + s.to_bytes(32, "little"), r + (s + ORDER).to_bytes(32, "little")):
            expected = is_accepted_by_openssl(identity, statement, signature)
            assert is_signed(identity, statement, signature) is expected
            accepted += expected
    assert 1 <= accepted < 64


def test_libsodium_is_used_unless_it_accepts_more_than_openssl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    statement = b"this"
    signed = DEVICE.sign(statement) + statement
    assert keys.libsodium_verify()(signed, DEVICE.public)

    def accept(signed: bytes, identity: bytes) -> bytes:
        assert len(identity) == 32
        return signed

    monkeypatch.setattr("nacl.bindings.crypto_sign_open", accept)
    keys.libsodium_verify.cache_clear()
    try:
        assert not keys.libsodium_verify()(signed, DEVICE.public)
        assert is_signed(DEVICE.public, statement, DEVICE.sign(statement))
        assert not is_signed(DEVICE.public, statement, bytes(64))
    finally:
        keys.libsodium_verify.cache_clear()


def test_openssl_verifies_alone_where_libsodium_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "nacl.bindings", None)  # an import of it fails
    keys.libsodium_verify.cache_clear()
    try:
        assert is_signed(DEVICE.public, b"this", DEVICE.sign(b"this"))
        assert not is_signed(DEVICE.public, b"that", DEVICE.sign(b"this"))
    finally:
        keys.libsodium_verify.cache_clear()


def test_bytes_of_the_statement_are_none_of_the_signature() -> None:
    signature = DEVICE.sign(b"this")
    assert not is_signed(DEVICE.public, b"his", signature + b"t")
    assert not is_signed(DEVICE.public, signature[-1:] + b"this", signature[:-1])
    assert not is_signed(DEVICE.public, b"", signature + b"this")


def test_the_sizes_of_key_and_signature_count_in_bytes() -> None:
    longer = DEVICE.sign(bytes(64) + b"this") + bytes(64)
    signature, public = DEVICE.sign(b"this"), DEVICE.public
    assert is_signed(memoryview(public), b"this", memoryview(signature))  # type: ignore[arg-type]
    assert not is_signed(public, b"this", memoryview(longer).cast("H"))  # type: ignore[arg-type]
    words = memoryview(public + bytes(32)).cast("H")
    assert not is_signed(words, b"this", signature)  # type: ignore[arg-type]


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

    def verify(signed: bytes, identity: bytes) -> bool:
        verified.append(signed[64:])
        return is_valid(signed, identity)

    is_valid = keys.libsodium_verify()
    monkeypatch.setattr(keys, "libsodium_verify", lambda: verify)
    signer, other = Identity.of(b"s" * 32), Identity.of(b"o" * 32)
    signature = signer.sign(b"yes")
    with sharing_work():
        for _ in range(3):
            assert is_signed(signer.public, b"yes", signature)
            assert not is_signed(signer.public, b"no", signature)
            assert not is_signed(other.public, b"yes", signature)
    assert verified.count(b"yes") == 1 + 3
    assert verified.count(b"no") == 3
    for _ in range(2):
        assert is_signed(signer.public, b"yes", signature)
    assert verified.count(b"yes") == 1 + 3 + 2


def test_two_parties_agree_once_only_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peers = list[bytes]()

    def from_public_bytes(public: bytes) -> X25519PublicKey:
        peers.append(public)
        return X25519PublicKey.from_public_bytes(public)

    first, second, third = (KeyPair.generate(Random(seed)) for seed in range(3))
    secret, other_secret = first.agree(second.public), first.agree(third.public)
    curve = SimpleNamespace(from_public_bytes=from_public_bytes)
    monkeypatch.setattr(keys, "X25519PublicKey", curve)
    with sharing_work():
        assert first.agree(third.public) == third.agree(first.public) == other_secret
        assert second.agree(first.public) == first.agree(second.public) == secret
        assert peers == [third.public, first.public]
        with pytest.raises(ValueError, match="shared key"):
            first.agree(bytes(32))
    assert first.agree(second.public) == second.agree(first.public) == secret
    assert peers[3:] == [second.public, first.public]


def test_shared_work_keeps_a_limited_number_of_agreements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_MAX_KEPT_AGREEMENTS", 1)
    first, second, third = (KeyPair.generate(Random(seed)) for seed in range(3))
    with sharing_work() as work:
        for pair, peer in ((first, second), (first, third), (third, first)):
            pair.agree(peer.public)
        assert work.agreed == {}  # that of the first two made room, and the other was used


def test_threads_share_a_limited_number_of_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let eight threads add 8,000 results each, of which one may stay; switch every microsecond."""
    monkeypatch.setattr(keys, "_MAX_KEPT_AGREEMENTS", 1)
    monkeypatch.setattr(keys, "_MAX_KEPT_SIGNATURES", 1)
    monkeypatch.setattr(keys, "_is_valid", lambda *_signed: True)
    same = SimpleNamespace(from_public_bytes=lambda public: public)
    monkeypatch.setattr(keys, "X25519PublicKey", same)

    def agree(thread: int) -> None:
        own = KeyPair(b"%d" % thread, b"", SimpleNamespace(exchange=lambda public: public))
        for number in range(8000):
            own.agree(b"%d" % number)
            is_signed(b"%d" % number, b"", b"")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with sharing_work() as work, ThreadPoolExecutor(8) as pool:
            context = [copy_context() for _ in range(8)]
            runs = [pool.submit(each.run, agree, thread) for thread, each in enumerate(context)]
            for run in runs:
                run.result()
            assert len(work.agreed) == len(work.verified) == 1
    finally:
        sys.setswitchinterval(interval)

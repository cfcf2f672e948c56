"""The byte formulas of docs/protocol.md a second time, as plainly as they can be written.

Nothing here is fast, guards a secret, or imports `secagg`: a client in another language can be
written against it.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256, shake_128
from math import comb

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, ECB
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.concatkdf import ConcatKDFHash

P = 2**256 + 297
Lane = tuple[int, int]  # modulus and length


def stream(name: str, size: int = 32) -> bytes:
    """Return the bytes that replace the random draw of this name."""
    return shake_128(b"blindtally vector " + name.encode()).digest(size)


def u32(*numbers: int) -> bytes:
    """Return each number in four bytes."""
    return b"".join(number.to_bytes(4, "big") for number in numbers)


def digest(*parts: bytes) -> bytes:
    """Return the SHA-256 of the parts joined (H)."""
    return sha256(b"".join(parts)).digest()


# Keys and signatures


def key_public(secret: bytes) -> bytes:
    """Return the X25519 public key of a secret one."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def agree(secret: bytes, public: bytes) -> bytes:
    their_key = X25519PublicKey.from_public_bytes(public)
    return X25519PrivateKey.from_private_bytes(secret).exchange(their_key)


def identity(secret: bytes) -> bytes:
    """Return the Ed25519 public key of a secret one."""
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def statement(what: str, label: bytes, slot: int, payload: bytes) -> bytes:
    return b"blindtally v1 " + what.encode() + b"\0" + label + u32(slot) + digest(payload)


def sign(secret: bytes, payload: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(secret).sign(payload)


# Labels


def session_label(
    plan: bytes, number: int, parameters: Sequence[int], entries: Iterable[bytes]
) -> bytes:
    """Return the label of a cohort; `parameters` are n, k, t and s."""
    return digest(b"blindtally sum v1\0", plan, u32(number, *parameters), digest(*entries))


def transcript_label(label: bytes, dealers: Mapping[int, tuple[bytes, bytes]]) -> bytes:
    """Return the label of a transcript; `dealers` are graph nonces and digests by slot."""
    payload = [u32(slot) + b"".join(dealers[slot]) for slot in sorted(dealers)]
    return digest(b"blindtally transcript v1\0", label, *payload)


def info(name: str, sender: int, receiver: int) -> bytes:
    """Return the bytes that distinguish a key from all others under one label."""
    return b"blindtally v1 " + name.encode() + b"\0" + u32(sender, receiver)


def derive(secret: bytes, label: bytes, purpose: bytes, size: int = 32) -> bytes:
    """Return the one-step key of SP 800-56C under SHA-256."""
    return ConcatKDFHash(SHA256(), size, otherinfo=purpose + label).derive(secret)


def cover(secret: bytes, label: bytes, purpose: bytes, share: bytes) -> bytes:
    """Return a share under its pad, or one from under it: all but the first byte."""
    pad = derive(secret, label, purpose)
    return share[:1] + bytes(x ^ y for x, y in zip(share[1:], pad, strict=True))


# Sharing


def interpolate(points: Mapping[int, int], x: int, p: int = P) -> int:
    """Return the value at `x` of the polynomial modulo `p` through `points` (Lagrange)."""
    total = 0
    for i, y in points.items():
        above = below = 1
        for j in points:
            if j != i:
                above, below = above * (x - j) % p, below * (i - j) % p
        total += y * above * pow(below, -1, p)
    return total % p


def split(secret: bytes, count: int, threshold: int, drawn: bytes) -> list[bytes]:
    """Return shares 1 to `count`; `drawn` are 32 bytes for each power, lowest first.

    Of each they give the forward difference at zero, so f(x) is the sum over i of the i-th
    times C(x, i): the 0-th is the secret.
    """
    draws = [int.from_bytes(drawn[32 * i : 32 * i + 32], "little") for i in range(threshold - 1)]
    differences = [int.from_bytes(secret, "big"), *draws]

    def f(x: int) -> int:
        return sum(d * comb(x, i) for i, d in enumerate(differences)) % P

    return [f(x).to_bytes(33, "big") for x in range(1, count + 1)]


def recover(shares: Mapping[int, bytes]) -> bytes | None:
    """Return the secret of shares, or None if it does not fit 32 bytes."""
    points = {x: int.from_bytes(share, "big") for x, share in shares.items()}
    secret = interpolate(points, 0)
    return secret.to_bytes(32, "big") if secret < 2**256 else None


def commit_seed(seed: bytes) -> bytes:
    return digest(b"blindtally seed v1\0", seed)


def commit_share(share: bytes) -> bytes:
    return digest(b"blindtally share v1\0", share)


# The graph


def holders(label: bytes, n: int, k: int, slot: int, graph_nonce: bytes) -> list[int]:
    """Return the holders that a graph nonce selects."""
    if k == n - 1:
        return [other for other in range(n) if other != slot]
    key = AES(digest(b"blindtally holders v1\0", label)[:16])
    aes = Cipher(key, ECB()).encryptor()  # noqa: S305 - no message
    before, after = int.from_bytes(graph_nonce[:16], "little"), graph_nonce[16:]
    result, block = list[int](), 0
    while len(result) < k:
        permuted = aes.update((before ^ slot ^ block << 96).to_bytes(16, "little"))
        words = bytes(x ^ y for x, y in zip(permuted, after, strict=True))
        for start in range(0, 16, 4):
            pick = int.from_bytes(words[start : start + 4], "little") * (n - 1) >> 32
            pick += pick >= slot
            if pick not in result:
                result.append(pick)
        block += 1
    return result[:k]


def neighbours(slot: int, selected: Mapping[int, Sequence[int]]) -> list[int]:
    """Return the neighbours of `slot` among the participants that selected holders."""
    return sorted(
        other
        for other in selected
        if other != slot and (other in selected[slot] or slot in selected[other])
    )


# Vectors


def bits(q: int) -> int:
    return (q - 1).bit_length()


def word_bytes(q: int) -> int:
    """Return the bytes of the stream that one try for an element takes."""
    is_power = q & (q - 1) == 0
    return 4 if q <= (2**32 if is_power else 2**31) else 8


def mask(key: bytes, lanes: Iterable[Lane]) -> list[list[int]]:
    """Return the mask that is expanded from a 16-byte key."""
    encryptor = Cipher(AES(key), CTR(bytes(16))).encryptor()
    result = []
    for q, length in lanes:
        lane: list[int] = []
        while len(lane) < length:
            word = int.from_bytes(encryptor.update(bytes(word_bytes(q))), "little")
            element = word % 2 ** bits(q)
            if element < q:
                lane.append(element)
        result.append(lane)
    return result


def pack(vector: Iterable[Sequence[int]], lanes: Iterable[Lane]) -> bytes:
    body = b""
    for elements, (q, length) in zip(vector, lanes, strict=True):
        number = sum(element << (i * bits(q)) for i, element in enumerate(elements))
        body += number.to_bytes((length * bits(q) + 7) // 8, "little")
    return body


def combine(
    first: Sequence[Sequence[int]],
    second: Sequence[Sequence[int]],
    lanes: Sequence[Lane],
    sign_of: int,
) -> list[list[int]]:
    """Return one vector plus `sign_of` times the other."""
    return [
        [(a + sign_of * b) % q for a, b in zip(left, right, strict=True)]
        for left, right, (q, _) in zip(first, second, lanes, strict=True)
    ]


# Messages


def encrypted_share(secret: bytes, label: bytes, purpose: bytes, share: bytes) -> bytes:
    """Return a commitment to a share, and the share under its pad."""
    return commit_share(share) + cover(secret, label, purpose, share)


def records(payload: Mapping[int, tuple[int, bytes]]) -> bytes:
    """Return the records of unmasking shares: dealer, kind and share."""
    parts = (
        u32(dealer) + bytes([kind]) + share for dealer, (kind, share) in sorted(payload.items())
    )
    return b"".join(parts)

"""What a participant sends is what docs/protocol.md says, derived here a second time."""

import hashlib
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secagg.graph import Assumptions
from secagg.keys import KeyPair, Stream
from secagg.masks import Wardrobe
from secagg.ring import Lane, Ring
from secagg.shamir import recover

RING = Ring((Lane(2**13, 4), Lane(131071, 3)))


@pytest.fixture
def group(gather: Callable[..., Any]) -> Any:
    """Return 12 participants of whom 5 shares recover a secret."""
    return gather(12, Assumptions(corrupt=0.35, dropout=0.2))


def u32(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "big") for number in numbers)


def label(group: Any) -> bytes:
    roster = b"".join(u32(s) + group.keys[s].mask + group.keys[s].seal for s in range(12))
    digest = hashlib.sha256(b"blindtally roster v1\0" + roster).digest()
    facts = group.cohort.session + group.cohort.seed + digest
    k_and_t = u32(group.cohort.parameters.degree, group.cohort.parameters.threshold)
    return hashlib.sha256(b"blindtally sum v1\0" + facts + u32(12) + k_and_t).digest()


def derive(group: Any, secret: bytes, purpose: bytes, slots: tuple[int, int], size: int) -> bytes:
    info = b"blindtally v1 " + purpose + b"\0" + u32(*slots)
    return HKDF(SHA256(), size, salt=label(group), info=info).derive(secret)


def agree(pair: KeyPair, public: bytes) -> bytes:
    secret = X25519PrivateKey.from_private_bytes(pair.secret)
    return secret.exchange(X25519PublicKey.from_public_bytes(public))


def test_an_envelope_holds_a_share_of_the_seed_and_then_one_of_the_mask_key(group: Any) -> None:
    shared, inbox = group.share(range(12))
    sender = group.joined[0]
    seeds, keys = {}, {}
    for slot in group.cohort.graph.neighbours(0):
        secret = agree(sender.seal, group.keys[slot].seal)
        key = AESGCM(derive(group, secret, b"seal", (0, slot), 32))
        bound = label(group) + b"blindtally v1 seal\0" + u32(0, slot)
        both = key.decrypt(inbox[slot][0][:12], inbox[slot][0][12:], bound)
        seeds[slot + 1], keys[slot + 1] = both[:33], both[33:]
    threshold = group.cohort.parameters.threshold
    for shares, meant in ((seeds, shared[0].seed), (keys, sender.mask.secret)):
        assert recover(dict(list(shares.items())[:threshold])) == meant
        for few in combinations(shares.items(), threshold - 1):
            assert recover(dict(few)) != meant


def test_a_masked_vector_wears_the_masks_of_the_page(group: Any) -> None:
    shared, inbox = group.share(range(12))
    me = 5
    _, masked = shared[me].mask(inbox[me], RING, RING.zero())
    expected, wardrobe = RING.zero(), Wardrobe(RING)
    wardrobe.put_on(expected, Stream(derive(group, shared[me].seed, b"self", (me, me), 16)))
    for other in group.cohort.graph.neighbours(me):
        secret = agree(group.joined[me].mask, group.keys[other].mask)
        ends = (min(me, other), max(me, other))
        stream = Stream(derive(group, secret, b"mask", ends, 16))
        (wardrobe.put_on if me < other else wardrobe.take_off)(expected, stream)
    assert all(np.array_equal(a, b) for a, b in zip(masked, expected, strict=True))


def test_no_two_participants_draw_the_same_seed_or_keys(group: Any) -> None:
    shared, _ = group.share(range(12))
    secrets = {state.seed for state in shared.values()}
    secrets |= {pair.secret for joined in group.joined for pair in (joined.mask, joined.seal)}
    assert len(secrets) == 36
    assert bytes(32) not in secrets

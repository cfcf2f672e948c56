"""The server's half of a secure sum: functions that close a phase over all heard in it.

The sum of the masked vectors of the survivors S is

    sum of x_u over S  +  sum of mask(b_u) over S  +  pairwise masks between S and the lost

so the server recovers the seed b_u of each survivor, and the mask key of each participant
who shared but was lost since, each from `threshold` shares, and takes these masks off.
Whoever was lost before it shared is in nobody's masks. The server never holds both secrets
of one participant, and what it recovers lives no longer than `unmask`.

Source: [Bonawitz17, figure 4, round 4] on the graph of [Bell20, figure 2].
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, islice

from secagg.errors import FaultyParticipantError, RecoveryError
from secagg.keys import KeyPair, PublicKeys
from secagg.masks import Wardrobe
from secagg.participant import ENVELOPE_BYTES, Cohort, Reveal
from secagg.ring import Ring, Vector
from secagg.shamir import is_share, recover


def digest(keys: Mapping[int, PublicKeys]) -> bytes:
    """Return the SHA-256 of a roster: everybody's slot and keys, in the order of slots."""
    rows = (slot.to_bytes(4, "big") + keys[slot].mask + keys[slot].seal for slot in sorted(keys))
    return sha256(b"blindtally roster v1\0" + b"".join(rows)).digest()


def check_envelopes(cohort: Cohort, slot: int, envelopes: Mapping[int, bytes]) -> None:
    """Check what participant `slot` shares, before it is passed on.

    Raises:
        FaultyParticipantError: if there is not one envelope of `ENVELOPE_BYTES` for each
            neighbour and for nobody else.
    """
    neighbours = set(cohort.graph.neighbours(slot))
    if strangers := envelopes.keys() - neighbours:
        raise FaultyParticipantError(slot, f"addressed a stranger: participant {min(strangers)}")
    if missing := neighbours - envelopes.keys():
        raise FaultyParticipantError(slot, f"left out its neighbour {min(missing)}")
    if any(len(envelope) != ENVELOPE_BYTES for envelope in envelopes.values()):
        raise FaultyParticipantError(slot, f"sent an envelope not of {ENVELOPE_BYTES} bytes")


def check_reveal(
    cohort: Cohort,
    slot: int,
    shared: Collection[int],
    survivors: Collection[int],
    reveal: Reveal,
) -> None:
    """Check the shares that participant `slot` gives.

    `shared` are those whose envelopes were passed on, `survivors` those of them whose
    vectors arrived. Shares may be missing (an envelope that did not open has none to give).

    Raises:
        FaultyParticipantError: if a share is of a stranger, of the other secret than the one
            that was asked for, or no field element, with which nothing can be recovered.
    """
    held = {slot, *(other for other in cohort.graph.neighbours(slot) if other in shared)}
    given = reveal.seed_shares.keys() | reveal.key_shares.keys()
    if strangers := given - held:
        raise FaultyParticipantError(slot, f"gave a share of a stranger: {min(strangers)}")
    for owner in held:
        unasked = reveal.key_shares if owner in survivors else reveal.seed_shares
        if owner in unasked:
            raise FaultyParticipantError(slot, f"gave the wrong secret of participant {owner}")
    for owner, share in chain(reveal.seed_shares.items(), reveal.key_shares.items()):
        if not is_share(share):
            raise FaultyParticipantError(slot, f"gave no share of participant {owner} but noise")


@dataclass(frozen=True, slots=True)
class Heard:
    """What a cohort said until its last phase closed.

    `keys` is the whole roster; `shared` the slots whose envelopes were passed on;
    `survivors` those of them whose vectors are in the masked sum; `reveals` by giver.
    """

    keys: Mapping[int, PublicKeys]
    shared: Collection[int]
    survivors: Collection[int]
    reveals: Mapping[int, Reveal]


def unmask(cohort: Cohort, ring: Ring, heard: Heard, masked_sum: Vector) -> Vector:
    """Return the sum of the survivors' vectors, given the sum of their masked ones.

    Raises:
        RecoveryError: if a secret that is needed has fewer than `threshold` good shares.
        ValueError: if the survivors are fewer than the quorum, or did not all share.
    """
    survivors, shared = set(heard.survivors), set(heard.shared)
    if not survivors <= shared or len(survivors) < cohort.quorum:
        raise ValueError(f"{len(survivors)} survivors, where {cohort.quorum} sharers are needed")
    total = tuple(lane.copy() for lane in masked_sum)
    wardrobe = Wardrobe(ring)
    for slot in sorted(survivors):
        seed = _recover(cohort, slot, heard, "seed_shares")
        wardrobe.take_off(total, cohort.own(slot).stream(seed))
    for slot in sorted(shared - survivors):
        kept = survivors.intersection(cohort.graph.neighbours(slot))
        if not kept:
            continue  # its masks were with the lost only, and are in no vector
        pair = _recover_pair(cohort, slot, heard)
        for other in kept:
            stream = cohort.pairwise(slot, other).stream(pair.agree(heard.keys[other].mask))
            (wardrobe.take_off if other < slot else wardrobe.put_on)(total, stream)
    return total


def _recover_pair(cohort: Cohort, slot: int, heard: Heard) -> KeyPair:
    pair = KeyPair.of(_recover(cohort, slot, heard, "key_shares"))
    if pair.public != heard.keys[slot].mask:
        raise RecoveryError(slot, "its shares meet in another key than it advertised")
    return pair


def _recover(cohort: Cohort, owner: int, heard: Heard, kind: str) -> bytes:
    threshold = cohort.parameters.threshold
    shares = {}
    for holder in (owner, *cohort.graph.neighbours(owner)):
        reveal = heard.reveals.get(holder)
        share = getattr(reveal, kind).get(owner) if reveal else None
        if share is not None:
            shares[holder + 1] = share
    if len(shares) < threshold:
        raise RecoveryError(owner, f"{len(shares)} shares of the {threshold} needed")
    try:
        secret = recover(dict(islice(sorted(shares.items()), threshold)))
    except ValueError as error:
        raise RecoveryError(owner, str(error)) from None
    if secret is None:
        raise RecoveryError(owner, "its shares meet in no secret")
    return secret

"""The server's half of a secure sum: functions that close a phase over all heard in it.

The sum of the masked vectors of the survivors S is

    sum of x_u over S  +  sum of mask(b_u) over S  +  pairwise masks between S and the lost

so the server recovers the seed b_u of each survivor, and the mask key of each participant
who shared but was lost since, each from `threshold` shares, and takes these masks off.
Whoever was lost before it shared is in nobody's masks. The server never holds both secrets
of one participant, and what it recovers lives no longer than `unmask`. A secret counts as
recovered only if it is the one whose commitment (for a mask key: whose public key) was made
before any share was sent; so false shares cost a correction or the sum, never make it wrong.

Source: [Bonawitz17, figure 4, round 4] on the graph of [Bell20, figure 2]. Commitments and
corrections are ours.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, islice
from typing import TypeAlias

from secagg.errors import FaultyParticipantError, RecoveryError
from secagg.keys import KeyPair, PublicKeys
from secagg.masks import Wardrobe
from secagg.participant import ENVELOPE_BYTES, Cohort, Reveal, commit
from secagg.ring import Ring, Vector
from secagg.shamir import correct, is_share, recover

_Given: TypeAlias = Mapping[int, Mapping[int, bytes]]  # shares by giver, then by owner


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
    vectors arrived. Others' shares may be missing: an envelope that did not open has none.

    Raises:
        FaultyParticipantError: if its own is missing, or a share is of a stranger, of the
            other secret than the one that was asked for, or no field element.
    """
    held = {slot, *(other for other in cohort.graph.neighbours(slot) if other in shared)}
    given = reveal.seed_shares.keys() | reveal.key_shares.keys()
    if strangers := given - held:
        raise FaultyParticipantError(slot, f"gave a share of a stranger: {min(strangers)}")
    if slot not in given:
        raise FaultyParticipantError(slot, "left out the share of its own seed, which it has")
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

    `keys` is the whole roster, `commitments` those to everybody's seeds; `shared` the slots
    whose envelopes were passed on; `survivors` those of them whose vectors are in the masked
    sum; `reveals` by giver.
    """

    keys: Mapping[int, PublicKeys]
    commitments: Mapping[int, bytes]
    shared: Collection[int]
    survivors: Collection[int]
    reveals: Mapping[int, Reveal]


@dataclass(frozen=True, slots=True)
class Unmasked:
    """The sum of the survivors' vectors, and the false shares met on the way.

    `disputed` names them as (owner, holder): the one dealt it or the other changed it.
    """

    total: Vector
    disputed: frozenset[tuple[int, int]]


def unmask(cohort: Cohort, ring: Ring, heard: Heard, masked_sum: Vector) -> Unmasked:
    """Return the sum of the survivors' vectors, given the sum of their masked ones.

    False shares are outvoted while enough others are true; if not, there is no sum, since a
    recovered secret must be the one that its owner committed to.

    Raises:
        RecoveryError: if a secret that is needed cannot be had from the shares.
        ValueError: if the survivors are fewer than the quorum, or did not all share.
    """
    survivors, shared = set(heard.survivors), set(heard.shared)
    if not survivors <= shared or len(survivors) < cohort.quorum:
        raise ValueError(f"{len(survivors)} survivors, where {cohort.quorum} sharers are needed")
    total = tuple(lane.copy() for lane in masked_sum)
    wardrobe, recovery = Wardrobe(ring), _Recovery(cohort, heard)
    for slot in sorted(survivors):
        wardrobe.take_off(total, cohort.own(slot).stream(recovery.seed(slot)))
    for slot in sorted(shared - survivors):
        kept = survivors.intersection(cohort.graph.neighbours(slot))
        if not kept:
            continue  # its masks were with the lost only, and are in no vector
        pair = recovery.pair(slot)
        for other in kept:
            stream = cohort.pairwise(slot, other).stream(pair.agree(heard.keys[other].mask))
            (wardrobe.take_off if other < slot else wardrobe.put_on)(total, stream)
    return Unmasked(total, frozenset(recovery.disputed))


class _Recovery:
    """Recovers secrets, each checked against what its owner made public."""

    def __init__(self, cohort: Cohort, heard: Heard) -> None:
        self.disputed: set[tuple[int, int]] = set()
        self._cohort = cohort
        self._heard = heard
        self._seeds = {slot: reveal.seed_shares for slot, reveal in heard.reveals.items()}
        self._keys = {slot: reveal.key_shares for slot, reveal in heard.reveals.items()}

    def seed(self, owner: int) -> bytes:
        """Return the seed that `owner` committed to."""
        committed = self._heard.commitments[owner]
        return self._secret(owner, self._seeds, lambda seed: commit(seed) == committed)

    def pair(self, owner: int) -> KeyPair:
        """Return the pair of the mask key that `owner` advertised."""
        public = self._heard.keys[owner].mask
        key = self._secret(owner, self._keys, lambda secret: KeyPair.of(secret).public == public)
        return KeyPair.of(key)

    def _secret(self, owner: int, given: _Given, is_committed: Callable[[bytes], bool]) -> bytes:
        threshold = self._cohort.parameters.threshold
        doubted = {holder for _, holder in self.disputed}
        near = (owner, *self._cohort.graph.neighbours(owner))
        holders = sorted(near, key=lambda holder: (holder in doubted, holder))
        found = {holder + 1: given.get(holder, {}).get(owner, b"") for holder in holders}
        shares = {x: share for x, share in found.items() if is_share(share)}
        if len(shares) < threshold:
            raise RecoveryError(owner, f"{len(shares)} shares of the {threshold} needed")
        secret = recover(dict(islice(shares.items(), threshold)))
        if secret is not None and is_committed(secret):
            return secret
        corrected = correct(shares, threshold)
        if corrected is None or not is_committed(corrected[0]):
            raise RecoveryError(owner, "its shares meet in another secret than it committed to")
        self.disputed |= {(owner, x - 1) for x in corrected[1]}
        return corrected[0]

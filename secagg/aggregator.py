"""The server's half of a secure sum: functions that close a phase over all heard in it.

The sum of the masked vectors of the survivors S is

    sum of x_u over S  +  sum of mask(b_u) over S  +  pairwise masks between S and the lost

so the server recovers the seed b_u of each survivor, and the mask key of each participant
who shared but was lost since, each from `threshold` shares, and takes these masks off.
Whoever was lost before it shared is in nobody's masks. The server never holds both secrets
of one participant, and what it recovers lives no longer than `unmask`.

Who lies is told by commitments. A secret counts as recovered only if it is the one that its
owner committed to (a mask key: its public key). If t shares meet in another one, all shares of it
are compared with what their dealer committed to: who gave another share than it was dealt is
named, and its shares are left out, so a holder cannot spoil a sum. If the rest meet in no good
secret either, the dealer dealt false ones: it is corrected and named, or costs the sum and is
named; it never makes it wrong. So is a dealer of envelopes that do not open, if as many holders
say so as no honest dealer has corrupt ones. A false share that is not among the t that a secret
was recovered from changes nothing, and is not looked for.

Source: [Bonawitz17, figure 4, round 4]. Commitments and corrections are ours.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from secagg.cohort import Cohort, View
from secagg.deals import (
    KEY,
    SEED,
    KeyDeal,
    Reveal,
    SeedDeal,
    Upload,
    commit_seed,
)
from secagg.errors import FaultyParticipantError, RecoveryError
from secagg.keys import KeyPair, is_signed, statement
from secagg.masks import Wardrobe
from secagg.parcels import Inbox, commit_shares, deliver
from secagg.recovery import Given
from secagg.ring import Ring, Vector
from secagg.roster import identity_of, mask_key
from secagg.shamir import correct, is_share, recover

FALSE_DEALER = "dealt shares that do not open, or not the secret that it committed to"
FALSE_GIVER = "gave another share than it was dealt"


def check_shares(cohort: Cohort, slot: int, deal: KeyDeal) -> None:
    """Check what participant `slot` shares, before it is passed on.

    Raises:
        FaultyParticipantError: if there is not one parcel for each holder, or the deal is
            not signed.
    """
    holders = cohort.parameters.holders
    if len(deal.parcels) != holders:
        raise FaultyParticipantError(slot, f"dealt {len(deal.parcels)} shares to {holders}")
    said = statement("shares", cohort.label, slot, deal.sharer.said())
    _check_signature(cohort, slot, said, deal.signature)


def check_upload(view: View, slot: int, upload: Upload) -> None:
    """Check the deal and the signature of a vector that participant `slot` sends.

    Raises:
        FaultyParticipantError: if there is not one parcel for each of its holders that
            shared, or the upload is not signed.
    """
    holders = view.heard_holders[slot]
    if len(upload.deal.parcels) != holders:
        raise FaultyParticipantError(
            slot, f"dealt {len(upload.deal.parcels)} shares of its seed to {holders}"
        )
    said = statement("vector", view.label, slot, upload.deal.pack(), upload.vector)
    _check_signature(view.cohort, slot, said, upload.signature)


def check_confirmation(view: View, slot: int, survivors: frozenset[int], signature: bytes) -> None:
    """Check the signature of participant `slot` under the survivors.

    Raises:
        FaultyParticipantError: if it is under anything else.
    """
    _check_signature(view.cohort, slot, view.confirmation(slot, survivors), signature)


def _check_signature(cohort: Cohort, slot: int, said: bytes, signature: bytes) -> None:
    if not is_signed(identity_of(cohort.roster, slot), said, signature):
        raise FaultyParticipantError(slot, "did not sign this")


@dataclass(frozen=True, eq=False)
class Settled:
    """What is settled once the vectors are in: who survived, and the shares that matter now.

    These are of the seeds of survivors and of the mask keys of the lost, never of both.
    `seeds` and `own` are the survivors' commitments to their seeds and to their own shares of
    them; `inboxes` the parcels, by holder and then owner.
    """

    view: View
    seeds: Mapping[int, bytes]
    own: Mapping[int, bytes]
    inboxes: Mapping[int, Inbox]

    @cached_property
    def survivors(self) -> frozenset[int]:
        """Return the slots whose vectors are in the masked sum."""
        return frozenset(self.seeds)

    @cached_property
    def wanted(self) -> NDArray[np.uint8]:
        """Return the kind of the shares asked for, by the slot of the secret's owner."""
        kinds = np.full(self.view.cohort.n, KEY, np.uint8)
        kinds[list(self.seeds)] = SEED
        return kinds

    def commitments(self, owner: int) -> dict[int, bytes]:
        """Return what commits to the shares of the secret asked of `owner`, by their numbers."""
        dealt = {1: self.own[owner]} if owner in self.own else {}
        for number, holder in enumerate(self.view.holders(owner), start=2):
            inbox = self.inboxes.get(holder)
            found = inbox and inbox.commitment(owner)
            if found:
                dealt[number] = found
        return dealt

    @property
    def nbytes(self) -> int:
        """Return how many bytes were dealt."""
        return sum(inbox.records.nbytes for inbox in self.inboxes.values())

    @cached_property
    def lost(self) -> frozenset[int]:
        """Return the slots that shared and were lost since."""
        return frozenset(self.view.sharers.keys() - self.seeds.keys())


def settle_deals(view: View, keys: Mapping[int, KeyDeal], seeds: Mapping[int, SeedDeal]) -> Settled:
    """Return what is settled by the survivors' `seeds` and by the `keys` of the lost.

    Raises:
        ValueError: if one of those lost since they shared is not in `keys`.
    """
    owners = view.slots.tolist()
    if missing := [owner for owner in owners if owner not in seeds and owner not in keys]:
        raise ValueError(f"what participant {missing[0]} dealt is missing")
    is_lost = np.array([owner not in seeds for owner in owners], np.bool_)
    dealt = [seeds[owner].parcels if owner in seeds else keys[owner].parcels for owner in owners]
    given = view.have_shared | is_lost[:, np.newaxis]  # of a key each holder has a share
    inboxes = deliver(view.slots, view.picks, given, dealt)
    committed = {owner: deal.commitment for owner, deal in seeds.items()}
    own = {owner: deal.own for owner, deal in seeds.items()}
    return Settled(view, committed, own, inboxes)


def check_reveal(settled: Settled, slot: int, reveal: Reveal) -> None:
    """Check what shares participant `slot` gives; whether they are those dealt shows in the end.

    Whoever gives less than it was dealt has said nothing: it counts as lost, not as heard.

    Raises:
        FaultyParticipantError: if its own is missing or a parcel is not answered, a share is of
            one who dealt it none, of the other secret than was asked for, or no share at all,
            or the reveal is not signed, or answers another inbox or other survivors than
            were sent.
    """
    if slot not in settled.survivors:
        raise FaultyParticipantError(slot, "is no survivor: its shares were not asked for")
    if not _gives_all(settled, slot, reveal):
        _refuse(settled, slot, reveal)
    view, inbox = settled.view, settled.inboxes[slot].digest
    said = view.answer(slot, settled.survivors, inbox, reveal.said())
    _check_signature(view.cohort, slot, said, reveal.signature)


def _gives_all(settled: Settled, slot: int, reveal: Reveal) -> bool:
    """Return whether it is plain that `reveal` gives a share for each parcel, none faulty.

    All are looked at together, since nearly all are as they should be.
    """
    records = reveal.records
    owners = settled.inboxes[slot].owners
    insort(owners, slot)
    if records["owner"].tolist() != owners:
        return False
    wanted = settled.wanted[records["owner"]] if settled.lost else SEED
    if (records["kind"] != wanted).any():
        return False
    return reveal.are_shares


def _refuse(settled: Settled, slot: int, reveal: Reveal) -> None:
    """Say what is wrong with the shares in `reveal`; nothing is if some are reported faulty."""
    if slot not in reveal.seed_shares:
        raise FaultyParticipantError(slot, "left out the share of its own seed, which it has")
    wrong = reveal.seed_shares.keys() - settled.survivors
    if wrong := wrong | reveal.key_shares.keys() & settled.survivors:
        raise FaultyParticipantError(slot, f"gave the wrong secret of participant {min(wrong)}")
    dealers = frozenset(settled.inboxes[slot].owners)
    if strangers := reveal.faulty - dealers:
        raise FaultyParticipantError(slot, f"complained of a stranger: {min(strangers)}")
    given = {**reveal.seed_shares, **reveal.key_shares}
    if held_back := dealers - given.keys() - reveal.faulty:
        raise FaultyParticipantError(slot, f"held back the share of {min(held_back)}")
    if others := given.keys() - dealers - {slot}:
        raise FaultyParticipantError(slot, f"gave a share of {min(others)}, who dealt it none")
    for owner, share in given.items():
        if not is_share(share):
            raise FaultyParticipantError(slot, f"gave no share of {owner}: not of the field")


@dataclass(frozen=True, slots=True)
class Unmasked:
    """The sum of the survivors' vectors, and who lied about shares: what each did, by slot."""

    total: Vector
    blamed: Mapping[int, str]


def unmask(
    settled: Settled, ring: Ring, reveals: Mapping[int, Reveal], masked_sum: Vector
) -> Unmasked:
    """Return the sum of the survivors' vectors, given the sum of their masked ones.

    `reveals` are by giver, each checked by `check_reveal`. One thread does it: two that share
    the interpreter took a third longer.

    Raises:
        RecoveryError: if a secret that is needed cannot be had from the shares: of the first such;
            it names all who lied about any.
        ValueError: if the survivors are fewer than the quorum.
    """
    if len(settled.survivors) < settled.view.cohort.quorum:
        raise ValueError(f"{len(settled.survivors)} survivors are fewer than a quorum")
    unmasking = Unmasking(settled, ring, reveals, masked_sum)
    failed = None
    for slots, take_off in (
        (settled.survivors, unmasking.take_off_own),
        (settled.lost, unmasking.take_off_pairwise),
    ):
        for slot in sorted(slots):
            try:
                take_off(slot)
            except RecoveryError as error:  # go on: else one liar would hide those behind it
                failed = failed or error
                unmasking.is_lost = True
    if failed is not None:
        failed.blamed = unmasking.blamed
        raise failed
    return Unmasked(unmasking.total, unmasking.blamed)


class Unmasking:
    """A masked sum on its way to `total`, which it is once each participant's masks are off."""

    def __init__(
        self, settled: Settled, ring: Ring, reveals: Mapping[int, Reveal], masked_sum: Vector
    ) -> None:
        self.total = tuple(lane.copy() for lane in masked_sum)
        self.blamed = dict[int, str]()
        self.is_lost = False  # there will be no sum: only liars are looked for, not their secrets
        self._settled = settled
        self._wardrobe = Wardrobe(ring)
        self._given = Given(settled.view, settled.survivors, reveals)
        self._complaints = Counter(owner for reveal in reveals.values() for owner in reveal.faulty)

    def take_off_own(self, slot: int) -> None:
        """Take off the mask that a survivor grew from its seed.

        Raises:
            RecoveryError: if that seed cannot be had from the shares.
        """
        committed = self._settled.seeds[slot]
        seed = self._recover(slot, lambda seed: commit_seed(seed) == committed)
        self._wardrobe.take_off(self.total, self._settled.view.own(slot).stream(seed))

    def take_off_pairwise(self, slot: int) -> None:
        """Take off the masks between a lost participant and the survivors.

        Raises:
            RecoveryError: if its mask key cannot be had from the shares.
        """
        view = self._settled.view
        roster, kept = view.cohort.roster, self._settled.survivors & view.graph[slot]
        if not kept:
            return  # its masks were with the lost only, and are in no vector
        public = mask_key(roster, slot)
        pair = KeyPair.of(self._recover(slot, lambda key: KeyPair.of(key).public == public))
        for other in kept:
            secret = pair.agree(mask_key(roster, other))
            stream = view.pairwise(slot, other).stream(secret)
            (self._wardrobe.take_off if other < slot else self._wardrobe.put_on)(self.total, stream)

    def _recover(self, owner: int, is_committed: Callable[[bytes], bool]) -> bytes:
        """Return the secret of `owner` that it committed to."""
        secret = self._given.secret(owner)
        if secret is not None and is_committed(secret):
            return secret
        threshold, shares = self._given.threshold, self._true_shares(owner)
        if len(shares) < threshold:
            if self._complaints[owner] >= threshold:  # so many corrupt holders nobody has
                self.blamed[owner] = FALSE_DEALER
            what = f"{len(shares)} shares of the {threshold} needed"
            raise RecoveryError(owner, what, self.blamed)
        secret = recover(dict(islice(shares.items(), threshold)))
        if secret is not None and is_committed(secret):
            return secret
        self.blamed[owner] = FALSE_DEALER
        corrected = None if self.is_lost else correct(shares, threshold)
        if corrected is None or not is_committed(corrected[0]):
            what = "its shares meet in another secret than it committed to"
            raise RecoveryError(owner, what, self.blamed)
        return corrected[0]

    def _true_shares(self, owner: int) -> dict[int, bytes]:
        """Return the shares given of `owner` that are those it dealt; name who gave another."""
        given, dealt = self._given.shares(owner), self._settled.commitments(owner)
        slots = (owner, *self._settled.view.holders(owner))
        found = dict(zip(given, commit_shares(given.values()), strict=True))
        false = {number for number in given if found[number] != dealt[number]}
        self.blamed |= {slots[number - 1]: FALSE_GIVER for number in false}
        return {number: share for number, share in given.items() if number not in false}

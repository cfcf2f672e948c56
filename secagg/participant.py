"""A participant's half of a secure sum: a chain of states, one step each.

    join -> Joined.share -> Shared.mask -> Masked.confirm -> Confirmed.reveal

Participant u agrees on a mask with each partner v, draws a seed b of its own, and sends

    y_u = x_u + mask(b_u) + sum over v > u of mask(u, v) - sum over v < u of mask(u, v)

Summed over everybody the pairwise masks cancel. Before that, u shares its secret mask key
among its holders; with y_u it shares b_u among those of them that are still there. In the end
the server asks for shares of b_u of whoever's vector arrived, and of the mask key of whoever's
did not. Given both for one participant it could read a vector, so a participant gives one of
them only, once, and (in the `active` mode) only when it has seen that a quorum signed the
same set of survivors.

What a participant is told step by step is bound into its keys: shares of b are sealed under a
label that covers who shared, and everybody's picks. Whoever was told another story deals
shares that do not open, and its vector stays masked.

A state is spent by its step: a second call raises `OutOfPhaseError`. Whoever must repeat a
message (the network lost the answer) repeats the bytes, not the step.

Source: [Bonawitz17, figure 4] on a graph of picked holders [Bell20, section 4]. Sharing b
with the vector, witnesses and the commitments in the deals are ours.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from random import Random

from secagg.cohort import Cohort, Entry, View, advertisement
from secagg.deals import KeyDeal, Reveal, SeedDeal, Upload, commit_seed
from secagg.errors import OutOfPhaseError, RefusedError
from secagg.graph import CONTRIBUTION_BYTES
from secagg.keys import SEED_BYTES, Identity, KeyPair, PublicKeys, is_signed, statement
from secagg.masks import Wardrobe
from secagg.parcels import Inbox, Parcel, commit_share, inbox_bytes, open_parcels, seal_shares
from secagg.ring import Ring, Vector
from secagg.roster import identity_of, mask_key, seal_key
from secagg.shamir import split


@dataclass(slots=True)
class _State:
    """A state of the chain, good for one step."""

    _spent: bool = field(default=False, init=False, repr=False)

    def _spend(self) -> None:
        if self._spent:
            raise OutOfPhaseError(f"{type(self).__name__} has taken its step already")
        self._spent = True


def join(identity: Identity, rng: Random) -> "Joined":
    """Return a participant with fresh keys for one sum; pass the system's randomness."""
    return Joined(identity, KeyPair.generate(rng), KeyPair.generate(rng))


@dataclass(slots=True)
class Joined(_State):
    """Keys are made; the roster is awaited."""

    identity: Identity
    mask: KeyPair
    seal: KeyPair

    @property
    def public(self) -> PublicKeys:
        """Return the keys to advertise."""
        return PublicKeys(self.mask.public, self.seal.public)

    def advertise(self, plan: bytes) -> bytes:
        """Return my signature under my keys, for the sums of the plan of this digest."""
        return self.identity.sign(advertisement(plan, self.public))

    def share(self, slot: int, cohort: Cohort, rng: Random) -> tuple["Shared", KeyDeal]:
        """Return the next state, and shares of the mask key for the holders picked.

        Raises:
            RefusedError: if another than me sits in `slot`, an identity or a key is in the
                roster twice, or (`active`) a holder that I picked did not sign its keys or is
                not enrolled. I pick once: whoever is shown another roster refuses for good.
        """
        if cohort.repeated:  # one device in two slots, or two masks in one
            raise RefusedError(f"showed a roster with the same {cohort.repeated} twice")
        if not 0 <= slot < cohort.n or not self._is_mine(cohort.roster[slot]):
            raise RefusedError(f"showed a roster with another than me in slot {slot}")
        self._spend()
        contribution = rng.randbytes(CONTRIBUTION_BYTES)
        holders = cohort.picking.holders(slot, contribution)
        if cohort.assumptions.is_active:
            # Before anything is sealed for them: a holder with keys of the server's own would
            # hand over its shares, and be named lost.
            for holder in holders:
                if not cohort.vouches(holder):
                    raise RefusedError(
                        f"seated participant {holder} with keys not its own, or not enrolled"
                    )
        shares = split(self.mask.secret, len(holders) + 1, cohort.parameters.threshold, rng)
        sealing = {holder: self.seal.agree(seal_key(cohort.roster, holder)) for holder in holders}
        pads = [cohort.key_share(slot, to).derive(secret) for to, secret in sealing.items()]
        parcels = seal_shares(shares[1:], pads)
        said = KeyDeal(contribution, parcels).sharer.said()
        signature = self.identity.sign(statement("shares", cohort.label, slot, said))
        deal = KeyDeal(contribution, parcels, signature)
        return Shared(slot, cohort, self, deal, sealing), deal

    def _is_mine(self, entry: Entry) -> bool:
        return (entry.identity, entry.keys) == (self.identity.public, self.public)


@dataclass(slots=True)
class Shared(_State):
    """My mask key is shared; who else shared is awaited."""

    slot: int
    cohort: Cohort
    joined: Joined
    deal: KeyDeal
    sealing: dict[int, bytes] = field(repr=False)  # agreed with each holder, for envelopes

    def mask(self, view: View, ring: Ring, vector: Vector, rng: Random) -> tuple["Masked", Upload]:
        """Return the next state, and `vector` masked with the deal of my seed.

        `vector` itself is left as it is.

        Raises:
            ValueError: if `vector` is not one of `ring`'s.
            RefusedError: if what `view` says I shared is not what I did, fewer than a quorum
                shared, or too few of my holders did.
        """
        ring.check(vector)
        holders = self._check(view)
        self._spend()
        seed = rng.randbytes(SEED_BYTES)
        masked = tuple(lane.copy() for lane in vector)
        wardrobe = Wardrobe(ring)
        wardrobe.put_on(masked, view.own(self.slot).stream(seed))
        for other in view.partners(self.slot):
            secret = self.joined.mask.agree(mask_key(self.cohort.roster, other))
            stream = view.pairwise(self.slot, other).stream(secret)
            (wardrobe.put_on if self.slot < other else wardrobe.take_off)(masked, stream)
        deal, own = self._deal(view, holders, seed, rng)
        packed = ring.pack(masked)
        said = statement("vector", view.label, self.slot, deal.pack(), packed)
        upload = Upload(deal, packed, self.joined.identity.sign(said))
        return Masked(self.slot, view, self.joined, self.sealing, own), upload

    def _check(self, view: View) -> list[int]:
        """Return my holders that shared."""
        told = view.sharers.get(self.slot)
        if view.cohort is not self.cohort or told is None:
            raise RefusedError("asked for a vector but left out what I shared")
        if told.said() != self.deal.sharer.said():
            raise RefusedError("passed on other shares than I dealt")
        if len(view.sharers) < self.cohort.quorum:
            raise RefusedError(
                f"kept {len(view.sharers)} of {self.cohort.n} participants, "
                f"fewer than the quorum of {self.cohort.quorum}"
            )
        holders = [holder for holder in self.sealing if holder in view.sharers]
        threshold = self.cohort.parameters.threshold
        if len(holders) + 1 < threshold:
            raise RefusedError(f"kept {len(holders)} of my holders with threshold {threshold}")
        return holders

    def _deal(
        self, view: View, holders: Collection[int], seed: bytes, rng: Random
    ) -> tuple[SeedDeal, bytes]:
        """Return shares of `seed` for those of my holders that shared, and my own share."""
        threshold = self.cohort.parameters.threshold
        shares = split(seed, len(self.sealing) + 1, threshold, rng)
        numbered = dict(zip(self.sealing, shares[1:], strict=True))
        pads = [view.seed_share(self.slot, to).derive(self.sealing[to]) for to in holders]
        parcels = seal_shares([numbered[holder] for holder in holders], pads)
        return SeedDeal(commit_seed(seed), commit_share(shares[0]), parcels), shares[0]


@dataclass(slots=True)
class Masked(_State):
    """My masked vector is sent; the survivors are awaited."""

    slot: int
    view: View
    joined: Joined
    sealing: dict[int, bytes] = field(repr=False)
    own_share: bytes = field(repr=False)  # of my seed

    def confirm(self, survivors: Collection[int]) -> tuple["Confirmed", bytes]:
        """Return the next state, and my signature under the set of survivors.

        `survivors` are the slots whose vectors arrived.

        Raises:
            RefusedError: if they leave me out, name one twice or somebody who did not share,
                are fewer than the quorum, or keep too few of my holders to unmask me.
            OutOfPhaseError: if this was asked before.
        """
        kept = frozenset(survivors)
        cohort = self.view.cohort
        if len(kept) < len(survivors):
            raise RefusedError("named a survivor twice")
        if not kept <= self.view.sharers.keys():
            raise RefusedError("named a survivor who did not share")
        if self.slot not in kept:
            raise RefusedError("asked for shares but left my vector out")
        if len(kept) < max(cohort.quorum, 2):
            raise RefusedError(
                f"kept {len(kept)} of {cohort.n} participants, "
                f"fewer than the quorum of {cohort.quorum}"
            )
        holders = kept.intersection(self.sealing)
        if len(holders) + 1 < cohort.parameters.threshold:
            raise RefusedError(f"kept {len(holders)} of my holders: too few to unmask me")
        self._spend()
        signature = self.joined.identity.sign(self.view.confirmation(self.slot, kept))
        return Confirmed(self.slot, self.view, self.joined, self.sealing, self.own_share, kept), (
            signature
        )


@dataclass(slots=True)
class Confirmed(_State):
    """I signed one set of survivors; the signatures of the others are awaited."""

    slot: int
    view: View
    joined: Joined
    sealing: dict[int, bytes] = field(repr=False)
    own_share: bytes = field(repr=False)
    survivors: frozenset[int]

    def reveal(
        self, confirmations: Mapping[int, bytes], parcels: Mapping[int, Parcel], rng: Random
    ) -> Reveal:
        """Return a share of each owner that made me its holder: of its seed if it survived.

        `confirmations` are signatures under the survivors, by slot; `parcels` are those
        addressed to me, by owner: of seeds for survivors, of mask keys for the lost. One that
        holds no share that it commits to is reported. In the `semi-honest` mode no
        confirmations are looked at.

        Raises:
            RefusedError: if a parcel is of nobody who shared, or (`active`) fewer than a
                quorum confirmed, or one of the witnesses that I pick did not.
            OutOfPhaseError: if this was asked before, and answered or refused for signatures.
        """
        dealers = parcels.keys()
        if self.slot in dealers or not dealers <= self.view.sharers.keys():
            raise RefusedError("passed on a share of somebody who dealt none")
        inbox = parcels if isinstance(parcels, Inbox) else Inbox.unpack(inbox_bytes(parcels))
        self._spend()  # asked again after a refusal, I would draw other witnesses
        if self.view.cohort.assumptions.is_active:
            self._check_witnesses(confirmations, rng)
        owners = inbox.owners
        found = open_parcels(inbox, [self._pad(owner) for owner in owners])
        seeds, keys, faulty = {self.slot: self.own_share}, dict[int, bytes](), set[int]()
        for owner, share in zip(owners, found, strict=True):
            if share is None:
                faulty.add(owner)
            else:
                (seeds if owner in self.survivors else keys)[owner] = share
        reveal = Reveal(seeds, keys, frozenset(faulty))
        answer = self.view.answer(self.slot, self.survivors, inbox.digest, reveal.said())
        return reveal.signed(self.joined.identity, answer)

    def _check_witnesses(self, confirmations: Mapping[int, bytes], rng: Random) -> None:
        cohort = self.view.cohort
        if not confirmations.keys() <= self.survivors:
            raise RefusedError("showed the signature of one who is no survivor")
        if len(confirmations) < max(cohort.quorum, 2):
            raise RefusedError(
                f"showed {len(confirmations)} signatures under the survivors, "
                f"fewer than the quorum of {cohort.quorum}"
            )
        others = sorted(confirmations.keys() - {self.slot})
        witnesses = rng.sample(others, min(cohort.parameters.witnesses, len(others)))
        for slot in witnesses:
            said = self.view.confirmation(slot, self.survivors)
            if not is_signed(identity_of(cohort.roster, slot), said, confirmations[slot]):
                raise RefusedError(f"showed survivors that participant {slot} did not sign")

    def _pad(self, owner: int) -> bytes:
        """Return the pad on the share of the one secret that may be given of `owner`."""
        secret = self.sealing.get(owner)
        if secret is None:
            secret = self.joined.seal.agree(seal_key(self.view.cohort.roster, owner))
        kept = owner in self.survivors
        purpose = self.view.seed_share if kept else self.view.cohort.key_share
        return purpose(owner, self.slot).derive(secret)

"""A participant's half of a secure sum: a chain of states, one step each.

    join -> Joined.share -> Shared.mask -> Masked.reveal

Participant u draws a seed b and agrees with each neighbour v on a mask. It sends

    y_u = x_u + mask(b_u) + sum over v > u of mask(u, v) - sum over v < u of mask(u, v)

Summed over everybody the pairwise masks cancel. Before that, u shares both b_u and its
secret mask key among its neighbours and itself, each neighbour's two shares in one
envelope. In the end the server asks for shares of b_u of whoever's vector arrived, and of
the mask key of whoever's did not. Given both for one participant it could read a vector, so
a participant gives one of them only, once, and only for lists that make sense.

A state is spent by its step: a second call raises `OutOfPhaseError`. Whoever must repeat a
message (the network lost the answer) repeats the bytes, not the step.

The server learns a commitment to b as u joins, and u's public mask key anyway: so what it
recovers in the end can be told from what false shares meet in. That is ours.

Source: [Bonawitz17, figure 4] on the graph of [Bell20, figure 2].
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from random import Random

from secagg.errors import OutOfPhaseError, RefusedError
from secagg.graph import Assumptions, Graph, Parameters, graph, parameters
from secagg.keys import SEAL_BYTES, SEED_BYTES, KeyPair, PublicKeys, Purpose
from secagg.masks import Wardrobe
from secagg.ring import Ring, Vector
from secagg.shamir import SHARE_BYTES, is_share, split

ENVELOPE_BYTES = 2 * SHARE_BYTES + SEAL_BYTES


@dataclass(frozen=True)
class Cohort:
    """The public facts of one secure sum, the same for all its participants.

    `session` (32 bytes) names the plan and the cohort; `seed` (32 bytes) makes the graph;
    `digest` (32 bytes) covers everybody's keys.

    Raises:
        ValueError: if one of the three is not 32 bytes.
    """

    session: bytes
    parameters: Parameters
    assumptions: Assumptions
    seed: bytes
    digest: bytes

    def __post_init__(self) -> None:
        if {len(self.session), len(self.seed), len(self.digest)} != {32}:
            raise ValueError("session, seed and digest have 32 bytes each")

    @property
    def n(self) -> int:
        """Return the number of participants."""
        return self.parameters.n

    @property
    def quorum(self) -> int:
        """Return how many participants each phase must keep."""
        return self.assumptions.quorum(self.n)

    @property
    def graph(self) -> Graph:
        """Return who masks with whom."""
        return graph(self.n, self.parameters.degree, self.seed)

    @cached_property
    def label(self) -> bytes:
        """Return the 32 bytes that bind each derived key to all these facts.

        Participants who were shown different facts derive different keys: they get noise.
        """
        numbers = (self.n, self.parameters.degree, self.parameters.threshold)
        packed = b"".join(number.to_bytes(4, "big") for number in numbers)
        facts = self.session + self.seed + self.digest + packed
        return sha256(b"blindtally sum v1\0" + facts).digest()

    def pairwise(self, one: int, other: int) -> Purpose:
        """Return the purpose of the mask between two slots."""
        return Purpose(self.label, "mask", min(one, other), max(one, other))

    def own(self, slot: int) -> Purpose:
        """Return the purpose of the mask that `slot` grows from its own seed."""
        return Purpose(self.label, "self", slot, slot)

    def envelope(self, sender: int, receiver: int) -> Purpose:
        """Return the purpose of the envelope from one slot to another."""
        return Purpose(self.label, "seal", sender, receiver)


@dataclass(frozen=True, slots=True)
class Reveal:
    """Shares given to the server, by the slot of the secret's owner: never both for one."""

    seed_shares: dict[int, bytes] = field(repr=False)  # owners whose vectors are in the sum
    key_shares: dict[int, bytes] = field(repr=False)  # owners who shared and were lost since


@dataclass(slots=True)
class _State:
    """A state of the chain, good for one step."""

    _spent: bool = field(default=False, init=False, repr=False)

    def _spend(self) -> None:
        if self._spent:
            raise OutOfPhaseError(f"{type(self).__name__} has taken its step already")
        self._spent = True


def commit(seed: bytes) -> bytes:
    """Return the 32 bytes that a participant is bound to `seed` by, and that do not tell it."""
    return sha256(b"blindtally seed v1\0" + seed).digest()


def join(rng: Random) -> "Joined":
    """Return a participant with fresh keys for one sum; pass the system's randomness."""
    pairs = KeyPair.generate(rng), KeyPair.generate(rng)
    return Joined(*pairs, seed=rng.randbytes(SEED_BYTES))


@dataclass(slots=True)
class Joined(_State):
    """Keys and seed are made; the roster is awaited."""

    mask: KeyPair
    seal: KeyPair
    seed: bytes = field(repr=False)

    @property
    def public(self) -> PublicKeys:
        """Return the keys to advertise."""
        return PublicKeys(self.mask.public, self.seal.public)

    @property
    def commitment(self) -> bytes:
        """Return the commitment to the seed, to advertise to the server."""
        return commit(self.seed)

    def share(
        self, slot: int, cohort: Cohort, keys: Mapping[int, PublicKeys], rng: Random
    ) -> tuple["Shared", dict[int, bytes]]:
        """Return the next state and an envelope of `ENVELOPE_BYTES` for each neighbour.

        `keys` are the neighbours' keys, by slot.

        Raises:
            RefusedError: if the parameters are not those that the assumptions ask for, there
                is no such slot, `keys` are not those of the neighbours that the graph gives,
                or a key is repeated.
        """
        _check_parameters(cohort)
        if not 0 <= slot < cohort.n:
            raise RefusedError(f"gave me slot {slot} of {cohort.n}")
        if set(keys) != set(cohort.graph.neighbours(slot)):
            raise RefusedError("showed a roster of others than the neighbours in the graph")
        known = [self.public, *keys.values()]
        if len({key for pair in known for key in (pair.mask, pair.seal)}) < 2 * len(known):
            raise RefusedError("showed a roster with the same key twice")
        self._spend()
        holders = [other + 1 for other in (slot, *keys)]
        threshold = cohort.parameters.threshold
        seed_shares = split(self.seed, holders, threshold, rng)
        key_shares = split(self.mask.secret, holders, threshold, rng)
        sealing = {other: self.seal.agree(theirs.seal) for other, theirs in keys.items()}
        envelopes = {
            other: cohort.envelope(slot, other).seal(
                secret, seed_shares[other + 1] + key_shares[other + 1], rng
            )
            for other, secret in sealing.items()
        }
        mask_keys = {other: theirs.mask for other, theirs in keys.items()}
        own = (seed_shares[slot + 1], key_shares[slot + 1])
        return Shared(slot, cohort, self.mask, mask_keys, sealing, self.seed, own), envelopes


def _check_parameters(cohort: Cohort) -> None:
    # More is not safer: with more neighbours at the same threshold, more of them collude.
    offered, needed = cohort.parameters, parameters(cohort.n, cohort.assumptions)
    if (offered.degree, offered.threshold) != (needed.degree, needed.threshold):
        raise RefusedError(
            f"offered degree {offered.degree} and threshold {offered.threshold} where "
            f"{needed.degree} and {needed.threshold} are needed for {cohort.n} participants"
        )


@dataclass(slots=True)
class Shared(_State):
    """My secrets are shared; my neighbours' envelopes are awaited."""

    slot: int
    cohort: Cohort
    pair: KeyPair
    mask_keys: dict[int, bytes]  # public, by neighbour
    sealing: dict[int, bytes] = field(repr=False)  # agreed with each neighbour, for envelopes
    seed: bytes = field(repr=False)
    own_shares: tuple[bytes, bytes] = field(repr=False)

    def mask(
        self, envelopes: Mapping[int, bytes], ring: Ring, vector: Vector
    ) -> tuple["Masked", Vector]:
        """Return the next state and `vector` masked; `vector` itself is left as it is.

        `envelopes` are those addressed to me, by sender: exactly the neighbours that shared.
        One that does not open gives no shares, but its sender is masked with all the same:
        whether enough others hold good shares shows when they are needed.

        Raises:
            ValueError: if `vector` is not one of `ring`'s.
            RefusedError: if an envelope comes from no neighbour, or too few neighbours
                shared for anybody's secrets to be recovered.
        """
        ring.check(vector)
        if not envelopes.keys() <= self.sealing.keys():
            raise RefusedError("passed on an envelope of somebody who is no neighbour")
        threshold = self.cohort.parameters.threshold
        if len(envelopes) + 1 < threshold:
            raise RefusedError(f"passed on {len(envelopes)} envelopes with threshold {threshold}")
        self._spend()
        masked = tuple(lane.copy() for lane in vector)
        wardrobe = Wardrobe(ring)
        wardrobe.put_on(masked, self.cohort.own(self.slot).stream(self.seed))
        for other in envelopes:
            secret = self.pair.agree(self.mask_keys[other])
            stream = self.cohort.pairwise(self.slot, other).stream(secret)
            (wardrobe.put_on if self.slot < other else wardrobe.take_off)(masked, stream)
        held = {other: self._open(other, sealed) for other, sealed in envelopes.items()}
        held[self.slot] = self.own_shares
        return Masked(self.slot, self.cohort, held), masked

    def _open(self, sender: int, sealed: bytes) -> tuple[bytes, bytes] | None:
        both = self.cohort.envelope(sender, self.slot).open(self.sealing[sender], sealed)
        if both is None:
            return None
        shares = both[:SHARE_BYTES], both[SHARE_BYTES:]
        return shares if all(map(is_share, shares)) else None


@dataclass(slots=True)
class Masked(_State):
    """My masked vector is sent; the survivors are awaited."""

    slot: int
    cohort: Cohort
    held: dict[int, tuple[bytes, bytes] | None] = field(repr=False)

    def reveal(self, survivors: Collection[int], lost: Collection[int]) -> Reveal:
        """Return a share of the seed of each surviving neighbour, of the key of each lost one.

        `survivors` and `lost` are slots of the whole cohort: whose vectors arrived, and who
        shared but was not heard since.

        Raises:
            RefusedError: if the lists overlap, name an unknown slot or one twice, leave out
                or invent a neighbour, leave me out, or keep fewer than the quorum.
            OutOfPhaseError: if this was asked before.
        """
        self._check_lists(survivors, lost)
        self._spend()
        seeds, keys = {}, {}
        for owner, shares in self.held.items():
            if shares is None:
                continue
            if owner in lost:
                keys[owner] = shares[1]
            else:
                seeds[owner] = shares[0]
        return Reveal(seed_shares=seeds, key_shares=keys)

    def _check_lists(self, survivors: Collection[int], lost: Collection[int]) -> None:
        named = [*survivors, *lost]
        if len(set(named)) < len(named):
            raise RefusedError("named a participant twice: as surviving and lost, or repeated")
        if any(not 0 <= slot < self.cohort.n for slot in named):
            raise RefusedError("named a participant who is not in the cohort")
        if self.slot not in survivors:
            raise RefusedError("asked for shares but left my vector out")
        neighbours = set(self.cohort.graph.neighbours(self.slot))
        if neighbours.intersection(named) != self.held.keys() - {self.slot}:
            raise RefusedError("named other neighbours than those whose envelopes it passed on")
        if len(survivors) < max(self.cohort.quorum, 2):
            raise RefusedError(
                f"kept {len(survivors)} of {self.cohort.n} participants, "
                f"fewer than the quorum of {self.cohort.quorum}"
            )

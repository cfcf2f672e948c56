"""The public facts of one secure sum, the labels that bind every key to them, and its graph.

    plan, roster                   -> Session, its label: keys for shares
    the session, share commitments -> Transcript, its label: masks, and later signatures

A label is the digest of all facts on which participants must agree at that point. A participant
that received an inconsistent plan or roster has another label: its encrypted shares cannot be
decrypted. With an inconsistent list of share commitments its masks cancel with no other
participant's, and no honest holder reveals a share of its seed.

The graph has the holders of shares, and the neighbours that share masks. A participant selects its
holders at random among all others, after the roster is fixed: it draws a *graph nonce*, and its
holders are the first k distinct slots of a stream that is expanded from the nonce and the session's
label. The nonces are published with the shares, so that every party can compute the graph, and no
selection depends on another participant's message: the holders of an honest one are uniform,
regardless of the server and corrupt participants. Two participants are neighbours, and mask with
each other, if either selected the other. One pass of AES makes the streams of all
participants, under a key that every party knows: the nonce is the key of [Even97], whose
permutation this is, in counter mode.

Source: selection after a committed roster [Bell20, section 4]; public nonces are an addition of
blindtally.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import sha256
from math import log

import numpy as np
from numpy.typing import NDArray

from secagg.errors import OutOfPhaseError
from secagg.keys import (
    PublicKeys,
    Purpose,
    is_signed,
    permute_blocks,
    statement,
    statement_of_digest,
)
from secagg.parameters import Assumptions, Parameters, choose_parameters
from secagg.roster import DIGEST_BYTES, Roster, ShareCommitment, ShareCommitments

_STREAM_KEY_BYTES = 16
_BLOCK_WORDS = 4  # 32-bit words
_BATCH_BYTES = 2**16  # bytes of streams expanded at a time, which stay in the cache
_MAX_CACHED_ENROLMENTS = 2**15  # about 500 bytes each


@dataclass(frozen=True, slots=True)
class Registry:
    """The identities that may take part: those that `registrar` signed for `scope` (32 bytes).

    Without a registry the server alone vouches that identities are different devices.
    """

    registrar: bytes
    scope: bytes

    def enrolment_statement(self, identity: bytes) -> bytes:
        """Return the statement that the registrar signs to enrol `identity`."""
        return statement("enrolment", self.scope, 0, identity)

    def admits(self, identity: bytes, signature: bytes) -> bool:
        """Return whether `signature` is the registrar's over the enrolment of `identity`.

        The answer is kept: a device sends the same enrolment in every round of its study.
        """
        return _is_enrolled(self.registrar, self.enrolment_statement(identity), signature)


_is_enrolled = lru_cache(_MAX_CACHED_ENROLMENTS)(is_signed)


def advertisement_statement(plan_digest: bytes, keys: PublicKeys) -> bytes:
    """Return the statement that an identity signs to use `keys` in the sums of a plan."""
    return statement("keys", plan_digest, 0, keys.mask + keys.encryption)


class NeighbourSelection:
    """The rule by which graph nonces select holders in the session of `label`."""

    def __init__(self, label: bytes, parameters: Parameters) -> None:
        self._key = sha256(b"blindtally holders v1\0" + label).digest()[:_STREAM_KEY_BYTES]
        self._parameters = parameters
        if not parameters.is_complete:
            self._draws = _draws_needed(parameters.n - 1, parameters.holders)

    def holders(self, slot: int, graph_nonce: bytes) -> tuple[int, ...]:
        """Return the k holders of `slot`, in the order of their shares."""
        (holders,) = self.all_holders({slot: graph_nonce}).tolist()
        return tuple(holders)

    def all_holders(self, graph_nonces: Mapping[int, bytes]) -> NDArray[np.int64]:
        """Return the k holders for each of `graph_nonces`, one row each.

        32-bit words are scaled to the n - 1 others: each selection is uniform to a factor of
        1 + n / 2^32.
        """
        if self._parameters.is_complete:
            others, slots = np.arange(self._parameters.n - 1), np.array([*graph_nonces], np.int64)
            return others + (others >= slots[:, np.newaxis])
        holders = np.empty((len(graph_nonces), self._parameters.holders), np.int64)
        filled = 0
        for slots, words in self._streams(graph_nonces):
            selected = words.astype(np.uint64) * np.uint64(self._parameters.n - 1) >> np.uint64(32)
            selected += selected >= slots.astype(np.uint64)[:, np.newaxis]
            batch = _first_distinct(selected, self._parameters.holders)
            holders[filled : filled + len(slots)] = batch
            filled += len(slots)
        return holders

    def neighbours(self, slot: int, graph_nonces: Mapping[int, bytes]) -> frozenset[int]:
        """Return the neighbours of `slot` among the participants in `graph_nonces`, by slot.

        These are its holders, and the participants that it is a holder of.
        """
        if self._parameters.is_complete:
            return frozenset(graph_nonces).difference((slot,))
        k, scale = self._parameters.holders, self._parameters.n - 1
        # A word scales to v if it is at least ceil(2^32 v / scale) and below the same of v + 1.
        # Participants behind `slot` refer to it by v = slot, those before it by v = slot - 1.
        first = [-(-(v << 32) // scale) for v in (slot - 1, slot, slot + 1)]
        low = np.array([first[0] % 2**32, first[1] % 2**32], np.uint32)
        width = np.array([first[1] - first[0], first[2] - first[1]], np.uint32)
        neighbours = set(self.holders(slot, graph_nonces[slot])).intersection(graph_nonces)
        for slots, words in self._streams(graph_nonces):
            behind = (slots > slot).astype(np.intp)[:, np.newaxis]
            hits = words - low[behind] < width[behind]  # wraps below `low`
            rows = np.flatnonzero(hits.any(axis=1))
            for row, before in zip(rows.tolist(), hits[rows].argmax(axis=1).tolist(), strict=True):
                # Fewer than k draws hold fewer than k distinct slots; more must be counted.
                if before < k or len({w * scale >> 32 for w in words[row, :before].tolist()}) < k:
                    neighbours.add(int(slots[row]))
        return frozenset(neighbours - {slot})

    def _streams(
        self, graph_nonces: Mapping[int, bytes]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint32]]]:
        """Yield slots and the first words of their streams in batches, one row per slot.

        Block i of a stream is AES(a xor (slot, 0, 0, i)) xor b, where a and b are the halves of
        the graph nonce, all in 32-bit words.
        """
        count = -(-self._draws // _BLOCK_WORDS)
        counters = np.zeros((count, _BLOCK_WORDS), np.uint32)
        counters[:, 3] = range(count)
        slots = np.array([*graph_nonces], np.int64)
        halves = np.frombuffer(b"".join(graph_nonces.values()), "<u4").reshape(-1, 2, _BLOCK_WORDS)
        batch_size = max(1, _BATCH_BYTES // counters.nbytes)
        for start in range(0, len(slots), batch_size):
            batch = slots[start : start + batch_size]
            half = halves[start : start + batch_size]
            keyed = half[:, 0].copy()
            keyed[:, 0] ^= batch.astype(np.uint32)
            blocks = np.tile(keyed, count) ^ counters.reshape(-1)
            streams = permute_blocks(self._key, blocks) ^ np.tile(half[:, 1], count)
            yield batch, streams[:, : self._draws]


def _first_distinct(selected: NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    """Return the first `count` distinct values of each row of `selected`, all below 2^32."""
    draws = selected.shape[1]
    places = np.arange(draws, dtype=np.uint64)
    keys = np.sort(selected << np.uint64(32) | places, axis=1)  # repetitions are next to each other
    values = keys >> np.uint64(32)
    rows, again = np.nonzero(values[:, 1:] == values[:, :-1])
    is_new = np.ones(selected.shape, np.bool_)
    is_new[rows, keys[rows, again + 1].astype(np.uint32)] = False  # the low halves
    is_new &= is_new.cumsum(axis=1, dtype=np.int32) <= count
    assert (is_new.sum(axis=1) == count).all(), "fails for one stream in 2^80"
    return selected[is_new].reshape(-1, count)


@lru_cache(maxsize=64)
def _draws_needed(others: int, count: int) -> int:
    """Return the number of draws out of `others` that hold `count` distinct ones.

    They do except with probability 2^-80: until then, each draw repeats an earlier one with
    probability below p = count / others, and a binomial tail bounds the repetitions [Chernoff].
    """
    p, draws = count / others, count
    while True:
        a = (draws - count) / draws
        if a > p and draws * (a * log(a / p) + (1 - a) * log((1 - a) / (1 - p))) > 80 * log(2):
            return draws
        draws += 1


@dataclass(slots=True)
class SingleStepState:
    """A state of a device or member in a sum, valid for one step."""

    _is_done: bool = field(default=False, init=False, repr=False)

    def _mark_done(self) -> None:
        if self._is_done:
            raise OutOfPhaseError(f"{type(self).__name__} has taken its step already")
        self._is_done = True


@dataclass(frozen=True, eq=False)
class Session:
    """One secure sum of the participants in `roster`, by slot: cohort `cohort_number` of a plan.

    Raises:
        ValueError: if the digest is not 32 bytes.
        InfeasibleError: if a cohort of this size cannot be safe under the assumptions.
    """

    plan_digest: bytes
    cohort_number: int
    roster: Roster
    assumptions: Assumptions
    registry: Registry | None = None

    def __post_init__(self) -> None:
        if len(self.plan_digest) != DIGEST_BYTES:
            raise ValueError(f"a plan's digest has {DIGEST_BYTES} bytes")
        choose_parameters(self.n, self.assumptions)

    @property
    def n(self) -> int:
        """Return the number of participants."""
        return len(self.roster)

    @property
    def parameters(self) -> Parameters:
        """Return the parameters that the assumptions require; every party computes them."""
        return choose_parameters(self.n, self.assumptions)

    @property
    def quorum(self) -> int:
        """Return the number of participants without which a phase fails."""
        return self.assumptions.quorum(self.n)

    @cached_property
    def label(self) -> bytes:
        """Return the 32 bytes that identify plan, cohort, roster and parameters."""
        p = self.parameters
        numbers = (self.cohort_number, p.n, p.holders, p.threshold, p.spot_checks)
        packed = b"".join(number.to_bytes(4, "big") for number in numbers)
        roster = sha256(self.roster.body).digest()
        return sha256(b"blindtally sum v1\0" + self.plan_digest + packed + roster).digest()

    def is_authentic(self, slot: int) -> bool:
        """Return whether the identity in `slot` signed its keys and is enrolled."""
        entry = self.roster[slot]
        advertisement = advertisement_statement(self.plan_digest, entry.keys)
        if not is_signed(entry.identity, advertisement, entry.signature):
            return False
        registry = self.registry
        return registry is None or registry.admits(entry.identity, entry.registrar_signature)

    @cached_property
    def neighbour_selection(self) -> NeighbourSelection:
        """Return the rule by which graph nonces select holders."""
        return NeighbourSelection(self.label, self.parameters)

    def key_share_purpose(self, dealer: int, holder: int) -> Purpose:
        """Return the purpose of the pad on a share of the mask key of `dealer`."""
        return Purpose(self.label, "key share", dealer, holder)

    def seed_share_purpose(self, dealer: int, holder: int) -> Purpose:
        """Return the purpose of the pad on a share of the seed of `dealer`."""
        return Purpose(self.label, "seed share", dealer, holder)

    def key_shares_statement(self, dealer: int, commitment: ShareCommitment) -> bytes:
        """Return the statement that `dealer` signs over its key shares."""
        return statement("key shares", self.label, dealer, commitment.signed_bytes())

    def complaint_statement(self, holder: int, dealer: int, pair: bytes) -> bytes:
        """Return the statement that `holder` signs to complain about the share pair of `dealer`.

        An honest dealer signs no pair that an honest holder with the same label cannot use, and
        answers no complaint about another pair than it sent. So no such pair is ever answered.
        """
        return statement("complaint", self.label, holder, dealer.to_bytes(4, "big"), pair)

    def complaints_statement(self, holder: int, received_digest: bytes, records: bytes) -> bytes:
        """Return the statement that `holder` signs over all share pairs and its complaints."""
        return statement("complaints", self.label, holder, received_digest, records)

    def answers_statement(self, dealer: int, records: bytes) -> bytes:
        """Return the statement that `dealer` signs over its answers to complaints."""
        return statement("answers", self.label, dealer, records)


@dataclass(frozen=True, eq=False)
class Transcript:
    """A session once the secrets are shared: its dealers, and the graph of their masks.

    Raises:
        ValueError: if a dealer is not in the cohort.
    """

    session: Session
    share_commitments: ShareCommitments

    def __post_init__(self) -> None:
        if wrong := self.share_commitments.keys() - range(self.session.n):
            raise ValueError(f"share commitment of participant {min(wrong)}: not in the cohort")

    @cached_property
    def label(self) -> bytes:
        """Return the 32 bytes that identify the session, its graph and all key shares."""
        commitments = self.share_commitments.body
        return sha256(b"blindtally transcript v1\0" + self.session.label + commitments).digest()

    @property
    def dealers(self) -> NDArray[np.int64]:
        """Return the slots of the dealers, in rising order."""
        return self.share_commitments.slots

    @cached_property
    def selected_holders(self) -> NDArray[np.int64]:
        """Return the k holders of each of `dealers`: one row per dealer, in the order of shares."""
        return self.session.neighbour_selection.all_holders(self.share_commitments.graph_nonces)

    @cached_property
    def _row_of(self) -> dict[int, int]:
        return {slot: row for row, slot in enumerate(self.dealers.tolist())}

    def holders(self, slot: int) -> tuple[int, ...]:
        """Return the k holders of dealer `slot`, in the order of their shares."""
        return tuple(self.selected_holders[self._row_of[slot]].tolist())

    @cached_property
    def dealers_of(self) -> dict[int, frozenset[int]]:
        """Return, for each dealer as a holder, the dealers whose shares it holds."""
        dealers = np.repeat(self.dealers, self.selected_holders.shape[1])
        holders = self.selected_holders.ravel()
        order = np.argsort(holders, kind="stable")
        bounds = np.searchsorted(holders[order], [self.dealers, self.dealers + 1]).T.tolist()
        sorted_dealers = dealers[order]
        return {
            holder: frozenset(sorted_dealers[start:end].tolist())
            for holder, (start, end) in zip(self.dealers.tolist(), bounds, strict=True)
        }

    def neighbours(self, slot: int) -> frozenset[int]:
        """Return the neighbours of dealer `slot`; from `graph`, if that is known."""
        if "graph" in vars(self):
            return frozenset(self.graph[slot])
        nonces = self.share_commitments.graph_nonces
        return self.session.neighbour_selection.neighbours(slot, nonces)

    @cached_property
    def graph(self) -> dict[int, set[int]]:
        """Return the neighbours of all dealers, for callers that need those of many."""
        graph: dict[int, set[int]] = {slot: set() for slot in self.share_commitments}
        selected = self.selected_holders.tolist()
        for slot, others in zip(self.dealers.tolist(), selected, strict=True):
            for other in graph.keys() & others:
                graph[slot].add(other)
                graph[other].add(slot)
        return graph

    def pairwise_mask_purpose(self, slot: int, other: int) -> Purpose:
        """Return the purpose of the mask between two slots."""
        return Purpose(self.label, "mask", min(slot, other), max(slot, other))

    def self_mask_purpose(self, slot: int) -> Purpose:
        """Return the purpose of the mask that `slot` expands from its own seed."""
        return Purpose(self.label, "self", slot, slot)

    def masked_input_statement(self, slot: int, vector_digest: bytes) -> bytes:
        """Return the statement that `slot` signs over the SHA-256 of its packed vector."""
        return statement_of_digest("masked input", self.label, slot, vector_digest)

    def confirmation_statement(self, slot: int, survivors: frozenset[int]) -> bytes:
        """Return the statement that `slot` signs to confirm exactly these survivors."""
        return statement_of_digest("survivors", self.label, slot, _survivors_digest(survivors))

    def unmasking_statement(self, slot: int, survivors: frozenset[int], records: bytes) -> bytes:
        """Return the statement that `slot` signs over the records of its unmasking shares.

        It covers the survivors, because the records follow from them: a participant to which
        others were named is not at fault.
        """
        digest = _survivors_digest(survivors)
        return statement("unmasking shares", self.label, slot, digest, records)


@lru_cache(maxsize=64)  # a quorum of signatures is checked over one set
def _survivors_digest(survivors: frozenset[int]) -> bytes:
    return sha256(b"".join(slot.to_bytes(4, "big") for slot in sorted(survivors))).digest()

"""Packed Shamir shares of a vector, and the proof that they have low degree.

A lane of n elements modulo p becomes C = ceil(n / rho) columns of rho secrets, the last one padded
with zeros. The polynomial of a column has degree t - 1. It passes through the secrets at -1 ..
-rho and through random elements at 1 .. A, which are the shares of the first A members; its value
at j is the share of member j = 1 .. m. Any A shares are uniform, regardless of the secrets; each
share more is a linear equation on the rho secrets, which alone may determine small ones.

Members must not add up garbage. Each lane has r more columns, the *blinds*, whose polynomials are
uniform of degree t - 1. A hash of all encrypted shares gives coins beta, C x r elements per lane,
and the *degree proof* has the values of

    tau_b = sum of beta_kb f_k over all columns k + blind_b,  b = 1 .. r,

at the t nodes -1 .. -rho, 1 .. A. Member j compares the same combination of its shares with
tau_b(j). The blinds make tau uniform, so that it reveals nothing. They are summed nowhere: a
member releases the sums of the C first columns only.

A share has the columns of all lanes, lane by lane, packed as `field.PackedRows`. A later proof of
range has other blinds and other values: `blinds` and `proof` of `LaneSharing` are its place.

Source: [Franklin92] and the degree test of [Ligero].
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from secagg.keys import Keystream
from secagg.oneshot.field import (
    Bytes,
    Elements,
    FieldMatrix,
    PackedRows,
    check_prime_lanes,
    lagrange_matrix,
    sum_elements,
    sum_products,
)
from secagg.oneshot.moduli import Moduli
from secagg.oneshot.parameters import CommitteeParameters, degree_tests
from secagg.ring import Lane, Ring, Vector

Flags: TypeAlias = NDArray[np.bool_]


def prime_ring(ring: Ring, parameters: CommitteeParameters) -> Ring:
    """Return the lanes of `ring` modulo the smallest primes that a committee can share.

    These are at least the lane's q and m + rho + 1. A lane modulo such a prime is unchanged.

    Raises:
        ValueError: if a lane needs a prime of 2^62 or more.
    """
    moduli = Moduli.of(parameters)
    return Ring(tuple(Lane(moduli.above(lane.q - 1), lane.length) for lane in ring.lanes))


@lru_cache(maxsize=64)
def evaluation_matrix(p: int, parameters: CommitteeParameters) -> FieldMatrix:
    """Return the matrix from the values at the t nodes to the shares of all members."""
    members = range(1, parameters.members + 1)
    return FieldMatrix(p, lagrange_matrix(p, _nodes(parameters), members))


@lru_cache(maxsize=256)
def _evaluation_row(p: int, parameters: CommitteeParameters, member: int) -> FieldMatrix:
    return FieldMatrix(p, lagrange_matrix(p, _nodes(parameters), [member]))


def secret_points(parameters: CommitteeParameters) -> list[int]:
    """Return the points of the secrets, -1 to -rho."""
    return [-1 - place for place in range(parameters.packed_secrets)]


def _nodes(parameters: CommitteeParameters) -> list[int]:
    return [*secret_points(parameters), *range(1, parameters.corrupt + 1)]


@dataclass(frozen=True, slots=True)
class LaneSharing:
    """The sharing of one lane: columns, blinds, and the packing of a share, a sum and a proof."""

    lane: Lane
    parameters: CommitteeParameters
    columns: int
    blinds: int
    share: PackedRows
    summed: PackedRows  # of a member's sum, which has no blinds
    proof: PackedRows

    @classmethod
    def of(cls, lane: Lane, parameters: CommitteeParameters) -> "LaneSharing":
        """Return the sharing of `lane`."""
        columns = -(-lane.length // parameters.packed_secrets)
        blinds = degree_tests(lane.q, parameters)
        return cls(
            lane,
            parameters,
            columns,
            blinds,
            PackedRows.of(lane.q, columns + blinds),
            PackedRows.of(lane.q, columns),
            PackedRows.of(lane.q, parameters.threshold * blinds),
        )

    def arrange(self, elements: NDArray[np.unsignedinteger]) -> Elements:
        """Return the elements of the lane in columns, rho x C, padded with zeros."""
        padded = np.zeros(self.columns * self.parameters.packed_secrets, np.uint64)
        padded[: self.lane.length] = elements
        return padded.reshape(self.columns, -1).T

    def nodes(self, elements: NDArray[np.unsignedinteger], stream: Keystream) -> Elements:
        """Return the values of all polynomials at the nodes, t x (C + r)."""
        a, rho, width = self.parameters.corrupt, self.parameters.packed_secrets, self.columns
        values = np.empty((self.parameters.threshold, width + self.blinds), np.uint64)
        values[:rho, :width] = self.arrange(elements)
        drawn = _uniform(self.lane.q, a * width + self.parameters.threshold * self.blinds, stream)
        values[rho:, :width] = drawn[: a * width].reshape(a, width)
        values[:, width:] = drawn[a * width :].reshape(-1, self.blinds)
        return values

    def prove(self, nodes: Elements, coins: Elements) -> Bytes:
        """Return the packed degree proof of the polynomials with these values, one row."""
        p, width = self.lane.q, self.columns
        tau = (FieldMatrix(p, nodes[:, :width]) @ coins + nodes[:, width:]) % np.uint64(p)
        return self.proof.pack(tau.reshape(1, -1))

    def passes(self, member: int, shares: Elements, proofs: Elements, coins: Elements) -> Flags:
        """Return whether each share of `member` agrees with its proof.

        Shapes are n x (C + r) for n messages, n x (t r) and n x C x r.
        """
        p, width, count = self.lane.q, self.columns, len(shares)
        mine = sum_products(p, shares[:, :width], coins) + shares[:, width:]
        values = proofs.reshape(count, -1, self.blinds).transpose(1, 0, 2)
        row = _evaluation_row(p, self.parameters, member)
        theirs = row @ values.reshape(self.parameters.threshold, -1)
        agrees: Flags = (mine % np.uint64(p) == theirs.reshape(count, -1)).all(axis=1)
        return agrees


@dataclass(frozen=True, slots=True)
class SharedVector:
    """The shares of one vector, one packed row per member, and the values behind them."""

    shares: Bytes = field(repr=False)
    nodes: tuple[Elements, ...] = field(repr=False)  # per lane, to prove the degree


class Sharing:
    """The sharing of the vectors of a ring of prime lanes for a committee.

    Raises:
        ValueError: if a lane is not modulo a prime, or modulo one that is too small or too large.
    """

    def __init__(self, ring: Ring, parameters: CommitteeParameters) -> None:
        check_prime_lanes(ring, parameters.members + parameters.packed_secrets)
        self.ring = ring
        self.parameters = parameters
        self.lanes = tuple(LaneSharing.of(lane, parameters) for lane in ring.lanes)
        self.share_bytes = sum(lane.share.nbytes for lane in self.lanes)
        self.sum_bytes = sum(lane.summed.nbytes for lane in self.lanes)
        self.proof_bytes = sum(lane.proof.nbytes for lane in self.lanes)

    def share(self, vector: Vector, stream: Keystream) -> SharedVector:
        """Return the shares of `vector`; all random elements are drawn from `stream`.

        Raises:
            ValueError: if `vector` is not one of the ring's.
        """
        self.ring.check(vector)
        pairs = zip(self.lanes, vector, strict=True)
        nodes = tuple(lane.nodes(elements, stream) for lane, elements in pairs)
        rows = [
            lane.share.pack(evaluation_matrix(lane.lane.q, self.parameters) @ values)
            for lane, values in zip(self.lanes, nodes, strict=True)
        ]
        return SharedVector(np.hstack(rows), nodes)

    def prove(self, shared: SharedVector, coin_key: bytes) -> bytes:
        """Return the degree proofs of all lanes, for the coins of a 32-byte key."""
        proofs = (
            lane.prove(nodes, coins[0])
            for lane, nodes, coins in zip(
                self.lanes, shared.nodes, self.coins([coin_key]), strict=True
            )
        )
        return b"".join(proof.tobytes() for proof in proofs)

    def check(
        self, member: int, shares: Bytes, proofs: Bytes, coin_keys: Sequence[bytes]
    ) -> tuple[list[Elements], Flags]:
        """Return the columns of `member` (1 to m) by lane, and whether each message is valid.

        `shares` and `proofs` have one packed row per message, and `coin_keys` one key each. A
        message is valid if both packings are, and the share agrees with the proof.
        """
        is_valid = np.ones(len(shares), np.bool_)
        coins, columns = self.coins(coin_keys), []
        share_parts = self._split(shares, [lane.share.nbytes for lane in self.lanes])
        proof_parts = self._split(proofs, [lane.proof.nbytes for lane in self.lanes])
        for number, lane in enumerate(self.lanes):
            elements, is_packed = lane.share.unpack(next(share_parts))
            proof, is_proof_packed = lane.proof.unpack(next(proof_parts))
            is_valid &= is_packed & is_proof_packed
            is_valid &= lane.passes(member, elements, proof, coins[number])
            columns.append(elements[:, : lane.columns])
        return columns, is_valid

    def are_packed_proofs(self, proof: bytes) -> bool:
        """Return whether `proof`, of `proof_bytes`, is a valid packing of field elements."""
        bounds = pairwise(accumulate((lane.proof.nbytes for lane in self.lanes), initial=0))
        return all(
            lane.proof.is_valid(proof[start:end])
            for lane, (start, end) in zip(self.lanes, bounds, strict=True)
        )

    def add_columns(self, columns: Sequence[Elements]) -> bytes:
        """Return the packed sums over messages of a member's columns, given by lane."""
        sums = (
            lane.summed.pack(sum_elements(lane.lane.q, elements, axis=0).reshape(1, -1))
            for lane, elements in zip(self.lanes, columns, strict=True)
        )
        return b"".join(row.tobytes() for row in sums)

    def unpack_sum(self, packed: bytes) -> list[Elements]:
        """Return the sums of columns by lane, C elements each.

        Raises:
            ValueError: if the size is not `sum_bytes`, or the packing is not valid.
        """
        if len(packed) != self.sum_bytes:
            raise ValueError(f"a sum has {self.sum_bytes} bytes, got {len(packed)}")
        row = np.frombuffer(packed, np.uint8).reshape(1, -1)
        sums = []
        parts = self._split(row, [lane.summed.nbytes for lane in self.lanes])
        for lane, part in zip(self.lanes, parts, strict=True):
            elements, is_valid = lane.summed.unpack(part)
            if not is_valid.all():
                raise ValueError(f"an element of a sum is outside its lane modulo {lane.lane.q}")
            sums.append(elements[0])
        return sums

    def vector_of(self, columns: Sequence[Elements]) -> Vector:
        """Return the vector whose secrets by lane are in `columns`, rho x C each."""
        return tuple(
            secrets.T.reshape(-1)[: lane.lane.length].astype(lane.lane.dtype)
            for lane, secrets in zip(self.lanes, columns, strict=True)
        )

    def coins(self, keys: Sequence[bytes]) -> list[Elements]:
        """Return the coins of each key by lane, keys x C x r.

        A coin is the next eight bytes of the key's stream modulo p: each has a probability of at
        most 1 / p + 2^-64. Coins need not be exactly uniform, because they hide nothing.
        """
        sizes = [lane.columns * lane.blinds for lane in self.lanes]
        words = np.empty((len(keys), sum(sizes)), "<u8")
        for row, key in zip(words, keys, strict=True):
            Keystream(key).fill(row)
        parts = np.split(words, np.cumsum(sizes)[:-1], axis=1)
        return [
            (part % np.uint64(lane.lane.q)).reshape(len(keys), lane.columns, -1)
            for lane, part in zip(self.lanes, parts, strict=True)
        ]

    @staticmethod
    def _split(rows: Bytes, sizes: Sequence[int]) -> Iterator[Bytes]:
        for start, end in pairwise(accumulate(sizes, initial=0)):
            yield rows[:, start:end]


def _uniform(p: int, count: int, stream: Keystream) -> Elements:
    """Return `count` exactly uniform elements of GF(p) from `stream`, as masks are drawn."""
    return Lane(p, count).uniform(stream).astype(np.uint64) if count else np.zeros(0, np.uint64)

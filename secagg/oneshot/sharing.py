"""Packed Shamir shares of a vector, and the proof that they have low degree.

A lane of n elements modulo p becomes C = ceil(n / rho) columns of rho secrets, the last one padded
with zeros. The polynomial of a column has degree t - 1. It passes through the secrets at -1 ..
-rho and through random elements at 1 .. A, which are the shares of the first A members; its value
at j is the share of member j = 1 .. m. Any A shares are uniform, regardless of the secrets; each
share more is a linear equation on the rho secrets, which alone may determine small ones.

The shares of members 1 .. A are random, so they are not sent: device and member *expand* them from
a secret that both agree on. With 7 operators and A = 1, a message has 6 shares instead of 7.

Members must not add up garbage. Each lane has r more columns, the *blinds*, whose polynomials are
uniform of degree t - 1. A hash of all encrypted shares gives coins beta, C x r elements per lane,
and the *degree proof* has the values of

    tau_b = sum of beta_kb f_k over all columns k + blind_b,  b = 1 .. r,

at the t nodes -1 .. -rho, 1 .. A. Member j compares the same combination of its shares with
tau_b(j). The blinds make tau uniform, so that it reveals nothing. They are summed nowhere: a
member releases the sums of the C first columns only.

A share has the columns of all lanes, lane by lane; one that is sent is packed as
`field.PackedRows`. A later proof of range has other blinds and other values: `blinds` and `proof`
of `LaneSharing` are its place.

Source: [Franklin92] and the degree test of [Ligero].
"""

from collections.abc import Sequence
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
        ValueError: if a lane needs a prime of 2^26 or more.
    """
    moduli = Moduli.of(parameters)
    return Ring(tuple(Lane(moduli.above(lane.q - 1), lane.length) for lane in ring.lanes))


@lru_cache(maxsize=64)
def evaluation_matrix(p: int, parameters: CommitteeParameters) -> FieldMatrix:
    """Return the matrix from the values at the t nodes to the shares that are sent."""
    members = range(parameters.corrupt + 1, parameters.members + 1)
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

    def nodes(
        self,
        elements: NDArray[np.unsignedinteger],
        expanded: Sequence[Elements],
        stream: Keystream,
    ) -> Elements:
        """Return the values of all polynomials at the nodes, t x (C + r).

        `expanded` are the shares of members 1 to A.
        """
        rho, width = self.parameters.packed_secrets, self.columns
        values = np.empty((self.parameters.threshold, width + self.blinds), np.uint64)
        values[:rho, :width] = self.arrange(elements)
        values[:rho, width:] = _uniform(self.lane.q, rho * self.blinds, stream).reshape(rho, -1)
        for row, share in zip(values[rho:], expanded, strict=True):
            row[:] = share
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
    """The shares of one vector for members A + 1 to m, one packed row each, and their nodes."""

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

    def pack(self, vector: Vector) -> bytes:
        """Return the packed rows of `vector`, by lane.

        Raises:
            ValueError: if `vector` is not one of the ring's.
        """
        self.ring.check(vector)
        return b"".join(
            PackedRows.of(lane.q, lane.length)
            .pack(elements.astype(np.uint64).reshape(1, -1))
            .tobytes()
            for lane, elements in zip(self.ring.lanes, vector, strict=True)
        )

    def expand(self, stream: Keystream) -> list[Elements]:
        """Return the share that `stream` determines, C + r elements by lane, drawn like a mask."""
        return [_uniform(lane.lane.q, lane.columns + lane.blinds, stream) for lane in self.lanes]

    def share(
        self, vector: Vector, expanded: Sequence[Sequence[Elements]], stream: Keystream
    ) -> SharedVector:
        """Return the shares of `vector`, given those of members 1 to A by lane.

        The blinds at the points of secrets are drawn from `stream`.

        Raises:
            ValueError: if `vector` is not one of the ring's.
        """
        self.ring.check(vector)
        by_lane = zip(
            self.lanes, vector, [*zip(*expanded, strict=True)] or [()] * len(vector), strict=True
        )
        nodes = tuple(lane.nodes(elements, shares, stream) for lane, elements, shares in by_lane)
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

    def shares_in(self, packed: Bytes) -> tuple[list[Elements], Flags]:
        """Return shares by lane, n x (C + r) each, and whether each of the n rows is a packing."""
        return self._unpack(packed, [lane.share for lane in self.lanes])

    def check(
        self, member: int, shares: Sequence[Elements], proofs: Bytes, coin_keys: Sequence[bytes]
    ) -> tuple[list[Elements], Flags]:
        """Return the columns of `member` (1 to m) by lane, and whether each share is valid.

        `shares` has n rows by lane, `proofs` a packed row per message, and `coin_keys` one key
        each. A share is valid if the packing of the proof is, and agrees with it.
        """
        unpacked, is_valid = self._unpack(proofs, [lane.proof for lane in self.lanes])
        rows = zip(self.lanes, shares, unpacked, self.coins(coin_keys), strict=True)
        for lane, elements, proof, coins in rows:
            is_valid &= lane.passes(member, elements, proof, coins)
        columns = zip(self.lanes, shares, strict=True)
        return [elements[:, : lane.columns] for lane, elements in columns], is_valid

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
        sums, is_valid = self._unpack(row, [lane.summed for lane in self.lanes])
        if not is_valid.all():
            raise ValueError("an element of a sum is outside its lane")
        return [elements[0] for elements in sums]

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
    def _unpack(rows: Bytes, packings: Sequence[PackedRows]) -> tuple[list[Elements], Flags]:
        """Return the elements of `rows` by lane, and whether all packings of a row are valid."""
        lanes, are_valid = list[Elements](), np.ones(len(rows), np.bool_)
        bounds = pairwise(accumulate((packing.nbytes for packing in packings), initial=0))
        for packing, (start, end) in zip(packings, bounds, strict=True):
            elements, is_valid = packing.unpack(rows[:, start:end])
            are_valid &= is_valid
            lanes.append(elements)
        return lanes, are_valid


def _uniform(p: int, count: int, stream: Keystream) -> Elements:
    """Return `count` exactly uniform elements of GF(p) from `stream`, as masks are drawn."""
    return Lane(p, count).uniform(stream).astype(np.uint64) if count else np.zeros(0, np.uint64)

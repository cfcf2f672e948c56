"""Packed Shamir shares of a vector, and the proof that they have low degree.

A vector is one lane of n elements modulo p. It becomes C = ceil(n / rho) columns of rho secrets,
the last one padded with zeros. The polynomial of a column has degree t - 1. It passes through the
secrets at -1 .. -rho and through random elements at 1 .. A, which are the shares of the first A
members; its value at j is the share of member j = 1 .. m. Any A shares are uniform, regardless of
the secrets; each share more is a linear equation on the rho secrets, which alone may determine
small ones.

The shares of members 1 .. A are random, so they are not sent: device and member *expand* them from
a secret that both agree on. With 7 operators and A = 1, a message has 6 shares instead of 7.

Members must not add up garbage. There are r more columns, the *blinds*, whose polynomials are
uniform of degree t - 1. A hash of all encrypted shares gives coins beta, C x r elements, and the
*degree proof* has the values of

    tau_b = sum of beta_kb f_k over all columns k + blind_b,  b = 1 .. r,

at the t nodes -1 .. -rho, 1 .. A. Member j compares the same combination of its shares with
tau_b(j). The blinds make tau uniform, so that it reveals nothing. They are summed nowhere: a
member releases the sums of the C first columns only.

A later proof of range has other blinds and other values: `blinds` and `proof_packing` of `Sharing`
are its place.

Source: [Franklin92] and the degree test of [Ligero].
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from secagg.keys import Keystream
from secagg.oneshot.field import (
    Bytes,
    Elements,
    FieldMatrix,
    PackedRows,
    check_prime,
    lagrange_matrix,
)
from secagg.oneshot.parameters import CommitteeParameters, degree_tests
from secagg.ring import Array, Lane

Flags: TypeAlias = NDArray[np.bool_]


@lru_cache(maxsize=64)
def _evaluation_matrix(p: int, parameters: CommitteeParameters) -> FieldMatrix:
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


class Sharing:
    """The sharing of vectors of one `lane`, modulo a prime, for a committee.

    Attributes:
        columns: the number of columns C.
        blinds: the number of blinds r.
        share_packing: the packing of a share, C + r elements.
        sum_packing: that of a member's sum, which has no blinds.
        proof_packing: that of a degree proof, t x r elements.

    Raises:
        ValueError: if the lane's modulus is not a prime, or is too small or too large.
    """

    def __init__(self, lane: Lane, parameters: CommitteeParameters) -> None:
        check_prime(lane.q, parameters.members + parameters.packed_secrets)
        self.lane = lane
        self.parameters = parameters
        self.columns = -(-lane.length // parameters.packed_secrets)
        self.blinds = degree_tests(lane.q, parameters)
        self.share_packing = PackedRows.of(lane.q, self.columns + self.blinds)
        self.sum_packing = PackedRows.of(lane.q, self.columns)
        self.proof_packing = PackedRows.of(lane.q, parameters.threshold * self.blinds)
        self.share_bytes = self.share_packing.nbytes
        self.sum_bytes = self.sum_packing.nbytes
        self.proof_bytes = self.proof_packing.nbytes

    def pack(self, elements: Array) -> bytes:
        """Return the packed row of the lane's elements."""
        packing = PackedRows.of(self.lane.q, self.lane.length)
        return packing.pack(elements.astype(np.uint64).reshape(1, -1)).tobytes()

    def arrange(self, elements: Array) -> Elements:
        """Return the lane's elements in columns, rho x C, padded with zeros."""
        padded = np.zeros(self.columns * self.parameters.packed_secrets, np.uint64)
        padded[: self.lane.length] = elements
        return padded.reshape(self.columns, -1).T

    def elements_of(self, secrets: Elements) -> Array:
        """Return the lane's elements, given `secrets` in columns, rho x C."""
        return secrets.T.reshape(-1)[: self.lane.length].astype(self.lane.dtype)

    def expand(self, stream: Keystream) -> Elements:
        """Return the share that `stream` determines, C + r elements, drawn like a mask."""
        return self._uniform(self.columns + self.blinds, stream)

    def nodes(self, elements: Array, expanded: Sequence[Elements], stream: Keystream) -> Elements:
        """Return the values of all polynomials at the nodes, t x (C + r).

        `expanded` are the shares of members 1 to A. The blinds at the points of secrets are drawn
        from `stream`.
        """
        rho, width = self.parameters.packed_secrets, self.columns
        values = np.empty((self.parameters.threshold, width + self.blinds), np.uint64)
        values[:rho, :width] = self.arrange(elements)
        values[:rho, width:] = self._uniform(rho * self.blinds, stream).reshape(rho, -1)
        for row, share in zip(values[rho:], expanded, strict=True):
            row[:] = share
        return values

    def shares(self, nodes: Elements) -> Bytes:
        """Return the packed shares of members A + 1 to m, one row each."""
        return self.share_packing.pack(_evaluation_matrix(self.lane.q, self.parameters) @ nodes)

    def prove(self, nodes: Elements, coin_key: bytes) -> bytes:
        """Return the packed degree proof, for the coins of a 32-byte key."""
        (coins,) = self.coins([coin_key])
        columns, blinds = np.split(nodes, [self.columns], axis=1)
        tau = (FieldMatrix(self.lane.q, columns) @ coins + blinds) % self.lane.q
        return self.proof_packing.pack(tau.reshape(1, -1)).tobytes()

    def check(
        self, member: int, shares: Elements, proofs: Bytes, coin_keys: Sequence[bytes]
    ) -> Flags:
        """Return whether each share of `member` (1 to m) agrees with its proof.

        `shares` are n x (C + r) for n messages, `proofs` has a packed row for each, and `coin_keys`
        one key each. A proof that is no packing agrees with nothing.
        """
        p, count = self.lane.q, len(shares)
        columns, blinds = np.split(shares, [self.columns], axis=1)
        products = columns[:, :, np.newaxis] * self.coins(coin_keys) % p
        mine = (products.sum(axis=1, dtype=np.uint64) + blinds) % p
        unpacked, is_packed = self.proof_packing.unpack(proofs)
        values = unpacked.reshape(count, -1, self.blinds).transpose(1, 0, 2)
        row = _evaluation_row(p, self.parameters, member)
        theirs = row @ values.reshape(self.parameters.threshold, -1)
        agrees: Flags = is_packed & (mine == theirs.reshape(count, -1)).all(axis=1)
        return agrees

    def add_columns(self, shares: Elements) -> bytes:
        """Return the packed sums of the C first columns of `shares`, one row per message."""
        sums = shares[:, : self.columns].sum(axis=0, dtype=np.uint64) % self.lane.q
        return self.sum_packing.pack(sums.reshape(1, -1)).tobytes()

    def unpack_sum(self, packed: bytes) -> Elements:
        """Return the sums of columns, C elements.

        Raises:
            ValueError: if the size is not `sum_bytes`, or the packing is not valid.
        """
        if len(packed) != self.sum_bytes:
            raise ValueError(f"a sum has {self.sum_bytes} bytes, got {len(packed)}")
        sums, is_packed = self.sum_packing.unpack(np.frombuffer(packed, np.uint8)[np.newaxis])
        if not is_packed.all():
            raise ValueError("an element of a sum is outside its lane")
        return sums.reshape(-1)

    def coins(self, keys: Sequence[bytes]) -> Elements:
        """Return the coins of each key, keys x C x r.

        A coin is the next eight bytes of the key's stream modulo p: each has a probability of at
        most 1 / p + 2^-64. Coins need not be exactly uniform, because they hide nothing.
        """
        words = np.empty((len(keys), self.columns * self.blinds), "<u8")
        for row, key in zip(words, keys, strict=True):
            Keystream(key).fill(row)
        coins: Elements = words % self.lane.q
        return coins.reshape(len(keys), self.columns, self.blinds)

    def _uniform(self, count: int, stream: Keystream) -> Elements:
        """Return `count` exactly uniform elements from `stream`, as masks are drawn."""
        return Lane(self.lane.q, count).uniform(stream).astype(np.uint64)

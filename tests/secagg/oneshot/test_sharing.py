"""Packed shares and degree proofs, against polynomials evaluated term by term."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.keys import Keystream
from secagg.oneshot.field import Bytes, Elements, lagrange_matrix
from secagg.oneshot.parameters import CommitteeParameters
from secagg.oneshot.sharing import SharedVector, Sharing, prime_ring
from secagg.ring import Lane, Ring, Vector
from tests.examples import fewer
from tests.secagg.oneshot.conftest import PARAMETERS, RING
from tests.vectors.reference import interpolate

COIN_KEY = bytes(range(32))
SHARING = Sharing(RING, PARAMETERS)


def stream(seed: int) -> Keystream:
    return Keystream(seed.to_bytes(32, "big"))


def vector_of(ring: Ring, seed: int) -> Vector:
    chance = np.random.default_rng(seed)
    return ring.vector([chance.integers(0, lane.q, lane.length, np.uint64) for lane in ring.lanes])


def share(sharing: Sharing, vector: Vector, seed: int) -> tuple[SharedVector, list[Elements]]:
    """Return the shared vector, and the shares of all members by lane: m x (C + r)."""
    corrupt = range(1, sharing.parameters.corrupt + 1)
    expanded = [sharing.expand(stream(1000 * seed + member)) for member in corrupt]
    shared = sharing.share(vector, expanded, stream(seed))
    sent, is_packed = sharing.shares_in(shared.shares)
    assert is_packed.all()
    return shared, [
        np.vstack([*(of_member[lane] for of_member in expanded), rows])
        for lane, rows in enumerate(sent)
    ]


def proof_rows(sharing: Sharing, shared: SharedVector, key: bytes = COIN_KEY) -> Bytes:
    return np.frombuffer(sharing.prove(shared, key), np.uint8).reshape(1, -1)


def test_any_threshold_of_shares_interpolate_the_vector() -> None:
    vector = vector_of(RING, 1)
    _, shares = share(SHARING, vector, 1)
    t, rho = PARAMETERS.threshold, PARAMETERS.packed_secrets
    for lane, columns, elements in zip(SHARING.lanes, shares, vector, strict=True):
        for members in list(combinations(range(1, 10), t))[::7]:
            for column in range(lane.columns):
                points = {j: int(columns[j - 1, column]) for j in members}
                secrets = [interpolate(points, -1 - i, lane.lane.q) for i in range(rho)]
                mine = elements[column * rho : (column + 1) * rho].tolist()
                assert secrets == mine + [0] * (rho - len(mine))


def test_any_a_shares_and_secrets_determine_all_other_shares() -> None:
    """The shares of any A members are uniform: the map from random elements is a bijection.

    Its matrix is square, from the A drawn elements to A shares, and has an inverse.
    """
    p, m, a = 257, PARAMETERS.members, PARAMETERS.corrupt
    nodes = [*(-1 - i for i in range(PARAMETERS.packed_secrets)), *range(1, a + 1)]
    matrix = lagrange_matrix(p, nodes, range(1, m + 1)).astype(int)[:, -a:]
    for first, second in combinations(range(m), a):
        determinant = (
            matrix[first, 0] * matrix[second, 1] - matrix[first, 1] * matrix[second, 0]
        ) % p
        assert determinant != 0


def test_shares_of_a_fixed_vector_are_uniform() -> None:
    # 4,800 shares of three members in 16 bins: chi-squared with 15 degrees of freedom exceeds 50.5
    # with probability 1e-5; the seeds are fixed. A bin of 257 values is even to within 1 in 16.
    sharing = Sharing(Ring((Lane(65537, 400),)), PARAMETERS)
    zero = sharing.ring.zero()
    columns = [share(sharing, zero, i)[1][0] for i in range(12)]
    for member in (0, 1, 8):
        values = np.concatenate([of_vector[member] for of_vector in columns])
        counts = np.bincount((values * 16 // 65537).astype(int), minlength=16)
        expected = counts.sum() / 16
        assert ((counts - expected) ** 2 / expected).sum() < 50.5


@fewer(0.3)
@given(
    m=st.integers(1, 24),
    a=st.integers(0, 5),
    d=st.integers(0, 5),
    length=st.integers(1, 40),
    p=st.sampled_from([53, 257, 65537, 2**31 - 1, 2**45 + 59]),
)
def test_an_honest_share_passes_and_a_changed_one_does_not(
    m: int, a: int, d: int, length: int, p: int
) -> None:
    if m <= a + 2 * d or m - d - a <= a:
        return
    sharing = Sharing(Ring((Lane(p, length),)), CommitteeParameters(m, a, d, m - d - a))
    shared, (elements,) = share(sharing, vector_of(sharing.ring, length), m)
    proof = proof_rows(sharing, shared)
    for member in (1, m):
        row = elements[member - 1 : member]
        assert sharing.check(member, [row], proof, [COIN_KEY])[1].tolist() == [True]
        for place in (0, -1):
            changed = row.copy()
            changed[0, place] = (changed[0, place] + np.uint64(1)) % np.uint64(p)
            assert sharing.check(member, [changed], proof, [COIN_KEY])[1].tolist() == [False]


def test_a_share_or_a_proof_with_a_padding_bit_is_not_valid() -> None:
    shared, _ = share(SHARING, vector_of(RING, 1), 1)
    row, proof = shared.shares[:1].copy(), proof_rows(SHARING, shared).copy()
    member = PARAMETERS.corrupt + 1

    def is_valid() -> bool:
        elements, is_packed = SHARING.shares_in(row)
        return bool((is_packed & SHARING.check(member, elements, proof, [COIN_KEY])[1]).all())

    assert is_valid()
    for part in (row, proof):
        assert part[0, -1] < 128  # the last lane leaves bits of its last byte unused
        part[0, -1] |= 128
        assert not is_valid()
        part[0, -1] &= 127


def test_a_batch_is_checked_message_by_message() -> None:
    shared = [share(SHARING, vector_of(RING, seed), seed) for seed in range(5)]
    keys = [bytes([seed]) * 32 for seed in range(5)]
    packed = np.vstack(
        [proof_rows(SHARING, each, key) for (each, _), key in zip(shared, keys, strict=True)]
    )
    by_lane = zip(*(shares for _, shares in shared), strict=True)
    rows = [np.stack([shares[3] for shares in of_lane]) for of_lane in by_lane]
    columns, is_valid = SHARING.check(4, rows, packed, keys)
    assert is_valid.all()
    for lane, expected, checked in zip(SHARING.lanes, rows, columns, strict=True):
        assert (checked == expected[:, : lane.columns]).all()
    swapped = [keys[1], keys[0], *keys[2:]]
    assert SHARING.check(4, rows, packed, swapped)[1].tolist() == [False, False, True, True, True]


def test_shares_of_a_higher_degree_fail_the_test_of_most_members() -> None:
    """A column of degree t passes at no more than t of m points, with probability 1 - 2^-48."""
    shared, columns = share(SHARING, vector_of(RING, 1), 1)
    lane = SHARING.lanes[1]
    roots = [-1, -2, -3, 1, 2]  # a polynomial of degree t that is zero at all nodes
    for member in range(1, 10):
        bump = int(np.prod([member - root for root in roots])) % lane.lane.q
        columns[1][member - 1, 0] = (columns[1][member - 1, 0] + bump) % lane.lane.q
    proof = proof_rows(SHARING, shared)
    passing = []
    for member in range(1, 10):
        rows = [of_lane[member - 1 : member] for of_lane in columns]
        if SHARING.check(member, rows, proof, [COIN_KEY])[1].all():
            passing.append(member)
    assert passing == [1, 2]


def test_a_proof_reveals_nothing_without_its_blinds() -> None:
    """A value of the proof is a combination of columns plus a blind that is in no other value."""
    lane = SHARING.lanes[0]
    expanded = [SHARING.expand(stream(seed))[0] for seed in (2, 3)]
    values = lane.nodes(vector_of(RING, 1)[0], expanded, stream(1))
    blinds = values[:, lane.columns :]
    coins = np.ones((lane.columns, lane.blinds), np.uint64)
    (proof,) = lane.proof.unpack(lane.prove(values, coins))[0]
    combination = values[:, : lane.columns].sum(axis=1) % 257
    expected = (combination[:, np.newaxis] + blinds) % 257
    assert np.array_equal(proof.reshape(-1, lane.blinds), expected)
    assert blinds.shape == (PARAMETERS.threshold, 7)


def test_proofs_of_a_fixed_vector_are_uniform() -> None:
    # 1,800 values in 16 bins, as above.
    sharing = Sharing(Ring((Lane(65537, 2),)), PARAMETERS)
    proofs = []
    for seed in range(90):
        shared, _ = share(sharing, sharing.ring.zero(), seed)
        proofs.append(sharing.lanes[0].proof.unpack(proof_rows(sharing, shared))[0])
    values = np.concatenate(proofs, axis=1)
    counts = np.bincount((values[0] * 16 // 65537).astype(int), minlength=16)
    assert counts.sum() == 1800
    assert ((counts - 112.5) ** 2 / 112.5).sum() < 50.5


def test_other_lanes_become_the_smallest_primes_that_the_committee_can_share() -> None:
    ring = Ring((Lane(2, 3), Lane(4096, 3), Lane(65537, 1), Lane(2**45, 1)))
    lanes = prime_ring(ring, PARAMETERS).lanes
    assert [lane.q for lane in lanes] == [13, 4099, 65537, 2**45 + 59]
    large = CommitteeParameters(1000, 0, 0, 1000)
    assert [lane.q for lane in prime_ring(ring, large).lanes][:1] == [2003]
    with pytest.raises(ValueError, match="below 2\\^53"):
        prime_ring(Ring((Lane(2**64, 1),)), PARAMETERS)


def test_a_lane_that_is_not_prime_is_not_shared() -> None:
    with pytest.raises(ValueError, match="lane 1: a prime"):
        Sharing(Ring((Lane(257, 1), Lane(4096, 1))), PARAMETERS)


def test_sums_of_columns_have_one_form() -> None:
    columns = [np.full((3, lane.columns), lane.lane.q - 1, np.uint64) for lane in SHARING.lanes]
    packed = SHARING.add_columns(columns)
    assert len(packed) == SHARING.sum_bytes
    sums = SHARING.unpack_sum(packed)
    assert all((s == lane.lane.q - 3).all() for s, lane in zip(sums, SHARING.lanes, strict=True))
    for wrong in (packed[:-1], packed + b"\0"):
        with pytest.raises(ValueError, match="a sum has"):
            SHARING.unpack_sum(wrong)
    with pytest.raises(ValueError, match="outside its lane"):
        SHARING.unpack_sum(b"\xff" * len(packed))


def test_a_plus_one_shares_determine_a_vector_of_zeros_and_ones() -> None:
    """The limit that the pages state: one more share than A is one equation for rho secrets."""
    p, seven = 65_537, CommitteeParameters(members=7, corrupt=1, dropouts=1, threshold=5)
    sharing, members = Sharing(Ring((Lane(p, 40),)), seven), [3, 6]
    bits = np.random.default_rng(1).integers(0, 2, 40, np.uint64)
    _, (shares,) = share(sharing, sharing.ring.vector([bits]), 1)
    columns = shares[[member - 1 for member in members]]
    first, second = lagrange_matrix(p, [-1, -2, -3, -4, 1], members).astype(object)
    weights = (second[4] * first[:4] - first[4] * second[:4]) % p  # without the random value
    bits_by_value = {int(np.dot(weights, each)) % p: each for each in product((0, 1), repeat=4)}
    assert len(bits_by_value) == 16
    seen = (second[4] * columns[0, :10].astype(object) - first[4] * columns[1, :10]) % p
    assert [bit for value in seen for bit in bits_by_value[value]] == bits.tolist()

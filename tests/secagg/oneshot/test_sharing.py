"""Packed shares and degree proofs, against polynomials evaluated term by term."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.keys import Keystream
from secagg.oneshot.field import Bytes, Elements, lagrange_matrix
from secagg.oneshot.parameters import CommitteeParameters
from secagg.oneshot.sharing import Sharing
from secagg.ring import Array, Lane
from tests.examples import fewer
from tests.secagg.oneshot.conftest import PARAMETERS, RING
from tests.vectors.reference import interpolate

COIN_KEY = bytes(range(32))
LANE = RING.lanes[0]
SHARING = Sharing(LANE, PARAMETERS)


def stream(seed: int) -> Keystream:
    return Keystream(seed.to_bytes(32, "big"))


def elements_of(lane: Lane, seed: int) -> Array:
    return np.random.default_rng(seed).integers(0, lane.q, lane.length, np.uint64)


def share(sharing: Sharing, elements: Array, seed: int) -> tuple[Elements, Elements]:
    """Return the values at the nodes, and the shares of all members, m x (C + r)."""
    corrupt = range(1, sharing.parameters.corrupt + 1)
    expanded = [sharing.expand(stream(1000 * seed + member)) for member in corrupt]
    nodes = sharing.nodes(elements, expanded, stream(seed))
    sent, is_packed = sharing.share_packing.unpack(sharing.shares(nodes))
    assert is_packed.all()
    return nodes, np.vstack([*expanded, sent])


def proof_rows(sharing: Sharing, nodes: Elements, key: bytes = COIN_KEY) -> Bytes:
    return np.frombuffer(sharing.prove(nodes, key), np.uint8).reshape(1, -1)


def test_any_threshold_of_shares_interpolate_the_vector() -> None:
    elements = elements_of(LANE, 1)
    _, shares = share(SHARING, elements, 1)
    t, rho = PARAMETERS.threshold, PARAMETERS.packed_secrets
    for members in list(combinations(range(1, 10), t))[::7]:
        for column in range(SHARING.columns):
            points = {j: int(shares[j - 1, column]) for j in members}
            secrets = [interpolate(points, -1 - i, LANE.q) for i in range(rho)]
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
    sharing = Sharing(Lane(65537, 400), PARAMETERS)
    columns = [share(sharing, np.zeros(400, np.uint64), i)[1] for i in range(12)]
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
    p=st.sampled_from([61, 521, 65537, 2**24 - 3, 2**26 - 5]),
)
def test_an_honest_share_passes_and_a_changed_one_does_not(
    m: int, a: int, d: int, length: int, p: int
) -> None:
    if m <= a + 2 * d or m - d - a <= a:
        return
    sharing = Sharing(Lane(p, length), CommitteeParameters(m, a, d, m - d - a))
    nodes, shares = share(sharing, elements_of(sharing.lane, length), m)
    proof = proof_rows(sharing, nodes)
    for member in (1, m):
        row = shares[member - 1 : member]
        assert sharing.check(member, row, proof, [COIN_KEY]).tolist() == [True]
        for place in (0, -1):
            changed = row.copy()
            changed[0, place] = (changed[0, place] + np.uint64(1)) % np.uint64(p)
            assert sharing.check(member, changed, proof, [COIN_KEY]).tolist() == [False]


def test_a_share_or_a_proof_with_a_padding_bit_is_not_valid() -> None:
    nodes, _ = share(SHARING, elements_of(LANE, 1), 1)
    row, proof = SHARING.shares(nodes)[:1], proof_rows(SHARING, nodes).copy()
    member = PARAMETERS.corrupt + 1

    def is_valid() -> bool:
        elements, is_packed = SHARING.share_packing.unpack(row)
        return bool((is_packed & SHARING.check(member, elements, proof, [COIN_KEY])).all())

    assert is_valid()
    for part in (row, proof):
        assert part[0, -1] < 128  # bits of the last byte are not used
        part[0, -1] |= 128
        assert not is_valid()
        part[0, -1] &= 127


def test_a_batch_is_checked_message_by_message() -> None:
    shared = [share(SHARING, elements_of(LANE, seed), seed) for seed in range(5)]
    keys = [bytes([seed]) * 32 for seed in range(5)]
    proofs = np.vstack(
        [proof_rows(SHARING, nodes, key) for (nodes, _), key in zip(shared, keys, strict=True)]
    )
    rows = np.stack([shares[3] for _, shares in shared])
    assert SHARING.check(4, rows, proofs, keys).all()
    swapped = [keys[1], keys[0], *keys[2:]]
    assert SHARING.check(4, rows, proofs, swapped).tolist() == [False, False, True, True, True]


def test_shares_of_a_higher_degree_fail_the_test_of_most_members() -> None:
    """A column of degree t passes at no more than t of m points, with probability 1 - 2^-48."""
    nodes, shares = share(SHARING, elements_of(LANE, 1), 1)
    roots = [-1, -2, -3, 1, 2]  # a polynomial of degree t that is zero at all nodes
    for member in range(1, 10):
        bump = int(np.prod([member - root for root in roots])) % LANE.q
        shares[member - 1, 0] = (shares[member - 1, 0] + bump) % LANE.q
    proof = proof_rows(SHARING, nodes)
    passing = [
        member
        for member in range(1, 10)
        if SHARING.check(member, shares[member - 1 : member], proof, [COIN_KEY]).all()
    ]
    assert passing == [1, 2]


def test_a_proof_reveals_nothing_without_its_blinds() -> None:
    """A value of the proof is a combination of columns plus a blind that is in no other value."""
    expanded = [SHARING.expand(stream(seed)) for seed in (2, 3)]
    nodes = SHARING.nodes(elements_of(LANE, 1), expanded, stream(1))
    columns, blinds = nodes[:, : SHARING.columns], nodes[:, SHARING.columns :]
    (proof,), _ = SHARING.proof_packing.unpack(proof_rows(SHARING, nodes))
    (coins,) = SHARING.coins([COIN_KEY])
    assert np.array_equal(proof.reshape(-1, SHARING.blinds), (columns @ coins + blinds) % LANE.q)
    assert blinds.shape == (PARAMETERS.threshold, 6)


def test_proofs_of_a_fixed_vector_are_uniform() -> None:
    # 1,800 values in 16 bins, as above.
    sharing = Sharing(Lane(65537, 2), PARAMETERS)
    proofs = []
    for seed in range(90):
        nodes, _ = share(sharing, np.zeros(2, np.uint64), seed)
        proofs.append(sharing.proof_packing.unpack(proof_rows(sharing, nodes))[0])
    values = np.concatenate(proofs, axis=1)
    counts = np.bincount((values[0] * 16 // 65537).astype(int), minlength=16)
    assert counts.sum() == 1800
    assert ((counts - 112.5) ** 2 / 112.5).sum() < 50.5


def test_a_lane_that_is_not_prime_is_not_shared() -> None:
    with pytest.raises(ValueError, match="a prime from 13 to 2\\^26 expected, got 4096"):
        Sharing(Lane(4096, 1), PARAMETERS)


def test_sums_of_columns_have_one_form() -> None:
    shares = np.full((3, SHARING.columns + SHARING.blinds), LANE.q - 1, np.uint64)
    packed = SHARING.add_columns(shares)
    assert len(packed) == SHARING.sum_bytes
    assert SHARING.unpack_sum(packed).tolist() == [LANE.q - 3] * SHARING.columns
    for wrong in (packed[:-1], packed + b"\0"):
        with pytest.raises(ValueError, match="a sum has"):
            SHARING.unpack_sum(wrong)
    with pytest.raises(ValueError, match="outside its lane"):
        SHARING.unpack_sum(b"\xff" * len(packed))


def test_a_plus_one_shares_determine_a_vector_of_zeros_and_ones() -> None:
    """The limit that the pages state: one more share than A is one equation for rho secrets."""
    p, seven = 65_537, CommitteeParameters(members=7, corrupt=1, dropouts=1, threshold=5)
    sharing, members = Sharing(Lane(p, 40), seven), [3, 6]
    bits = np.random.default_rng(1).integers(0, 2, 40, np.uint64)
    _, shares = share(sharing, bits, 1)
    columns = shares[[member - 1 for member in members]]
    first, second = lagrange_matrix(p, [-1, -2, -3, -4, 1], members).astype(object)
    weights = (second[4] * first[:4] - first[4] * second[:4]) % p  # without the random value
    bits_by_value = {int(np.dot(weights, each)) % p: each for each in product((0, 1), repeat=4)}
    assert len(bits_by_value) == 16
    seen = (second[4] * columns[0, :10].astype(object) - first[4] * columns[1, :10]) % p
    assert [bit for value in seen for bit in bits_by_value[value]] == bits.tolist()

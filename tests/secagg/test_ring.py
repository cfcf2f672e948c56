"""Lanes add, wrap, pack and refuse like integers modulo q."""

import re
from functools import partial
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.ring import Lane, Ring, Vector

Drawn: TypeAlias = tuple[Ring, list[list[int]], list[list[int]]]
MODULI = [2, 3, 5, 2**7, 251, 2**13, 131071, 2**31 - 1, 2**31, 2**32, 2**32 + 15, 2**61 - 1, 2**64]


@st.composite
def rings(draw: st.DrawFn) -> Drawn:
    """Draw a ring and two vectors of it, as integers."""
    moduli = draw(st.lists(st.sampled_from(MODULI), min_size=1, max_size=3))
    lanes = tuple(Lane(q, draw(st.integers(1, 150))) for q in moduli)

    def vector() -> list[list[int]]:
        return [
            draw(st.lists(st.integers(0, lane.q - 1), min_size=lane.length, max_size=lane.length))
            for lane in lanes
        ]

    return Ring(lanes), vector(), vector()


def integers(vector: Vector) -> list[list[int]]:
    return [[int(value) for value in lane] for lane in vector]


@given(rings())
def test_addition_and_subtraction_are_those_of_integers_modulo_q(drawn: Drawn) -> None:
    ring, first, second = drawn
    total = ring.vector(first)
    ring.add(total, ring.vector(second))
    assert integers(total) == [
        [(a + b) % lane.q for a, b in zip(left, right, strict=True)]
        for lane, left, right in zip(ring.lanes, first, second, strict=True)
    ]
    ring.subtract(total, ring.vector(second))
    assert integers(total) == first


@given(rings())
def test_adding_a_packed_vector_adds_the_unpacked_vector(drawn: Drawn) -> None:
    ring, first, second = drawn
    total, expected = ring.vector(first), ring.vector(first)
    ring.add(expected, ring.vector(second))
    ring.add_packed(total, ring.pack(ring.vector(second)))
    assert integers(total) == integers(expected)


def test_a_packed_vector_that_is_refused_leaves_the_sum_as_it_was() -> None:
    ring = Ring((Lane(2**32, 2), Lane(251, 2)))
    total = ring.vector([[1, 2], [3, 4]])
    packed = ring.pack(ring.vector([[5, 6], [0, 0]]))[:8]
    for refuse in (partial(ring.add_packed, total), ring.check_packed):
        with pytest.raises(ValueError, match="outside its lane"):
            refuse(packed + bytes([250, 251]))
    with pytest.raises(ValueError, match="10 bytes expected"):
        ring.add_packed(total, bytes(9))
    assert integers(total) == [[1, 2], [3, 4]]


@pytest.mark.parametrize("q", [16, 251])
def test_a_packed_lane_of_another_length_or_with_padding_is_refused(q: int) -> None:
    lane = Lane(q, 3)
    for refuse in (lane.check_packed, lane.unpack):
        for data in (bytes(lane.nbytes - 1), bytes(lane.nbytes + 1)):
            with pytest.raises(ValueError, match=f"a lane of {lane.nbytes} bytes expected"):
                refuse(data)
    if q == 16:  # 12 bits, so 4 pad
        with pytest.raises(ValueError, match="pad a lane"):
            lane.check_packed(b"\0\x10")


@given(rings(), st.data())
def test_checking_a_packed_vector_refuses_the_same_as_unpacking(
    drawn: Drawn, data: st.DataObject
) -> None:
    ring, first, _ = drawn
    packed = bytearray(ring.pack(ring.vector(first)))
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] = data.draw(st.integers(0, 255))
    packed = packed[: data.draw(st.sampled_from([len(packed), len(packed) - 1]))]
    try:
        ring.unpack(bytes(packed))
    except ValueError as error:
        with pytest.raises(ValueError, match=re.escape(str(error))):
            ring.check_packed(bytes(packed))
    else:
        ring.check_packed(bytes(packed))


@pytest.mark.parametrize(
    ("q", "nbytes"), [(2, 4), (2**31 - 1, 4), (2**32 - 5, 8), (2**32, 4), (2**32 + 15, 8)]
)
def test_the_smaller_type_that_holds_a_sum_is_used(q: int, nbytes: int) -> None:
    assert Lane(q, 1).dtype.itemsize == nbytes


@pytest.mark.parametrize("q", [2, 2**31 + 11, 2**62 - 57, 2**62, 2**63, 2**64])
def test_the_largest_elements_are_added_packed_and_checked(q: int) -> None:
    ring = Ring((Lane(q, 3),))
    total = ring.vector([[0, 1, q - 1]])
    ring.add(total, ring.vector([[q - 1, q - 1, q - 1]]))
    assert integers(total) == [[q - 1, 0, q - 2]]
    ring.check(total)
    assert integers(ring.unpack(ring.pack(total))) == integers(total)


@pytest.mark.parametrize(("q", "is_shared"), [(2**32, True), (2**64, True), (2**28, False)])
def test_a_lane_that_fills_its_words_is_not_copied(q: int, is_shared: bool) -> None:
    packed = np.zeros(Lane(q, 8).nbytes, np.uint8)
    assert np.shares_memory(Lane(q, 8).unpack(packed.data), packed) is is_shared


def test_an_unpacked_vector_may_be_written_to() -> None:
    ring = Ring((Lane(2**32, 1), Lane(2**64, 1), Lane(2**13, 1)))
    vector = ring.unpack(bytes(ring.nbytes))
    ring.add(vector, ring.vector([[1], [2], [3]]))
    assert integers(vector) == [[1], [2], [3]]


@given(rings())
def test_packing_takes_the_stated_bytes_and_is_reversible(drawn: Drawn) -> None:
    ring, first, _ = drawn
    packed = ring.pack(ring.vector(first))
    assert (
        len(packed) == ring.nbytes == sum(-(-lane.length * lane.bits // 8) for lane in ring.lanes)
    )
    assert integers(ring.unpack(packed)) == first


@given(rings())
def test_element_i_lies_at_bit_i_times_b_little_end_first(drawn: Drawn) -> None:
    ring, first, _ = drawn
    lane, values = ring.lanes[0], first[0]
    number = sum(value << (i * lane.bits) for i, value in enumerate(values))
    assert lane.pack(ring.vector(first)[0]) == number.to_bytes(lane.nbytes, "little")


@pytest.mark.parametrize("q", [0, 1, 2**62 + 1, 2**63 - 1, 2**63 + 1, 2**64 + 1, 2**65])
def test_a_modulus_that_no_type_can_add_in_is_refused(q: int) -> None:
    with pytest.raises(ValueError, match="modulus"):
        Lane(q, 1)


def test_a_lane_or_ring_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one element"):
        Lane(2, 0)
    with pytest.raises(ValueError, match="at least one lane"):
        Ring(())


def test_check_refuses_vectors_of_other_rings() -> None:
    ring = Ring((Lane(251, 2), Lane(2**13, 3)))
    ring.check(ring.zero())
    with pytest.raises(ValueError, match="2 lanes expected"):
        ring.check(ring.zero()[:1])
    with pytest.raises(ValueError, match="lane 1"):
        ring.check((ring.zero()[0], np.zeros(4, np.uint32)))
    with pytest.raises(ValueError, match="lane 0"):
        ring.check((np.zeros(2, np.uint64), ring.zero()[1]))
    with pytest.raises(ValueError, match="not below 251"):
        ring.check((np.array([0, 251], np.uint32), ring.zero()[1]))


def test_a_vector_needs_the_lengths_of_the_ring() -> None:
    with pytest.raises(ValueError, match="lanes of"):
        Ring((Lane(251, 2),)).vector([[1, 2, 3]])

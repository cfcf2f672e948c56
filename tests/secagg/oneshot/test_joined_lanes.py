"""Lanes of one modulus are summed as one lane."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from secagg.oneshot.moduli import JoinedLanes
from secagg.ring import Lane, Ring
from tests.secagg.oneshot.conftest import same

LANES = st.lists(st.tuples(st.sampled_from([13, 257, 2**61 - 1]), st.integers(1, 9)), min_size=1)


@given(lanes=LANES, seed=st.integers(0, 9))
def test_sums_of_joined_vectors_are_joined_sums(lanes: list[tuple[int, int]], seed: int) -> None:
    ring, chance = Ring(tuple(Lane(*lane) for lane in lanes)), np.random.default_rng(seed)
    joined = JoinedLanes.of(ring)
    first, second = (
        ring.vector([chance.integers(0, q, length, np.uint64) for q, length in lanes])
        for _ in range(2)
    )
    total = joined.join(first)
    joined.joined.check(total)
    joined.joined.add(total, joined.join(second))
    ring.add(first, second)
    ring.check(joined.split(total))
    assert same(joined.split(total), first)
    assert len({lane.q for lane in joined.joined.lanes}) == len(joined.joined.lanes)


def test_elements_follow_each_other_at_the_place_of_the_first_lane() -> None:
    ring = Ring((Lane(257, 2), Lane(13, 1), Lane(257, 1)))
    joined = JoinedLanes.of(ring)
    assert joined.joined == Ring((Lane(257, 3), Lane(13, 1)))
    vector = joined.join(ring.vector([[1, 2], [3], [4]]))
    assert [lane.tolist() for lane in vector] == [[1, 2, 4], [3]]

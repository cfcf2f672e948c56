"""Sums of vectors of any ring are exact in prime lanes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.oneshot.lifted_ring import LiftedRing
from secagg.oneshot.parameters import CommitteeParameters
from secagg.oneshot.sharing import Sharing
from secagg.ring import Lane, Ring
from tests.secagg.oneshot.conftest import PARAMETERS, same

RING = Ring(
    tuple(Lane(q, 3) for q in (2, 3, 251, 257, 2**12, 509, 1000, 2**24 - 3, 2**40, 2**61 - 1))
)


@given(devices=st.integers(1, 50), seed=st.integers(0, 9), largest=st.booleans())
def test_sums_of_lifted_vectors_are_those_of_the_ring(
    devices: int, seed: int, *, largest: bool
) -> None:
    lifted = LiftedRing.of(RING, devices, PARAMETERS)
    assert Sharing(lifted.lifted, PARAMETERS)
    chance, total, lifted_total = np.random.default_rng(seed), RING.zero(), lifted.lifted.zero()
    for _ in range(devices):
        vector = RING.vector(
            [
                [lane.q - 1 if largest else lane.q // 2, lane.q // 2, int(chance.integers(lane.q))]
                for lane in RING.lanes
            ]
        )
        RING.add(total, vector)
        of_device = lifted.lift(vector)
        lifted.lifted.check(of_device)
        lifted.lifted.add(lifted_total, of_device)
    RING.check(lifted.lower(lifted_total))
    assert same(lifted.lower(lifted_total), total)


def test_a_prime_that_fits_the_committee_is_not_lifted() -> None:
    lanes = LiftedRing.of(RING, 10, PARAMETERS).lifted.lanes
    assert [lane.q for lane in lanes[3:]] == [
        *(257, 40_961, 509, 10_007, 2**24 - 3),
        *(lanes[8].q, 2**61 - 1),
    ]
    assert 10 * 2**40 < lanes[8].q < 10 * 2**40 + 100
    large = CommitteeParameters(600, 0, 0, 600)
    assert LiftedRing.of(RING, 10, large).lifted.lanes[5].q == 5099
    assert LiftedRing.of(RING, 1, large).lifted.lanes[0].q == 1201


def test_a_lane_that_is_too_wide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"below 2\^62"):
        LiftedRing.of(Ring((Lane(2**60, 1),)), 10, PARAMETERS)

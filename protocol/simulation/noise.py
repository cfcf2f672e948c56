"""Noise of a whole sum, drawn at once in simulations instead of share by share."""

from typing import Any

from numpy.random import Generator
from numpy.typing import NDArray

from protocol.mechanisms.central.release_mechanism import ReleasePlan
from protocol.privacy.noise import simulate_skellam_sum
from secagg.ring import Lane, Vector


def simulate_noise(
    plan: ReleasePlan, votes: NDArray[Any], variance: float, rng: Generator
) -> Vector:
    """Return the `votes` of a lane with noise of `variance`, if the plan has noise."""
    if plan.release.variance:
        votes = votes + simulate_skellam_sum(rng, variance, len(votes))
    lane = Lane(2**plan.cell_bits, len(votes))
    return ((votes % lane.q).astype(lane.dtype),)

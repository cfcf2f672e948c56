"""Projection is explicit, keeps the raw estimates, and is the nearest point."""

import numpy as np
import pytest

from protocol.oracles.numerics.simplex import project_to_simplex


def test_the_nearest_point_of_the_simplex_is_found_and_the_raw_kept() -> None:
    rng = np.random.default_rng(1)
    raw = rng.normal(0.1, 0.2, 12)
    before = raw.copy()
    projection = project_to_simplex(raw)
    assert projection.raw is raw
    assert (raw == before).all()
    assert projection.frequencies.min() >= 0
    assert projection.frequencies.sum() == pytest.approx(1)
    distance = ((projection.frequencies - raw) ** 2).sum()
    others = rng.dirichlet(np.full(12, 0.5), 2000)
    assert (((others - raw) ** 2).sum(axis=1) >= distance).all()
    # Optimality: what is left of the raw is the same for all that are positive.
    positive = projection.frequencies > 0
    shift = (raw - projection.frequencies)[positive]
    assert shift == pytest.approx(np.full(len(shift), shift[0]))
    assert (raw[~positive] <= shift[0] + 1e-12).all()


def test_frequencies_stay_as_they_are() -> None:
    frequencies = np.array([0.5, 0.0, 0.25, 0.25])
    assert project_to_simplex(frequencies).frequencies == pytest.approx(frequencies)
    assert project_to_simplex(np.array([-3.0])).frequencies.tolist() == [1]


@pytest.mark.parametrize("wrong", [[], [0.5, float("nan")], [float("inf")]])
def test_estimates_that_are_not_finite_are_refused(wrong: list[float]) -> None:
    with pytest.raises(ValueError, match="estimates must be finite"):
        project_to_simplex(np.array(wrong))

"""The whole sum is exact or fails, with any dropouts in any phases."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from secagg.parameters import Assumptions
from tests.examples import fewer
from tests.secagg.conftest import RING, assemble, same

PHASES = ("sharing", "checking", "masking", "confirming", "unmasking")
STAYS = len(PHASES)  # the phase of participants that do not drop out


def present_in_phases(drops_in: list[int]) -> list[set[int]]:
    """Return the present slots in each phase, given the phase in which each drops out."""
    return [
        {slot for slot, when in enumerate(drops_in) if when > phase} for phase in range(len(PHASES))
    ]


@st.composite
def dropouts(draw: st.DrawFn) -> tuple[list[int], float]:
    """Draw the phase in which each participant drops out, and the assumed rate."""
    n = draw(st.integers(3, 24))
    phases = st.one_of(st.just(STAYS), st.just(STAYS), st.integers(0, STAYS))
    drops_in = draw(st.lists(phases, min_size=n, max_size=n))
    return drops_in, draw(st.sampled_from([0.0, 0.2, 0.4]))


@fewer(0.2, suppress_health_check=[HealthCheck.too_slow])
@given(pattern=dropouts())
def test_the_sum_is_exact_or_the_cohort_failed(pattern: tuple[list[int], float]) -> None:
    drops_in, dropout = pattern
    group = assemble(len(drops_in), Assumptions(0.05, dropout))
    present = present_in_phases(drops_in)
    total = group.total(*present)
    if total is None:
        # With the assumed dropouts all have enough holders, except with probability 2^-30.
        assert len(present[-1]) < max(group.session.quorum, 2)
    else:
        assert len(present[-1]) >= group.session.quorum
        assert same(total, group.plain_sum(present[2]))


# Participants, assumed rates, and the phases in which the first of them drop out.
DROPOUT_PATTERNS: dict[str, tuple[int, float, float, list[int]]] = {
    **{f"in {phase}": (30, 0.1, 0.2, [number] * 6) for number, phase in enumerate(PHASES)},
    "in each phase": (30, 0.1, 0.2, [0, 1, 2, 2, 3, 4]),
    "in a complete graph": (5, 0.2, 0.2, [2]),
    "none of two": (2, 0, 0, []),
}


@pytest.mark.parametrize("pattern", DROPOUT_PATTERNS)
def test_the_allowed_dropouts_leave_the_sum_of_the_survivors_exact(pattern: str) -> None:
    n, corrupt, dropout, phases = DROPOUT_PATTERNS[pattern]
    group = assemble(n, Assumptions(corrupt, dropout))
    assert group.session.parameters.is_complete == (n <= 5)
    assert len(phases) == n - group.session.quorum
    present = present_in_phases(phases + [STAYS] * (n - len(phases)))
    total = group.total(*present)
    assert total is not None
    assert same(total, group.plain_sum(present[2]))


@pytest.mark.parametrize("phase", range(len(PHASES)), ids=PHASES)
def test_one_dropout_more_than_the_quorum_allows_fails_the_cohort(phase: int) -> None:
    group = assemble(30)
    assert group.total(*present_in_phases([phase] * 7 + [STAYS] * 23)) is None


def chi_squared(values: np.ndarray, bins: int) -> float:
    """Return the chi-squared distance of the counts of 0 to `bins` - 1 from uniform."""
    counts = np.bincount(values.astype(np.int64), minlength=bins)
    assert len(counts) == bins
    expected = counts.sum() / bins
    return float(((counts - expected) ** 2 / expected).sum())


def test_a_masked_vector_of_a_fixed_input_is_uniform_in_each_lane() -> None:
    # 240 masked zeros: the four lowest bits and 16 equal bins of each lane, chi-squared with
    # 15 degrees of freedom. It exceeds 50.5 with probability 1e-5, one of eight with 1e-4;
    # the seeds are fixed. Lanes of 2^b - 1 elements are uniform in their lowest bits to
    # within 2^-b.
    masked = []
    for seed in range(3):
        group = assemble(20, seed=seed)
        for _ in range(4):
            group.joined = [replace(state) for state in group.joined]  # not taken their steps
            group.share()
            transcript = group.check()
            for state in group.checked.values():
                _, upload = state.mask(transcript, RING, RING.zero())
                masked.append(RING.unpack(upload.vector))
    for number, lane in enumerate(RING.lanes):
        values = np.concatenate([vector[number] for vector in masked])
        assert chi_squared(values & values.dtype.type(15), 16) < 50.5
        whole = np.array([int(value) * 16 // lane.q for value in values])
        assert chi_squared(whole, 16) < 50.5

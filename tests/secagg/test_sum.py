"""The whole sum: exact or declared failed, whoever is lost and whenever."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from secagg.parameters import Assumptions, Mode
from tests.examples import fewer
from tests.secagg.conftest import RING, Group, same

Gather = Callable[..., Group]
PHASES = ("sharing", "masking", "confirming", "unmasking")
STAYS = len(PHASES)  # as the phase in which somebody is lost
modes = pytest.mark.parametrize("mode", ["active", "semi-honest"])


def still_there(lost_in: list[int]) -> list[set[int]]:
    """Return who is there in each phase, given the phase in which each is lost."""
    return [
        {slot for slot, when in enumerate(lost_in) if when > phase} for phase in range(len(PHASES))
    ]


@st.composite
def losses(draw: st.DrawFn) -> tuple[list[int], float, Mode]:
    """Draw for each participant the phase it is lost in, and assumptions."""
    n = draw(st.integers(3, 24))
    phases = st.one_of(st.just(STAYS), st.just(STAYS), st.integers(0, STAYS))
    lost_in = draw(st.lists(phases, min_size=n, max_size=n))
    dropout = draw(st.sampled_from([0.0, 0.2, 0.4]))
    return lost_in, dropout, draw(st.sampled_from(["active", "semi-honest"]))


@fewer(0.4, suppress_health_check=[HealthCheck.too_slow])
@given(pattern=losses())
def test_the_sum_is_exact_or_the_cohort_failed(
    gather: Gather, pattern: tuple[list[int], float, Mode]
) -> None:
    lost_in, dropout, mode = pattern
    group = gather(len(lost_in), Assumptions(0.05, dropout, mode=mode))
    still = still_there(lost_in)
    total = group.total(*still)
    if total is None:
        # Within the assumed losses all have enough holders left, but for odds of 2^-30.
        assert len(still[-1]) < max(group.cohort.quorum, 2)
    else:
        assert len(still[-1]) >= group.cohort.quorum
        assert same(total, group.plain_sum(still[1]))


@modes
@pytest.mark.parametrize("phase", range(len(PHASES)), ids=PHASES)
def test_a_crowd_lost_in_one_phase_leaves_the_sum_of_the_others_exact(
    gather: Gather, phase: int, mode: Mode
) -> None:
    group = gather(30, Assumptions(0.1, 0.2, mode=mode))
    assert group.cohort.quorum == 24
    still = still_there([phase] * 6 + [STAYS] * 24)
    total = group.total(*still)
    assert total is not None
    assert same(total, group.plain_sum(still[1]))


@modes
def test_some_lost_in_each_phase_leave_the_sum_of_those_whose_vectors_arrived(
    gather: Gather, mode: Mode
) -> None:
    group = gather(30, Assumptions(0.1, 0.2, mode=mode))
    total = group.total(*still_there([0, 1, 1, 2, 3, 3] + [STAYS] * 24))
    assert total is not None
    assert same(total, group.plain_sum(range(3, 30)))


@pytest.mark.parametrize("phase", range(len(PHASES)), ids=PHASES)
def test_one_more_lost_than_the_quorum_allows_fails_the_cohort(gather: Gather, phase: int) -> None:
    group = gather(30)
    assert group.total(*still_there([phase] * 7 + [STAYS] * 23)) is None


@modes
def test_all_lost_as_allowed_are_enough_in_a_complete_graph(gather: Gather, mode: Mode) -> None:
    group = gather(5, Assumptions(0.2, 0.2, mode=mode))
    assert group.cohort.parameters.is_complete
    total = group.total(*still_there([1] + [STAYS] * 4))
    assert total is not None
    assert same(total, group.plain_sum(range(1, 5)))


@modes
def test_a_sum_of_two_is_the_least_there_is(gather: Gather, mode: Mode) -> None:
    group = gather(2, Assumptions(0, 0, mode=mode))
    total = group.total(*still_there([STAYS] * 2))
    assert total is not None
    assert same(total, group.plain_sum(range(2)))


def test_with_fewer_partners_than_holders_the_sum_is_exact_too(gather: Gather) -> None:
    group = gather(60, Assumptions(0.1, 0.2, mode="semi-honest"))
    assert group.cohort.parameters.neighbours < group.cohort.parameters.holders
    total = group.total(*still_there([1] * 6 + [3] * 6 + [STAYS] * 48))
    assert total is not None
    assert same(total, group.plain_sum(range(6, 60)))


def chi_squared(values: np.ndarray, bins: int) -> float:
    """Return how far the counts of 0 to `bins` - 1 are from uniform."""
    counts = np.bincount(values.astype(np.int64), minlength=bins)
    assert len(counts) == bins
    expected = counts.sum() / bins
    return float(((counts - expected) ** 2 / expected).sum())


def test_a_masked_vector_of_a_fixed_input_is_uniform_in_each_lane(gather: Gather) -> None:
    # 240 masked zeros: the four lowest bits and 16 equal bins of each lane, chi-squared with
    # 15 degrees of freedom. A sound mask exceeds 50.5 with odds of 1e-5, one of eight with
    # 1e-4; the seeds are fixed. Lanes of 2^b - 1 elements are uniform in their lowest bits to
    # within 2^-b.
    masked = []
    for seed in range(12):
        group = gather(20, seed=seed)
        view = group.share()
        for state in group.shared.values():
            _, upload = state.mask(view, RING, RING.zero(), group.rng)
            masked.append(RING.unpack(upload.vector))
    for number, lane in enumerate(RING.lanes):
        values = np.concatenate([vector[number] for vector in masked])
        assert chi_squared(values & values.dtype.type(15), 16) < 50.5
        whole = np.array([int(value) * 16 // lane.q for value in values])
        assert chi_squared(whole, 16) < 50.5


def test_masked_vectors_of_one_input_have_nothing_in_common(gather: Gather) -> None:
    group = gather(12)
    view, zero = group.share(), RING.zero()
    sent = [state.mask(view, RING, zero, group.rng)[1].vector for state in group.shared.values()]
    assert len(set(sent)) == 12
    assert bytes(RING.nbytes) not in sent

"""Cohorts of a simulated round: devices are seated in the order in which they enrol."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protocol.simulation.rounds import CohortCounts


@given(st.integers(1, 20), st.lists(st.lists(st.booleans(), max_size=50), max_size=8))
def test_a_device_that_enrols_joins_the_first_cohort_with_room(
    size: int, blocks: list[list[bool]]
) -> None:
    cohorts = CohortCounts(size)
    for sat in blocks:
        cohorts.assign(np.array(sat, np.bool_))
    enrolments = [is_in for sat in blocks for is_in in sat]
    seated = [enrolments[start : start + size] for start in range(0, len(enrolments), size)]
    counted = [survivors for _, survivors in cohorts]
    assert counted == [sum(cohort) for cohort in seated]
    assert [enrolled for enrolled, _ in cohorts] == [
        min(size, len(enrolments) - size * number) for number in range(len(counted))
    ]

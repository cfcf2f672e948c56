"""Terms of a simulated study: its cohorts, and the rates that they withstand.

Without secure sums a cohort only sets the noise of a release: each cohort adds all of the noise, so
cohorts are as large as possible. A cohort of secure sums has 1,000 devices, because a larger one
only costs its devices more.
"""

from typing import Any, Final

from blindtally.simulate.scenario import Scenario
from protocol.committee_terms import CommitteeTerms
from protocol.question_and_plan import Terms
from protocol.round_sizes import terms_for
from secagg.keys import Identity

_SECURE_COHORT_SIZE: Final = 1000
_MAX_COHORTS: Final = 1000  # of a round; beyond a million devices secure cohorts are larger
_DROPOUT_MARGIN: Final = 0.1  # dropouts in addition to those that the scenario causes
_OPERATORS: Final = 7  # of the simulated committee of one-shot sums


def study_terms(scenario: Scenario, devices: int) -> Terms:
    """Return the terms of a study with at most `devices` in a round.

    Raises:
        ValueError: if the rates are not possible.
    """
    assumptions: dict[str, Any] = {
        "corrupt": scenario.corrupt,
        "dropout": scenario.dropout + _DROPOUT_MARGIN,
    }
    if scenario.sum == "plain":
        return terms_for(devices, **assumptions)
    if scenario.sum == "pairwise":
        return terms_for(devices, _SECURE_COHORT_SIZE, _MAX_COHORTS, **assumptions)
    keys = (Identity.of(bytes([number]) * 32).public for number in range(_OPERATORS))
    committee = CommitteeTerms(members=tuple(key.hex() for key in keys))
    return terms_for(devices, devices, **assumptions, sum="one-shot", committee=committee)

"""Eviction of the rarest items of a study that remembers too many.

If there are very many items, the rarest of those that cannot become heavy any more, by six standard
errors, are *evicted*: only their keys are kept, which help to read a stuck table. An evicted item
that is sampled again starts again from zero.
"""

import numpy as np

from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.forecast import Forecast
from protocol.numerics.arrays import Keys
from protocol.question_and_plan import Plan
from protocol.study_state import StudyState

_EVICTED_KEYS_ARRAY = "evicted keys"


def evict_items(plan: Plan, state: StudyState) -> StudyState:
    """Return `state` after the round of `plan`, with at most `MAX_REMEMBERED_ITEMS` if possible.

    The rarest items are evicted, but none that may still become heavy.
    """
    excess = len(state.items) - tuning.MAX_REMEMBERED_ITEMS
    if excess <= 0:
        return state
    forecast = Forecast.after_round(plan, state)
    hopeless = np.flatnonzero(~forecast.may_reach(tuning.EVICT_Z_SCORE))
    rarest = hopeless[np.argsort(forecast.totals[hopeless], kind="stable")][:excess]
    names = [state.items[row] for row in rarest.tolist()]
    keys = np.concatenate([evicted_keys(plan, state), plan.question.domain.keys_of(names)])
    stays = np.ones(len(state.items), np.bool_)
    stays[rarest] = False
    evicted = np.unique(keys, axis=0)[: tuning.MAX_EVICTED_KEYS]
    return state.select_rows(stays).with_array(_EVICTED_KEYS_ARRAY, evicted)


def has_evicted(state: StudyState) -> bool:
    """Return whether items were evicted, so that their counts are not in `state`."""
    return _EVICTED_KEYS_ARRAY in state.arrays


def evicted_keys(plan: Plan, state: StudyState) -> Keys:
    """Return the keys of evicted items."""
    none = np.zeros((0, plan.question.domain.chunks), np.uint64)
    keys: Keys = state.arrays.get(_EVICTED_KEYS_ARRAY, none)
    return keys

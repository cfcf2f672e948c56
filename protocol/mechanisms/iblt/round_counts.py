"""Counts of each round in a study state, for mechanisms that sample all items alike in each round.

An estimate with c tokens and variance c k comes from c / (1 + k) Poisson tokens among the share 1 /
(1 + k) of the devices (`protocol/rate_changes.py`). Only the tokens that were sampled are stored:
the item, its tokens, and their block of rounds. Items of one round are few compared with all items
of a study, so this takes far less than a column of each round.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.estimates import Estimate
from protocol.question_and_plan import Plan
from protocol.rate_changes import RateHistory, block_ends, block_of
from protocol.study_state import StudyState

_MAX_STORED_COUNTS = 2**22  # 42 MB; a round beyond them is treated as not read
# Of the study state. The first two are by block.
_DEVICES_ARRAY, _EXPOSURE_ARRAY = "devices of each block", "exposure of each block"
_ROWS_ARRAY, _BLOCKS_ARRAY, _TOKENS_ARRAY = "counted rows", "counted blocks", "counted tokens"


def record_round_counts(
    plan: Plan,
    state: StudyState,
    devices: int,
    estimates: Sequence[Estimate] = (),
    spread: float | None = None,
) -> StudyState:
    """Return `state` after a round of `devices`, with the counts of its `estimates`.

    `spread` is their variance per token, None if the round was not read.
    """
    block = block_of(plan.round, plan.rounds)
    stored = state.arrays.get(_ROWS_ARRAY, np.zeros(0, np.int32))
    is_read = spread is not None and len(stored) + len(estimates) <= _MAX_STORED_COUNTS
    scale = 1 + spread if is_read and spread is not None else np.inf
    for name, amount in ((_DEVICES_ARRAY, devices), (_EXPOSURE_ARRAY, devices / scale)):
        empty = np.zeros(len(block_ends(plan.rounds)))
        by_block = state.arrays.get(name, empty).copy()
        by_block[block] += amount
        state = state.with_array(name, by_block)
    if not is_read:
        return state
    new: dict[str, NDArray[Any]] = {
        _ROWS_ARRAY: np.array([state.rows[each.item] for each in estimates], np.int32),
        _BLOCKS_ARRAY: np.full(len(estimates), block, np.uint8),
        _TOKENS_ARRAY: np.array([each.count / scale for each in estimates], np.float32),
    }
    for name, values in new.items():
        earlier = state.arrays.get(name, values[:0])
        state = state.with_array(name, np.concatenate((earlier, values)))
    return state


def round_count_history(plan: Plan, state: StudyState, items: Sequence[str]) -> RateHistory | None:
    """Return the observations of `items` by block of rounds; None before the first round."""
    if _DEVICES_ARRAY not in state.arrays:
        return None
    devices, exposure = state.arrays[_DEVICES_ARRAY], state.arrays[_EXPOSURE_ARRAY]
    last = int(np.flatnonzero(devices)[-1]) + 1
    places = np.full(len(state.items), -1)
    places[[state.rows[item] for item in items]] = np.arange(len(items))
    tokens = np.zeros((len(items), last))
    if _ROWS_ARRAY in state.arrays:
        stored = places[state.arrays[_ROWS_ARRAY]]
        inside = stored >= 0
        blocks = state.arrays[_BLOCKS_ARRAY][inside]
        np.add.at(tokens, (stored[inside], blocks), state.arrays[_TOKENS_ARRAY][inside])
    shared = np.broadcast_to(exposure[:last], tokens.shape)
    return RateHistory(tokens, shared, devices[:last], block_ends(plan.rounds)[:last])

"""Observations that a study keeps of the items that it tracks, by block of rounds.

The study state keeps for each block the tokens observed of each item, and the devices in which it
was exposed (`rate_filter.py`). `devices` and `sampled exposure` hold for all items alike. Each item
has a column of the exposure that it had in addition, by being counted. An item without any token so
far was exposed to all sampled devices, so its first sample needs no column to be filled.

Most items that are ever sampled are rare. They are remembered too, because an item may turn out to
be heavy after many rounds with few samples. If there are very many items, the rarest are evicted
(`forecast.py`).
"""

import math
from collections.abc import Sequence

import numpy as np

from protocol.estimation.empirical_bayes import ShownChances
from protocol.estimation.estimates import Estimate, add_estimates
from protocol.estimation.rate_changes import RateHistory
from protocol.estimation.segments import History
from protocol.mechanisms.iblt.threshold_sampling import ThresholdSampler
from protocol.mechanisms.sampled_counts import max_device_counts
from protocol.mechanisms.tracked.drift_measurement import measure_drift
from protocol.mechanisms.tracked.rate_filter import Drift
from protocol.numerics.array_types import Floats, Integers
from protocol.question_and_plan import Plan
from protocol.study_state import StudyState, add_recent_devices, block_ends, block_of

# Arrays of the study state.
_DEVICES_ARRAY = "devices"  # by block
_SAMPLED_EXPOSURE_ARRAY = "sampled exposure"  # by block
_DRIFT_ARRAY = "drift"  # phi, dispersion, trend, and the jump before each block
# Columns of the study state, the first two for each block.
_OBSERVED_COLUMN, _EXPOSURE_COLUMN = "observed {}", "exposure {}"
LAST_SLIP_COLUMN = "last slip"
SLIP_VARIANCE_COLUMN = "slip variance"  # of each item's observed tokens, by uncertain counts


def record_round(
    plan: Plan,
    state: StudyState,
    participants: int,
    counted: Sequence[Estimate],
    sampled: Sequence[Estimate] | None,
) -> StudyState:
    """Return `state` with a round's `counted` and `sampled` items; None if the table is unread."""
    sampler = ThresholdSampler(plan.t, plan.question.contribution)
    block = block_of(plan.round, plan.rounds)
    sampled_exposure = participants / sampler.mean_threshold if sampled is not None else 0.0
    by_block = ((_DEVICES_ARRAY, participants), (_SAMPLED_EXPOSURE_ARRAY, sampled_exposure))
    for name, amount in by_block:
        blocks = state.arrays.get(name, np.zeros(len(block_ends(plan.rounds)))).copy()
        blocks[block] += amount
        state = state.with_array(name, blocks)
    state = add_recent_devices(state, participants)
    counts = np.array([each.count for each in counted], np.float64)
    variances = np.array([each.variance for each in counted], np.float64)
    shares = _observed_shares(state, participants, [each.item for each in counted], variances)
    columns = {
        _OBSERVED_COLUMN.format(block): shares * counts,
        _EXPOSURE_COLUMN.format(block): shares * participants - sampled_exposure,
        SLIP_VARIANCE_COLUMN: shares**2 * variances,
    }
    state = state.add([each.item for each in counted], columns)
    if sampled:
        items = [each.item for each in sampled]
        tokens = np.array([each.count for each in sampled]) / sampler.mean_threshold
        state = state.add(items, {_OBSERVED_COLUMN.format(block): tokens})
    estimates = [*counted, *(sampled or [])]
    counted_items = {each.item for each in counted}
    state = add_estimates(state, estimates, max_device_counts(plan, estimates, counted_items))
    return with_measured_drift(state, state)


def with_measured_drift(state: StudyState, measured: StudyState) -> StudyState:
    """Return `state` with the drift of the items in `measured`; the same before the first round."""
    if _DEVICES_ARRAY not in state.arrays:
        return state
    drift = measure_drift(history_of(measured))
    jumps = [drift.breaks.get(number, 0.0) for number in range(len(state.arrays[_DEVICES_ARRAY]))]
    drift_array = np.array([drift.phi, drift.dispersion, drift.trend, *jumps])
    return state.with_array(_DRIFT_ARRAY, drift_array)


def _observed_shares(
    state: StudyState, participants: int, items: Sequence[str], variances: Floats
) -> Floats:
    """Return the share of its tokens that each count observes.

    An uncertain count of variance v is like a sample of the share u / (u + v) of u expected tokens:
    the variance that remains is that of the others.
    """
    if not variances.any():
        return np.ones(len(items))
    rates = history_of(state).rates[[state.rows[item] for item in items]]
    expected = np.maximum(rates * participants, 1.0)
    shares: Floats = expected / (expected + variances)
    return shares


def record_slips(state: StudyState, items: Sequence[str], slips: Integers) -> StudyState:
    """Return `state` with the `slips` of the last round, in place of earlier ones."""
    column = np.zeros(len(state.items))
    column[[state.rows[item] for item in items]] = slips
    return state.with_column(LAST_SLIP_COLUMN, column)


def history_of(state: StudyState) -> History:
    """Return the observations in `state`, after one round or more."""
    devices, sampled = state.arrays[_DEVICES_ARRAY], state.arrays[_SAMPLED_EXPOSURE_ARRAY]
    blocks = range(len(devices))
    observed = np.stack([state.column(_OBSERVED_COLUMN.format(block)) for block in blocks], axis=1)
    counted = np.stack([state.column(_EXPOSURE_COLUMN.format(block)) for block in blocks], axis=1)
    last = int(np.flatnonzero(devices)[-1]) + 1 if devices.any() else 0
    return History(observed[:, :last], (counted + sampled)[:, :last], devices[:last])


def rate_history_of(plan: Plan, state: StudyState, names: Sequence[str]) -> RateHistory | None:
    """Return the observations of the items `names` by block; None before the first round."""
    if _DEVICES_ARRAY not in state.arrays:
        return None
    history, rows = history_of(state), [state.rows[name] for name in names]
    return RateHistory(
        np.maximum(history.observed[rows], 0),
        history.exposure[rows],
        history.devices,
        block_ends(plan.rounds)[: len(history.devices)],
        drift_of(state).dispersion,
    )


def shown_chances(state: StudyState, firm: float) -> ShownChances:
    """Return the probabilities of being shown, for items that are firm with `firm` devices.

    An item is counted from the first block on before which it has as many samples as the rarest
    item of `state` that was counted from then on. Until then it is sampled, at its rate in all
    rounds. For example, 50 tokens in two rounds are never sampled in the first one, at t = 22, with
    probability 0.32. Then five samples are needed in the second.
    """
    history = history_of(state)
    sampled, total = state.arrays[_SAMPLED_EXPOSURE_ARRAY], history.devices.sum()
    is_counted = history.exposure > (history.devices + sampled[: len(history.devices)]) / 2
    begins = is_counted & (is_counted.cumsum(axis=1) == 1)
    earlier = np.rint(history.observed.cumsum(axis=1) - history.observed)
    needed = np.where(begins, np.maximum(earlier, 1), np.inf).min(axis=0, initial=np.inf)

    def of(counts: Floats, bar: float) -> Floats:
        apart, counted = np.zeros((2, len(counts), math.ceil(firm)))  # by the devices so far
        apart[:, 0] = 1
        for block, devices in enumerate(history.devices):
            moved = np.arange(apart.shape[1]) >= needed[block]
            counted[:, moved] += apart[:, moved]
            apart[:, moved] = 0
            apart = _add_poisson(apart, counts * sampled[block] / total)
            counted = _add_poisson(counted, counts * devices / total)
        hidden: Floats = apart[:, : math.ceil(bar)].sum(axis=1) + counted.sum(axis=1)
        return 1 - hidden

    return ShownChances(float(sampled.sum() / total), firm, of)


def _add_poisson(numbers: Floats, means: Floats) -> Floats:
    """Return the distributions of `numbers` (c, n) with Poisson ones of `means` (c,) added."""
    sums, added = np.zeros_like(numbers), np.exp(-means)[:, np.newaxis]
    for more in range(numbers.shape[1]):
        sums[:, more:] += added * numbers[:, : numbers.shape[1] - more]
        added = added * means[:, np.newaxis] / (more + 1)
    return sums


def drift_of(state: StudyState) -> Drift:
    """Return the measured drift of rates, after one round or more."""
    phi, dispersion, trend, *jumps = state.arrays[_DRIFT_ARRAY].tolist()
    breaks = {block: jump for block, jump in enumerate(jumps) if jump}
    return Drift(phi, dispersion, breaks, trend)

"""Memory of a study that tracks items, and the forecast of their totals.

The study state keeps for each block of rounds the tokens observed of each item, and the devices in
which it was exposed (`rates.py`). `devices` and `sampled exposure` hold for all items alike.
Each item has a column of the exposure that it had in addition, by being counted. An item without
any token so far was exposed to all sampled devices, so its first sample needs no column to be
filled.

Most items that are ever sampled are rare. They are remembered too: their tokens are subtracted
from the cells of sketches that they share with others (`past_sketch.py`). If there are very
many, the rarest of those that cannot become heavy any more, by six standard errors, are *evicted*:
only their keys are kept, which help to read a stuck table. An evicted item that is sampled again
starts again from zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from protocol.arrays import Flags, Floats, Integers, Keys
from protocol.changes import RateHistory, block_ends, block_of
from protocol.empirical_bayes import decision_threshold
from protocol.mechanism import Estimate, add_estimates
from protocol.mechanisms.counted_devices import add_recent_devices
from protocol.mechanisms.iblt.sampled_table import ThresholdSampler
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.counters import CounterGroup, check_lanes, counter_bits
from protocol.mechanisms.tracked.past_sketch import estimate_levels
from protocol.mechanisms.tracked.rates import Drift, History, filter_levels, measure_drift
from protocol.study import Plan, StudyState

# Arrays of the study state.
_DEVICES_ARRAY = "devices"  # by block
_SAMPLED_EXPOSURE_ARRAY = "sampled exposure"  # by block
_SPREAD_ARRAY = "sampling spread"  # sampling variance of all read rounds, per token per device
_DRIFT_ARRAY = "drift"  # phi, dispersion, trend, and the jump before each block
_EVICTED_KEYS_ARRAY = "evicted keys"
# Columns of the study state, the first two for each block.
_OBSERVED_COLUMN, _EXPOSURE_COLUMN = "observed {}", "exposure {}"
_LAST_SLIP_COLUMN = "last slip"
_COUNTED_SPREAD_COLUMN = "sampling spread of counted rounds"
SLIP_VARIANCE_COLUMN = "slip variance"  # variance that slips add to the counts of each item


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
    columns = {
        _OBSERVED_COLUMN.format(block): np.array([each.count for each in counted], np.float64),
        _EXPOSURE_COLUMN.format(block): np.full(len(counted), participants - sampled_exposure),
        SLIP_VARIANCE_COLUMN: np.array([each.variance for each in counted], np.float64),
    }
    state = state.add([each.item for each in counted], columns)
    if sampled:
        items = [each.item for each in sampled]
        tokens = np.array([each.count for each in sampled]) / sampler.mean_threshold
        state = state.add(items, {_OBSERVED_COLUMN.format(block): tokens})
    state = add_estimates(state, [*counted, *(sampled or [])])
    if sampled is not None:
        spread = participants * (sampler.mean_threshold - 1)
        state = state.with_array(_SPREAD_ARRAY, _spread(state) + spread)
        column = {_COUNTED_SPREAD_COLUMN: np.full(len(counted), spread)}
        state = state.add([each.item for each in counted], column)
    drift = measure_drift(history_of(state))
    jumps = [drift.breaks.get(number, 0.0) for number in range(len(state.arrays[_DEVICES_ARRAY]))]
    drift_array = np.array([drift.phi, drift.dispersion, drift.trend, *jumps])
    return state.with_array(_DRIFT_ARRAY, drift_array)


def record_slips(state: StudyState, items: Sequence[str], slips: Integers) -> StudyState:
    """Return `state` with the `slips` of the last round, in place of earlier ones."""
    column = np.zeros(len(state.items))
    column[[state.rows[item] for item in items]] = slips
    return state.with_column(_LAST_SLIP_COLUMN, column)


def sampling_variances(state: StudyState, rates: Floats) -> Floats:
    """Return the variances of totals at `rates`, in tokens per device, without a model of drift.

    A sampled token has variance E[T] - 1, and an item that is counted has none. The samples of one
    item are too few for this variance: an item that was found late would have too low an estimate
    with too low an error. So its rate over all rounds is used.
    """
    uncounted = np.maximum(_spread(state) - state.column(_COUNTED_SPREAD_COLUMN), 0)
    variances: Floats = state.column(SLIP_VARIANCE_COLUMN) + np.maximum(rates, 0) * uncounted
    return variances


def _spread(state: StudyState) -> Floats:
    spread: Floats = state.arrays.get(_SPREAD_ARRAY, np.zeros(1))
    return spread


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
        state.column(SLIP_VARIANCE_COLUMN)[rows],
    )


def sampled_share(state: StudyState) -> float:
    """Return the share of all tokens that were sampled while their items were not counted."""
    sampled, devices = state.arrays[_SAMPLED_EXPOSURE_ARRAY], state.arrays[_DEVICES_ARRAY]
    return float(sampled.sum() / devices.sum())


def drift_of(state: StudyState) -> Drift:
    """Return the measured drift of rates, after one round or more."""
    phi, dispersion, trend, *jumps = state.arrays[_DRIFT_ARRAY].tolist()
    breaks = {block: jump for block, jump in enumerate(jumps) if jump}
    return Drift(phi, dispersion, breaks, trend)


def expected_counts(state: StudyState, devices: int, items: Sequence[str]) -> tuple[Floats, Floats]:
    """Return the expected count of each of `items` among `devices`, and its standard deviation.

    If the last block contradicts the rate of all blocks together, the rate of the last block is
    used, since something has changed. Raises KeyError if an item was never known.
    """
    rows = np.array([state.rows[item] for item in items], np.int64)
    whole = history_of(state)
    history = History(whole.observed[rows], whole.exposure[rows], whole.devices)
    drift = drift_of(state)
    levels = filter_levels(history, drift)
    rates, variances = levels.rates, levels.rate_variances + (drift.phi * history.rates) ** 2
    observed = np.maximum(history.observed[:, -1], 0)
    exposure = np.maximum(history.exposure[:, -1], 1e-9)
    usual = np.sqrt(drift.dispersion * rates * exposure + variances * exposure**2)
    excess = np.abs(observed - rates * exposure) - tuning.LAST_BLOCK_SLACK_TOKENS
    jumped = excess > tuning.LAST_BLOCK_Z_SCORE * usual
    rates = np.where(jumped, observed / exposure, rates)
    variances = np.where(jumped, drift.dispersion * (observed + 1) / exposure**2, variances)
    return rates * devices, np.sqrt(drift.dispersion * rates * devices + variances * devices**2)


@dataclass(frozen=True, eq=False)
class Forecast:
    """Expected totals of the items of `state` after the round of `plan`, with deviations."""

    plan: Plan
    state: StudyState
    totals: Floats
    deviations: Floats

    @classmethod
    def after_round(cls, plan: Plan, state: StudyState) -> "Forecast":
        """Return the forecast after the round of `plan`; it has no items before the first one."""
        if not state.items:
            return cls(plan, state, np.zeros(0), np.zeros(0))
        domain = plan.question.domain
        levels = estimate_levels(domain, state, history_of(state), drift_of(state))
        to_come = (plan.rounds - plan.round) * plan.terms.max_devices
        spread = levels.variances + levels.rate_variances * to_come**2 + levels.rates * to_come
        return cls(plan, state, levels.totals + levels.rates * to_come, np.sqrt(spread))

    def may_reach(self, z_score: float) -> Flags:
        """Return for each total plus `z_score` deviations whether it reaches the threshold."""
        bounds: Floats = self.totals + z_score * self.deviations
        return bounds >= decision_threshold(self.plan.question.threshold)

    def items_reaching(self, z_score: float) -> list[str]:
        """Return the items for which `may_reach` is true, the highest total first."""
        rows = np.flatnonzero(self.may_reach(z_score))
        ordered = rows[np.argsort(-self.totals[rows], kind="stable")]
        return [self.state.items[row] for row in ordered.tolist()]


def choose_counters(forecast: Forecast, nbytes: int) -> tuple[CounterGroup, ...]:
    """Return counters in `nbytes` for the items that may become heavy, the most frequent first."""
    plan, state = forecast.plan, forecast.state
    items = forecast.items_reaching(tuning.UNTRACK_Z_SCORE)
    widths = _counter_widths(plan, state, items)
    max_total = plan.terms.max_devices * plan.question.contribution
    group_bits = 8 * (1 + sum(lane.nbytes for lane in check_lanes(max_total)))
    widths = np.minimum(widths, max_total.bit_length()).astype(np.int64)
    groups = len(np.unique(widths))
    fits = np.cumsum(widths) <= 8 * nbytes - groups * group_bits
    return tuple(
        CounterGroup(
            bits=bits,
            items=tuple(items[row] for row in np.flatnonzero(fits & (widths == bits)).tolist()),
        )
        for bits in np.unique(widths[fits]).tolist()
    )


def _counter_widths(plan: Plan, state: StudyState, items: Sequence[str]) -> Integers:
    """Return the bits of each item's counter, wider after a slip."""
    if not items:
        return np.zeros(0, np.int64)
    bits = counter_bits(*expected_counts(state, plan.terms.max_devices, items))
    slips = state.column(_LAST_SLIP_COLUMN)[[state.rows[item] for item in items]]
    wider = np.ceil(np.log2(1 + 2 * slips / 2.0**bits)).astype(np.int64)
    widened: Integers = bits + np.minimum(wider, tuning.MAX_SLIP_BITS)
    return widened


def likely_heavy(forecast: Forecast) -> list[str]:
    """Return the items that will probably be heavy at the end, the highest total first.

    They must be above the threshold by `FETCH_Z_SCORE` standard deviations while later rounds can
    still confirm it. In the last quarter of a study the estimate alone decides.
    """
    return forecast.items_reaching(0.0 if is_near_end(forecast.plan) else -tuning.FETCH_Z_SCORE)


def is_near_end(plan: Plan) -> bool:
    """Return whether the round after `plan` is in the last quarter of the study."""
    return plan.round + 1 > (1 - tuning.NEAR_END_SHARE) * plan.rounds


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

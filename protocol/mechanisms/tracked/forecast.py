"""Forecast of the totals of a study's items, and the counters and the eviction that it decides.

The forecast adds to each estimated total the rate of its item in the rounds to come.

If there are very many items, the rarest of those that cannot become heavy any more, by six standard
errors, are *evicted*: only their keys are kept, which help to read a stuck table. An evicted item
that is sampled again starts again from zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from protocol.estimation.empirical_bayes import decision_threshold
from protocol.estimation.segments import History
from protocol.mechanisms.sampled_counts import is_firm
from protocol.mechanisms.tracked import observations
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.counters import CounterGroup, check_lanes, counter_bits
from protocol.mechanisms.tracked.rate_filter import estimate_levels, filter_levels
from protocol.mechanisms.tracked.split_counters import (
    SplitCounters,
    SplitGroup,
    classes_of,
    counters_needed,
)
from protocol.mechanisms.tracked.thinned_counts import LEVELS
from protocol.numerics.array_types import Flags, Floats, Integers, Keys
from protocol.question_and_plan import Plan
from protocol.study_state import StudyState
from secagg.oneshot.moduli import Moduli

_EVICTED_KEYS_ARRAY = "evicted keys"  # in the study state


def expected_counts(state: StudyState, devices: int, items: Sequence[str]) -> tuple[Floats, Floats]:
    """Return the expected count of each of `items` among `devices`, and its standard deviation.

    If the last block contradicts the rate of all blocks together, the rate of the last block is
    used, since something has changed. Raises KeyError if an item was never known.
    """
    rows = np.array([state.rows[item] for item in items], np.int64)
    whole = observations.history_of(state)
    history = History(whole.observed[rows], whole.exposure[rows], whole.devices)
    drift = observations.drift_of(state)
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
    """Expected totals of the items of `state` after the round of `plan`, with deviations.

    `reached` has what their totals so far surely reach.
    """

    plan: Plan
    state: StudyState
    totals: Floats
    deviations: Floats
    reached: Floats

    @classmethod
    def after_round(cls, plan: Plan, state: StudyState) -> "Forecast":
        """Return the forecast after the round of `plan`; it has no items before the first one."""
        if not state.items:
            return cls(plan, state, *np.zeros((3, 0)))
        levels = estimate_levels(observations.history_of(state), observations.drift_of(state))
        to_come = (plan.rounds - plan.round) * plan.terms.max_devices
        spread = levels.variances + levels.rate_variances * to_come**2 + levels.rates * to_come
        errors = np.sqrt(levels.variances + state.column(observations.SLIP_VARIANCE_COLUMN))
        reached = levels.totals - tuning.LISTED_Z_SCORE * errors
        totals = levels.totals + levels.rates * to_come
        return cls(plan, state, totals, np.sqrt(spread), reached)

    def may_reach(self, z_score: float) -> Flags:
        """Return for each total plus `z_score` deviations whether it reaches the threshold."""
        bounds: Floats = self.totals + z_score * self.deviations
        return bounds >= decision_threshold(self.plan.question.threshold)

    @cached_property
    def wanted(self) -> list[str]:
        """Return the items that may become heavy, the highest total first."""
        return self.items_reaching(tuning.UNTRACK_Z_SCORE)

    @cached_property
    def expected(self) -> tuple[Floats, Floats, Floats]:
        """Return the next counts of the wanted items: expected, deviations and last slips."""
        if not self.wanted:
            return np.zeros(0), np.zeros(0), np.zeros(0)
        slips = self.state.column(observations.LAST_SLIP_COLUMN)
        rows = [self.state.rows[item] for item in self.wanted]
        devices = self.plan.terms.max_devices
        return *expected_counts(self.state, devices, self.wanted), slips[rows]

    @cached_property
    def heavy(self) -> list[str]:
        """Return the items that would surely be listed after this round, the highest total first.

        They are heavy already, and five devices or more were counted with each.
        """
        question, state = self.plan.question, self.state
        is_heavy = self.reached >= decision_threshold(question.threshold)
        return self._names(is_heavy & is_firm(question, state))

    def items_reaching(self, z_score: float) -> list[str]:
        """Return the items for which `may_reach` is true, the highest total first."""
        return self._names(self.may_reach(z_score))

    def _names(self, chosen: Flags) -> list[str]:
        rows = np.flatnonzero(chosen)
        ordered = rows[np.argsort(-self.totals[rows], kind="stable")]
        return [self.state.items[row] for row in ordered.tolist()]


def choose_counters(forecast: Forecast, nbytes: int) -> tuple[CounterGroup, ...]:
    """Return counters in `nbytes` for the items that may become heavy, the most frequent first."""
    plan, items = forecast.plan, forecast.wanted
    max_total = plan.terms.max_devices * plan.question.contribution
    group_bits = 8 * (1 + sum(lane.nbytes for lane in check_lanes(max_total)))
    widths = np.minimum(_counter_widths(forecast), max_total.bit_length()).astype(np.int64)
    different = np.unique(widths)
    fits = np.cumsum(widths) <= 8 * nbytes - len(different) * group_bits
    return tuple(
        CounterGroup(
            bits=bits,
            items=tuple(items[row] for row in np.flatnonzero(fits & (widths == bits)).tolist()),
        )
        for bits in np.unique(widths[fits]).tolist()
    )


def split_counters(forecast: Forecast, nbytes: int, moduli: Moduli) -> SplitCounters:
    """Return the same for a one-shot sum with the prime of `moduli`."""
    expected, deviations, slips = forecast.expected
    needed = counters_needed(expected, deviations, slips, moduli.prime)
    room = moduli.max_length(moduli.prime, nbytes)
    chosen = int(np.searchsorted(np.cumsum(needed), room, side="right"))
    while True:
        # Counters of one class follow each other: neither in doubt, or both, and about as frequent.
        order = np.lexsort((-expected[:chosen], slips[:chosen] > 0, needed[:chosen]))
        groups = tuple(
            SplitGroup(counters=each, items=tuple(forecast.wanted[row] for row in rows.tolist()))
            for each in np.unique(needed[order]).tolist()
            if len(rows := order[needed[order] == each])
        )
        of_item = np.repeat(order, needed[order])
        of_counters = (expected / needed)[of_item]
        classes = classes_of(of_counters, moduli.prime, of_item, slips[of_item] > 0)
        excess = len(of_counters) + len(LEVELS) * len(classes) - room
        if excess <= 0:
            return SplitCounters(groups, classes, moduli)
        chosen -= 1 + int(excess // needed[:chosen].max(initial=1))


def _counter_widths(forecast: Forecast) -> Integers:
    """Return the bits of each wanted item's counter, wider after a slip."""
    expected, deviations, slips = forecast.expected
    bits = counter_bits(expected, deviations)
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


def evicted_keys(plan: Plan, state: StudyState) -> Keys:
    """Return the keys of evicted items."""
    none = np.zeros((0, plan.question.domain.chunks), np.uint64)
    keys: Keys = state.arrays.get(_EVICTED_KEYS_ARRAY, none)
    return keys

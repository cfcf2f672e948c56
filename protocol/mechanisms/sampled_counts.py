"""Mechanisms that count samples: the counts of each round in the study state, and heavy hitters.

An estimate with c tokens and variance c k comes from c / (1 + k) Poisson tokens among the share 1 /
(1 + k) of the devices (`rate_changes.py`). If all items are sampled alike in a round, only
the tokens that were sampled are stored: the item, its tokens, and their block of rounds. Items of
one round are few compared with all items of a study, so this takes far less than a column of each
round.

**Totals.** Rounds sample at different thresholds, and one that was not read samples nothing (e is
0). So a round with a small exposure takes a part of its tokens from the rates of other rounds, as
far as the item's rate stays: the item may have change points (`estimation/change_points.py`).

**What is shown.** A *firm* item was counted with five devices or more, in the rounds that were
read. Only firm items take part in change points, in the prior and in the expected errors of the
list. For example, with t = 4 an item needs five samples to be firm; each stands for four tokens,
and is of one device. A *faint* item was counted with two to four devices, each of which stands for
others. It may be listed by its own samples, if they make it heavy. Then the total of its segment
and the expected number of missed items depend on it, and no other number. All other items are
hidden: `SampledCounts.shown` leaves them out before anything is estimated.

**Heavy hitters** are chosen by their posterior probability, given that they are shown
(`SampledCounts`).
"""

from collections.abc import Container, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.estimation.change_points import measure_change_rates, relevant_rows, segmented_totals
from protocol.estimation.empirical_bayes import (
    Posterior,
    ShownChances,
    decision_threshold,
    posterior,
)
from protocol.estimation.estimates import (
    COUNT_COLUMN,
    HOLDERS_COLUMN,
    Estimate,
    FinalAnswer,
    ListQuality,
    estimates_of_rows,
    flags,
)
from protocol.estimation.rate_changes import RateHistory
from protocol.estimation.segments import History
from protocol.mechanism import Answer, SumMechanism
from protocol.mechanisms.cohort_comparison import max_unflagged_tokens
from protocol.mechanisms.iblt.threshold_sampling import ThresholdSampler
from protocol.numerics.array_types import Flags, Floats, Indices
from protocol.question_and_plan import P, Plan, Question, SumQuestion
from protocol.study_state import StudyState, all_devices, block_ends, block_of

SumQ = TypeVar("SumQ", bound=SumQuestion)

_ROUNDING_TOLERANCE = 1e-6  # of a number of devices
_TOKEN_DECIMALS = 3  # to which equal observations of items are found; one reading of 32 bits has 7
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


def change_point_totals(state: StudyState, threshold: float) -> tuple[Floats, Floats] | None:
    """Return the totals of the items of `state`, and their variances.

    Items that cannot be relevant for `threshold` have the same rate in all rounds. None if the
    counts of some rounds are not stored.
    """
    devices = state.arrays.get(_DEVICES_ARRAY, np.zeros(0))
    if not devices.sum() or _ROWS_ARRAY not in state.arrays or devices.sum() < all_devices(state):
        return None
    exposure = np.minimum(state.arrays[_EXPOSURE_ARRAY], devices)
    stands_for = np.where(exposure > 0, devices / np.maximum(exposure, 1e-9), 0.0)
    stands_for *= devices.sum() / devices[exposure > 0].sum()
    tokens, unbiased, squares = (_sums_of_items(state, stands_for**power) for power in (0, 1, 2))
    growth = (devices - exposure).sum() / exposure.sum()
    totals, variances = tokens * (1 + growth), tokens * growth * (1 + growth)
    rows = relevant_rows(np.maximum(totals, unbiased), np.maximum(variances, squares), threshold)
    if len(rows):
        observed = _tokens_by_block(state, rows)
        change_rates = measure_change_rates(_history(observed, exposure, devices), 1.0)
        # Many rare items have the same few tokens.
        distinct, places = np.unique(observed.round(_TOKEN_DECIMALS), axis=0, return_inverse=True)
        segmented = segmented_totals(_history(distinct, exposure, devices), change_rates)
        totals[rows] = segmented.totals[places.reshape(-1)]
        variances[rows] = segmented.variances[places.reshape(-1)]
    return totals, variances


def _sums_of_items(state: StudyState, weights: Floats) -> Floats:
    """Return the sum of each item's sampled tokens, with the `weights` of their blocks."""
    tokens = state.arrays[_TOKENS_ARRAY] * weights[state.arrays[_BLOCKS_ARRAY]]
    return np.bincount(state.arrays[_ROWS_ARRAY], tokens, len(state.items)).astype(np.float64)


def _history(observed: Floats, exposure: Floats, devices: Floats) -> History:
    """Return the history of items that were sampled alike."""
    blocks = observed.shape[1]
    return History(observed, np.broadcast_to(exposure[:blocks], observed.shape), devices[:blocks])


def _tokens_by_block(state: StudyState, rows: Indices) -> Floats:
    """Return the sampled tokens of the items in `rows` in the blocks so far, (k, B)."""
    last = int(np.flatnonzero(state.arrays[_DEVICES_ARRAY])[-1]) + 1
    tokens, places = np.zeros((len(rows), last)), np.full(len(state.items), -1)
    places[rows] = np.arange(len(rows))
    if _ROWS_ARRAY in state.arrays:
        stored = places[state.arrays[_ROWS_ARRAY]]
        inside = stored >= 0
        blocks = state.arrays[_BLOCKS_ARRAY][inside]
        np.add.at(tokens, (stored[inside], blocks), state.arrays[_TOKENS_ARRAY][inside])
    return tokens


def round_count_history(plan: Plan, state: StudyState, items: Sequence[str]) -> RateHistory | None:
    """Return the observations of `items` by block of rounds; None before the first round."""
    if _DEVICES_ARRAY not in state.arrays:
        return None
    devices, exposure = state.arrays[_DEVICES_ARRAY], state.arrays[_EXPOSURE_ARRAY]
    tokens = _tokens_by_block(state, np.array([state.rows[item] for item in items], np.int64))
    last = tokens.shape[1]
    shared, ends = np.broadcast_to(exposure[:last], tokens.shape), block_ends(plan.rounds)[:last]
    return RateHistory(tokens, shared, devices[:last], ends)


def max_device_counts(
    plan: Plan, estimates: Sequence[Estimate], counted: Container[str] = ()
) -> Floats:
    """Return for each of a round's `estimates` the most that one device adds to it.

    Items that are not `counted` exactly are sampled at the plan's t. A count without some of the
    cohorts is scaled to all devices, and so is the part of each device.
    """
    sampled = ThresholdSampler(plan.t, plan.question.contribution).max_device_count(1)
    counts = [(1 if each.item in counted else sampled) / each.counted_share for each in estimates]
    return np.array(counts, np.float64)


def is_firm(question: Question, state: StudyState) -> Flags:
    """Return for each item of `state` whether five devices or more were counted with it."""
    holders = state.column(HOLDERS_COLUMN)
    firm: Flags = holders >= question.least_holders - _ROUNDING_TOLERANCE
    return firm


def select_items(state: StudyState, is_kept: Flags) -> StudyState:
    """Return `state` with the items of `is_kept`, and their counts in each round."""
    kept = state.select_rows(is_kept)
    if _ROWS_ARRAY not in state.arrays:
        return kept
    rows, places = state.arrays[_ROWS_ARRAY], np.cumsum(is_kept, dtype=np.int32) - 1
    inside = is_kept[rows]
    for name in (_BLOCKS_ARRAY, _TOKENS_ARRAY):
        kept = kept.with_array(name, state.arrays[name][inside])
    return kept.with_array(_ROWS_ARRAY, places[rows[inside]].astype(np.int32))


class SampledCounts(SumMechanism[SumQ, P]):
    """Base of mechanisms whose totals are sampled counts.

    An item is listed if it is shown, and heavy with a probability of at least the question's
    `confidence`, given the estimates of all shown items (`empirical_bayes.py`). Its estimate is its
    posterior mean, so that items that are listed since they were sampled often by chance are not
    too high. Rounds that were not read make no item shown, although they add to its estimate.
    """

    def shown(self, question: SumQ, state: StudyState) -> StudyState:
        """Return `state` with its firm items, and the faint ones that may be listed."""
        counts, holders = state.column(COUNT_COLUMN), state.column(HOLDERS_COLUMN)
        is_faint = (counts >= question.least_holders) & (holders > 1.5)
        return select_items(state, is_firm(question, state) | is_faint)

    def shown_distinct(self, plan: P, answer: Answer) -> float | None:
        """Return the number of items that a round counted among five devices; None if unread."""
        if not answer.decoded:
            return None
        counts = np.array([each.count for each in answer.estimates], np.float64)
        holders = counts / max_device_counts(plan, answer.estimates)
        return float((holders >= plan.question.least_holders - _ROUNDING_TOLERANCE).sum())

    def final_estimates(self, question: SumQ, state: StudyState) -> list[Estimate]:
        return list(self.final_answer(question, state).heavy_hitters)

    def final_answer(self, question: SumQ, state: StudyState) -> FinalAnswer:
        shown = self.shown(question, state)
        if not shown.items:
            return FinalAnswer(())
        result, firm = self._posterior(question, shown), is_firm(question, shown)
        is_listed = result.heavy >= question.confidence
        if not (firm | is_listed).any():  # nor may the quality show that there are faint items
            return FinalAnswer(())
        rows = np.flatnonzero(is_listed)
        correct = float(result.heavy[rows].sum())
        missed = float(result.heavy[firm & ~is_listed].sum()) + result.hidden_heavy
        quality = ListQuality(
            expected_precision=round(correct / len(rows), 4) if len(rows) else None,
            expected_recall=round(correct / (correct + missed), 4) if len(rows) else None,
            expected_missed=round(missed, 2),
        )
        return FinalAnswer(tuple(_estimates(question, shown, rows, result)), quality)

    def samplers(self, plan: P) -> Sequence[ThresholdSampler]:
        """Return the samplers by which the devices of a round may count an item."""
        return (ThresholdSampler(plan.t, plan.question.contribution),)

    def lift_by_liars(self, plan: P, liars: int) -> float:
        """Return the largest lift that keeps the laws of cohorts and is not flagged."""
        terms, samplers = plan.terms, self.samplers(plan)
        spoilt, lifts = min(liars, terms.cohorts), list[float]()
        for sampler in samplers:
            size = terms.cohort_size
            units = min(sampler.max_units(size * sampler.max_count), size * sampler.max_item_units)
            unflagged = max_unflagged_tokens(terms.cohorts, spoilt, sampler.max_item_units)
            lifts.append(sampler.unit * min(spoilt * units, unflagged))
        return min(max(lifts), float(terms.max_devices * plan.question.contribution))

    def shown_totals(self, question: SumQ, state: StudyState) -> list[Estimate]:
        shown = self.shown(question, state)
        if not shown.items:
            return []
        result = self._posterior(question, shown)
        is_counted = is_firm(question, shown) | (result.heavy >= question.confidence)
        return _estimates(question, shown, np.flatnonzero(is_counted), result)

    def firm_items(self, question: SumQ, state: StudyState) -> StudyState:
        """Return `state` with the items that may be in any number shown."""
        return select_items(state, is_firm(question, state))

    def _posterior(self, question: SumQ, shown: StudyState) -> Posterior:
        """Return the posterior of the `shown` items; no other result depends on a faint item."""
        firm = is_firm(question, shown)
        counts, variances = (column.copy() for column in self.totals(shown))
        fitted = self.firm_items(question, shown)
        counts[firm], variances[firm] = self.final_totals(question, fitted)
        least = question.least_holders / np.maximum(shown.column(HOLDERS_COLUMN), 1e-9)
        least[firm] = np.minimum(least[firm], 1.0)  # which rounding may exceed
        threshold = decision_threshold(question.threshold)
        known = self.known_by(question, fitted)
        return posterior(counts, variances, threshold, known, least, question.confidence)

    def estimates_quality(self, question: SumQ) -> bool:
        del question
        return True

    def final_totals(self, question: SumQ, state: StudyState) -> tuple[Floats, Floats]:
        """Return the best estimates of all items' totals, and their variances.

        If some of the cohorts of an item were left out, its own variance has this error too. If
        the counts of some rounds are not stored, all items have the same variance per token.
        """
        counts, variances = self.totals(state)
        estimated = change_point_totals(state, question.threshold)
        if estimated is None:
            estimated = counts, counts * float(variances.sum() / max(counts.sum(), 1e-9))
        totals, usual = estimated
        return totals, np.where(flags(state), np.maximum(variances, usual), usual)

    def known_by(self, question: SumQ, state: StudyState) -> float | ShownChances:
        """Return the share of all tokens by which items became known; here the sampled share."""
        del question
        devices = state.arrays.get(_DEVICES_ARRAY, np.ones(1))
        return float(state.arrays.get(_EXPOSURE_ARRAY, devices).sum() / devices.sum())


def _estimates(
    question: SumQuestion, state: StudyState, rows: Indices, result: Posterior
) -> list[Estimate]:
    """Return the posterior means of the items in `rows`, the highest first.

    They are rounded, because the last digits of a fit depend on the order of its sums.
    """
    means = np.minimum(result.means, question.largest_count(all_devices(state)))
    columns = means.round(3), result.variances.round(5), result.heavy.round(5)
    return estimates_of_rows(state, rows, *columns)

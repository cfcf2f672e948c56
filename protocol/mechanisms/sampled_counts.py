"""Mechanisms that count samples: the counts of each round in the study state, and heavy hitters.

An estimate with c tokens and variance c k comes from c / (1 + k) Poisson tokens among the share 1 /
(1 + k) of the devices (`rate_changes.py`). If all items are sampled alike in a round, only
the tokens that were sampled are stored: the item, its tokens, and their block of rounds. Items of
one round are few compared with all items of a study, so this takes far less than a column of each
round.

**Totals.** Rounds sample at different thresholds, and one that was not read samples nothing (e is
0). So a round with a small exposure takes a part of its tokens from the rates of other rounds, as
far as the item's rate stays: the item may have change points (`estimation/change_points.py`).

**Heavy hitters** are chosen by their posterior probability (`SampledCounts`).

**Totals** of items that are not listed are shown only if four devices with all of their items do
not reach them (`Question.least_total`), in the rounds that were read. This holds for a segment, and
for all items that are neither listed nor in a shown segment: otherwise the difference between the
total of all items and those that are shown would be the count of a few devices. The same is true of
the numbers of different items.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.domains.base import BaseDomain
from protocol.estimation.change_points import measure_change_rates, relevant_rows, segmented_totals
from protocol.estimation.empirical_bayes import decision_threshold, posterior
from protocol.estimation.estimates import (
    COUNT_COLUMN,
    Estimate,
    FinalAnswer,
    ListQuality,
    estimates_of_rows,
    flags,
)
from protocol.estimation.history import History
from protocol.estimation.rate_changes import RateHistory
from protocol.mechanism import Answer, SumMechanism
from protocol.numerics.arrays import Flags, Floats, Indices
from protocol.question_and_plan import P, Plan, Question, SumQuestion
from protocol.study_state import StudyState, all_devices, block_ends, block_of

SumQ = TypeVar("SumQ", bound=SumQuestion)

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


def sampled_share(state: StudyState) -> float | None:
    """Return the share of all tokens that were sampled; None if it is not stored."""
    devices = state.arrays.get(_DEVICES_ARRAY, np.zeros(1)).sum()
    return float(state.arrays[_EXPOSURE_ARRAY].sum() / devices) if devices else None


def round_count_history(plan: Plan, state: StudyState, items: Sequence[str]) -> RateHistory | None:
    """Return the observations of `items` by block of rounds; None before the first round."""
    if _DEVICES_ARRAY not in state.arrays:
        return None
    devices, exposure = state.arrays[_DEVICES_ARRAY], state.arrays[_EXPOSURE_ARRAY]
    tokens = _tokens_by_block(state, np.array([state.rows[item] for item in items], np.int64))
    last = tokens.shape[1]
    shared = np.broadcast_to(exposure[:last], tokens.shape)
    return RateHistory(tokens, shared, devices[:last], block_ends(plan.rounds)[:last])


def segments_of(domain: BaseDomain) -> tuple[str, ...]:
    """Return the segments of `domain` in the order of its list; empty if it has none."""
    segments: tuple[str, ...] = getattr(domain, "segments", ())
    return segments


def shown_segments(question: Question, state: StudyState) -> tuple[Indices, Flags]:
    """Return the segment of each item of `state`, and for each segment whether its total is shown.

    The rounds that were read must have counted it among five devices or more: in those that were
    not read, it is only assumed to be as frequent.
    """
    rows = {segment: row for row, segment in enumerate(segments_of(question.domain))}
    names = [question.domain.segment_of(item) or "" for item in state.items]
    places: Indices = np.array([rows[name] for name in names], np.int64)
    counts = np.bincount(places, state.column(COUNT_COLUMN), len(rows))
    is_shown: Flags = counts >= max(question.threshold, question.least_total)
    return places, is_shown


def shown_distinct(question: Question, answer: Answer) -> float:
    """Return the number of different items of a round that was read, as far as it is shown.

    Items that are rare in the round count only if together they are of five devices or more.
    """
    rare = [each.count for each in answer.estimates if 0 < each.count < question.least_counted]
    if not answer.decoded or sum(rare) >= question.least_total:
        return answer.distinct
    return max(0.0, answer.distinct - len(rare))


class SampledCounts(SumMechanism[SumQ, P]):
    """Base of mechanisms whose totals are sampled counts.

    An item is listed if it is heavy with a probability of at least the question's `confidence`,
    given the estimates of all items (`empirical_bayes.py`). Its estimate is its posterior
    mean, so that items that are listed since they were sampled often by chance are not too high.
    In the rounds that were read it must have been counted among five devices with default settings:
    without that, an item of a single device could be listed for the rounds that were not.
    """

    def final_estimates(self, question: SumQ, state: StudyState) -> list[Estimate]:
        return list(self.final_answer(question, state).heavy_hitters)

    def final_answer(self, question: SumQ, state: StudyState) -> FinalAnswer:
        if not state.items:
            return FinalAnswer(())
        counts, variances = self.final_totals(question, state)
        threshold = decision_threshold(question.threshold)
        result = posterior(counts, variances, threshold, self.known_share(state))
        # What was counted, not what rounds that were not read may have had in addition.
        is_counted = state.column(COUNT_COLUMN) >= question.least_counted
        is_listed = (result.heavy >= question.confidence) & is_counted
        rows = np.flatnonzero(is_listed)
        means = np.minimum(result.means, question.largest_count(all_devices(state)))
        listed = estimates_of_rows(state, rows, means, result.variances, result.heavy)
        is_summed = self._is_summed(question, state, is_listed)
        if not is_summed.any():  # as without any item
            return FinalAnswer(())
        tokens, token_variances = (column[is_summed] for column in self.totals(state))
        total = max(1.0, float(tokens.sum()))
        correct = float(result.heavy[rows].sum())
        missed = float(result.heavy[~is_listed].sum()) + result.unknown_heavy
        quality = ListQuality(
            expected_precision=correct / len(rows) if len(rows) else 1.0,
            expected_recall=correct / (correct + missed) if len(rows) else 0.0,
            expected_missed=missed,
            tokens=total,
            tokens_standard_error=math.sqrt(float(token_variances.sum())),
            unlisted_share=min(1.0, max(0.0, 1 - float(means[rows].sum()) / total)),
            distinct_items=int(is_summed.sum()) + result.unknown_items,
        )
        return FinalAnswer(tuple(listed), quality)

    def _is_summed(self, question: SumQ, state: StudyState, is_listed: Flags) -> Flags:
        """Return the items that count for the totals of all items, without those of few devices."""
        is_shown = is_listed.copy()
        if segments_of(question.domain) and self.remembers_all(state):
            places, segments = shown_segments(question, state)
            is_shown |= segments[places]
        rest = float(state.column(COUNT_COLUMN)[~is_shown].sum())
        return is_shown if rest < question.least_total else np.ones_like(is_shown)

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

    def known_share(self, state: StudyState) -> float:
        """Return the share of all tokens by which items became known; here the sampled share.

        If it is not stored: a count with variance v is a sample of the share count / (count + v).
        """
        share = sampled_share(state)
        if share is not None:
            return share
        counts, variances = self.totals(state)
        counts = np.maximum(counts, 0)
        shares = counts / np.maximum(counts + np.maximum(variances, 0), 1e-9)
        return float((shares * counts).sum() / max(counts.sum(), 1e-9))

"""Heavy hitters of mechanisms that estimate totals from sampled counts, by their posterior."""

import math
from typing import TypeVar

import numpy as np

from protocol.empirical_bayes import decision_threshold, posterior
from protocol.estimates import Estimate, FinalAnswer, ListQuality, estimates_of_rows, flags
from protocol.mechanism import SumMechanism
from protocol.mechanisms.device_counts import all_devices
from protocol.mechanisms.iblt.round_counts import capped_totals, sampled_share
from protocol.numerics.arrays import Floats
from protocol.question_and_plan import P, SumQuestion
from protocol.study_state import StudyState

SumQ = TypeVar("SumQ", bound=SumQuestion)


class SampledCounts(SumMechanism[SumQ, P]):
    """Base of mechanisms whose totals are sampled counts.

    An item is listed if it is heavy with a probability of at least the question's `confidence`,
    given the estimates of all items (`protocol/empirical_bayes.py`). Its estimate is its posterior
    mean, so that items that are listed since they were sampled often by chance are not too high.
    """

    def final_estimates(self, question: SumQ, state: StudyState) -> list[Estimate]:
        return list(self.final_answer(question, state).heavy_hitters)

    def final_answer(self, question: SumQ, state: StudyState) -> FinalAnswer:
        if not state.items:
            return FinalAnswer(())
        counts, variances = self.final_totals(question, state)
        threshold = decision_threshold(question.threshold)
        result = posterior(counts, variances, threshold, self.known_share(state))
        is_listed = result.heavy >= question.confidence
        rows = np.flatnonzero(is_listed)
        means = np.minimum(result.means, question.largest_count(all_devices(state)))
        listed = estimates_of_rows(state, rows, means, result.variances, result.heavy)
        tokens, token_variances = self.totals(state)
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
            distinct_items=len(counts) + result.unknown_items,
        )
        return FinalAnswer(tuple(listed), quality)

    def estimates_quality(self, question: SumQ) -> bool:
        del question
        return True

    def final_totals(self, question: SumQ, state: StudyState) -> tuple[Floats, Floats]:
        """Return the best estimates of all items' totals, and their variances.

        Here all items have the same variance per token: all were sampled alike. If some of the
        cohorts of an item were left out, its own variance has this error too.
        """
        del question
        counts, variances = self.totals(state)
        per_token = float(variances.sum() / max(counts.sum(), 1e-9))
        by_round = capped_totals(state)
        if by_round is not None:
            counts, per_token = by_round
        usual = counts * per_token
        return counts, np.where(flags(state), np.maximum(variances, usual), usual)

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

"""Repository of answers: study states and heavy hitters."""

import math
from collections.abc import Iterable

import numpy as np
from sqlalchemy import and_, delete, func, insert, or_, select
from sqlalchemy.orm import Session

from protocol.api.messages import HeavyHitter
from protocol.estimation.empirical_bayes import probabilities_of_reaching
from protocol.estimation.estimates import Estimate, ListQuality
from protocol.mechanisms.registry import MECHANISMS, AnyQuestion, parse_question
from protocol.study_state import EMPTY_STATE, StudyState
from server.db.database import Repository, read_transaction
from server.db.repositories.studies.studies import find_study
from server.db.schema import HeavyHitterRow, RoundRow, StudyStateRow


class AnswerRepository(Repository):
    """Repository of answers."""

    @read_transaction
    def study_state(self, session: Session, study: str) -> StudyState:
        """Return the whole study state, which only the next round may depend on."""
        row = session.get(StudyStateRow, study)
        return EMPTY_STATE if row is None else StudyState.unpack(row.body)

    @read_transaction
    def shown_state(self, session: Session, study: str) -> StudyState:
        """Return the part of the study state that an analyst's answer may depend on."""
        question = parse_question(find_study(session, study).question)
        row = session.get(StudyStateRow, study)
        state = EMPTY_STATE if row is None else StudyState.unpack(row.body)
        shown: StudyState = MECHANISMS[question.mechanism].shown(question, state)
        return shown

    @read_transaction
    def heavy_hitters(
        self,
        session: Session,
        study: str,
        limit: int | None = None,
        after: HeavyHitter | None = None,
    ) -> tuple[HeavyHitter, ...]:
        """Return at most `limit` heavy hitters of `study` after the item `after`.

        The most frequent item is first; items with equal estimates are in the order of their bytes.
        """
        question = parse_question(find_study(session, study).question)
        mechanism = MECHANISMS[question.mechanism]
        estimate, item = HeavyHitterRow.estimate, HeavyHitterRow.item
        query = select(HeavyHitterRow).where(HeavyHitterRow.study == study)
        if after is not None:
            equal = and_(estimate == after.estimate, item > after.item)
            query = query.where(or_(estimate < after.estimate, equal))
        rows = session.scalars(query.order_by(estimate.desc(), item).limit(limit)).all()
        counts = np.array([row.estimate for row in rows], np.float64)
        variances = np.array([row.variance for row in rows], np.float64)
        low, high = mechanism.confidence_interval(counts, variances)
        reaching = probabilities_of_reaching(counts, variances, question.threshold)
        devices = _devices(session, study, question)
        low, high = np.maximum(low, 0), np.minimum(high, question.largest_count(devices))
        return tuple(
            HeavyHitter(
                item=row.item,
                estimate=row.estimate,
                standard_error=math.sqrt(row.variance),
                low=lower,
                high=upper,
                share=question.share(row.estimate, devices),
                share_low=question.share(lower, devices),
                share_high=question.share(upper, devices),
                cohort_p_value=row.cohort_p_value,
                probability=probability if row.probability is None else row.probability,
            )
            for row, lower, upper, probability in zip(
                rows, low.tolist(), high.tolist(), reaching.tolist(), strict=True
            )
        )

    @read_transaction
    def list_quality(self, session: Session, study: str) -> ListQuality | None:
        """Return the expected quality of the list of heavy hitters, if it is estimated."""
        row = session.get(StudyStateRow, study)
        if row is None or row.quality is None:
            return None
        return ListQuality.model_validate_json(row.quality)


def _devices(session: Session, study: str, question: AnyQuestion) -> int:
    """Return the number of devices in the sums of `study` so far."""
    devices = func.max if question.asks_every_round else func.sum
    query = select(devices(RoundRow.participants)).where(RoundRow.study == study)
    return session.scalar(query) or 0


def save_study_state(
    session: Session,
    study: str,
    state: StudyState,
    heavy_hitters: Iterable[Estimate],
    quality: ListQuality | None = None,
) -> None:
    """Store `state`, its `heavy_hitters` and their `quality`, replacing the previous ones."""
    packed = None if quality is None else quality.model_dump_json()
    session.merge(StudyStateRow(study=study, body=state.pack(), quality=packed))
    session.execute(delete(HeavyHitterRow).where(HeavyHitterRow.study == study))
    rows = [
        {
            "study": study,
            "item": row.item,
            "estimate": row.count,
            "variance": row.variance,
            "cohort_p_value": row.cohort_p_value,
            "probability": row.probability,
        }
        for row in heavy_hitters
    ]
    if rows:
        session.execute(insert(HeavyHitterRow), rows)

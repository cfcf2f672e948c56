"""Answers: what a study's rounds say together, item by item."""

import math
from dataclasses import dataclass

from sqlalchemy import Float, Select, and_, func, or_, select, type_coerce
from sqlalchemy.orm import Session

from protocol.messages import HeavyHitter
from server.database import Database, reading
from server.schema import Estimate
from server.store.studies import find_study


@dataclass(frozen=True, slots=True)
class Answers:
    """The book of answers."""

    database: Database

    @reading
    def heavy_hitters(
        self,
        session: Session,
        study: str,
        limit: int | None = None,
        after: HeavyHitter | None = None,
    ) -> tuple[HeavyHitter, ...]:
        """Return the items whose summed estimates reach the threshold of `study`.

        Most frequent first, items of one estimate in the order of their bytes; at most
        `limit`, of those behind `after`.
        """
        threshold = find_study(session, study).question["threshold"]
        query = _query(study, threshold, limit, after)
        rows = session.execute(query).all()
        return tuple(
            HeavyHitter(item=item, estimate=count, standard_error=math.sqrt(max(variance, 0)))
            for item, count, variance in rows
        )


def _query(
    study: str, threshold: float, limit: int | None, after: HeavyHitter | None
) -> "Select[str, float, float]":
    """Return the query: rounds are independent, so variances add up like estimates."""
    count = type_coerce(func.sum(Estimate.count), Float)
    variance = type_coerce(func.sum(Estimate.variance), Float)
    query = (
        select(Estimate.item, count, variance)
        .where(Estimate.study == study)
        .group_by(Estimate.item)
        .having(count >= threshold)
        .order_by(count.desc(), Estimate.item)
        .limit(limit)
    )
    if after is not None:
        equal = and_(count == after.estimate, Estimate.item > after.item)
        query = query.having(or_(count < after.estimate, equal))
    return query

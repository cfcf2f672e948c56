"""Answers: what a study's rounds say together, item by item."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from sqlalchemy import and_, delete, insert, or_, select
from sqlalchemy.orm import Session

from protocol.mechanism import Estimate
from protocol.mechanisms import MECHANISMS
from protocol.messages import HeavyHitter as Heavy
from protocol.tally import NOTHING, Tally
from server.database import Database, reading
from server.schema import HeavyHitter, StudyTally
from server.store.studies import find_study


@dataclass(frozen=True, slots=True)
class Answers:
    """The book of answers."""

    database: Database

    @reading
    def tally(self, session: Session, study: str) -> Tally:
        """Return what the rounds of `study` have said so far."""
        row = session.get(StudyTally, study)
        return NOTHING if row is None else Tally.unpack(row.body)

    @reading
    def heavy_hitters(
        self,
        session: Session,
        study: str,
        limit: int | None = None,
        after: Heavy | None = None,
    ) -> tuple[Heavy, ...]:
        """Return the items that are heavy by the tally of `study`.

        Most frequent first, items of one estimate in the order of their bytes; at most
        `limit`, of those behind `after`.
        """
        mechanism = MECHANISMS[find_study(session, study).question["mechanism"]]
        estimate, item = HeavyHitter.estimate, HeavyHitter.item
        query = select(HeavyHitter).where(HeavyHitter.study == study)
        if after is not None:
            equal = and_(estimate == after.estimate, item > after.item)
            query = query.where(or_(estimate < after.estimate, equal))
        rows = session.scalars(query.order_by(estimate.desc(), item).limit(limit)).all()
        counts = np.array([row.estimate for row in rows], np.float64)
        variances = np.array([row.variance for row in rows], np.float64)
        low, high = mechanism.interval(counts, variances)
        return tuple(
            Heavy(
                item=row.item,
                estimate=row.estimate,
                standard_error=math.sqrt(row.variance),
                low=lower,
                high=upper,
            )
            for row, lower, upper in zip(rows, low.tolist(), high.tolist(), strict=True)
        )


def keep_tally(session: Session, study: str, tally: Tally, heavy: Iterable[Estimate]) -> None:
    """Keep `tally`, and which items are `heavy` by it, in the place of what was there."""
    session.merge(StudyTally(study=study, body=tally.pack()))
    session.execute(delete(HeavyHitter).where(HeavyHitter.study == study))
    rows = [
        {"study": study, "item": one.item, "estimate": one.count, "variance": one.variance}
        for one in heavy
    ]
    if rows:
        session.execute(insert(HeavyHitter), rows)

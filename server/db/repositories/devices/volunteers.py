"""Repository of volunteers: the devices from which a registrar draws the committee of a sum.

Their keys are messages of members (`server/db/repositories/committees.py`). While the round is
seating, the list of volunteers is fixed, and waits for the committee that the registrar signs.
"""

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from protocol.api.messages import ProblemType, Timeouts
from protocol.api.phases import MemberMessageKind, Phase
from protocol.question_and_plan import Terms
from secagg.oneshot.committee import Committee
from server.db.database import Repository, read_transaction, write_transaction
from server.db.repositories.cohort_phases import enter_phase, fix_committee
from server.db.repositories.studies import find_study
from server.db.schema import CohortRow, MemberMessageRow
from server.errors import ProblemError, cohort_failed, not_found, out_of_phase

_RESOURCE = "the draw of a committee"


class VolunteerRepository(Repository):
    """Repository of volunteers."""

    @read_transaction
    def keys(self, session: Session, study: str, number: int) -> Sequence[bytes]:
        """Return the keys of all volunteers of a round, as they sent them, by their identities.

        Raises:
            ProblemError: if no registrar draws a committee in this round, or devices still
                volunteer.
        """
        row = _find_drawn(session, study, number)
        if row.phase is Phase.CONVENING:
            raise out_of_phase(_RESOURCE, Phase.DRAWING, row.phase)
        of_kind = (
            MemberMessageRow.cohort == row.id,
            MemberMessageRow.kind == MemberMessageKind.KEY,
        )
        query = select(MemberMessageRow.body).where(*of_kind).order_by(MemberMessageRow.identity)
        return [body for body in session.scalars(query) if body is not None]

    @write_transaction
    def convene(self, session: Session, study: str, number: int, committee: Committee) -> int:
        """Store the checked committee and collect messages; return the row id of the cohort.

        The same committee may be sent again.

        Raises:
            ProblemError: if the round is in another phase, or has another committee.
        """
        row = _find_drawn(session, study, number, lock=True)
        if row.committee == committee.pack():
            return row.id
        if row.committee is not None:
            detail = "the registrar sent another committee before"
            raise ProblemError(ProblemType.CONFLICT, detail, phase=row.phase)
        if row.phase is Phase.FAILED:
            raise cohort_failed(row.failure)
        if row.phase is not Phase.DRAWING:
            raise out_of_phase(_RESOURCE, Phase.DRAWING, row.phase)
        fix_committee(session, row, committee)
        timeouts = Timeouts.model_validate(find_study(session, study).timeouts)
        duration, now = timedelta(seconds=timeouts.collecting), self.database.now(session)
        enter_phase(session, row, Phase.COLLECTING, 1, now, duration)
        return row.id


def _find_drawn(session: Session, study: str, number: int, *, lock: bool = False) -> CohortRow:
    query = select(CohortRow).where(CohortRow.study == study, CohortRow.round == number)
    terms = Terms.model_validate(find_study(session, study).terms)
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None or not terms.draws_committee:
        raise not_found("round whose committee a registrar draws")
    return row

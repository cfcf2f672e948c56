"""Separate cause of the end for studies whose rounds are all over without an answer."""

from alembic import op

revision = "0008_studies_without_answer"
down_revision = "0007_cohort_ids"


def upgrade() -> None:
    """Give it to studies that ended before."""
    op.execute(
        "UPDATE studies SET end_cause = 'no-answer' WHERE end_cause = 'last-round' AND NOT EXISTS "
        "(SELECT 1 FROM rounds WHERE rounds.study = studies.id AND rounds.state = 'decoded')"
    )

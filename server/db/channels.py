"""Names of notification channels, and their notification as part of a transaction.

PostgreSQL delivers a notification when its transaction is committed. Uploads are not announced: the
process that accepts one wakes its own orchestrator, and NOTIFY makes transactions commit one after
the other.
"""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

PG_CHANNEL = "blindtally"


def cohort_channel(cohort: int) -> str:
    return f"cohort {cohort}"


def study_channel(study: str) -> str:
    return f"study {study}"


def notify_on_commit(session: Session, *channels: str) -> None:
    """Notify all processes that listen to `channels` when this transaction is committed.

    Their names are one payload, of which PostgreSQL accepts 8,000 bytes.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_notify(PG_CHANNEL, "\n".join(channels))))

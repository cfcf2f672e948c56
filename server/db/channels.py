"""Names of notification channels, and their notification as part of a transaction.

PostgreSQL delivers a notification when its transaction is committed. So no process learns of a
change that is rolled back, and a process that receives a notification reads committed rows.
Uploads are not announced: the process that accepts one wakes its own orchestrator, and NOTIFY makes
transactions commit one after the other.
"""

from collections.abc import Iterator

from sqlalchemy import func, select
from sqlalchemy.orm import Session

PG_CHANNEL = "blindtally"
_MAX_PAYLOAD_BYTES = 7000  # of channel names in one notification; PostgreSQL accepts 8000 bytes


def cohort_channel(cohort: int) -> str:
    """Return the name of the channel for phase changes of a cohort."""
    return f"cohort {cohort}"


def study_channel(study: str) -> str:
    """Return the name of the channel for the rounds of a study."""
    return f"study {study}"


def notify_on_commit(session: Session, *channels: str) -> None:
    """Notify all processes that listen to `channels` when this transaction is committed."""
    if session.get_bind().dialect.name == "postgresql":
        for payload in _payloads(channels):
            session.execute(select(func.pg_notify(PG_CHANNEL, payload)))


def _payloads(channels: tuple[str, ...]) -> Iterator[str]:
    """Yield payloads of names, one per line, each as long as one notification accepts."""
    lines: list[str] = []
    for channel in channels:
        nbytes = sum(len(line.encode()) + 1 for line in (*lines, channel))
        if lines and nbytes > _MAX_PAYLOAD_BYTES:
            yield "\n".join(lines)
            lines = []
        lines.append(channel)
    if lines:
        yield "\n".join(lines)

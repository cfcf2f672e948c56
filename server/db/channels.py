"""Names of notification channels, and their notification as part of a transaction.

This process is notified after the commit, and PostgreSQL notifies the others. Uploads are not
announced: the process that accepts one wakes its own orchestrator, and NOTIFY makes transactions
commit one after the other.
"""

from collections.abc import Collection, Iterator

from sqlalchemy import func, select
from sqlalchemy.orm import Session

PG_CHANNEL = "blindtally"
COMMITTEES_CHANNEL = "committees"  # notified when any round waits for messages of members
_COHORT = "cohort "
_COHORTS = "cohorts "
_STUDY = "study "
_MAX_PAYLOAD_BYTES = 7_999  # PostgreSQL accepts less than 8,000
_CHANNELS_KEY = "channels"  # in the `info` of a session


def cohort_channel(cohort: int) -> str:
    return f"{_COHORT}{cohort}"


def cohorts_channel(study: str) -> str:
    """Return the channel of all cohorts of a study, for when it gets new ones."""
    return f"{_COHORTS}{study}"


def study_channel(study: str) -> str:
    """Return the channel of the events of a study."""
    return f"{_STUDY}{study}"


def cohort_of(channel: str) -> int | None:
    """Return the cohort of its channel, None for another channel."""
    return int(channel.removeprefix(_COHORT)) if channel.startswith(_COHORT) else None


def study_of(channel: str) -> str | None:
    """Return the study of the channel of all its cohorts, None for another channel."""
    return channel.removeprefix(_COHORTS) if channel.startswith(_COHORTS) else None


def notify_on_commit(session: Session, *channels: str) -> None:
    """Notify all processes that listen to `channels` when this transaction is committed."""
    session.info.setdefault(_CHANNELS_KEY, {}).update(dict.fromkeys(channels))


def send_notifications(session: Session) -> None:
    """Send the notifications of a transaction to other processes, as its last statements.

    PostgreSQL delivers them after the commit. SQLite has no other process.
    """
    if session.get_bind().dialect.name == "postgresql":
        for payload in _payloads(announced_channels(session)):
            session.execute(select(func.pg_notify(PG_CHANNEL, payload)))


def _payloads(channels: Collection[str]) -> Iterator[str]:
    """Yield the names of `channels`, one a line, in payloads that PostgreSQL accepts."""
    payload = ""
    for channel in channels:
        if payload and len(payload) + 1 + len(channel) > _MAX_PAYLOAD_BYTES:
            yield payload
            payload = ""
        payload = f"{payload}\n{channel}" if payload else channel
    if payload:
        yield payload


def announced_channels(session: Session) -> tuple[str, ...]:
    """Return the channels that the committed transaction of `session` notifies."""
    channels: dict[str, None] = session.info.get(_CHANNELS_KEY, {})
    return tuple(channels)

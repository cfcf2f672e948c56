"""Names of notification channels, and their notification as part of a transaction.

This process is notified after the commit, and PostgreSQL notifies the others. Uploads are not
announced: the process that accepts one wakes its own orchestrator, and NOTIFY makes transactions
commit one after the other.
"""

from collections.abc import Collection

from sqlalchemy import func, select
from sqlalchemy.orm import Session

PG_CHANNEL = "blindtally"
COMMITTEES_CHANNEL = "committees"  # notified when any round waits for messages of members
_COHORT = "cohort "
_STUDY = "study "
_CHANNELS_KEY = "channels"  # in the `info` of a session


def cohort_channel(cohort: int) -> str:
    return f"{_COHORT}{cohort}"


def study_channel(study: str) -> str:
    return f"{_STUDY}{study}"


def cohort_of(channel: str) -> int | None:
    """Return the cohort of its channel, None for another channel."""
    return int(channel.removeprefix(_COHORT)) if channel.startswith(_COHORT) else None


def study_of(channel: str) -> str | None:
    """Return the study of its channel, None for another channel."""
    return channel.removeprefix(_STUDY) if channel.startswith(_STUDY) else None


def notify_on_commit(session: Session, *channels: str) -> None:
    """Notify all processes that listen to `channels` when this transaction is committed.

    Their names are one payload, of which PostgreSQL accepts 8,000 bytes.
    """
    session.info.setdefault(_CHANNELS_KEY, {}).update(dict.fromkeys(channels))
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_notify(PG_CHANNEL, "\n".join(channels))))


def announced_channels(session: Session) -> Collection[str]:
    """Return the channels that the committed transaction of `session` notifies."""
    channels: dict[str, None] = session.info.get(_CHANNELS_KEY, {})
    return channels.keys()

"""Idempotency keys of creations: the client's key, a digest of the request, the response.

The transaction that stores a study also stores its key, so either both exist or neither, and the
primary key lets one of several concurrent uses win. Storing a key deletes some expired ones: a key
has expired once two readings of the clock agree that it is a day old (`server/db/clock.py`).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select, tuple_
from sqlalchemy.orm import Session

from protocol.api.messages import ProblemType
from server.db.clock import confirmed_time
from server.db.schema import IdempotencyKeyRow
from server.errors import ProblemError

RETENTION = timedelta(hours=24)
_MAX_DELETED_KEYS = 100  # per request, so that no request waits for long


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """Request for a creation; the same `key` and `digest` mean the same creation.

    `scope` names the created kind and its creator: keys of one scope are unknown in another.
    """

    scope: str
    key: str
    digest: bytes


def find_response(
    session: Session, intent: IdempotentRequest, now: datetime
) -> dict[str, Any] | None:
    """Return the earlier response to `intent`, if any; raises ProblemError for a reused key."""
    row = session.get(IdempotencyKeyRow, (intent.scope, intent.key))
    if row is None or row.created < confirmed_time(session, now) - RETENTION:
        return None
    if row.request_digest != intent.digest:
        detail = "this Idempotency-Key was used with another request: use a new one"
        raise ProblemError(ProblemType.IDEMPOTENCY_KEY_REUSED, detail)
    return row.response


def save_response(
    session: Session, intent: IdempotentRequest, response: dict[str, Any], now: datetime
) -> None:
    """Store the response to a new `intent`, and delete some expired keys.

    Raises:
        IntegrityError: when flushed, if a concurrent request has stored the same key.
    """
    names = tuple_(IdempotencyKeyRow.scope, IdempotencyKeyRow.key)
    is_expired = IdempotencyKeyRow.created < confirmed_time(session, now) - RETENTION
    is_same = names == (intent.scope, intent.key)
    # Before the others, which another transaction may have locked.
    session.execute(delete(IdempotencyKeyRow).where(is_same, is_expired))
    expired = select(IdempotencyKeyRow.scope, IdempotencyKeyRow.key).where(is_expired)
    oldest = expired.order_by(IdempotencyKeyRow.created).limit(_MAX_DELETED_KEYS)
    oldest = oldest.with_for_update(skip_locked=True)
    session.execute(delete(IdempotencyKeyRow).where(names.in_(oldest)))
    row = IdempotencyKeyRow(scope=intent.scope, key=intent.key, request_digest=intent.digest)
    row.response, row.created = response, now
    session.add(row)

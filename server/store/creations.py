"""Creations that may be repeated: the asker's own key, a digest of what it asked, the answer.

Whatever has a natural key is the same when it is said twice. A study has none, so whoever
creates one may bring a key (the Idempotency-Key of HTTP). The transaction that keeps the study
keeps the key as well, so there is both or neither, and its primary key lets one of several
first uses win. Keys are good for a day, and swept, some at a time, when others are kept.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select, tuple_
from sqlalchemy.orm import Session

from protocol.messages import ProblemType
from server.refusals import Refusal
from server.schema import IdempotencyKey

KEPT = timedelta(hours=24)
_SWEPT = 100  # keys at a time, so that none waits for long


@dataclass(frozen=True, slots=True)
class Intent:
    """One creation as its asker means it: the same `key` and `digest` are the same creation.

    A `scope` is what is created, and by whom: keys of one scope are unknown in another.
    """

    scope: str
    key: str
    digest: bytes


def answered(session: Session, intent: Intent, now: datetime) -> dict[str, Any] | None:
    """Return what was answered to `intent`, None if it is new.

    Raises:
        Refusal: if its key was used for something else.
    """
    row = session.get(IdempotencyKey, (intent.scope, intent.key))
    if row is None or row.created < now - KEPT:
        return None
    if row.digest != intent.digest:
        detail = "this Idempotency-Key was used with another request: take a new one"
        raise Refusal(ProblemType.KEY_REUSED, detail)
    return row.answer


def keep(session: Session, intent: Intent, answer: dict[str, Any], now: datetime) -> None:
    """Keep what was answered to a new `intent`, and sweep some keys that are no longer good.

    Raises:
        IntegrityError: when flushed, if somebody else has kept one of this key meanwhile.
    """
    names = tuple_(IdempotencyKey.scope, IdempotencyKey.key)
    is_old = IdempotencyKey.created < now - KEPT
    mine = names == (intent.scope, intent.key)
    session.execute(delete(IdempotencyKey).where(mine, is_old))  # first: see the locks below
    oldest = select(IdempotencyKey.scope, IdempotencyKey.key).where(is_old)
    swept = oldest.order_by(IdempotencyKey.created).limit(_SWEPT)
    swept = swept.with_for_update(skip_locked=True)  # no two wait for what both sweep
    session.execute(delete(IdempotencyKey).where(names.in_(swept)))
    row = IdempotencyKey(scope=intent.scope, key=intent.key, digest=intent.digest)
    row.answer, row.created = answer, now
    session.add(row)

"""Repository of webhooks: each is a row from the creation of its study until it is sent.

A row is an outbox: a process claims it by moving its next try into the future, and has no more
tries when the receiver has accepted the message. So a process that dies in between causes a
repetition. The row stays for a day, because it has the secret: the request that created the study
may be repeated so long.
"""

from base64 import b64encode
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Final

from sqlalchemy import Select, or_, select, update
from sqlalchemy.orm import Session

from protocol.api.messages import StudyView
from server.db.database import Repository, read_transaction, write_transaction
from server.db.schema import StudyRow, WebhookRow
from server.db.serializers import study_view

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - a prefix only
MAX_TRIES: Final = 10  # the last one about two days after the first
_FIRST_PAUSE, _MAX_PAUSE = timedelta(seconds=10), timedelta(hours=12)
_STAY: Final = timedelta(days=1)
_CLAIMS: Final = 20  # at a time


@dataclass(frozen=True, slots=True)
class DueWebhook:
    """The message about the end of a study that this process has to send now."""

    study: StudyView
    url: str
    secret: str
    tries: int


def new_webhook(study: StudyRow, url: str, rng: Random) -> WebhookRow:
    """Return the webhook of a new study, with a secret of 32 bytes from `rng`."""
    secret = SECRET_PREFIX + b64encode(rng.randbytes(32)).decode()
    return WebhookRow(study=study.id, url=url, secret=secret, tries=0, next_try=study.created)


class WebhookRepository(Repository):
    """Repository of webhooks."""

    @read_transaction
    def secret(self, session: Session, study: str) -> str | None:
        """Return the secret that signs the message about a study, None without a webhook."""
        row = session.get(WebhookRow, study)
        return None if row is None else row.secret

    async def claim(self) -> tuple[DueWebhook, ...]:
        """Return some messages that are due, which no other process then sends."""
        return await self._claim() if await self._is_any_due() else ()

    @read_transaction
    def _is_any_due(self, session: Session) -> bool:
        return session.scalar(self._due(session).limit(1)) is not None

    @write_transaction
    def _claim(self, session: Session) -> tuple[DueWebhook, ...]:
        due = self._due(session).limit(_CLAIMS).with_for_update(of=WebhookRow, skip_locked=True)
        claimed = []
        for row in session.scalars(due).all():
            pause = min(_FIRST_PAUSE * 4**row.tries, _MAX_PAUSE)
            row.tries, row.next_try = row.tries + 1, self.database.now(session) + pause
            try:
                study = study_view(session.get_one(StudyRow, row.study))
            except ValueError:  # the study of a plug-in that is gone
                row.tries = MAX_TRIES
                continue
            claimed.append(DueWebhook(study, row.url, row.secret, row.tries))
        return tuple(claimed)

    def _due(self, session: Session) -> Select[WebhookRow]:
        now = self.database.now(session)
        # No pause is longer, so that a later time was set by a clock that was ahead.
        is_time = or_(WebhookRow.next_try <= now, WebhookRow.next_try > now + _MAX_PAUSE)
        is_over = StudyRow.state.in_(("finished", "stopped"))
        query = select(WebhookRow).join(StudyRow, StudyRow.id == WebhookRow.study)
        # Receivers that do not answer delay no first try.
        query = query.where(is_time, is_over, WebhookRow.tries < MAX_TRIES)
        return query.order_by(WebhookRow.tries, WebhookRow.next_try)

    @write_transaction
    def finish(self, session: Session, study: str) -> None:
        """End the tries of a webhook that was sent."""
        changes = {"tries": MAX_TRIES, "next_try": self.database.now(session) + _STAY}
        session.execute(update(WebhookRow).where(WebhookRow.study == study).values(changes))

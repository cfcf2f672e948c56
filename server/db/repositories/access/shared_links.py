"""Repository of shared links: who has the secret of one can read one study until the link ends."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from protocol.api.credentials import SHARE_PREFIX, new_secret, secret_digest
from protocol.api.messages import ProblemType
from server.db.database import Repository, read_transaction, write_transaction
from server.db.repositories.studies.studies import find_study
from server.db.schema import ApiKeyRow, LoginSessionRow, SharedLinkRow
from server.errors import ProblemError
from server.principals import Principal


@dataclass(frozen=True, slots=True)
class SharedLinkRepository(Repository):
    """Repository of shared links; a link that was ended has no row any more."""

    rng: Random

    @write_transaction
    def create(
        self, session: Session, study: str, maker: Principal, lifetime: timedelta
    ) -> tuple[str, datetime]:
        """Store a new link to a study; return its secret, which is not stored, and its end.

        It ends no later than the key of its `maker`, and with their revocation.

        Raises:
            ProblemError: if the key or session of the maker, who may be cached, has ended.
        """
        secret, now = new_secret(self.rng, SHARE_PREFIX), self.database.now(session)
        study = find_study(session, study, lock=True).id  # so that it is not deleted meanwhile
        digest, expires = secret_digest(secret), now + lifetime
        key = session.get(ApiKeyRow, maker.name)
        login = maker.session and session.get(LoginSessionRow, maker.session)
        if (key and not key.is_valid(now)) or (maker.session and not login):
            raise ProblemError(ProblemType.NOT_AUTHORISED, "this key or session has ended")
        expires = min(expires, (key and key.expires) or expires)
        session.add(SharedLinkRow(digest=digest, study=study, maker=maker.name, expires=expires))
        return secret, expires

    @write_transaction
    def end_all(self, session: Session, study: str) -> None:
        """End all links to a study; raises ProblemError if it is unknown."""
        find_study(session, study)
        session.execute(delete(SharedLinkRow).where(SharedLinkRow.study == study))

    @read_transaction
    def find(self, session: Session, digest: bytes) -> tuple[str, str] | None:
        """Return the study and the maker of a link, None if it has ended or never existed."""
        row = session.get(SharedLinkRow, digest)
        is_valid = row is not None and self.database.now(session) < row.expires
        return (row.study, row.maker) if row is not None and is_valid else None

    @read_transaction
    def ends(self, session: Session, study: str) -> tuple[datetime, ...]:
        """Return the ends of the valid links to a study, in rising order."""
        valid = (SharedLinkRow.study == study, SharedLinkRow.expires > self.database.now(session))
        query = select(SharedLinkRow.expires).where(*valid).order_by(SharedLinkRow.expires)
        return tuple(session.scalars(query))

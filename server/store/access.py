"""Keys, tokens, devices and the audit trail: who may do what, and who did."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from random import Random

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from protocol.credentials import API_KEY, ENROLMENT_TOKEN, digest, make
from protocol.messages import AuditRecord, ProblemType
from server.database import Database, reading, writing
from server.principals import SCOPES, Principal, Right
from server.refusals import Refusal
from server.schema import ApiKey, AuditEntry, EnrolledDevice, EnrolmentToken

_ID_BYTES = 6
COMMAND_LINE = "command line"
FIRST_USES = 1_000_000


@dataclass(frozen=True, slots=True)
class Access:
    """The book of who is let in."""

    database: Database
    rng: Random

    @writing
    def create_key(
        self, session: Session, name: str, scopes: Collection[Right], lasting: timedelta | None
    ) -> tuple[str, str]:
        """Keep a new key; return its id and its text, which nobody can be told again."""
        secret = make(self.rng, API_KEY)
        return self._issue(session, _key(scopes), secret, name, lasting), secret

    @writing
    def create_token(
        self, session: Session, name: str, uses: int, lasting: timedelta | None
    ) -> tuple[str, str]:
        """Keep a new token for so many identities; return its id and its text, as `create_key`."""
        secret = make(self.rng, ENROLMENT_TOKEN)
        return self._issue(session, _token(uses), secret, name, lasting), secret

    @writing
    def keep_first(self, session: Session, key: str | None, token: str | None) -> None:
        """Keep a key that may do everything and a token for many, made elsewhere, if they are new.

        Servers that start together wait for one another's: one row each.
        """
        if key and session.scalar(select(ApiKey).where(ApiKey.digest == digest(key))) is None:
            self._issue(session, _key(SCOPES), key, "first", None)
        if token:
            known = select(EnrolmentToken).where(EnrolmentToken.digest == digest(token))
            if session.scalar(known) is None:
                self._issue(session, _token(FIRST_USES), token, "first", None)

    def _issue(
        self,
        session: Session,
        row: ApiKey | EnrolmentToken,
        secret: str,
        name: str,
        lasting: timedelta | None,
    ) -> str:
        row.id, row.name, row.digest = self.rng.randbytes(_ID_BYTES).hex(), name, digest(secret)
        row.created = self.database.now(session)
        row.expires = row.created + lasting if lasting else None
        session.add(row)
        kind = "key" if isinstance(row, ApiKey) else "token"
        self._note(session, COMMAND_LINE, f"create {kind}", row.id)
        return row.id

    @reading
    def keys(self, session: Session) -> tuple[ApiKey, ...]:
        """Return all keys, oldest first."""
        return tuple(session.scalars(select(ApiKey).order_by(ApiKey.created, ApiKey.id)))

    @reading
    def tokens(self, session: Session) -> tuple[EnrolmentToken, ...]:
        """Return all tokens, oldest first."""
        query = select(EnrolmentToken).order_by(EnrolmentToken.created, EnrolmentToken.id)
        return tuple(session.scalars(query))

    @writing
    def revoke(self, session: Session, name: str) -> str | None:
        """Revoke the key or token of this id, or the device of this identity.

        A token takes the devices that it let in with it. Returns what it was, None if there is
        no such thing; what is revoked stays so.
        """
        for kind, row in (
            ("key", session.get(ApiKey, name)),
            ("token", session.get(EnrolmentToken, name)),
            ("device", session.get(EnrolledDevice, name)),
        ):
            if row is None:
                continue
            now = self.database.now(session)
            row.revoked = row.revoked or now
            if kind == "token":
                let_in = EnrolledDevice.token == name, EnrolledDevice.revoked.is_(None)
                session.execute(update(EnrolledDevice).where(*let_in).values(revoked=now))
            self._note(session, COMMAND_LINE, f"revoke {kind}", name)
            return kind
        return None

    @reading
    def principal(self, session: Session, found: bytes) -> Principal | None:
        """Return whose key or credential has this digest, if it is good now."""
        key = session.scalar(select(ApiKey).where(ApiKey.digest == found))
        if key is not None:
            is_good = key.is_good(self.database.now(session))
            return Principal(key.id, frozenset(map(Right, key.scopes))) if is_good else None
        device = session.scalar(select(EnrolledDevice).where(EnrolledDevice.digest == found))
        if device is None or device.revoked:
            return None
        return Principal(device.identity, frozenset({Right.TAKE_PART}), device.identity)

    @reading
    def is_good_key(self, session: Session, name: str) -> bool:
        """Return whether the key of this id is good now."""
        key = session.get(ApiKey, name)
        return key is not None and key.is_good(self.database.now(session))

    @writing
    def enrol(self, session: Session, token: bytes, identity: str, credential: bytes) -> bool:
        """Let an identity in by the token of this digest; True if it was not in before.

        Raises:
            Refusal: if the token is unknown, over, revoked or used up, the identity has another
                credential, or is revoked.
        """
        query = select(EnrolmentToken).where(EnrolmentToken.digest == token).with_for_update()
        row, now = session.scalar(query), self.database.now(session)
        if row is None or not row.is_good(now):
            raise Refusal(ProblemType.NOT_AUTHORISED, "this enrolment token is not good here")
        device = session.get(EnrolledDevice, identity)
        if device is not None:
            if device.revoked:
                raise Refusal(ProblemType.FORBIDDEN, "this identity was revoked")
            if (device.digest, device.token) != (credential, row.id):
                raise Refusal(ProblemType.CONFLICT, "this identity has another credential")
            return False
        if row.used >= row.uses:
            detail = f"this enrolment token has let in the {row.uses} that it was made for"
            raise Refusal(ProblemType.FORBIDDEN, detail)
        if session.scalar(select(EnrolledDevice).where(EnrolledDevice.digest == credential)):
            raise Refusal(ProblemType.CONFLICT, "this credential is another identity's")
        row.used += 1
        session.add(EnrolledDevice(identity=identity, digest=credential, token=row.id, created=now))
        self._note(session, f"token {row.id}", "enrol", identity)
        return True

    @writing
    def note(
        self, session: Session, actor: str, action: str, subject: str, outcome: str = "done"
    ) -> None:
        """Add to the audit trail."""
        self._note(session, actor, action, subject, outcome)

    def _note(
        self, session: Session, actor: str, action: str, subject: str, outcome: str = "done"
    ) -> None:
        entry = AuditEntry(
            at=self.database.now(session),
            actor=actor,
            action=action,
            subject=subject,
            outcome=outcome,
        )
        session.add(entry)

    @reading
    def trail(self, session: Session, limit: int, before: int | None) -> tuple[AuditRecord, ...]:
        """Return the newest entries of the audit trail before the one of number `before`."""
        query = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit)
        if before is not None:
            query = query.where(AuditEntry.id < before)
        return tuple(
            AuditRecord(
                id=row.id,
                at=row.at,
                actor=row.actor,
                action=row.action,
                subject=row.subject,
                outcome=row.outcome,
            )
            for row in session.scalars(query)
        )


def _key(scopes: Collection[Right]) -> ApiKey:
    return ApiKey(scopes=sorted(scope.value for scope in scopes))


def _token(uses: int) -> EnrolmentToken:
    return EnrolmentToken(uses=uses, used=0)

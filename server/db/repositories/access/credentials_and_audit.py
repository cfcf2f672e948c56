"""Repository of API keys, enrolment tokens and the audit trail; `devices/enrolments.py` enrols."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from random import Random

from sqlalchemy import ColumnElement, delete, exists, not_, or_, select, update
from sqlalchemy.orm import Session

from protocol.api.credentials import (
    API_KEY_PREFIX,
    ENROLMENT_TOKEN_PREFIX,
    SESSION_PREFIX,
    new_secret,
    secret_digest,
)
from protocol.api.messages import AuditRecord
from server.db.database import Repository, read_transaction, write_transaction
from server.db.database_errors import UNAVAILABLE_ERRORS
from server.db.group_commit import GroupCommit
from server.db.repositories.studies.studies import find_named_study
from server.db.schema import (
    ApiKeyRow,
    AuditEntryRow,
    DeviceRow,
    EnrolmentTokenRow,
    LoginSessionRow,
    SharedLinkRow,
)
from server.principals import SCOPES, Permission, Principal

_ID_BYTES = 6
SESSION_IDLE_HOURS = 12
SESSION_DAYS = 7
_USE_INTERVAL = timedelta(minutes=5)  # between two records of the use of a session
COMMAND_LINE_ACTOR = "command line"
INITIAL_TOKEN_USES = 1_000_000


@dataclass(frozen=True)
class AccessRepository(Repository):
    """Repository of credentials and the audit trail."""

    rng: Random

    @write_transaction
    def create_key(
        self,
        session: Session,
        name: str,
        scopes: Collection[Permission],
        lifetime: timedelta | None,
        study: str | None = None,
    ) -> tuple[str, str]:
        """Store a new key, of one `study` (an id or a name) if given; return its id and its text.

        The text is not stored.

        Raises:
            ProblemError: if there is no such study, or several have this name.
        """
        if study is not None:
            study = find_named_study(session, study).id
        secret = new_secret(self.rng, API_KEY_PREFIX)
        return self._issue(session, _new_key(scopes, study), secret, name, lifetime)

    @write_transaction
    def create_token(
        self, session: Session, name: str, uses: int, lifetime: timedelta | None
    ) -> tuple[str, str]:
        """Store a new token for `uses` identities; return its id and its text, as `create_key`."""
        secret = new_secret(self.rng, ENROLMENT_TOKEN_PREFIX)
        return self._issue(session, _new_token(uses), secret, name, lifetime)

    @write_transaction
    def add_initial(
        self, session: Session, key: str | None, token: str | None, member_key: str | None = None
    ) -> None:
        """Store given credentials, if they are new.

        The key has all scopes, the token is for many devices, and `member_key` has the scope of
        members of committees.

        Raises:
            IntegrityError: if another server stored one of them meanwhile.
        """
        for secret, row, name in (
            (key, _new_key(SCOPES), "first"),
            (token, _new_token(INITIAL_TOKEN_USES), "first"),
            (member_key, _new_key(frozenset({Permission.COMMITTEE})), "members"),
        ):
            if secret:
                same = select(exists().where(type(row).digest == secret_digest(secret)))
                if not session.scalar(same):
                    self._issue(session, row, secret, name, None)

    def _issue(
        self,
        session: Session,
        row: ApiKeyRow | EnrolmentTokenRow,
        secret: str,
        name: str,
        lifetime: timedelta | None,
    ) -> tuple[str, str]:
        row.id = self.rng.randbytes(_ID_BYTES).hex()
        row.name, row.digest = name, secret_digest(secret)
        row.created = self.database.now(session)
        row.expires = row.created + lifetime if lifetime else None
        session.add(row)
        kind = "key" if isinstance(row, ApiKeyRow) else "token"
        add_audit_entry(session, row.created, COMMAND_LINE_ACTOR, f"create {kind}", row.id)
        return row.id, secret

    @read_transaction
    def keys(self, session: Session) -> tuple[ApiKeyRow, ...]:
        return tuple(session.scalars(select(ApiKeyRow).order_by(ApiKeyRow.created, ApiKeyRow.id)))

    @read_transaction
    def tokens(self, session: Session) -> tuple[EnrolmentTokenRow, ...]:
        query = select(EnrolmentTokenRow).order_by(EnrolmentTokenRow.created, EnrolmentTokenRow.id)
        return tuple(session.scalars(query))

    @write_transaction
    def revoke(self, session: Session, name: str) -> str | None:
        """Revoke the key or token of this id, the device of this identity, or a person's sessions.

        The links that a key or a person made end, too. Revoking a token revokes the devices that
        it let in. Returns what was revoked, or None if the id is unknown. A revocation is
        permanent, but a person may log in again.
        """
        links = SharedLinkRow.maker.in_((name, name.lower()))
        has_links = session.scalar(select(exists().where(links)))
        session.execute(delete(SharedLinkRow).where(links))
        for kind, row in (
            ("key", session.get(ApiKeyRow, name)),
            ("token", session.get(EnrolmentTokenRow, name)),
            ("device", session.get(DeviceRow, name)),
        ):
            if row is None:
                continue
            now = self.database.now(session)
            row.revoked = row.revoked or now
            if kind == "token":
                its_devices = DeviceRow.token == name, DeviceRow.revoked.is_(None)
                session.execute(update(DeviceRow).where(*its_devices).values(revoked=now))
            add_audit_entry(session, now, COMMAND_LINE_ACTOR, f"revoke {kind}", name)
            return kind
        sessions = LoginSessionRow.email == name.lower()
        if has_links or session.scalar(select(exists().where(sessions))):
            session.execute(delete(LoginSessionRow).where(sessions))
            now = self.database.now(session)
            add_audit_entry(session, now, COMMAND_LINE_ACTOR, "end sessions", name)
            return "person"
        return None

    async def find_principal(self, digest: bytes) -> Principal | None:
        """Return the owner of the valid key or credential with this digest, if there is one.

        Those that are looked for at the same time share a transaction.
        """
        return await self._principals(digest)

    @cached_property
    def _principals(self) -> GroupCommit[bytes, Principal | None]:
        return GroupCommit(self._find_principals)

    @read_transaction
    def _find_principals(
        self, session: Session, digests: Sequence[bytes]
    ) -> Sequence[Principal | None]:
        owners = dict[bytes, Principal | None]()
        if keys := session.scalars(select(ApiKeyRow).where(ApiKeyRow.digest.in_(digests))).all():
            now = self.database.now(session)
            owners = {key.digest: _principal(key) if key.is_valid(now) else None for key in keys}
        others = [digest for digest in digests if digest not in owners]
        devices = session.scalars(select(DeviceRow).where(DeviceRow.digest.in_(others)))
        owners |= {device.digest: _device(device) for device in devices}
        return [owners.get(digest) for digest in digests]

    @write_transaction
    def start_session(self, session: Session, owner: Principal) -> str:
        """Store a new session of a person, or of the owner of an API key; return its secret."""
        secret, now = new_secret(self.rng, SESSION_PREFIX), self.database.now(session)
        row = LoginSessionRow(digest=secret_digest(secret), created=now, last_used=now)
        if owner.is_person:
            row.email, row.scopes = owner.name, _scope_names(owner.permissions)
        else:
            row.key = owner.name
        session.add(row)
        return secret

    @write_transaction
    def end_session(self, session: Session, digest: bytes) -> None:
        session.execute(delete(LoginSessionRow).where(LoginSessionRow.digest == digest))

    async def find_session(self, digest: bytes) -> Principal | None:
        """Return the owner of the session with this digest, and record its use.

        None if it has ended: by a logout, `SESSION_IDLE_HOURS` after its last use, `SESSION_DAYS`
        after its start, or with its key. During an outage of writes a use is not recorded:
        readers need no writes.
        """
        principal, is_recorded = await self._find_session(digest)
        if principal is not None and not is_recorded and not self.database.outage.is_open:
            with suppress(*UNAVAILABLE_ERRORS):
                await self._record_use(digest)
        return principal

    @read_transaction
    def _find_session(self, session: Session, digest: bytes) -> tuple[Principal | None, bool]:
        now = self.database.now(session)
        lasts = LoginSessionRow.digest == digest, not_(has_ended(now))
        row = session.scalar(select(LoginSessionRow).where(*lasts))
        if row is None:
            return None, False
        is_recorded = now - row.last_used < _USE_INTERVAL
        if row.email is not None:
            scopes = frozenset(map(Permission, row.scopes or ()))
            return Principal(row.email, scopes, session=digest, is_person=True), is_recorded
        key = session.get_one(ApiKeyRow, row.key)
        if not key.is_valid(now):
            return None, False
        return replace(_principal(key), session=digest), is_recorded

    @write_transaction
    def _record_use(self, session: Session, digest: bytes) -> None:
        now = self.database.now(session)
        of_session = LoginSessionRow.digest == digest
        session.execute(update(LoginSessionRow).where(of_session).values(last_used=now))

    async def is_still_valid(self, principal: Principal) -> bool:
        """Return whether the API key of `principal` is valid, and its login session, if any."""
        if principal.session is None:
            return await self._is_valid_key(principal.name)
        return (await self._find_session(principal.session))[0] is not None

    @read_transaction
    def _is_valid_key(self, session: Session, name: str) -> bool:
        key = session.get(ApiKeyRow, name)
        return key is not None and key.is_valid(self.database.now(session))

    @write_transaction
    def record_audit(
        self, session: Session, actor: str, action: str, subject: str, outcome: str = "done"
    ) -> None:
        add_audit_entry(session, self.database.now(session), actor, action, subject, outcome)

    @write_transaction
    def record_refusal(
        self, session: Session, actor: str, action: str, subject: str, unrecorded: int
    ) -> None:
        """Record a refusal, and before it the number of `unrecorded` earlier ones, if any."""
        now = self.database.now(session)
        if unrecorded:
            summary = f"{unrecorded} earlier refusals"
            add_audit_entry(session, now, "service", "not recorded", summary, "refused")
        add_audit_entry(session, now, actor, action, subject, "refused")

    @read_transaction
    def audit_entries(
        self, session: Session, limit: int, before: int | None
    ) -> tuple[AuditRecord, ...]:
        """Return the newest `limit` entries of the audit trail with numbers below `before`."""
        query = select(AuditEntryRow).order_by(AuditEntryRow.id.desc()).limit(limit)
        if before is not None:
            query = query.where(AuditEntryRow.id < before)
        rows = session.scalars(query)
        return tuple(AuditRecord.model_validate(row, from_attributes=True) for row in rows)


def has_ended(now: datetime) -> ColumnElement[bool]:
    """Return the condition of the sessions that have ended by themselves."""
    return or_(
        LoginSessionRow.last_used <= now - timedelta(hours=SESSION_IDLE_HOURS),
        LoginSessionRow.created <= now - timedelta(days=SESSION_DAYS),
    )


def add_audit_entry(
    session: Session, at: datetime, actor: str, action: str, subject: str, outcome: str = "done"
) -> None:
    """Add an entry to the audit trail, in the transaction of what it records."""
    session.add(AuditEntryRow(at=at, actor=actor, action=action, subject=subject, outcome=outcome))


def _principal(key: ApiKeyRow) -> Principal:
    scopes = frozenset(map(Permission, key.scopes))
    return Principal(key.id, scopes, study=key.study, key_name=key.name)


def _device(row: DeviceRow) -> Principal | None:
    if row.revoked:
        return None
    return Principal(row.identity, frozenset({Permission.TAKE_PART}), row.identity)


def _new_key(scopes: Collection[Permission], study: str | None = None) -> ApiKeyRow:
    return ApiKeyRow(scopes=_scope_names(scopes), study=study)


def _scope_names(scopes: Collection[Permission]) -> list[str]:
    return sorted(scope.value for scope in scopes)


def _new_token(uses: int) -> EnrolmentTokenRow:
    return EnrolmentTokenRow(max_uses=uses, used=0)

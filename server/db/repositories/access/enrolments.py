"""Enrolment of devices by tokens; requests that arrive together share a transaction."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from protocol.api.messages import ProblemType
from server.db.database import Repository, write_transaction
from server.db.group_commit import GroupCommit
from server.db.repositories.access.credentials_and_audit import add_audit_entry
from server.db.schema import DeviceRow, EnrolmentTokenRow
from server.errors import ProblemError


@dataclass(frozen=True, slots=True)
class _Enrolment:
    identity: str
    credential: bytes = field(repr=False)  # its digest


class EnrolmentRepository(Repository):
    """Repository of the devices that enrol; `credentials_and_audit.py` reads and revokes them."""

    async def enrol(self, token: bytes, identity: str, credential: bytes) -> bool:
        """Enrol an identity by the token of this digest; False if it was enrolled before.

        Once an identity is enrolled, the same credential is accepted with every token that was not
        revoked: the token may have expired, or have been replaced.

        Raises:
            ProblemError: if the token is unknown, expired, revoked or used up, or the identity is
                revoked or has another credential.
        """
        if token not in self.groups_by_token:
            for idle in [other for other, group in self.groups_by_token.items() if group.is_idle]:
                del self.groups_by_token[idle]
            new = GroupCommit(partial(self.enrol_group, token), order=lambda each: each.identity)
            self.groups_by_token[token] = new
        return await self.groups_by_token[token](_Enrolment(identity, credential))

    @cached_property
    def groups_by_token(self) -> dict[bytes, GroupCommit[_Enrolment, bool]]:
        """The groups by token, so that a locked token delays no enrolment by another.

        Those without an enrolment that waits are removed when another token is used.
        """
        return {}

    @write_transaction
    def enrol_group(
        self, session: Session, token: bytes, enrolments: Sequence[_Enrolment]
    ) -> Sequence[bool | ProblemError]:
        known = _KnownCredentials(session, token, enrolments)
        now = self.database.now(session)
        return [known.enrol(session, enrolment, now) for enrolment in enrolments]


class _KnownCredentials:
    """A token, with its row locked, and the devices that enrolments by it may collide with."""

    def __init__(self, session: Session, token: bytes, enrolments: Sequence[_Enrolment]) -> None:
        query = select(EnrolmentTokenRow).where(EnrolmentTokenRow.digest == token)
        self._token = session.scalar(query.with_for_update())
        same_identity = DeviceRow.identity.in_({each.identity for each in enrolments})
        same_credential = DeviceRow.digest.in_({each.credential for each in enrolments})
        devices = session.scalars(select(DeviceRow).where(or_(same_identity, same_credential)))
        self._by_identity, self._by_credential = dict[str, DeviceRow](), dict[bytes, DeviceRow]()
        for device in devices:
            self._add(device)

    def enrol(self, session: Session, asked: _Enrolment, now: datetime) -> bool | ProblemError:
        """Return whether the device is new, and store it then; or why it is refused."""
        token, device = self._token, self._by_identity.get(asked.identity)
        if token is None:
            return _invalid_token()
        is_enrolled = (
            device is not None and not device.revoked and device.digest == asked.credential
        )
        if is_enrolled and not token.revoked:
            return False
        if refusal := self._refusal(asked, token, device, now):
            return refusal
        token.used += 1
        device = DeviceRow(
            identity=asked.identity, digest=asked.credential, token=token.id, created=now
        )
        self._add(device)
        session.add(device)
        add_audit_entry(session, now, f"token {token.id}", "enrol", asked.identity)
        return True

    def _refusal(
        self, asked: _Enrolment, token: EnrolmentTokenRow, device: DeviceRow | None, now: datetime
    ) -> ProblemError | None:
        """Return the refusal of a device that is not enrolled, None if it may enrol."""
        if not token.is_valid(now):
            return _invalid_token()
        if device is not None and device.revoked:
            return ProblemError(ProblemType.FORBIDDEN, "this identity was revoked")
        if device is not None:
            return ProblemError(ProblemType.CONFLICT, "this identity has another credential")
        if token.used >= token.max_uses:
            detail = f"this enrolment token has enrolled its maximum of {token.max_uses} devices"
            return ProblemError(ProblemType.FORBIDDEN, detail)
        if asked.credential in self._by_credential:
            detail = "this credential belongs to another identity"
            return ProblemError(ProblemType.CONFLICT, detail)
        return None

    def _add(self, device: DeviceRow) -> None:
        self._by_identity[device.identity] = device
        self._by_credential[device.digest] = device


def _invalid_token() -> ProblemError:
    return ProblemError(ProblemType.NOT_AUTHORISED, "this enrolment token is not valid here")

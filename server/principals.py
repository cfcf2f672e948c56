"""Principals, the authenticated senders of requests, and their permissions."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Permission(StrEnum):
    """Kind of request that a principal may make."""

    READ = "read"  # read studies, answers and ledgers
    WRITE = "write"  # create, start and stop studies; create populations
    OPERATE = "operate"  # read the audit trail, the metrics and the sums of cohorts
    SEAT = "seat"  # read the joiners of rounds and seat them, as a registrar
    COMMITTEE = "committee"  # take part in one-shot sums, as a member of their committees
    TAKE_PART = "take-part"  # as a device


# Of an API key.
SCOPES: Final = (
    Permission.READ,
    Permission.WRITE,
    Permission.OPERATE,
    Permission.SEAT,
    Permission.COMMITTEE,
)


@dataclass(frozen=True, slots=True)
class Principal:
    """Owner of a valid credential.

    `name` is the id of an API key, the identity of a device, or the e-mail address of a person who
    logged in at the OpenID provider.
    `session` is the digest of the login session in whose cookie the credential is, if any.
    `study` is the only study for which the permissions are valid, None for the whole service.
    `key_name` is the name that the operator gave to the API key, if it is one.
    """

    name: str
    permissions: frozenset[Permission]
    identity: str | None = None
    session: bytes | None = field(default=None, repr=False)
    study: str | None = None
    is_person: bool = False
    key_name: str | None = None

    @property
    def owner(self) -> str | None:
        """Return the name that a study has of its creator, None at an open service."""
        return self.name if self.is_person else self.key_name

    def __str__(self) -> str:
        if self.identity:
            return f"device {self.name}"
        if self.is_person:
            return f"person {self.name}"
        is_named = self == ANONYMOUS or not self.permissions  # the reader of a shared link
        return self.name if is_named else f"key {self.name}"


# Everybody may read some pages, without a login.
VISITOR: Final = Principal("visitor", frozenset())
ANONYMOUS: Final = Principal("anonymous", frozenset(Permission))  # for every request, if open

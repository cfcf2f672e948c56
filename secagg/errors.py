"""Errors of a secure sum, each of which names the party at fault.

A caller's own mistake is a `ValueError`. A peer's mistake is a `ProtocolError` that carries the
peer, so that the caller can drop that peer and continue. `SERVER` is the peer number of the
server.
"""

from collections.abc import Mapping
from typing import Any, Self

SERVER = -1  # slots of participants count from 0


class PortableError(Exception):
    """An error that passes between processes, with its text and its attributes.

    Python would call the constructor of the copy with the text alone. A pool of processes that
    receives an error whose constructor takes other arguments breaks, or waits for ever.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the function that makes a copy, without the constructor, and its arguments."""
        return type(self)._copy_of, (self.args, self.__dict__)

    @classmethod
    def _copy_of(cls, args: tuple[object, ...], attributes: Mapping[str, object]) -> Self:
        """Return an error with these arguments of `Exception` and these attributes."""
        error = cls.__new__(cls, *args)
        error.__dict__.update(attributes)
        return error


class ProtocolError(PortableError):
    """A departure from the protocol."""


class FaultyParticipantError(ProtocolError):
    """A departure of `participant` from the protocol; the round continues without it.

    Attributes:
        participant: the slot of the participant at fault, or `SERVER`.
    """

    def __init__(self, participant: int, what: str) -> None:
        who = "the server" if participant == SERVER else f"participant {participant}"
        super().__init__(f"{who} {what}")
        self.participant = participant


class UnsafeRequestError(FaultyParticipantError):
    """A request of the server that would weaken the sum; the participant leaves."""

    def __init__(self, what: str) -> None:
        super().__init__(SERVER, what)


class OutOfPhaseError(ProtocolError):
    """A step that was requested twice, or in an order that the protocol does not allow."""


class RecoveryError(ProtocolError):
    """A secret that the sum needs cannot be recovered; the cohort fails and publishes nothing.

    Attributes:
        dealer: the slot whose secret is missing.
        blamed: the participants whose false shares were detected: what each did, by slot.
    """

    def __init__(self, dealer: int, what: str, blamed: Mapping[int, str] | None = None) -> None:
        super().__init__(f"the secret of participant {dealer} cannot be recovered: {what}")
        self.dealer = dealer
        self.blamed = dict(blamed or {})


class InfeasibleError(ValueError):
    """No graph degree and threshold keep the requested promises under the assumed rates."""

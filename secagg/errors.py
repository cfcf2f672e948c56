"""Who departed from the protocol: the errors of a secure sum, each with its culprit.

A caller's own mistake is a `ValueError`. What a peer did wrong is a `ProtocolError` that
names the peer, so that whoever catches it can drop that peer and go on. `server` below is
the peer number of the server itself.
"""

from collections.abc import Mapping

SERVER = -1  # slots of participants count from 0


class ProtocolError(Exception):
    """Somebody departed from the protocol."""


class FaultyParticipantError(ProtocolError):
    """`participant` departed from the protocol: the round goes on without it.

    Attributes:
        participant: the slot of the culprit, or `SERVER`.
    """

    def __init__(self, participant: int, what: str) -> None:
        who = "the server" if participant == SERVER else f"participant {participant}"
        super().__init__(f"{who} {what}")
        self.participant = participant


class RefusedError(FaultyParticipantError):
    """The server asked for something that would weaken the sum: the participant leaves."""

    def __init__(self, what: str) -> None:
        super().__init__(SERVER, what)


class OutOfPhaseError(ProtocolError):
    """A step was asked for twice, or in an order that the protocol does not know."""


class RecoveryError(ProtocolError):
    """A secret that the sum needs cannot be recovered: the cohort fails, nothing is shown.

    Attributes:
        owner: the slot whose secret is missing.
        blamed: who lied about shares, as far as met: what each did, by slot.
    """

    def __init__(self, owner: int, what: str, blamed: Mapping[int, str] | None = None) -> None:
        super().__init__(f"the secret of participant {owner} cannot be recovered: {what}")
        self.owner = owner
        self.blamed = dict(blamed or {})


class InfeasibleError(ValueError):
    """No degree and threshold keep the promises asked for under the assumed rates."""

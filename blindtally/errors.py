"""Exceptions of analysts and devices.

A refusal of the service is a `ServiceError` of a subclass that states the reason. A service that
does not answer is a `ServiceUnreachableError`. Arguments that cannot be right are a `ValueError`.
Those of questions and policies are an `ArgumentsError`, which is also pydantic's `ValidationError`.
"""

from blindtally.own_packages import ShadowedPackageError
from client.committee.registrar import SeatingRefusedError
from client.device.journal import JournalError
from client.errors import (
    AlreadyCountedError,
    AnalystClosedError,
    BadRequestError,
    BarredError,
    BudgetSpentError,
    CohortFailedError,
    ConflictError,
    DroppedOutError,
    ForbiddenError,
    IdempotencyKeyReusedError,
    NoRoundError,
    NotAuthorisedError,
    NotEnrolledError,
    NotFoundError,
    PlanMismatchError,
    PoisonedCohortError,
    ServiceError,
    ServiceUnreachableError,
    TooManyRequestsError,
    UnavailableError,
    UnreadableAnswerError,
    WrongPhaseError,
    WrongStateError,
)
from protocol.arguments import ArgumentsError
from protocol.device_policy.policy import PolicyError
from secagg.errors import ProtocolError, UnsafeRequestError

__all__ = [
    "AlreadyCountedError",
    "AnalystClosedError",
    "ArgumentsError",
    "BadRequestError",
    "BarredError",
    "BudgetSpentError",
    "CohortFailedError",
    "ConflictError",
    "DroppedOutError",
    "ForbiddenError",
    "IdempotencyKeyReusedError",
    "JournalError",
    "NoRoundError",
    "NotAuthorisedError",
    "NotEnrolledError",
    "NotFoundError",
    "PlanMismatchError",
    "PoisonedCohortError",
    "PolicyError",
    "ProtocolError",
    "SeatingRefusedError",
    "ServiceError",
    "ServiceUnreachableError",
    "ShadowedPackageError",
    "TooManyRequestsError",
    "UnavailableError",
    "UnreadableAnswerError",
    "UnsafeRequestError",
    "WrongPhaseError",
    "WrongStateError",
]

"""Refusals of the service, independent of HTTP: `http/problem_details.py` maps them to statuses."""

from collections.abc import Sequence
from datetime import datetime
from typing import TypedDict

from protocol.api.messages import ProblemType
from protocol.api.phases import Phase
from secagg.errors import PortableError

INTERNAL_FAULT = "an internal error of the service, which was logged"


class FieldError(TypedDict):
    """One error in a request: its location, and a text for people."""

    location: str
    detail: str


class ProblemError(PortableError):
    """Refusal of a request: `kind` is for programs, `detail` for people.

    `status` is only given for a kind with two statuses: a body that is not JSON is a 400, and a
    JSON document with wrong values is a 422.
    """

    def __init__(
        self,
        kind: ProblemType,
        detail: str,
        *,
        phase: Phase | None = None,
        errors: Sequence[FieldError] | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.phase = phase
        self.errors = errors
        self.status = status


def not_found(name: str) -> ProblemError:
    """Return the refusal of an unknown `name`, such as a study."""
    return ProblemError(ProblemType.NOT_FOUND, f"there is no such {name}")


def cohort_failed(failure: str | None) -> ProblemError:
    """Return the refusal of every request to a failed cohort."""
    detail = f"the cohort failed: {failure}"
    return ProblemError(ProblemType.COHORT_FAILED, detail, phase=Phase.FAILED)


def dropped_out(phase: Phase) -> ProblemError:
    """Return the refusal of a participant whose message did not arrive in time."""
    detail = "the cohort continued without this participant"
    return ProblemError(ProblemType.DROPPED_OUT, detail, phase=phase)


def out_of_phase(kind: str, kind_phase: Phase, phase: Phase) -> ProblemError:
    """Return the refusal of a message of `kind_phase` in another `phase`."""
    detail = f"the cohort is {phase}: {kind} belongs in {kind_phase}"
    return ProblemError(ProblemType.WRONG_PHASE, detail, phase=phase)


def late(phase: Phase, deadline: datetime) -> ProblemError:
    """Return the refusal of a message after the `deadline` of its `phase`."""
    detail = f"the deadline of {phase} has passed: {deadline.isoformat()}"
    return ProblemError(ProblemType.WRONG_PHASE, detail, phase=phase)


def time_lost(phase: Phase) -> ProblemError:
    """Return the refusal of a message that is late because no server could receive for a time."""
    detail = "the deadline has passed, but will be extended: try again"
    return ProblemError(ProblemType.UNAVAILABLE, detail, phase=phase)


def malformed(detail: str, location: str = "body") -> ProblemError:
    """Return the refusal of a request with one error at one location."""
    errors: list[FieldError] = [{"location": location, "detail": detail}]
    return ProblemError(ProblemType.MALFORMED, detail, errors=errors)


def malformed_fields(errors: Sequence[FieldError], status: int | None = None) -> ProblemError:
    """Return the refusal of a request with `errors`; its detail names the first three."""
    if len(errors) == 1 and status is None:
        return malformed(errors[0]["detail"], errors[0]["location"])
    detail = "; ".join(f"{error['location']}: {error['detail']}" for error in errors[:3])
    if len(errors) > 3:
        detail += f"; and {len(errors) - 3} more"
    return ProblemError(ProblemType.MALFORMED, detail, errors=errors, status=status)

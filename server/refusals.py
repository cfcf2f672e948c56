"""What the service will not do, said without HTTP: `problems.py` gives it a status."""

from collections.abc import Sequence
from typing import TypedDict

from protocol.messages import ProblemType
from protocol.round import Phase


class Fault(TypedDict):
    """One thing that is wrong with a request, and where."""

    at: str
    fault: str


class Refusal(Exception):  # noqa: N818  (not every refusal is somebody's error)
    """The service will not do this: `kind` says why to programs, `detail` to people.

    `status` is only given where one kind has two: a document that is not JSON at all is a
    400, one that says the wrong thing a 422.
    """

    def __init__(
        self,
        kind: ProblemType,
        detail: str,
        *,
        phase: Phase | None = None,
        errors: Sequence[Fault] | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.phase = phase
        self.errors = errors
        self.status = status


def not_found(what: str) -> Refusal:
    """Return the refusal of something nobody knows."""
    return Refusal(ProblemType.NOT_FOUND, f"there is no such {what}")


def cohort_failed(failure: str | None) -> Refusal:
    """Return what a failed cohort answers to everything."""
    detail = f"the cohort failed: {failure}"
    return Refusal(ProblemType.COHORT_FAILED, detail, phase=Phase.FAILED)


def left_out(phase: Phase) -> Refusal:
    """Return what a participant hears that was not heard in time."""
    detail = "the cohort went on without this participant"
    return Refusal(ProblemType.LEFT_OUT, detail, phase=phase)


def out_of_phase(what: str, its: Phase, phase: Phase) -> Refusal:
    """Return the refusal of `what`, which belongs in phase `its`, now that it is `phase`."""
    detail = f"the cohort is {phase}: {what} belongs in {its}"
    return Refusal(ProblemType.WRONG_PHASE, detail, phase=phase)


def malformed(fault: str, at: str = "body") -> Refusal:
    """Return the refusal of a request with one fault, found at one place."""
    return Refusal(ProblemType.MALFORMED, fault, errors=[{"at": at, "fault": fault}])


def malformed_all(faults: Sequence[Fault], status: int | None = None) -> Refusal:
    """Return the refusal of a request with `faults`; its detail tells the first of them."""
    if len(faults) == 1 and status is None:
        return malformed(faults[0]["fault"], faults[0]["at"])
    detail = "; ".join(f"{each['at']}: {each['fault']}" for each in faults[:3])
    if len(faults) > 3:
        detail += f"; and {len(faults) - 3} more"
    return Refusal(ProblemType.MALFORMED, detail, errors=faults, status=status)

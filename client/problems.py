"""What the service's refusals mean to whoever called it, and which calls to repeat.

An error answer is problem+json (RFC 9457) whose `type` is stable, so each type has an
exception class here, and callers catch what they can act on: a device that was left out may
come again, one that came in the wrong phase may not. Whatever may pass by itself (no
connection, a busy database, a proxy without its server) is worth repeating, after the time
that the answer names in Retry-After or else after a growing one: saying a thing twice is the
same as saying it once. Creating a study is as well, by the key that is sent along.
"""

from typing import ClassVar, Final

import httpx
from pydantic import ValidationError

from protocol.messages import PROBLEM, Problem, ProblemType
from protocol.round import Phase

PASSING: Final = frozenset({408, 429, 502, 503, 504})  # statuses that may pass by themselves
MOST_SECONDS: Final = 30.0  # a Retry-After beyond this is asked for again at this time


class ServiceError(Exception):
    """The service refused a request.

    Attributes:
        problem: what it said.
        said: that in words, each fault once; the error itself tells programs what to do, too.
        retry_after: after how many seconds it asks us to come back, if it says so.
    """

    advice: ClassVar[str] = ""

    def __init__(self, problem: Problem, retry_after: float | None = None) -> None:
        self.said = _said(problem)
        super().__init__(f"{self.said} ({self.advice})" if self.advice else self.said)
        self.problem = problem
        self.retry_after = retry_after

    @property
    def phase(self) -> Phase | None:
        """Return the phase that the cohort is in, where the service says so."""
        return self.problem.phase


class NotFoundError(ServiceError):
    """No such study, round or participant."""

    advice = "check the address and the id; `Analyst.studies()` lists the studies there are"


class NotAuthorisedError(ServiceError):
    """The key, token or credential is missing, or not good here."""

    advice = "`blindtally keys` makes API keys, `blindtally tokens` lets devices in"


class ForbiddenError(ServiceError):
    """The credential is good, but not for this."""

    advice = "`blindtally keys create --scope` makes keys that may do more"


class TooManyError(ServiceError):
    """Asked too often, for as long as we asked."""


class RejectedError(ServiceError):
    """The request itself is at fault: repeating it as it is will not help."""

    advice = "mend the request"


class WrongPhaseError(ServiceError):
    """Too early or too late for this message."""


class ConflictError(ServiceError):
    """The same thing was said before, with other content."""


class KeyReusedError(ConflictError):
    """The key of a creation came with another request before."""

    advice = "take a new key for another request"


class WrongStateError(ServiceError):
    """The study is not in a state that allows this."""

    advice = "`Study.refresh()` shows its state"


class NoRoundError(ServiceError):
    """No round takes devices now."""

    advice = "come back later"


class AlreadyCountedError(ServiceError):
    """The device is in the sum of an earlier round of the study."""


class OtherPlanError(ServiceError):
    """The report was made for another plan than the round's."""

    advice = "report to the round as `rounds/open` shows it"


class BudgetSpentError(ServiceError):
    """The device has spent its privacy budget with this service."""


class NotEnrolledError(ServiceError):
    """The study's registrar did not sign this device's identity for it."""

    advice = "the registrar enrols a device for each study anew"


class BarredError(ServiceError):
    """The device departed from the protocol in an earlier cohort of the study."""

    advice = "a round's cohorts show in `blamed` what it did"


class CohortFailedError(ServiceError):
    """The cohort's sum will not be made."""

    advice = "the device may take part in a later round, unless it gave its vector"


class LeftOutError(ServiceError):
    """The cohort went on without this participant."""

    advice = "the device may take part in a later round, unless it gave its vector"


class UnavailableError(ServiceError):
    """The service cannot answer now, and could not for as long as we asked."""

    advice = "is the server running, and its database reachable?"


CLASSES: Final[dict[ProblemType, type[ServiceError]]] = {
    ProblemType.NOT_FOUND: NotFoundError,
    ProblemType.NOT_AUTHORISED: NotAuthorisedError,
    ProblemType.FORBIDDEN: ForbiddenError,
    ProblemType.TOO_MANY: TooManyError,
    ProblemType.MALFORMED: RejectedError,
    ProblemType.WRONG_MEDIA_TYPE: RejectedError,
    ProblemType.METHOD_NOT_ALLOWED: RejectedError,
    ProblemType.TOO_LARGE: RejectedError,
    ProblemType.HEADERS_TOO_LARGE: RejectedError,
    ProblemType.TOO_SLOW: UnavailableError,
    ProblemType.WRONG_PHASE: WrongPhaseError,
    ProblemType.CONFLICT: ConflictError,
    ProblemType.KEY_REUSED: KeyReusedError,
    ProblemType.WRONG_STATE: WrongStateError,
    ProblemType.NO_ROUND: NoRoundError,
    ProblemType.ALREADY_COUNTED: AlreadyCountedError,
    ProblemType.OTHER_PLAN: OtherPlanError,
    ProblemType.BUDGET_SPENT: BudgetSpentError,
    ProblemType.NOT_ENROLLED: NotEnrolledError,
    ProblemType.BARRED: BarredError,
    ProblemType.COHORT_FAILED: CohortFailedError,
    ProblemType.LEFT_OUT: LeftOutError,
    ProblemType.UNAVAILABLE: UnavailableError,
    ProblemType.INTERNAL: ServiceError,
}


def accept(response: httpx.Response) -> httpx.Response:
    """Return `response` if it is a success.

    Raises:
        ServiceError: of the class that fits, if it is not.
    """
    if response.is_success:
        return response
    problem = _problem(response)
    kind = problem.type.removeprefix(PROBLEM)
    known = CLASSES[ProblemType(kind)] if kind in set(ProblemType) else ServiceError
    if response.status_code in PASSING:
        known = UnavailableError
    raise known(problem, retry_after(response))


def worth_repeating(error: Exception) -> bool | float:
    """Return whether the request may succeed later: True, or after how many seconds."""
    if isinstance(error, ServiceError):
        if error.problem.status not in PASSING:
            return False
        return error.retry_after or True  # after 0 seconds, many would come back at once
    return isinstance(error, httpx.TransportError)


def _said(problem: Problem) -> str:
    """Return the detail, or every fault where the detail tells of some of them."""
    faults = [dict(each) for each in problem.errors or ()]
    if not faults:
        return problem.detail
    if all(each.get("fault") == problem.detail for each in faults):
        whole = {"body", "query", "path"}  # as places go: it says nothing of where
        places = [each["at"] for each in faults if each.get("at", "body") not in whole]
        return ": ".join([*places[:1], problem.detail])
    return "; ".join(": ".join(each.values()) for each in faults)


def _problem(response: httpx.Response) -> Problem:
    try:
        return Problem.model_validate_json(response.content)
    except ValidationError:  # a proxy's page, or no service of ours
        detail = f"{response.url} answered {response.status_code} {response.reason_phrase}"
        return Problem(
            type="about:blank",
            title=response.reason_phrase or "no reason given",
            status=response.status_code,
            detail=detail,
        )


def retry_after(response: httpx.Response) -> float | None:
    """Return the seconds of Retry-After; a date there is not ours, and ignored."""
    said = response.headers.get("retry-after", "")
    return min(float(said), MOST_SECONDS) if said.isdecimal() else None

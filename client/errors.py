"""Errors of the service as exceptions, and the rule that decides which requests to repeat.

An error response is problem+json (RFC 9457) with a stable `type`, and each type has an exception
class. An error that may pass (no connection, a busy database, a fault of the service, a proxy
without its server) is worth a repetition, after Retry-After or a growing time. Repeating a request
has no further effect.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socket import gaierror
from typing import Final, Self

import httpx
from pydantic import ValidationError

from client.credentials import cause_without_secrets, hide_secrets
from client.http_environment import certificate_variable, proxy_of, proxy_variable
from protocol.api.messages import PROBLEM_TYPE_PREFIX, Problem, ProblemType
from protocol.api.phases import Phase
from protocol.printable import escape_hidden
from secagg.errors import PortableError

TRANSIENT_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})  # worth a repetition
MAX_RETRY_AFTER_SECONDS: Final = 30.0  # bounds the wait for any Retry-After
# Of a document: it then takes less than 50 MB of memory. A plan of `tracked` lists 16,384 items.
MAX_JSON_VALUES: Final = 2**17
MAX_ERROR_CHARACTERS: Final = 2_000  # of a text that a service can choose
_ADVICE_WHEN_MISSING: Final = {
    "study": "check the address and the id; `Analyst.studies()` lists all studies",
    "population": "check the address and the name; `Analyst.populations()` lists all populations",
    "heavy hitter": "`Study.heavy_hitters()` lists the heavy hitters",
}
# Parts of a request, which callers do not name: they name the arguments within them.
_REQUEST_PARTS: Final = ("body.question", "body.terms", "body", "query", "path")


class ServiceUnreachableError(Exception):
    """The service sent no response that is HTTP, for the whole `patience`."""


class AnalystClosedError(PortableError):
    """A call of an analyst, or of one of its studies, after the analyst was closed."""

    def __init__(self) -> None:
        super().__init__(
            "this analyst is closed: move the call into its `with` block, or make another analyst"
        )


class ServiceError(PortableError):
    """The service refused a request.

    Attributes:
        problem: the problem document of the response.
        message: its detail, or each of its faults once. The text of the error adds the advice of
            its class.
        retry_after: the seconds of the Retry-After header, if the response has one.
    """

    advice: str = ""

    def __init__(self, problem: Problem, retry_after: float | None = None) -> None:
        self.message = short_text(_full_detail(problem))
        super().__init__(f"{self.message} ({self.advice})" if self.advice else self.message)
        self.problem = Problem.model_validate_json(hide_secrets(problem.model_dump_json()))
        self.retry_after = retry_after

    @property
    def phase(self) -> Phase | None:
        return self.problem.phase


class NotFoundError(ServiceError):
    """The study, round, population, heavy hitter or participant does not exist.

    Attributes:
        listed: the kind of things whose list helps: "study", "population" or "heavy hitter".
    """

    def __init__(self, problem: Problem, retry_after: float | None = None) -> None:
        missing = problem.detail.removeprefix("there is no such ")
        self.listed = next(
            (kind for kind in _ADVICE_WHEN_MISSING if missing.startswith(kind)), "study"
        )
        self.advice = _ADVICE_WHEN_MISSING[self.listed]
        super().__init__(problem, retry_after)


class NotAuthorisedError(ServiceError):
    """The key, token or credential is missing or not valid."""

    advice = (
        "pass an API key, which `blindtally keys create` makes; or as a device a token, which "
        "`blindtally tokens create` makes"
    )


class ForbiddenError(ServiceError):
    """The credential is valid, but does not allow this."""

    advice = "`blindtally keys create --scope` makes keys with more rights"


class TooManyRequestsError(ServiceError):
    """The service refused too many requests, for the whole `patience`."""


class BadRequestError(ServiceError):
    """The request is wrong: repeating it unchanged does not help."""

    advice = "fix the request"


class WrongPhaseError(ServiceError):
    """The message came too early or too late."""


class ConflictError(ServiceError):
    """An earlier request for the same thing had other content."""


class IdempotencyKeyReusedError(ConflictError):
    """An earlier creation with other content had the same key."""

    advice = "use a new key for another request"


class WrongStateError(ServiceError):
    """The state of the study does not allow this."""

    advice = "`Study.refresh()` shows its state"


class NoRoundError(ServiceError):
    """No round takes devices now."""

    advice = "come back later"


class AlreadyCountedError(ServiceError):
    """The device is already in the sum of an earlier round of the study."""


class PoisonedCohortError(ServiceError):
    """The device's vector is in an unusable sum, which another device may have spoiled."""

    advice = "the device may take part in other studies"


class PlanMismatchError(ServiceError):
    """The report was made for a plan other than the round's."""

    advice = "report to the round that `rounds/open` shows"


class BudgetSpentError(ServiceError):
    """The device has spent its privacy budget with this service."""


class NotEnrolledError(ServiceError):
    """The study's registrar did not sign this device's identity for the study."""

    advice = "the registrar enrols a device separately for each study"


class BarredError(ServiceError):
    """The device departed from the protocol in an earlier cohort of the study."""

    advice = "`blamed` of the round's cohorts shows the reason"


class CohortFailedError(ServiceError):
    """The cohort failed, so its sum will never exist."""

    advice = "the device may take part in a later round, unless it sent its vector"


class DroppedOutError(ServiceError):
    """The cohort continued without this participant."""

    advice = "the device may take part in a later round, unless it sent its vector"


class UnavailableError(ServiceError):
    """The service could not answer, for the whole `patience`."""

    advice = "check that the server is running and its database reachable"


class UnreadableAnswerError(ServiceError):
    """The answer is not one of blindtally."""

    advice = "check that the address is that of a blindtally service of this version"

    @classmethod
    def at(cls, place: object, status: int = httpx.codes.OK, reason: str = "") -> Self:
        """Return the error of an answer at the URL or path `place`."""
        title = "an answer that cannot be read"
        detail = f"{place} answered {status} with {title}{reason and f': {reason}'}"
        return cls(Problem(type="about:blank", title=title, status=status, detail=detail))


ERROR_CLASSES: Final[dict[ProblemType, type[ServiceError]]] = {
    ProblemType.NOT_FOUND: NotFoundError,
    ProblemType.NOT_AUTHORISED: NotAuthorisedError,
    ProblemType.FORBIDDEN: ForbiddenError,
    ProblemType.TOO_MANY: TooManyRequestsError,
    ProblemType.MALFORMED: BadRequestError,
    ProblemType.WRONG_MEDIA_TYPE: BadRequestError,
    ProblemType.METHOD_NOT_ALLOWED: BadRequestError,
    ProblemType.TOO_LARGE: BadRequestError,
    ProblemType.TOO_SLOW: UnavailableError,
    ProblemType.WRONG_PHASE: WrongPhaseError,
    ProblemType.CONFLICT: ConflictError,
    ProblemType.IDEMPOTENCY_KEY_REUSED: IdempotencyKeyReusedError,
    ProblemType.WRONG_STATE: WrongStateError,
    ProblemType.NO_ROUND: NoRoundError,
    ProblemType.ALREADY_COUNTED: AlreadyCountedError,
    ProblemType.POISONED_COHORT: PoisonedCohortError,
    ProblemType.PLAN_MISMATCH: PlanMismatchError,
    ProblemType.BUDGET_SPENT: BudgetSpentError,
    ProblemType.NOT_ENROLLED: NotEnrolledError,
    ProblemType.BARRED: BarredError,
    ProblemType.COHORT_FAILED: CohortFailedError,
    ProblemType.DROPPED_OUT: DroppedOutError,
    ProblemType.UNAVAILABLE: UnavailableError,
    ProblemType.INTERNAL: ServiceError,
}


def check_response(response: httpx.Response) -> httpx.Response:
    """Return `response` if it is a success; raises the ServiceError of its problem type if not."""
    if response.is_success:
        return response
    problem = _parse_problem(response)
    kind = problem.type.removeprefix(PROBLEM_TYPE_PREFIX)
    error = ERROR_CLASSES[ProblemType(kind)] if kind in set(ProblemType) else ServiceError
    if response.status_code in TRANSIENT_STATUSES:
        error = UnavailableError
    raise error(problem, retry_after_seconds(response))


def is_retryable(error: Exception) -> bool | float:
    """Return whether the request may succeed later: a bool, or the seconds to wait."""
    if isinstance(error, ServiceError):
        if error.problem.status not in TRANSIENT_STATUSES:
            return False
        return error.retry_after or True  # 0 seconds would let many devices return at once
    is_wrong_request = isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError)
    return isinstance(error, httpx.TransportError) and not is_wrong_request


def is_wrong_address(error: Exception) -> bool:
    """Return whether a first request failed because the address is wrong.

    Nothing listens there, the name does not resolve, or only one side uses TLS. A service that
    answered before may give the same error while it restarts.
    """
    return isinstance(error, httpx.ConnectError) or _closed_without_answer(error)


def _closed_without_answer(error: Exception) -> bool:
    """Return whether a server closed the connection, as one with TLS does for plain HTTP."""
    return isinstance(error, httpx.RemoteProtocolError) and "without sending" in str(error)


@contextmanager
def http_errors_as_unreachable() -> Iterator[None]:
    """Raise ServiceUnreachableError instead of an error of the HTTP library."""
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
        text = short_text(_unreachable_reason(error))
        raise ServiceUnreachableError(text) from cause_without_secrets(error)


def _unreachable_reason(error: Exception) -> str:
    """Return the address of the service, if the error has it, and the reason."""
    request: httpx.Request | None = getattr(error, "_request", None)  # `request` raises if None
    service = "the service"
    if request is not None:
        service = f"{request.url.scheme}://{request.url.netloc.decode()}"
    advice = ""
    if isinstance(error, httpx.ConnectError):
        advice = " (check the address, and that the service runs there)"
        if isinstance(_first_cause(error), gaierror):
            advice = " (no such name is known: check the address, and this machine's network)"
        elif "CERTIFICATE_VERIFY_FAILED" in str(error):
            variable = certificate_variable() or "SSL_CERT_FILE"
            advice = f" (check the address, and the trusted certificates in {variable})"
        elif "SSL" in str(error):
            advice = f" (does the server use TLS? If not: {service.replace('https:', 'http:')})"
    elif _closed_without_answer(error) and service.startswith("http:"):
        advice = f" (does the server use TLS? Then: {service.replace('http:', 'https:')})"
    if request is not None:
        service += _through_proxy(request.url)
    return f"{service} is out of reach: {type(error).__name__}: {error}{advice}"


def _first_cause(error: BaseException) -> BaseException:
    while cause := error.__cause__ or error.__context__:
        error = cause
    return error


def _through_proxy(url: httpx.URL) -> str:
    """Return words on the proxy for `url`, empty without one."""
    proxy = proxy_of(url)
    if proxy is None:
        return ""
    address = f"{proxy.url.scheme}://{proxy.url.netloc.decode()}"
    return f" through the proxy {address} ({proxy_variable(url)})"


def short_text(text: str) -> str:
    """Return at most `MAX_ERROR_CHARACTERS` of `text`, on one line and without secrets.

    Hidden characters are escaped.
    """
    return escape_hidden(hide_secrets(text)[:MAX_ERROR_CHARACTERS])


def _full_detail(problem: Problem) -> str:
    faults = [dict(fault) for fault in problem.errors or ()]
    if not faults:
        return problem.detail
    if all(fault.get("detail") == problem.detail for fault in faults):
        places = filter(None, (_argument(fault.get("location", "")) for fault in faults))
        return ": ".join([*list(places)[:1], problem.detail])
    texts = ((_argument(each.get("location", "")), each.get("detail", "")) for each in faults)
    return "; ".join(": ".join(filter(None, pair)) for pair in texts)


def _argument(location: str) -> str:
    """Return the name of an argument in a location of the request; empty for a whole part."""
    for part in _REQUEST_PARTS:
        if location == part or location.startswith(f"{part}."):
            return location[len(part) + 1 :]
    return location


def has_many_values(body: bytes, most: int = MAX_JSON_VALUES) -> bool:
    """Return whether the JSON in `body` may have more than `most` values.

    It may have `MAX_JSON_VALUES` objects, each of which takes a kilobyte while it is read.
    """
    # Or more: strings may contain these.
    commas, lists, objects = map(body.count, (b",", b"[", b"{"))
    return commas + lists + objects > most or objects > MAX_JSON_VALUES


def _parse_problem(response: httpx.Response) -> Problem:
    if not has_many_values(response.content):
        with suppress(ValidationError):  # a proxy's page, or another service
            return Problem.model_validate_json(response.content)
    return Problem(
        type="about:blank",
        title=response.reason_phrase or "no reason given",
        status=response.status_code,
        detail=f"{response.url.copy_with(userinfo=b'')}{_through_proxy(response.url)} answered "
        f"{response.status_code} {response.reason_phrase}",
    )


def retry_after_seconds(response: httpx.Response) -> float | None:
    """Return the seconds of Retry-After; a date is ignored, because the service sends none."""
    value = response.headers.get("retry-after", "")
    return min(float(value), MAX_RETRY_AFTER_SECONDS) if value.isdecimal() else None

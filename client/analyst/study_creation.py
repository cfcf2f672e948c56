"""Creation of a study: its terms from a number of devices, and errors in plain words."""

import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from secrets import token_urlsafe
from typing import Final, SupportsIndex

from pydantic import ValidationError

from client.analyst.requests import ApiRequest
from client.http.address_and_retries import url_path
from protocol.api.messages import CreatedStudy, PopulationRequest, StudyRequest, Timeouts
from protocol.committee_terms import AnyCommitteeTerms, CommitteeTerms, VolunteerTerms
from protocol.mechanisms.registry import AnyPlan, AnyQuestion, mechanism_of
from protocol.question_and_plan import MAX_ROUNDS, MIN_COHORT_SIZE, Question, Terms
from protocol.validation_errors import validation_faults

DEFAULT_ROUNDS: Final = 5
DEFAULT_COHORT_SIZE: Final = 1000  # the largest cohort if only the number of devices is given


def create_study(
    key: str | None, *, timeouts: Timeouts | None, **fields: object
) -> ApiRequest[CreatedStudy]:
    """Return the request that creates a study; without a `key`, each creates another study.

    Raises:
        ValueError: if a field is invalid.
    """
    if key is not None and not (isinstance(key, str) and key.isascii() and key.isprintable()):
        raise ValueError(f"key: must be text of printable ASCII characters, not {key!r}")
    with _plain_errors():
        timeouts = Timeouts() if timeouts is None else timeouts
        document = StudyRequest.model_validate({"timeouts": timeouts, **fields})
    return ApiRequest(
        "POST",
        url_path("studies"),
        CreatedStudy.model_validate_json,
        content=document.model_dump_json(),
        idempotency_key=key or token_urlsafe(24),
    )


def default_rounds(question: object) -> int:
    """Return the number of rounds without another wish: those that an answer needs, or five."""
    needed = None
    if isinstance(question, Question):
        needed = mechanism_of(question).rounds_needed(question)
    return min(needed or DEFAULT_ROUNDS, MAX_ROUNDS)


def study_terms(
    terms: Terms | None,
    devices: int | None,
    cohorts: int | None,
    registrar: str | None,
    committee: Sequence[str] | AnyCommitteeTerms | None = None,
) -> Terms:
    """Return `terms`, or those of `devices`; raises ValueError unless one is given and valid."""
    if terms is not None:
        if (devices, cohorts, registrar, committee) != (None, None, None, None):
            raise ValueError(
                "leave out `devices`, `cohorts`, `registrar` and `committee`, which `terms` "
                "determines"
            )
        return terms
    if devices is None:
        raise ValueError("pass `devices`, the largest number of devices in a round, or `terms`")
    devices = _whole_number("devices", devices)
    cohorts = None if cohorts is None else _whole_number("cohorts", cohorts)
    with _plain_errors(cohort_size="devices", members="committee"):
        return _terms_of_devices(devices, cohorts, registrar, committee)


def _whole_number(name: str, number: object) -> int:
    """Return `number`, perhaps of numpy, as an int.

    Raises:
        ValueError: if it is not a whole number from 1.
    """
    whole = 0
    if isinstance(number, SupportsIndex) and not isinstance(number, bool):
        whole = operator.index(number)
    if whole < 1:
        raise ValueError(f"{name}: must be a whole number from 1, not {number!r}")
    return whole


def _terms_of_devices(
    devices: int,
    cohorts: int | None,
    registrar: str | None,
    committee: Sequence[str] | AnyCommitteeTerms | None,
) -> Terms:
    if committee is not None:
        if not isinstance(committee, CommitteeTerms | VolunteerTerms):
            committee = CommitteeTerms.model_validate({"members": committee})
        return Terms(
            cohort_size=devices,
            minimum=max(3, devices // 2),
            cohorts=1 if cohorts is None else cohorts,
            registrar=registrar,
            sum="one-shot",
            committee=committee,
        )
    count = math.ceil(devices / DEFAULT_COHORT_SIZE) if cohorts is None else cohorts
    size = math.ceil(devices / count)
    if count > 1 and size < MIN_COHORT_SIZE:
        raise ValueError(
            f"cohorts: {devices:,} devices are too few for {count:,} cohorts, of at least "
            f"{MIN_COHORT_SIZE} devices each"
        )
    return Terms(cohort_size=size, minimum=max(3, size // 2), cohorts=count, registrar=registrar)


def describe_faults(error: ValidationError, **argument_of_field: str) -> str:
    """Return all faults of a request or a part of one, each with the name of its field.

    Some fields have the name of an argument instead.
    """
    faults = validation_faults(error, AnyQuestion, AnyPlan, StudyRequest, PopulationRequest)
    named = (([argument_of_field.get(str(p), str(p)) for p in path], text) for path, text in faults)
    return "; ".join(": ".join([*names, text]) for names, text in named)


@contextmanager
def _plain_errors(**argument_of_field: str) -> Iterator[None]:
    """Raise ValueError with all faults in plain words; fields may have the names of arguments."""
    try:
        yield
    except ValidationError as error:
        raise ValueError(describe_faults(error, **argument_of_field)) from None

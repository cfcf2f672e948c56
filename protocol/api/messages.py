"""Documents of the API: requests, views and problem details, with their limits.

Keys and signatures are in hexadecimal. The messages of a secure sum travel as raw bytes
(`secagg.roster` and `secagg.messages`). An error is problem+json (RFC 9457); its `type` is
`urn:blindtally:problem:` and one of `ProblemType`.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Literal
from unicodedata import category, normalize

from pydantic import AfterValidator, Field

from protocol.api.events import EndCause, end_sentence
from protocol.api.messages_outside_sums import Hex64
from protocol.api.phases import Phase
from protocol.estimation.estimates import ListQuality
from protocol.mechanisms.quality_goal import QualityGoal
from protocol.mechanisms.registry import AnyQuestion, ServedPlan
from protocol.printable import check_name
from protocol.privacy.ledger import Budget
from protocol.public_model import Hex32, Id, PublicModel, Rows
from protocol.question_and_plan import MAX_ROUNDS, Terms
from secagg.session import Registry

_FORMULA_PREFIXES: Final = ("=", "+", "-", "@")  # spreadsheets run cells that start so
_CONTROL_PREFIXES: Final = ("\t", "\r", "\n")
Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600)]
StudyName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(check_name)]
RoundCount = Annotated[int, Field(ge=1, le=MAX_ROUNDS)]
Tag = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
Tags = Annotated[Rows[Tag], Field(max_length=10)]
PopulationName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
StudyStatus = Literal["created", "running", "finished", "stopped"]
RoundState = Literal["running", "decoded", "undecoded", "failed"]
MAX_RETRY_SECONDS: Final = 3.0  # between two tries while the service is out of reach
PROBLEM_TYPE_PREFIX = "urn:blindtally:problem:"
MAX_PROBLEM_ERRORS: Final = 1_000


class ProblemType(StrEnum):
    """Types of problems; the values are stable, so that programs can depend on them."""

    NOT_FOUND = "not-found"  # 404: no such study, round, participant or path
    NOT_AUTHORISED = "not-authorised"  # 401: no credential, or an invalid one
    FORBIDDEN = "forbidden"  # 403: a valid credential without this permission
    TOO_MANY = "too-many-requests"  # 429: retry after Retry-After
    MALFORMED = "malformed"  # 400 or 422: not JSON, wrong size, type or range
    WRONG_MEDIA_TYPE = "wrong-media-type"  # 415
    METHOD_NOT_ALLOWED = "method-not-allowed"  # 405
    TOO_LARGE = "too-large"  # 413
    TOO_SLOW = "too-slow"  # 408: the request was not complete in time
    WRONG_PHASE = "wrong-phase"  # 409: too early or too late; `phase` is the current phase
    CONFLICT = "conflict"  # 409: the same message was sent before, with other content
    IDEMPOTENCY_KEY_REUSED = "idempotency-key-reused"  # 409: another request used this key
    WRONG_STATE = "wrong-state"  # 409: the study is not in a state that allows this
    NO_ROUND = "no-round"  # 409: no round accepts devices now; retry after Retry-After
    ALREADY_COUNTED = "already-counted"  # 409: this device took part in an earlier round
    POISONED_COHORT = "poisoned-cohort"  # 409: this device's vector is in an unusable sum
    PLAN_MISMATCH = "plan-mismatch"  # 409: the report was made for another plan than this round's
    BUDGET_SPENT = "budget-spent"  # 409: this device, or population, has no budget left for this
    NOT_ENROLLED = "not-enrolled"  # 403: the study's registrar did not sign this identity
    BARRED = "barred"  # 403: this device departed from the protocol in an earlier cohort
    COHORT_FAILED = "cohort-failed"  # 410: the cohort has failed and publishes nothing
    DROPPED_OUT = "dropped-out"  # 410: the cohort continued without this participant
    UNAVAILABLE = "unavailable"  # 503: the database is busy or out of reach; Retry-After
    INTERNAL = "internal-error"  # 500: a fault of the service


class Problem(PublicModel):
    """Problem details (RFC 9457). `errors` lists at most 1,000 faults of a document."""

    type: str
    title: str
    status: int
    detail: str
    phase: Phase | None = None
    errors: Annotated[tuple[dict[str, str], ...], Field(max_length=MAX_PROBLEM_ERRORS)] | None = (
        None
    )


class Timeouts(PublicModel):
    """Maximum seconds of each phase; after a quorum, `idle` seconds without a message end it."""

    convening: Seconds = 300
    drawing: Seconds = 300
    collecting: Seconds = 600
    enrolling: Seconds = 600
    seating: Seconds = 300
    sharing: Seconds = 60
    checking: Seconds = 60
    answering: Seconds = 60
    masking: Seconds = 60
    confirming: Seconds = 60
    unmasking: Seconds = 60
    agreeing: Seconds = 60
    releasing: Seconds = 60
    reporting: Seconds = 3600
    idle: Seconds = 5


class PopulationRequest(PublicModel):
    """An operator's request for a population, with a privacy budget of its studies or none."""

    budget: Budget | None = None


class PopulationView(PublicModel):
    """A population."""

    name: str
    budget: Budget | None
    created: datetime


class StudyRequest(PublicModel):
    """An analyst's request for a study; its `population` must have enough budget left.

    The study ends before its last round if the expected precision and recall of its list reach
    `stop_at`, if given. When it has ended, `webhook` gets a signed message.
    """

    name: StudyName
    question: AnyQuestion
    terms: Terms
    rounds: RoundCount
    timeouts: Timeouts = Timeouts()
    start: bool = False
    population: PopulationName | None = None
    stop_at: QualityGoal | None = None
    tags: Tags = ()
    webhook: Annotated[str, Field(max_length=500)] | None = None


class StudyView(PublicModel):
    """A study; `round` is the latest, 0 before the first, and `end_cause` None until it ends.

    `owner` is the name of the API key, or the e-mail address of the person, that created it. It is
    None if the service was open.
    """

    id: Id
    name: str
    state: StudyStatus
    question: AnyQuestion
    terms: Terms
    rounds: int
    timeouts: Timeouts
    round: int
    created: datetime
    population: str | None = None
    stop_at: QualityGoal | None = None
    end_cause: EndCause | None = None
    tags: tuple[str, ...] = ()
    owner: str | None = None

    @property
    def outcome(self) -> str:
        """Return the state, or "failed" if all rounds are over without an answer."""
        return "failed" if self.end_cause is EndCause.NO_ANSWER else self.state

    @property
    def end_reason(self) -> str | None:
        """Return a sentence with the reason why the study ended; None until it has."""
        if self.end_cause is None:
            return None
        has_goal = self.stop_at is not None
        return end_sentence(self.end_cause, self.round, self.rounds, has_goal=has_goal)

    @property
    def registry(self) -> Registry | None:
        """Return the registry that the registrar signs identities for; None without a registrar."""
        return self.question.registry(self.id, self.terms, self.rounds)


class CreatedStudy(StudyView):
    """A new study, with the secret that signs the message to its webhook."""

    webhook_secret: str | None = Field(default=None, repr=False)


class ShareRequest(PublicModel):
    """A request for a link to a study that is valid for `days`."""

    days: Annotated[float, Field(gt=0, le=3650)] = 30.0


class SharedLink(PublicModel):
    """A link at whose `url` everybody can read one study until it `expires`."""

    url: str
    expires: datetime


class PhaseRecord(PublicModel):
    """The time at which a cohort entered `phase`, and the messages received in it.

    `note` is what readers of the sum must know about the step before this phase.
    """

    phase: Phase
    entered: datetime
    received: int
    note: str | None = None


class CohortView(PublicModel):
    """One secure sum: its phase, its participants, and the reason of a failure.

    `holders` and `threshold` are 0 until enrolling is over. `survivors` are the slots whose
    vectors are in the sum, empty until the cohort is summed. `blamed` are the slots that
    departed from the protocol, each with what it did. If the number of devices is secret
    (`Question.hides_device_counts`), all of these are 0 or empty, as is `received` in `history`.
    `committee` is that of a one-shot sum, packed in hexadecimal, once its keys are registered.
    """

    number: int
    phase: Phase
    deadline: datetime
    enrolled: int
    holders: int
    threshold: int
    history: Rows[PhaseRecord]
    survivors: Rows[int]
    failure: str | None
    blamed: Mapping[int, str] = {}
    committee: str | None = None


class RoundView(PublicModel):
    """One round: its plan, its cohorts, and the size of its sum.

    `participants` is the number of devices in the round's sum; `distinct` the number of its items
    that five devices or more were counted with, None if it was not read. Both are None until the
    round is over. `participants` stays None if the number of devices is secret
    (`Question.hides_device_counts`).
    """

    number: int
    state: RoundState
    plan: ServedPlan
    cohorts: Rows[CohortView]
    participants: Annotated[int, Field(le=2**53)] | None
    distinct: float | None
    opened: datetime
    closed: datetime | None

    @property
    def sampling_threshold(self) -> float:
        return float(self.plan.t)

    @property
    def counted_cohorts(self) -> int:
        """Return the number of cohorts in the sum."""
        return sum(each.phase is Phase.SUMMED and not each.failure for each in self.cohorts)


class HeavyHitter(PublicModel):
    """An item whose estimated count reaches the threshold; its 95% interval is `low` to `high`.

    `cohort_p_value` is not null if cohorts of a round differed as only lying devices or unlike
    cohorts do: the probability of that among honest devices whose cohorts are independent of items.
    `share` is that of the devices in all sums, in the same interval; null if the number of devices
    is secret. `probability` is that of the true count reaching the threshold. `top_probability` is
    that of being among the most frequent items, where they were asked for.
    """

    item: str
    estimate: float
    standard_error: float
    low: float
    high: float
    share: float | None = None
    share_low: float | None = None
    share_high: float | None = None
    cohort_p_value: float | None = None
    probability: float = 1.0
    top_probability: float | None = None


def csv_text(item: str) -> str:
    """Return an item for a CSV file; one that would run as a formula gets an apostrophe.

    So does one that begins with apostrophes before a formula: different items stay different.
    """
    return f"'{item}" if _is_formula(item.lstrip("'")) else item


def _is_formula(item: str) -> bool:
    """Return whether a spreadsheet may run `item`.

    Spreadsheets skip blanks and invisible characters, and read full-width signs as plain ones.
    """
    visible = (char for char in normalize("NFKC", item) if category(char)[0] not in "CZ")
    return item.startswith(_CONTROL_PREFIXES) or next(visible, "") in _FORMULA_PREFIXES


class QueryResult(PublicModel):
    """The answer `at` a rank, number, range or prefix, with its interval from `low` to `high`."""

    at: float | str
    value: float
    low: float
    high: float


class QueryResults(PublicModel):
    """Answers to a query; each interval misses the truth with probability `beta`."""

    estimator: str
    beta: float
    results: Rows[QueryResult]


class PopulationPage(PublicModel):
    """A page of populations, by name; `next` is the `after` of the next page."""

    populations: Rows[PopulationView]
    next: str | None


class StudyPage(PublicModel):
    """A page of studies, newest first; `next` is the `after` of the next page."""

    studies: Rows[StudyView]
    next: str | None


class RoundPage(PublicModel):
    """A page of rounds, first to last; `next` is the `after` of the next page."""

    rounds: Rows[RoundView]
    next: int | None


class HeavyHitterPage(PublicModel):
    """A page of heavy hitters, most frequent first; `next` is the `after` of the next page.

    The estimates rest on `decoded_rounds` of the `summed_rounds`, whose devices they stand for.
    `quality` is that of the whole list at the study's threshold; null if the mechanism does not
    estimate it.
    """

    heavy_hitters: Rows[HeavyHitter]
    summed_rounds: int
    decoded_rounds: int
    next: str | None
    quality: ListQuality | None = None


class EnrolmentRequest(PublicModel):
    """A device's request for access with an enrolment token.

    `credential` is the SHA-256 of 32 random bytes that only the device knows and that it sends with
    each later request; `signature` is the identity's (`possession_statement`).
    """

    identity: Hex32
    credential: Hex32
    signature: Hex64


class SignatureRequest(PublicModel):
    """A device's request to its registrar, with its identity for a study and all of its terms."""

    study: Id
    question: AnyQuestion
    terms: Terms
    rounds: RoundCount
    identity: Hex32


class SignatureAnswer(PublicModel):
    """The registrar's signature under an identity: its enrolment."""

    signature: Hex64


class AuditRecord(PublicModel):
    """One action of an actor on a subject, and its outcome: done, or refused."""

    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    outcome: str


class AuditPage(PublicModel):
    """Entries of the audit trail, newest first; `next` is the `before` of the next page."""

    entries: tuple[AuditRecord, ...]
    next: int | None = None


class SlotAssignment(PublicModel):
    """The answer to `JoinRequest`: the slot of the device, and the deadline of enrolling.

    `cohort` and `slot` are None until the roster is known if a registrar seats the round.
    """

    participant: Id
    cohort: int | None = None
    slot: int | None = None
    deadline: datetime

    @property
    def seat(self) -> tuple[int, int]:
        """Return cohort and slot; raises ValueError until they are known."""
        if self.cohort is None or self.slot is None:
            raise ValueError("the registrar has not seated this device yet")
        return self.cohort, self.slot


class PendingSeating(PublicModel):
    """A round whose joiners wait until `deadline` for its registrar to seat them.

    If `is_committee`, they are volunteers, from which it draws the committee of a one-shot sum.
    """

    study: Id
    round: int
    joiners: int
    deadline: datetime
    is_committee: bool = False


class SeatingPage(PublicModel):
    """The rounds that wait for one registrar."""

    rounds: Rows[PendingSeating]


class SeatingView(PublicModel):
    """A round for its registrar: the plan, and the number of its joiners."""

    plan: ServedPlan
    joiners: int


class CommitteeRound(PublicModel):
    """A round that waits until `deadline` for the message of a member in `phase`."""

    study: Id
    round: int
    phase: Phase
    deadline: datetime


class CommitteeRoundPage(PublicModel):
    """The rounds that wait for one member of committees."""

    rounds: Rows[CommitteeRound]


class CommitteeView(PublicModel):
    """A one-shot round for the members of its committee.

    `committee` is packed in hexadecimal, None until it is complete.
    """

    plan: ServedPlan
    phase: Phase
    deadline: datetime
    committee: str | None


class Pending(PublicModel):
    """The answer to a request that is too early: the cohort is in `phase` until `deadline`."""

    phase: Phase
    deadline: datetime

"""Results of a demo: heavy hitters compared with the truth, rounds, dropouts, bytes and seconds.

The *truth* is the total of the histograms of all devices whose vectors are in a sum: inside the
domain, clipped to the contribution bound, over all rounds with a sum, decoded or not.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from blindtally.console.answer_notes import notes_on_list, unlisted_counts
from blindtally.console.tables import key_notes
from blindtally.simulate.scores import FoundItem, Score, compare_with_truth
from client.device.encoding import LeftOutReason
from client.fleet.config_and_results import FleetRound
from protocol.api.messages import CohortView, HeavyHitter, StudyView
from protocol.api.phases import Phase
from protocol.description import AnswerKind
from protocol.domains import Domain
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan, AnyQuestion, mechanism_of
from protocol.printable import printable
from protocol.question_and_plan import SumKind
from secagg.ring import Ring, Vector


class InexactSumError(RuntimeError):
    """A sum is not the sum of its survivors' vectors: this must never happen."""


@dataclass(frozen=True, slots=True)
class RoundResult:
    """One round: its threshold, its sum, its dropouts and its seconds by phase.

    `capacity` is the number of distinct items that its table holds, `distinct` the number of
    items in the sum that five devices or more were counted with. `exact` is true if each sum was
    compared with its survivors' vectors, and equal; None for reports, which have no sum.
    `violations` has one line for each device that departed from the protocol, `failures` one for
    each cohort without a sum, or with an excluded sum.
    """

    number: int
    state: str
    t: float
    capacity: int
    distinct: float | None
    enrolled: int
    participants: int
    holders: int
    threshold: int
    exact: bool | None
    dropouts: Mapping[Phase, int]
    seconds: Mapping[Phase, float]
    violations: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceTraffic:
    """Mean bytes of a device that finished: its packed vector, and HTTP with headers, both ways."""

    vector: float
    sent: float
    received: float


@dataclass(frozen=True, slots=True)
class StudyResults:
    """All results of a demo or a trial; only lists of items have a score."""

    study: str
    sum: SumKind
    threshold: float
    score: Score | None
    heavy_hitters: tuple[FoundItem, ...]
    missed: Mapping[str, int]
    rounds: tuple[RoundResult, ...]
    traffic: DeviceTraffic
    seconds: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # why the list is empty or short, and what devices left out
    answer: tuple[str, ...] = ()  # sentences
    unlisted: Mapping[str, str] = field(default_factory=dict)  # words for the counts of options
    people: int = 0  # devices in the sums that are not simulated, so that true counts lack theirs

    @property
    def rounds_decoded(self) -> int:
        return sum(result.state == "decoded" for result in self.rounds)

    @property
    def dropouts(self) -> Mapping[Phase, int]:
        return sum((Counter(result.dropouts) for result in self.rounds), Counter())

    def as_json(self) -> dict[str, Any]:
        return {
            **(asdict(self.score) if self.score else {}),
            "answer": self.answer,
            "rounds_decoded": self.rounds_decoded,
            "thresholds": [result.t for result in self.rounds],
            "sums_exact": all(result.exact for result in self.rounds),
            "study": self.study,
            "sum": self.sum,
            "threshold": self.threshold,
            "heavy_hitters": [asdict(item) | {"error": item.error} for item in self.heavy_hitters],
            "missed": dict(self.missed),
            "unlisted": dict(self.unlisted),
            "bytes_per_device": asdict(self.traffic),
            "dropouts": dict(self.dropouts),
            "rounds": [asdict(result) for result in self.rounds],
            "seconds": self.seconds,
            "settings": dict(self.settings),
        }


def verify_sum(played: FleetRound, cohort: CohortView, total: Vector) -> None:
    """Compare the service's `total` with the sum of the survivors' vectors.

    Raises:
        InexactSumError: if they differ in any bit, or a survivor is not a device of this fleet.
    """
    plan = played.view.plan
    ring: Ring = SUM_MECHANISMS[plan.question.mechanism].ring(plan)
    survivors = played.results_in_sum(cohort)
    where = f"round {played.view.number}, cohort {cohort.number}"
    summed = len(cohort.survivors)
    if plan.terms.is_one_shot:  # the members may have left messages out, but never add any
        summed = played.view.participants or 0
    if len(survivors) != summed:
        raise InexactSumError(f"{where}: {summed - len(survivors)} unknown devices in it")
    expected = ring.zero()
    for entry in survivors:
        if entry.vector is None:
            raise InexactSumError(
                f"{where}: device {entry.device} is in the sum but sent no masked input"
            )
        ring.add(expected, entry.vector)
    if ring.pack(expected) != ring.pack(total):
        raise InexactSumError(f"{where}: the sum is not the sum of its {len(survivors)} vectors")


def true_counts(played: Sequence[FleetRound]) -> Counter[str]:
    truth: Counter[str] = Counter()
    for finished in played:
        for cohort in finished.view.cohorts:
            for entry in finished.results_in_sum(cohort):
                truth.update(entry.contribution.histogram)
    return truth


def summarize_study(
    study: StudyView,
    rows: Sequence[HeavyHitter],
    played: Sequence[FleetRound],
    *,
    rounds: Sequence[RoundResult],
    seconds: float,
    settings: Mapping[str, Any],
    answer: Iterable[str] = (),
) -> StudyResults:
    threshold = study.question.threshold
    lists_items = is_list(study)
    rows = rows if lists_items else []
    notes = notes_on_list(study, [each.view for each in played], [row.item for row in rows])
    estimates = ((row.item, row.estimate, row.standard_error, row.low, row.high) for row in rows)
    compared = compare_with_truth(estimates, true_counts(played), threshold, study.question.domain)
    return StudyResults(
        study=study.id,
        sum=study.terms.sum,
        threshold=threshold,
        score=compared.score if lists_items else None,
        heavy_hitters=compared.found_items,
        missed=compared.missed if lists_items else {},
        rounds=tuple(rounds),
        traffic=_mean_traffic(played),
        seconds=seconds,
        settings=settings,
        notes=(
            *left_out_notes(played, study.question),
            *(notes if lists_items else []),
            *key_notes(study.question, [row.item for row in rows]),
        ),
        answer=tuple(answer),
        unlisted=unlisted_counts([each.view for each in played], [row.item for row in rows]),
        people=sum(each.others_in_sum for each in played),
    )


def left_out_notes(played: Sequence[FleetRound], question: AnyQuestion) -> list[str]:
    """Return a sentence for each reason why devices left out items, with the number of copies."""
    counts, examples = Counter[LeftOutReason](), dict[LeftOutReason, str]()
    for finished in played:
        for entry in finished.results:
            for part in entry.contribution.left_out:
                counts[part.reason] += part.count
                examples.setdefault(part.reason, part.items[0])
    sent = "1 item" if question.contribution == 1 else f"{question.contribution:,} items"
    why = {
        LeftOutReason.OUTSIDE_DOMAIN: f"outside the domain of {describe_domain(question.domain)}",
        LeftOutReason.TOO_MANY_COPIES: "repetitions on one device, beyond those that it counts",
        LeftOutReason.OVER_BOUND: f"a device sends at most {sent} in a round, chosen at random; "
        "all counts, the true ones too, are of items that were sent",
    }
    return [
        f"The devices left out {count:,} items, such as {printable(examples[reason])}: "
        f"{why[reason]}."
        for reason, count in counts.items()
    ]


def describe_domain(domain: Domain) -> str:
    """Return the kind of a domain, with the length of its longest item if it has a limit."""
    limits = [
        f"at most {getattr(domain, name):,} {unit}"
        for name, unit in (("max_bytes", "bytes"), ("length", "characters"))
        if isinstance(getattr(domain, name, None), int)
    ]
    return ", ".join([f"kind {domain.kind}", *limits])


def is_list(asked: StudyView | AnyPlan) -> bool:
    """Return whether the answer is a list of items."""
    return mechanism_of(asked.question).answer_kind(asked.question) is AnswerKind.ITEMS


def table_capacity(plan: AnyPlan) -> int:
    """Return the number of distinct items that a table of `plan` holds; 0 without a table."""
    return mechanism_of(plan).table_capacity(plan) or 0


def summarize_round(played: FleetRound, exact: bool | None) -> RoundResult:
    """Return the result of one round; `exact` is true if its sums were verified."""
    view = played.view
    # The service may hide these counts; a fleet without other devices knows them.
    is_hidden = view.plan.question.hides_device_counts
    joined = [entry for entry in played.results if entry.cohort >= 0]
    masked = [entry for entry in joined if entry.vector is not None]
    return RoundResult(
        number=view.number,
        state=view.state,
        t=view.plan.t,
        capacity=table_capacity(view.plan),
        distinct=view.distinct if is_list(view.plan) else None,
        enrolled=len(joined) if is_hidden else sum(cohort.enrolled for cohort in view.cohorts),
        participants=len(masked) if is_hidden else view.participants or 0,
        holders=max(cohort.holders for cohort in view.cohorts),
        threshold=max(cohort.threshold for cohort in view.cohorts),
        exact=exact,
        dropouts=dict(sorted(played.dropouts_by_phase().items())),
        seconds=_phase_seconds(view.cohorts[0]),
        violations=tuple(
            f"cohort {cohort.number}, participant {slot} {violation}"
            for cohort in view.cohorts
            for slot, violation in cohort.blamed.items()
        ),
        failures=tuple(cohort.failure for cohort in view.cohorts if cohort.failure),
    )


def _phase_seconds(cohort: CohortView) -> dict[Phase, float]:
    """Return the duration of each phase, which is 0 if the database's clock went back in it."""
    pairs = zip(cohort.history, cohort.history[1:], strict=False)
    passed = {now.phase: (after.entered - now.entered).total_seconds() for now, after in pairs}
    return {phase: max(0.0, seconds) for phase, seconds in passed.items()}


def _mean_traffic(played: Sequence[FleetRound]) -> DeviceTraffic:
    finished = [
        entry
        for round_ in played
        for entry in round_.results
        if entry.error == "" and entry.vector is not None
    ]
    if not finished:
        return DeviceTraffic(0, 0, 0)
    plans = [round_.view.plan for round_ in played]
    return DeviceTraffic(
        vector=max(SUM_MECHANISMS[plan.question.mechanism].ring(plan).nbytes for plan in plans),
        sent=fmean(entry.traffic.sent for entry in finished),
        received=fmean(entry.traffic.received for entry in finished),
    )

"""What a study found beside the truth, and what it cost: everything the demo shows and writes.

The *truth* is what the devices whose vectors are in a sum gave: their histograms inside the
domain and clipped to the contribution bound, over all rounds with a sum, decoded or not. A
heavy hitter is right if its true count reaches the threshold.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from blindtally.measures import Found, Score, compare
from client.crew import Played
from client.tables import HeavyHitter
from protocol.mechanisms import SUMMING, AnyPlan
from protocol.mechanisms.frequency_sketches import FrequencySketchPlan
from protocol.messages import CohortView, StudyView
from protocol.reporting import ReportPlan
from protocol.round import Phase
from protocol.sketches.capacity import capacity
from secagg.parameters import Mode
from secagg.ring import Ring, Vector


class InexactError(RuntimeError):
    """A sum is not the sum of its survivors' vectors: what must never happen has happened."""


@dataclass(frozen=True, slots=True)
class RoundResult:
    """One round: its threshold, what its sum said, who was lost and where its time went.

    `capacity` is how many distinct items its table holds, `distinct` how many the sum had;
    `exact` whether each sum was compared with its survivors' vectors, and equal; `blamed` says
    what devices did that departed from the protocol, one line each; `failures` why cohorts have no
    sum, or one that is left out.
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
    exact: bool
    lost: Mapping[Phase, int]
    seconds: Mapping[Phase, float]
    blamed: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bytes:
    """Means per device that finished: its packed vector, and HTTP both ways with all heads."""

    vector: float
    sent: float
    received: float


@dataclass(frozen=True, slots=True)
class Results:
    """Everything that a run of the demo found out."""

    study: str
    mode: Mode
    threshold: float
    score: Score
    found: tuple[Found, ...]
    missed: Mapping[str, int]
    rounds: tuple[RoundResult, ...]
    bytes: Bytes
    seconds: float
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def decoded(self) -> int:
        """Return how many rounds were read whole."""
        return sum(one.state == "decoded" for one in self.rounds)

    @property
    def lost(self) -> Mapping[Phase, int]:
        """Return how many devices were lost in each phase, over all rounds."""
        return sum((Counter(one.lost) for one in self.rounds), Counter())

    def as_json(self) -> dict[str, Any]:
        """Return what scripts read."""
        return {
            **asdict(self.score),
            "words": -(-int(self.bytes.vector) // 2),
            "rounds_decoded": self.decoded,
            "thresholds": [one.t for one in self.rounds],
            "sums_exact": all(one.exact for one in self.rounds),
            "study": self.study,
            "mode": self.mode,
            "threshold": self.threshold,
            "heavy_hitters": [asdict(one) | {"error": one.error} for one in self.found],
            "missed": dict(self.missed),
            "bytes_per_device": asdict(self.bytes),
            "lost": dict(self.lost),
            "rounds": [asdict(one) for one in self.rounds],
            "seconds": self.seconds,
            "settings": dict(self.settings),
        }


def verify(played: Played, cohort: CohortView, total: Vector) -> None:
    """Compare the service's `total` with the sum of the survivors' vectors.

    Raises:
        InexactError: if they differ in any bit, or a survivor is not a device of ours.
    """
    plan = played.view.plan
    ring: Ring = SUMMING[plan.question.mechanism].ring(plan)
    survivors = played.in_sum(cohort)
    where = f"round {played.view.number}, cohort {cohort.number}"
    if len(survivors) != len(cohort.survivors):
        raise InexactError(f"{where}: {len(cohort.survivors) - len(survivors)} strangers in it")
    expected = ring.zero()
    for entry in survivors:
        if entry.vector is None:
            raise InexactError(f"{where}: device {entry.device} is in the sum and never masked")
        ring.add(expected, entry.vector)
    if ring.pack(expected) != ring.pack(total):
        raise InexactError(f"{where}: the sum is not the sum of its {len(survivors)} vectors")


def truth_of(played: Sequence[Played]) -> Counter[str]:
    """Return the true counts of the items that the devices in all the sums gave."""
    truth: Counter[str] = Counter()
    for one in played:
        for cohort in one.view.cohorts:
            for entry in one.in_sum(cohort):
                truth.update(entry.contribution.histogram)
    return truth


def measure(
    study: StudyView,
    rows: Sequence[HeavyHitter],
    played: Sequence[Played],
    *,
    rounds: Sequence[RoundResult],
    seconds: float,
    settings: Mapping[str, Any],
) -> Results:
    """Return the results of a study that is over."""
    threshold = study.question.threshold
    found = ((row.item, row.estimate, row.standard_error) for row in rows)
    compared = compare(found, truth_of(played), threshold)
    return Results(
        study=study.id,
        mode=study.terms.mode,
        threshold=threshold,
        score=compared.score,
        found=compared.found,
        missed=compared.missed,
        rounds=tuple(rounds),
        bytes=_bytes(played),
        seconds=seconds,
        settings=settings,
    )


def _room(plan: AnyPlan) -> int:
    """Return how many distinct items a table of `plan` holds; 0 if there is none."""
    return 0 if isinstance(plan, FrequencySketchPlan | ReportPlan) else capacity(plan.cells)


def round_result(played: Played, exact: bool) -> RoundResult:
    """Return what became of one round; `exact` says whether its sums were verified."""
    view = played.view
    untold = view.plan.question.hides_sizes  # but a fleet that is alone knows its own
    joined = [entry for entry in played.entries if entry.cohort >= 0]
    given = [entry for entry in joined if entry.vector is not None]
    return RoundResult(
        number=view.number,
        state=view.state,
        t=view.plan.t,
        capacity=_room(view.plan),
        distinct=view.distinct,
        enrolled=len(joined) if untold else sum(cohort.enrolled for cohort in view.cohorts),
        participants=len(given) if untold else view.participants or 0,
        holders=max(cohort.holders for cohort in view.cohorts),
        threshold=max(cohort.threshold for cohort in view.cohorts),
        exact=exact,
        lost=dict(sorted(played.losses().items())),
        seconds=_seconds(view.cohorts[0]),
        blamed=tuple(
            f"cohort {cohort.number}, participant {slot} {what}"
            for cohort in view.cohorts
            for slot, what in cohort.blamed.items()
        ),
        failures=tuple(cohort.failure for cohort in view.cohorts if cohort.failure),
    )


def _seconds(cohort: CohortView) -> dict[Phase, float]:
    """Return how long a cohort was in each phase."""
    pairs = zip(cohort.history, cohort.history[1:], strict=False)
    return {one.phase: (after.entered - one.entered).total_seconds() for one, after in pairs}


def _bytes(played: Sequence[Played]) -> Bytes:
    finished = [entry for one in played for entry in one.entries if entry.error == ""]
    whole = [entry for entry in finished if entry.vector is not None]
    if not whole:
        return Bytes(0, 0, 0)
    plans = [one.view.plan for one in played]
    return Bytes(
        vector=max(SUMMING[plan.question.mechanism].ring(plan).nbytes for plan in plans),
        sent=fmean(entry.traffic.sent for entry in whole),
        received=fmean(entry.traffic.received for entry in whole),
    )

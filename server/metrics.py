"""What operators measure, by Prometheus: `docs/observability.md` says what each is good for.

Each application has its own registry. No label is an id: studies, cohorts and devices come
without end, and a series stays for as long as the process. Labels are phases, kinds, routes and
statuses, of which there are some dozens. What happens to studies is counted from their events,
once they are committed and by whichever server commits them, so servers add up; what waits is
read from the database, and every server shows the same.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from time import perf_counter
from typing import TypeAlias

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client import Counter as Total

from protocol.events import Event, EventKind
from protocol.round import Phase, Waiting

Labels: TypeAlias = tuple[str, ...]
_QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_REQUEST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_LONG = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 6 * 3600)
_THRESHOLDS = (1, 1.5, 2, 3, 5, 10, 20, 50, 100, 1000)
_CALLS = (Phase.ENROLLING, Phase.REPORTING)  # whoever does not come to these is not lost


def _total(name: str, text: str, labels: Labels = ()) -> Callable[[], Total]:
    return partial(Total, name, text, labels, registry=None)


def _gauge(name: str, text: str, labels: Labels = ()) -> Callable[[], Gauge]:
    return partial(Gauge, name, text, labels, registry=None)


def _histogram(
    name: str, text: str, labels: Labels = (), *, buckets: Sequence[float]
) -> Callable[[], Histogram]:
    return partial(Histogram, name, text, labels, registry=None, buckets=buckets)


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of one application."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    requests: Histogram = field(
        default_factory=_histogram(
            "blindtally_http_request_duration_seconds",
            "From a request's head to the end of its answer, waiting included.",
            ("method", "route", "status"),
            buckets=_REQUEST,
        )
    )
    received: Total = field(
        default_factory=_total(
            "blindtally_http_received_bytes_total", "Bytes of bodies received.", ("route",)
        )
    )
    sent: Total = field(
        default_factory=_total(
            "blindtally_http_sent_bytes_total", "Bytes of bodies sent.", ("route",)
        )
    )
    refusals: Total = field(
        default_factory=_total(
            "blindtally_refusals_total", "Refusals, by the type of the problem.", ("type",)
        )
    )
    event_streams: Gauge = field(
        default_factory=_gauge("blindtally_event_streams", "Event streams that are open.")
    )
    events: Total = field(
        default_factory=_total("blindtally_events_total", "Events of studies.", ("kind",))
    )
    phases: Histogram = field(
        default_factory=_histogram(
            "blindtally_phase_duration_seconds",
            "How long a cohort was in a phase, by how the phase ended.",
            ("phase", "outcome"),
            buckets=_LONG,
        )
    )
    heard: Total = field(
        default_factory=_total(
            "blindtally_devices_heard_total", "Devices heard in a phase that ended.", ("phase",)
        )
    )
    lost: Total = field(
        default_factory=_total(
            "blindtally_devices_lost_total",
            "Devices lost in a phase: silent, or their cohort failed.",
            ("phase", "reason"),
        )
    )
    blamed: Total = field(
        default_factory=_total(
            "blindtally_devices_blamed_total", "Devices found to break the protocol."
        )
    )
    failures: Total = field(
        default_factory=_total(
            "blindtally_cohorts_failed_total", "Cohorts that failed.", ("phase", "cause")
        )
    )
    rounds: Total = field(
        default_factory=_total(
            "blindtally_rounds_closed_total", "Rounds closed, by what they came to.", ("state",)
        )
    )
    thresholds: Histogram = field(
        default_factory=_histogram(
            "blindtally_sampling_threshold",
            "The t of threshold sampling in rounds that opened.",
            buckets=_THRESHOLDS,
        )
    )
    cohorts_waiting: Gauge = field(
        default_factory=_gauge(
            "blindtally_cohorts_waiting", "Cohorts that wait, by phase.", ("phase",)
        )
    )
    devices_waiting: Gauge = field(
        default_factory=_gauge(
            "blindtally_devices_waiting", "Devices in cohorts that wait, by phase.", ("phase",)
        )
    )
    work: Gauge = field(
        default_factory=_gauge(
            "blindtally_work",
            "Sums, answers and clean-ups in progress here, or waiting for room.",
            ("work", "state"),
        )
    )
    work_seconds: Histogram = field(
        default_factory=_histogram(
            "blindtally_work_duration_seconds",
            "How long sums, answers and clean-ups took, by how they ended.",
            ("work", "outcome"),
            buckets=_LONG,
        )
    )
    last_tick: Gauge = field(
        default_factory=_gauge(
            "blindtally_last_tick_timestamp_seconds", "When all cohorts were last looked at."
        )
    )
    transactions: Histogram = field(
        default_factory=_histogram(
            "blindtally_database_transaction_duration_seconds",
            "How long transactions took, once they had a thread.",
            ("mode",),
            buckets=_QUICK,
        )
    )
    database_errors: Total = field(
        default_factory=_total(
            "blindtally_database_errors_total", "Transactions taken back.", ("error",)
        )
    )

    def __post_init__(self) -> None:
        for one in fields(self):
            metric = getattr(self, one.name)
            if isinstance(metric, Total | Gauge | Histogram):
                self.registry.register(metric)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def count(self, event: Event) -> None:
        """Count an event that is committed."""
        self.events.labels(event.kind.value).inc()
        if event.kind in (EventKind.COHORT_MOVED, EventKind.COHORT_FAILED):
            self._count_phase(event)
        elif event.kind is EventKind.ROUND_OPENED and event.threshold is not None:
            self.thresholds.observe(event.threshold)
        elif event.kind is EventKind.ROUND_CLOSED:
            self.rounds.labels(event.state).inc()

    def _count_phase(self, event: Event) -> None:
        phase, heard = event.before, event.heard or 0
        assert phase is not None  # it moved from there
        outcome = "ended" if event.cause is None else "failed"
        self.phases.labels(phase.value, outcome).observe(event.seconds or 0.0)
        self.heard.labels(phase.value).inc(heard)
        if event.expected is not None and phase not in _CALLS:
            self.lost.labels(phase.value, "silent").inc(max(event.expected - heard, 0))
        if event.cause is not None:
            self.lost.labels(phase.value, f"cohort-{event.cause.value}").inc(heard)
            self.failures.labels(phase.value, event.cause.value).inc()

    def look(self, waiting: Iterable[Waiting], at: float) -> None:
        """Keep what all cohorts that wait were found to wait for, at this POSIX time."""
        cohorts: Counter[Phase] = Counter()
        devices: Counter[Phase] = Counter()
        for one in waiting:
            cohorts[one.phase] += 1
            devices[one.phase] += one.heard if one.phase in _CALLS else one.expected
        for phase in Phase:
            if not phase.is_over:
                self.cohorts_waiting.labels(phase.value).set(cohorts[phase])
                self.devices_waiting.labels(phase.value).set(devices[phase])
        self.last_tick.set(at)

    @contextmanager
    def working(self, work: str) -> Iterator[None]:
        """Count a piece of work in progress, and for how long."""
        outcome, started = "failed", perf_counter()
        try:
            with self.work.labels(work, "running").track_inprogress():
                yield
            outcome = "done"
        finally:
            self.work_seconds.labels(work, outcome).observe(perf_counter() - started)

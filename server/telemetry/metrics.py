"""Prometheus metrics of one application; `docs/observability.md` has the alerts.

No label is an id, of which there is no limit. Metrics of studies count committed events, in the
process that commits them, so the counts of several servers add up. Pending cohorts are counted as
this process last read them (`server/rounds/cohorts_to_poll.py`), and are those of all servers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

from protocol.api.events import Event, EventKind, FailureCause
from protocol.api.messages import RoundState
from protocol.api.phases import JOINING_PHASES, Phase, PhaseStatus

_TRANSACTION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_MINUTES = (60, 120, 300, 600, 1800, 3600, 6 * 3600)
_PHASE_AND_JOB_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, *_MINUTES)
_THRESHOLD_BUCKETS = (1, 1.5, 2, 3, 5, 10, 20, 50, 100, 1000)

# A `_created` series for each other one: no alert reads them.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of one application, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._request_series: dict[tuple[str, str, str], tuple[Histogram, Counter, Counter]] = {}
        self._add_http()
        self._add_studies()
        self._add_work()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def _add_http(self) -> None:
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.requests = histogram(
            "blindtally_http_request_duration_seconds",
            "Time from the headers of a request to those of its response, waiting included.",
            ("method", "route", "status"),
            buckets=_REQUEST_BUCKETS,
        )
        self.received_bytes = counter(
            "blindtally_http_received_bytes_total", "Bytes of request bodies.", ("route",)
        )
        self.sent_bytes = counter(
            "blindtally_http_sent_bytes_total", "Bytes of response bodies.", ("route",)
        )
        self.problems = counter(
            "blindtally_problem_responses_total",
            "Responses with problem details, by type.",
            ("type",),
        )
        self.event_streams = Gauge(
            "blindtally_event_streams", "Open event streams, 500 at most.", registry=self.registry
        )

    def _add_studies(self) -> None:
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.events = counter("blindtally_events_total", "Events of studies.", ("kind",))
        self.phase_seconds = histogram(
            "blindtally_phase_duration_seconds",
            "Duration of a cohort's phase, by outcome.",
            ("phase", "outcome"),
            buckets=_PHASE_AND_JOB_BUCKETS,
        )
        self.received_messages = counter(
            "blindtally_messages_received_total",
            "Messages of devices in closed phases.",
            ("phase",),
        )
        self.dropouts = counter(
            "blindtally_device_dropouts_total",
            "Devices that dropped out: no message in time (timeout), or their cohort failed.",
            ("phase", "reason"),
        )
        self.blamed = counter(
            "blindtally_devices_blamed_total", "Devices that provably departed from the protocol."
        )
        self.failed_cohorts = counter(
            "blindtally_cohorts_failed_total", "Failed cohorts, by cause.", ("phase", "cause")
        )
        self.closed_rounds = counter(
            "blindtally_rounds_closed_total",
            "Closed rounds; undecoded: too many items.",
            ("state",),
        )
        # Alerts could not see a first failure as an increase of a series that did not exist before.
        for phase in Phase:
            if not phase.is_over:
                for cause in FailureCause:
                    self.failed_cohorts.labels(phase.value, cause.value)
        for state in get_args(RoundState):
            if state != "running":
                self.closed_rounds.labels(state)
        self.thresholds = histogram(
            "blindtally_sampling_threshold",
            "Threshold t of threshold sampling in opened rounds.",
            buckets=_THRESHOLD_BUCKETS,
        )
        self.cohorts_pending = gauge(
            "blindtally_cohorts_pending", "Cohorts in a phase that is not closed.", ("phase",)
        )
        self.devices_pending = gauge(
            "blindtally_devices_pending",
            "Devices in cohorts whose phase is not closed.",
            ("phase",),
        )
        self.reset_pending()

    def _add_work(self) -> None:
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.jobs = gauge(
            "blindtally_jobs",
            "Jobs of this process, running or waiting for a free slot.",
            ("job", "state"),
        )
        self.job_seconds = histogram(
            "blindtally_job_duration_seconds",
            "Duration of a job; a failed one is repeated.",
            ("job", "outcome"),
            buckets=_PHASE_AND_JOB_BUCKETS,
        )
        self.last_poll = gauge(
            "blindtally_last_poll_timestamp_seconds", "Time of the last check of all cohorts."
        )
        self.transactions = histogram(
            "blindtally_database_transaction_duration_seconds",
            "Duration of a transaction, without the wait for a thread.",
            ("mode",),
            buckets=_TRANSACTION_BUCKETS,
        )
        self.database_errors = Counter(
            "blindtally_database_errors_total",
            "Transactions that were rolled back, by the class of the error.",
            ("error",),
            registry=self.registry,
        )
        self.database_unusable = gauge(
            "blindtally_database_unusable", "1 while the database cannot be used, otherwise 0."
        )
        self.database_bytes = gauge(
            "blindtally_database_size_bytes", "Size of the database on its disk."
        )

    def count_request(
        self, labels: tuple[str, str, str], seconds: float, received: int, sent: int
    ) -> None:
        """Count a request with `labels`: its method, its route, and the status of its response."""
        if labels not in self._request_series:  # looking up the three series takes longer
            route = labels[1]
            self._request_series[labels] = (
                self.requests.labels(*labels),
                self.received_bytes.labels(route),
                self.sent_bytes.labels(route),
            )
        durations, received_bytes, sent_bytes = self._request_series[labels]
        durations.observe(seconds)
        received_bytes.inc(received)
        sent_bytes.inc(sent)

    def count_event(self, event: Event) -> None:
        """Count a committed event."""
        self.events.labels(event.kind.value).inc()
        if event.kind in (EventKind.COHORT_PHASE_CHANGED, EventKind.COHORT_FAILED):
            self._count_phase(event)
        elif event.kind is EventKind.ROUND_OPENED and event.sampling_threshold is not None:
            self.thresholds.observe(event.sampling_threshold)
        elif event.kind is EventKind.ROUND_CLOSED:
            self.closed_rounds.labels(event.state).inc()

    def _count_phase(self, event: Event) -> None:
        phase, received = event.previous_phase, event.received or 0
        assert phase is not None  # every event of these kinds has one
        outcome = "completed" if event.cause is None else "failed"
        self.phase_seconds.labels(phase.value, outcome).observe(event.seconds or 0.0)
        self.received_messages.labels(phase.value).inc(received)
        if event.expected is not None and phase not in JOINING_PHASES:
            self.dropouts.labels(phase.value, "timeout").inc(max(event.expected - received, 0))
        if event.cause is not None:
            self.dropouts.labels(phase.value, f"cohort-{event.cause.value}").inc(received)
            self.failed_cohorts.labels(phase.value, event.cause.value).inc()

    def reset_pending(self) -> None:
        """Record that no cohort is pending."""
        for phase in Phase:
            if not phase.is_over:
                self.cohorts_pending.labels(phase.value).set(0)
                self.devices_pending.labels(phase.value).set(0)

    def replace_pending(self, before: PhaseStatus | None, after: PhaseStatus | None) -> None:
        """Record that a cohort has changed; None if it was not or is no longer pending."""
        for status, sign in ((before, -1), (after, 1)):
            if status is not None:
                is_joining = status.phase in JOINING_PHASES
                devices = status.received if is_joining else status.expected
                self.cohorts_pending.labels(status.phase.value).inc(sign)
                self.devices_pending.labels(status.phase.value).inc(sign * devices)

    @contextmanager
    def measure_job(self, job: str) -> Iterator[None]:
        """Count a job as running, and measure its duration."""
        outcome, started = "failed", perf_counter()
        try:
            with self.jobs.labels(job, "running").track_inprogress():
                yield
            outcome = "done"
        finally:
            self.job_seconds.labels(job, outcome).observe(perf_counter() - started)

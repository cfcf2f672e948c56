"""Metrics: each event counts once."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from protocol.api.events import EventKind
from server.db import migrations
from server.db.database import Database
from server.db.repositories.events import record_event
from server.db.schema import EventRow
from server.telemetry.metrics import Metrics
from tests.server.harness import NOON, Served, play, together


async def scrape(served: Served) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return each sample by its name and the values of its labels, in the order of their names."""
    answer = await served.client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (each.name.removeprefix("blindtally_"), tuple(x for _, x in sorted(each.labels.items()))):
            each.value
        for family in text_string_to_metric_families(answer.text)
        for each in family.samples
    }  # fmt: skip


async def test_a_round_with_losses_is_counted(served: Served) -> None:
    study = await served.create()
    await play(served, study, lost=((), (), (1,), (), (3,)))
    await served.until_closed(study)
    await served.tick()
    seen = await scrape(served)
    assert seen["messages_received_total", ("sharing",)] == 6
    assert seen["messages_received_total", ("masking",)] == 5
    assert seen["device_dropouts_total", ("masking", "timeout")] == 1
    assert seen["device_dropouts_total", ("unmasking", "timeout")] == 1
    assert seen["device_dropouts_total", ("sharing", "timeout")] == 0
    assert ("device_dropouts_total", ("enrolling", "timeout")) not in seen
    assert seen["phase_duration_seconds_count", ("completed", "masking")] == 1
    assert seen["phase_duration_seconds_sum", ("completed", "masking")] >= 5
    assert seen["rounds_closed_total", ("decoded",)] == 1
    assert seen["sampling_threshold_count", ()] == 1
    assert seen["events_total", ("cohort-phase-changed",)] == 6
    assert seen["job_duration_seconds_count", ("sum-cohort", "done")] == 1
    assert seen["job_duration_seconds_count", ("close-round", "done")] == 1
    assert seen["jobs", ("sum-cohort", "running")] == 0
    assert seen["last_poll_timestamp_seconds", ()] == served.clock().timestamp()
    assert seen["cohorts_pending", ("masking",)] == 0


async def test_a_cohort_that_fails_is_counted_with_its_cause(served: Served) -> None:
    study, stopped = await served.create(), await served.create()
    await together((await served.join(study, 6))[:3], "share")
    await served.pass_phase(study)
    await served.join(stopped, 2)
    await served.tick()
    before = await scrape(served)
    assert before["cohorts_pending", ("enrolling",)] == 1
    await served.client.post(f"/v1/studies/{stopped}/stop")
    seen = await scrape(served)
    assert seen["cohorts_failed_total", ("too-few", "sharing")] == 1
    assert seen["device_dropouts_total", ("sharing", "timeout")] == 3
    assert seen["device_dropouts_total", ("sharing", "cohort-too-few")] == 3
    assert seen["cohorts_failed_total", ("stopped", "enrolling")] == 1
    assert seen["device_dropouts_total", ("enrolling", "cohort-stopped")] == 2
    assert seen["rounds_closed_total", ("failed",)] >= 1


async def test_devices_that_join_are_counted_before_they_are_a_quorum(served: Served) -> None:
    study = await served.create()
    await served.service.orchestrator.poll()
    await served.join(study, 2)  # of a minimum of 3
    await served.service.orchestrator.poll()
    assert (await scrape(served))["devices_pending", ("enrolling",)] == 2


async def test_requests_are_counted_by_route_and_never_by_path(served: Served) -> None:
    study = await served.create()
    (device,) = await served.join(study, 1)
    await device.get("roster", wait=0)
    await served.client.get("/v1/nothing/of/this")
    await served.client.get(f"/v1/studies/{study}/rounds/x?after=marmalade")
    answer = await served.client.get("/metrics")
    for secret in (study, device.seat.participant, "nothing", "marmalade"):
        assert secret not in answer.text
    seen = await scrape(served)
    count = "http_request_duration_seconds_count"
    assert seen[count, ("GET", "/v1/participants/{participant}/roster", "202")] == 1
    assert seen[count, ("GET", "none", "404")] == 1
    assert seen[count, ("GET", "/v1/studies/{study}/rounds/{number}", "422")] == 1
    assert seen["problem_responses_total", ("not-found",)] == 1
    assert seen["problem_responses_total", ("malformed",)] == 1
    assert seen["http_received_bytes_total", ("/v1/studies",)] > 100
    assert seen["http_sent_bytes_total", ("/v1/studies",)] > 100


async def test_errors_of_the_database_are_counted(sqlite_url: str) -> None:
    def fail(_: object) -> None:
        raise OperationalError("", None, Exception("away"))

    metrics = Metrics()
    database = Database(sqlite_url, metrics=metrics)
    for use in (database.read, database.write):
        try:
            await use(fail)
        except OperationalError:
            continue
        raise AssertionError("the error was not raised")
    await database.close()
    value = metrics.registry.get_sample_value
    assert value("blindtally_database_errors_total", {"error": "OperationalError"}) == 2
    name = "blindtally_database_transaction_duration_seconds_count"
    assert value(name, {"mode": "read"}) == value(name, {"mode": "write"}) == 1


async def test_an_event_counts_once_in_repeated_transactions(postgres_url: str) -> None:
    metrics, tries = Metrics(), []
    database = Database(postgres_url, metrics=metrics)
    await migrations.upgrade(database)

    def change(session: Session) -> None:
        record_event(session, "ab" * 8, EventKind.STUDY_CREATED, NOON)
        tries.append(1)
        if len(tries) < 3:
            failure = "RAISE EXCEPTION USING ERRCODE = 'serialization_failure'"
            session.execute(text(f"DO $$ BEGIN {failure}; END $$"))

    await database.write(change)
    kept = await database.read(lambda session: session.scalars(select(EventRow)).all())
    await database.close()
    assert (len(tries), len(kept)) == (3, 1)
    value = metrics.registry.get_sample_value
    assert value("blindtally_events_total", {"kind": "study-created"}) == 1
    assert value("blindtally_database_errors_total", {"error": "OperationalError"}) == 2


async def test_no_series_states_when_another_was_made(served: Served) -> None:
    await served.client.get("/healthz")
    for media_type in ("text/plain", "application/openmetrics-text"):
        answer = await served.client.get("/metrics", headers={"Accept": media_type})
        assert "_created" not in answer.text


async def test_an_outage_and_the_size_of_the_database_are_shown(
    each_served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = await scrape(each_served)
    while not seen["database_size_bytes", ()]:  # it is being measured
        await asyncio.sleep(0.01)
        seen = await scrape(each_served)
    assert seen["database_unusable", ()] == 0
    assert 1e4 < seen["database_size_bytes", ()] < 1e8
    outage = each_served.service.store.database.outage
    monkeypatch.setattr(outage, "end", lambda _tried: False)
    outage.is_open = True
    assert (await scrape(each_served))["database_unusable", ()] == 1


async def test_an_invalid_version_gets_the_usual_form(served: Served) -> None:
    for version in ("\xff", "x", "1..0"):
        accept = f"application/openmetrics-text; version={version}"
        answer = await served.client.get("/metrics", headers={"Accept": accept.encode("latin-1")})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")

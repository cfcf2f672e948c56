"""Traces of requests and jobs, if they are enabled, without contents of messages."""

import os
import subprocess
import sys
from random import Random

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from server.app import create_app
from server.settings import Settings
from server.telemetry import traces
from tests.server.application import TEST_PACE
from tests.server.harness import Clock, play, serving


async def test_spans_of_requests_and_jobs_name_no_device(sqlite_url: str, clock: Clock) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    settings = Settings(database_url=sqlite_url, open=True)
    app = create_app(settings, clock, Random(1), provider, pace=TEST_PACE)
    async with serving(app, clock) as served:
        study = await served.create()
        devices = await play(served, study)
        await served.until_closed(study)
        await served.client.get(f"/v1/studies/{study}?say=marmalade")
        await served.client.get("/healthz")
    spans = exporter.get_finished_spans()
    names = {span.name for span in spans}
    assert {"poll", "sum-cohort", "close-round", "decode"} <= names
    assert "PUT /v1/participants/{participant}/masked-input" in names
    assert "GET /healthz" not in names
    (made,) = (span for span in spans if span.name == "sum-cohort")
    assert made.attributes is not None
    assert made.attributes["blindtally.study"] == study
    assert made.attributes["blindtally.round"] == 1
    shown = next(span for span in spans if span.name == "GET /v1/studies/{study}")
    assert shown.attributes is not None
    assert shown.attributes["blindtally.study"] == study
    assert "blindtally.request_id" in shown.attributes
    exported = " ".join(span.to_json() for span in spans)
    for secret in ("marmalade", *(device.ticket for device in devices)):
        assert secret not in exported
    assert all(device.seat and device.seat.participant not in exported for device in devices)


def test_requests_are_traced_if_there_is_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not traces.request_tracing(None).get("tracing")
    assert traces.request_tracing(TracerProvider(shutdown_on_exit=False)).get("tracing")
    monkeypatch.setattr(trace, "get_tracer_provider", TracerProvider)
    assert traces.request_tracing(None).get("tracing")


@pytest.mark.parametrize(
    ("environment", "is_wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_traces_are_wanted_where_the_environment_names_a_place(
    environment: dict[str, str], is_wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert traces.is_configured() is is_wanted


def test_spans_are_exported_as_the_environment_specifies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    provider = traces.make_provider()
    assert provider.resource.attributes["service.name"] == "blindtally"
    (processor,) = provider._active_span_processor._span_processors
    assert processor.span_exporter._endpoint == "http://127.0.0.1:9/v1/traces"
    provider.shutdown()


def test_a_service_that_traces_nothing_imports_nothing_for_it() -> None:
    code = "import sys, blindtally.service_process; print('opentelemetry.sdk' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

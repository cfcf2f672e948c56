"""Traces by OpenTelemetry, if an operator asks for them: spans of requests, ticks, sums, answers.

They are sent to OTEL_EXPORTER_OTLP_ENDPOINT by OTLP over HTTP; the SDK reads the other OTEL_
variables. Without it nothing of the SDK is even imported, and a span costs a call that does
nothing. Spans say routes, phases and names of studies, and as little of secrets as logs do.
"""

import os
from typing import TYPE_CHECKING, Final

from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace
from opentelemetry.trace import Tracer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider as Sdk

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_QUIET: Final = ("/healthz", "/readyz", "/metrics")  # asked for every few seconds


def is_wanted() -> bool:
    """Return whether the environment names a place to send traces to."""
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not is_off and any(os.environ.get(name) for name in _ENDPOINTS)


def exporting() -> "Sdk":
    """Return what sends spans to where the environment says, in batches, beside the service.

    Raises:
        ImportError: if the extra `traces` is not installed.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter,
    )
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    name = os.environ.get("OTEL_SERVICE_NAME", "blindtally")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def of_requests(provider: trace.TracerProvider | None) -> TelemetryConfig:
    """Return how FastAPI traces requests: to `provider`, or to the process's own if None."""
    return TelemetryConfig(
        tracer_provider=provider,
        metrics=False,  # Prometheus has them
        logs=False,
        operation_spans=False,
        auto_configure=False,
        exclude=lambda scope: scope["path"] in _QUIET,
    )


def of_work(provider: trace.TracerProvider | None) -> Tracer:
    """Return what makes the spans of work that no request waits for."""
    return (provider or trace.get_tracer_provider()).get_tracer("blindtally")

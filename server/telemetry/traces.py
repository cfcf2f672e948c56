"""OpenTelemetry traces of requests, polls and jobs, if an operator enables them.

Spans are sent to OTEL_EXPORTER_OTLP_ENDPOINT by OTLP over HTTP. Without that variable the SDK is
not imported. Spans contain, as logs do, no secrets.
"""

import os
from typing import TYPE_CHECKING, Final

from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace
from opentelemetry.trace import Tracer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider as Sdk

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_UNTRACED_PATHS: Final = ("/healthz", "/readyz", "/metrics")  # requested every few seconds


def is_configured() -> bool:
    """Return whether the environment names an endpoint for traces."""
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not is_off and any(os.environ.get(name) for name in _ENDPOINTS)


def make_provider() -> "Sdk":
    """Return a provider that sends spans in batches; raises ImportError without `traces`."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    name = os.environ.get("OTEL_SERVICE_NAME", "blindtally")
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def request_tracing(provider: trace.TracerProvider | None) -> TelemetryConfig:
    """Return FastAPI's tracing: to `provider`, or to the provider of the process if None.

    Without either, FastAPI would look for one at each request.
    """
    process_provider = trace.get_tracer_provider()
    return TelemetryConfig(
        tracing=provider is not None or not isinstance(process_provider, trace.ProxyTracerProvider),
        tracer_provider=provider,
        metrics=False,  # Prometheus has them
        logs=False,
        operation_spans=False,
        auto_configure=False,
        exclude=lambda scope: scope["path"] in _UNTRACED_PATHS,
    )


def job_tracer(provider: trace.TracerProvider | None) -> Tracer:
    """Return the tracer of jobs, which run outside of requests."""
    return (provider or trace.get_tracer_provider()).get_tracer("blindtally")

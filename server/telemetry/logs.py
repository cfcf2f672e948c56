"""Logs to standard error, one line per event, with names and without secrets.

Tracebacks are plain, because those with local variables would reveal what is being unmasked. Logs
of libraries start at level warning: the statements and rows that a database driver logs contain
messages of devices.
"""

import logging
import sys
import threading
from types import TracebackType
from typing import Any, Final

import structlog
from opentelemetry import trace

LOG_FIELDS: Final = ("request_id", "trace_id", "study", "round", "cohort", "cohort_id", "problem")


def configure(*, as_json: bool, level: str = "info") -> None:
    """Send logs of `level` and above to standard error, as JSON or for people."""
    render: list[Any] = [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    ]
    if as_json:
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    first: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*first, *render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*first, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)
    if as_json:
        logging.captureWarnings(True)
        sys.excepthook = _log_crash
        threading.excepthook = lambda crash: _log_crash(
            crash.exc_type, crash.exc_value, crash.exc_traceback
        )
        sys.unraisablehook = lambda crash: _log_crash(
            crash.exc_type, crash.exc_value, crash.exc_traceback
        )


def are_json() -> bool:
    """Return whether `configure` chose JSON."""
    renderer = structlog.get_config()["processors"][-1]
    return isinstance(renderer, structlog.processors.JSONRenderer)


def _log_crash(
    kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None
) -> None:
    log = structlog.get_logger(__name__)
    log.critical("unexpected error", exc_info=(kind, error or kind(), traceback))


def bind_log_fields(**names: str | int) -> None:
    """Add fields to all further lines of this task and to its span; `names` are in `LOG_FIELDS`."""
    span = trace.get_current_span()
    context = span.get_span_context()
    if span.is_recording():
        span.set_attributes({f"blindtally.{name}": value for name, value in names.items()})
    traced = {"trace_id": trace.format_trace_id(context.trace_id)} if context.is_valid else {}
    structlog.contextvars.bind_contextvars(**names, **traced)

"""Logs to standard error, one line per event, with names and without secrets.

Texts of strangers are on the line of their event, with escapes instead of control characters, and
the lines of a traceback are indented.

Tracebacks are plain, because those with local variables would reveal what is being unmasked. Logs
of libraries start at level warning: the statements and rows that a database driver logs contain
messages of devices.

A line that cannot be written is lost, because its disk is full or its reader is gone. An error
would end the work that the line describes, such as a round.
"""

import logging
import sys
import threading
from collections.abc import MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TextIO, TypeAlias, cast

import structlog
from opentelemetry import trace

from protocol.printable import CrashInfo, escape_hidden, escaped_traceback

LogFields: TypeAlias = dict[str, str | int]
_fields: ContextVar[LogFields] = ContextVar("log fields")  # of the request or job of a task
_logger = logging.getLogger("blindtally")  # has the level, and no handler


def configure(*, as_json: bool, level: str = "info") -> None:
    """Send logs of `level` and above to standard error, as JSON or for people."""
    render: list[Any] = [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=_write_traceback
        )
    ]
    if as_json:
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    first: list[Any] = [
        _merge_fields,
        _escape_texts,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*first, *render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _LossyStream(sys.stderr))),
        cache_logger_on_first_use=False,
    )
    _logger.setLevel(number)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*first, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)
    for name in ("psycopg", "sqlalchemy.pool"):  # a line for each failed transaction of an outage
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if as_json:
        logging.captureWarnings(True)
        sys.excepthook = _log_crash
        threading.excepthook = lambda crash: _log_crash(
            crash.exc_type, crash.exc_value, crash.exc_traceback
        )
        sys.unraisablehook = lambda crash: _log_crash(
            crash.exc_type, crash.exc_value, crash.exc_traceback
        )


class _LossyStream:
    """A stream that loses what it cannot write, as the handlers of the standard library do."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # ValueError: it is closed
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def are_json() -> bool:
    """Return whether `configure` chose JSON."""
    renderer = structlog.get_config()["processors"][-1]
    return isinstance(renderer, structlog.processors.JSONRenderer)


def _log_crash(
    kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None
) -> None:
    log = structlog.get_logger(__name__)
    log.critical("unexpected error", exc_info=(kind, error or kind(), traceback))


def logs_debug_lines() -> bool:
    """Return whether lines of level debug are logged."""
    return _logger.isEnabledFor(logging.DEBUG)


def start_log_fields(**names: str | int) -> LogFields:
    """Return the fields of all further lines of this task: `names`, and those bound later."""
    fields: LogFields = {}
    _fields.set(fields)
    bind_log_fields(**names)
    return fields


def bind_log_fields(**names: str | int) -> None:
    """Add fields to all further lines of this request or job, and to its span."""
    fields = _fields.get(None)
    if fields is None:  # of a connection without a request
        return
    fields |= names
    span = trace.get_current_span()
    if span is trace.INVALID_SPAN:
        return
    context = span.get_span_context()
    if span.is_recording():
        span.set_attributes({f"blindtally.{name}": value for name, value in names.items()})
    if context.is_valid:
        fields["trace_id"] = trace.format_trace_id(context.trace_id)


def _merge_fields(
    _logger: object, _method: str, line: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    return {**_fields.get({}), **line}


def _escape_texts(
    _logger: object, _method: str, line: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    return {
        name: escape_hidden(value) if isinstance(value, str) else value
        for name, value in line.items()
    }


def _write_traceback(stream: TextIO, crash: CrashInfo) -> None:
    stream.write(f"\n{escaped_traceback(crash)}")

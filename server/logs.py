"""Logs: one line an event, to standard error, with names of things and never their secrets.

Tracebacks are plain: those that show local variables would show what is being unmasked.
"""

import logging
import sys
from typing import Any

import structlog


def configure(*, as_json: bool, level: str = "info") -> None:
    """Send logs of `level` and above to standard error, as JSON or for people."""
    render: list[Any] = [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    ]
    if as_json:
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )

r"""The only way of texts to the terminal, which shows no control character of a stranger.

`Terminal` is the console, and `print_line` prints lines that are not wrapped. Both escape hidden
characters, also line breaks inside a text, and neither reads markup: `[red]` is text. In cells of
tables, equal-looking texts can be told apart, too (`protocol/printable.py`).

No other module may print, ask or make a console: ruff refuses it (TID251 in `pyproject.toml`).
"""

import logging
import sys
import threading
import warnings
from collections.abc import Iterable
from typing import Any, Final

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from protocol.printable import CrashInfo, escape_hidden, escaped_traceback

_LINE_END: Final = "\n"


class Terminal(Console):
    """Console of standard output or error: no markup, no emoji codes, no hidden characters."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401 - rich's
        return super().render_str(escape_hidden(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of `renderable`; those that move the cursor are rich's own."""
        if isinstance(renderable, Text):
            line = escape_hidden(renderable.plain)
            if line != renderable.plain:
                renderable = renderable.copy()
                renderable.plain = line
        for segment in super().render(renderable, options):
            if segment.control or not segment.text.strip(_LINE_END):
                yield segment
            else:  # a wrapped text has lines
                lines = map(escape_hidden, segment.text.split(_LINE_END))
                yield Segment(_LINE_END.join(lines), segment.style)


def print_line(text: str = "", *, err: bool = False) -> None:
    """Print one line to standard output, or to standard error."""
    typer.echo(escape_hidden(text), err=err)


def ask(question: str) -> None:
    """Ask a person to agree; raises typer.Abort if they do not."""
    typer.confirm(escape_hidden(question), abort=True)


def ask_text(question: str, default: str = "", *, is_secret: bool = False) -> str:
    """Return what a person types, or the default; a secret is not shown."""
    options: Any = {"show_default": bool(default), "hide_input": is_secret, "err": True}
    return str(typer.prompt(escape_hidden(question), default, **options))


def protect_terminal() -> None:
    """Escape hidden characters in warnings and crashes, and in logs that nothing else prints."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_LineFormatter())
    warnings.formatwarning = _format_warning
    sys.excepthook = lambda *crash: _print_crash(crash)
    threading.excepthook = lambda crash: _print_crash(
        (crash.exc_type, crash.exc_value or crash.exc_type(), crash.exc_traceback)
    )


class _LineFormatter(logging.Formatter):
    """Formatter of lines; tracebacks follow, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of logging
        return escape_hidden(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: ANN401, N802 - of logging
        return escaped_traceback(ei)


def _print_crash(crash: CrashInfo) -> None:
    typer.echo(escaped_traceback(crash), err=True)


def _format_warning(
    message: Warning | str, category: type[Warning], *place: object, **line: object
) -> str:
    del place, line
    return f"{category.__name__}: {escape_hidden(str(message))}\n"

"""Progress on standard error, if somebody watches it: how far, how fast, and how long it takes yet.

Bars go away when they are done, so that a terminal is left with the results alone. Where standard
error is no terminal, nothing is written.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

T = TypeVar("T")


class RateColumn(ProgressColumn):
    """How many steps are done in a second, or how many seconds one takes."""

    def render(self, task: Task) -> Text:
        """Return it, or nothing before the first step is done."""
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        return Text(f"{speed:,.1f}/s" if speed >= 1 else f"{1 / speed:,.1f} s each", "dim")


def progress_bars(console: Console, *more: ProgressColumn) -> Progress:
    """Return bars with rate, remaining time and `more` on `console`, if that is a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        RateColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        *more,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def with_progress(things: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yield `things`, `total` of them if they cannot be counted, with a bar named `what`."""
    if total is None and isinstance(things, Collection):
        total = len(things)
    with progress_bars(Console(stderr=True)) as shown:
        task = shown.add_task(what, total=total)
        for thing in things:
            yield thing
            shown.advance(task)  # at once, which `track` leaves to a thread


@contextmanager
def progress_steps(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar named `what`, and give what is to be called with how many of `total` are done."""
    with progress_bars(Console(stderr=True)) as shown:
        task = shown.add_task(what, total=total)
        yield lambda count: shown.advance(task, count)


@contextmanager
def spinner(what: str) -> Iterator[None]:
    """Show for how long `what` has taken, where nobody can tell how far it is."""
    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as shown:
        shown.add_task(what, total=None)
        yield

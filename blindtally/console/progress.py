"""Progress on a terminal: bars, which are removed when they are done."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

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

from blindtally.console.terminal import Terminal

T = TypeVar("T")


class RateColumn(ProgressColumn):
    """Steps per second, or seconds per step if that is longer."""

    def render(self, task: Task) -> Text:
        """Return the rate, or an empty text before the first step is done."""
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        return Text(f"{speed:,.1f}/s" if speed >= 1 else f"{1 / speed:,.1f} s each", "dim")


def progress_bars(console: Terminal, *more: ProgressColumn) -> Progress:
    """Return bars with rate, remaining time and `more` on `console`, if that is a terminal."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        RateColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        *more,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def with_progress(values: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Yield `values`, with a bar; `total` is their number if they have no length."""
    if total is None and isinstance(values, Collection):
        total = len(values)
    with progress_bars(Terminal(stderr=True)) as shown:
        task = shown.add_task(label, total=total)
        for value in values:
            yield value
            shown.advance(task)  # at once; `Progress.track` leaves it to a thread


@contextmanager
def progress_steps(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar, and yield a function to call with each number of finished steps."""
    with progress_bars(Terminal(stderr=True)) as shown:
        task = shown.add_task(label, total=total)
        yield lambda count: shown.advance(task, count)


@contextmanager
def spinner(label: str) -> Iterator[None]:
    """Show the elapsed time of work whose length is unknown."""
    console = Terminal(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    is_hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=is_hidden) as shown:
        shown.add_task(label, total=None)
        yield

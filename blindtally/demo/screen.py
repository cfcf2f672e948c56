"""What the demo shows: a bar per phase of the round that is on, a line per round, tables.

Without a terminal there are no bars, and the lines are the same.
"""

from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from blindtally.demo.results import Results, RoundResult
from client.fleet import Standing
from client.participation import STEP_IN
from protocol.messages import RoundView
from protocol.round import Phase, phases

SHOWN: Final = 20  # heavy hitters


class Screen:
    """Live progress of a study of `rounds` rounds on `console`."""

    def __init__(self, console: Console, rounds: int) -> None:
        self._rounds = rounds
        self._number = 0
        self._bars = Progress(
            TextColumn("  {task.description:<10}"),
            MofNCompleteColumn(),
            BarColumn(bar_width=32),
            TextColumn("[dim]{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._tasks: dict[Phase, TaskID] = {}

    def __enter__(self) -> Self:
        """Show the bars."""
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the bars away."""
        self._bars.stop()

    def step(self, standing: Standing) -> None:
        """Show how far the round is."""
        view = standing.view
        if view.number != self._number:
            self._begin(view, standing.devices)
        note = f"{standing.gone} gone" if standing.gone else ""
        for phase, task in self._tasks.items():
            done = standing.done.get(STEP_IN[phase], 0)
            self._bars.update(task, completed=done, note=note if done else "")

    def round(self, result: RoundResult) -> None:
        """Show a line about a round that is over."""
        self._bars.print(_line(result, self._rounds))

    def _begin(self, view: RoundView, devices: int) -> None:
        self._number = view.number
        for task in self._tasks.values():
            self._bars.remove_task(task)
        head = f"round {view.number} of {self._rounds}, t = {view.plan.t:.2f}"
        self._tasks = {
            phase: self._bars.add_task(phase, total=devices, note=head if not index else "")
            for index, phase in enumerate(phases(view.plan.terms.mode))
        }


def _line(one: RoundResult, rounds: int) -> str:
    told = "nothing" if one.distinct is None else f"{one.distinct:,.0f} items"
    sums = "[green]sum exact[/]" if one.exact else "[yellow]no sum[/]"
    seconds = sum(one.seconds.values())
    return (
        f"round {one.number}/{rounds}  t {one.t:5.2f}  {one.participants} of {one.enrolled} "
        f"devices, {sums}, {one.state}: {told} (room for {one.capacity}), {seconds:.1f} s"
    )


def show(console: Console, results: Results) -> None:
    """Print the tables."""
    console.print(_found(results))
    if results.missed:
        missed = ", ".join(f"{item} ({count})" for item, count in results.missed.items())
        console.print(f"missed: {escape(missed)}")
    console.print(_rounds(results))
    for one in results.rounds:
        for line in one.blamed:
            console.print(f"blamed in round {one.number}: {escape(line)}")
    console.print(_costs(results))


def _found(results: Results) -> Table:
    table = _table(f"Heavy hitters: held {results.threshold:g} times or more", "item")
    for name in ("estimate", "± s.e.", "true", "error"):
        table.add_column(name, justify="right")
    for one in results.found[:SHOWN]:
        table.add_row(
            escape(one.item),
            f"{one.estimate:,.0f}",
            f"{one.standard_error:,.1f}",
            f"{one.true_count:,}",
            f"{one.error:+,.0f}",
        )
    if len(results.found) > SHOWN:
        table.add_row(f"[dim]and {len(results.found) - SHOWN} more[/]")
    return table


def _rounds(results: Results) -> Table:
    table, spoken = _table("Rounds", ""), phases(results.mode)
    names = ("t", "room", "distinct", "devices", "in sum", "shares")
    for name in names:
        table.add_column(name, justify="right")
    initials = "/".join(phase[0] for phase in spoken)
    table.add_column(f"lost {initials}", justify="right")
    table.add_column(f"seconds {initials}", justify="right")
    table.add_column("")
    for one in results.rounds:
        table.add_row(
            str(one.number),
            f"{one.t:.2f}",
            str(one.capacity),
            "" if one.distinct is None else f"{one.distinct:,.0f}",
            str(one.enrolled),
            str(one.participants),
            f"{one.threshold} of {one.holders}",
            "/".join(str(one.lost.get(phase, 0)) for phase in spoken),
            "/".join(f"{one.seconds.get(phase, 0.0):.1f}" for phase in spoken),
            one.state,
        )
    return table


def _costs(results: Results) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    cost = results.bytes
    table.add_row("rounds decoded", f"{results.decoded} of {len(results.rounds)}")
    table.add_row("threshold t", " → ".join(f"{one.t:.2f}" for one in results.rounds))
    table.add_row("devices lost", ", ".join(f"{n} {phase}" for phase, n in results.lost.items()))
    table.add_row(
        "bytes a device",
        f"{cost.vector:,.0f} packed vector; {cost.sent:,.0f} sent and "
        f"{cost.received:,.0f} received in all",
    )
    table.add_row("seconds", f"{results.seconds:.1f} in all; by phase: {_seconds(results)}")
    return table


def _seconds(results: Results) -> str:
    totals = {
        phase: sum(one.seconds.get(phase, 0.0) for one in results.rounds)
        for phase in phases(results.mode)
    }
    return ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in totals.items())


def _table(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column(first)
    return table

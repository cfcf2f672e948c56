"""What the demo shows: bars for the study and the phases of its round, a line per round, tables.

Bars are on standard error, if that is a terminal; the lines are the same without them.
"""

from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group
from rich.markup import escape
from rich.progress import TaskID, TextColumn
from rich.table import Table

from blindtally.demo.results import Results, RoundResult
from blindtally.progress import bars
from blindtally.tables import facts, table
from client.crew import Standing
from client.participation import STEP_IN
from protocol.messages import RoundView
from protocol.round import Phase, phases

SHOWN: Final = 20  # heavy hitters


class Screen:
    """Live progress of a study of `rounds` rounds; lines about those that are over on `console`."""

    def __init__(self, console: Console, rounds: int) -> None:
        self._rounds = rounds
        self._number = 0
        watcher = Console(stderr=True)
        self._bars = bars(watcher, TextColumn("[dim]{task.fields[note]}"))
        self._watcher = watcher
        # On one terminal, a line must go above the bars; in a file, it is where results are.
        self._lines = watcher if watcher.is_terminal and console.is_terminal else console
        self._study = self._bars.add_task("rounds", total=rounds, note="")
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

    @property
    def has_bars(self) -> bool:
        """Return whether somebody sees bars."""
        return self._watcher.is_terminal

    def say(self, line: str) -> None:
        """Show a line of news, above the bars if there are any."""
        self._watcher.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)

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
        self._bars.advance(self._study)
        self._lines.print(_line(result, self._rounds), soft_wrap=True)  # a file has no edge

    def _begin(self, view: RoundView, devices: int) -> None:
        self._number = view.number
        for task in self._tasks.values():
            self._bars.remove_task(task)
        self._bars.update(self._study, note=f"in {view.number}, t = {view.plan.t:.2f}")
        self._tasks = {
            phase: self._bars.add_task(f"  {phase}", total=devices, note="")
            for phase in phases(view.plan.terms.mode)
        }


def _line(one: RoundResult, rounds: int) -> str:
    sums = "[green]sum exact[/]" if one.exact else "[yellow]no sum[/]"
    seconds = sum(one.seconds.values())
    return (
        f"round {one.number}/{rounds}  t {one.t:5.2f}  {one.participants} of {one.enrolled} "
        f"devices, {sums}, {escape(_outcome(one))}, {seconds:.1f} s"
    )


def _outcome(one: RoundResult) -> str:
    """Return what was read off a round's sums, or why there are none."""
    if one.state == "failed":
        return "; ".join([f"failed: {why}" for why in dict.fromkeys(one.failures)] or ["failed"])
    lost = f"; {len(one.failures)} cohorts without: {one.failures[0]}" if one.failures else ""
    if one.distinct is None:
        return one.state + lost
    room = f" (room for {one.capacity})" if one.capacity else ""
    return f"{one.state}: {one.distinct:,.0f} items{room}{lost}"


def show(console: Console, results: Results) -> None:
    """Print the tables."""
    console.print(_found(results))
    if results.missed:
        missed = ", ".join(f"{item} ({count})" for item, count in results.missed.items())
        console.print(f"missed: {escape(missed)}")
    console.print(_rounds(results), _phases(results))
    for one in results.rounds:
        for line in one.blamed:
            console.print(f"blamed in round {one.number}: {escape(line)}")
    console.print(_costs(results))


def _found(results: Results) -> Group:
    rows = [
        (
            one.item,
            f"{one.estimate:,.0f}",
            f"{one.standard_error:,.1f}",
            f"{one.true_count:,}",
            f"{one.error:+,.0f}",
        )
        for one in results.found[:SHOWN]
    ]
    if len(results.found) > SHOWN:
        rows.append((f"and {len(results.found) - SHOWN} more", "", "", "", ""))
    title = f"Heavy hitters: held {results.threshold:g} times or more"
    return table(["item"], ["estimate", "± s.e.", "true", "error"], rows, title)


def _rounds(results: Results) -> Group:
    rows = [
        (
            str(one.number),
            one.state,
            f"{one.t:.2f}",
            str(one.capacity),
            "" if one.distinct is None else f"{one.distinct:,.0f}",
            str(one.enrolled),
            str(one.participants),
            f"{one.threshold} of {one.holders}",
        )
        for one in results.rounds
    ]
    numbers = ["t", "room", "distinct", "devices", "in sum", "shares"]
    return table(["round", "state"], numbers, rows, "Rounds")


def _phases(results: Results) -> Group:
    spoken = phases(results.mode)
    rows = [
        (
            str(one.number),
            *(f"{one.lost.get(p, 0)}, {one.seconds.get(p, 0.0):.1f} s" for p in spoken),
        )
        for one in results.rounds
    ]
    return table(["round"], [*spoken], rows, "Devices lost in each phase, and what it took")


def _costs(results: Results) -> Table:
    cost = results.bytes
    return facts(
        {
            "rounds decoded": f"{results.decoded} of {len(results.rounds)}",
            "threshold t": " → ".join(f"{one.t:.2f}" for one in results.rounds),
            "devices lost": ", ".join(f"{n} {phase}" for phase, n in results.lost.items()),
            "bytes a device": f"{cost.vector:,.0f} packed vector; {cost.sent:,.0f} sent and "
            f"{cost.received:,.0f} received in all",
            "seconds": f"{results.seconds:.1f} in all; by phase: {_seconds(results)}",
        }
    )


def _seconds(results: Results) -> str:
    totals = {
        phase: sum(one.seconds.get(phase, 0.0) for one in results.rounds)
        for phase in phases(results.mode)
    }
    return ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in totals.items())

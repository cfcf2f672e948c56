"""The demo on a terminal: progress bars, a line per round, and tables.

Bars are on standard error, if that is a terminal; the lines are the same without bars.
"""

from typing import Final, Self

from rich.console import Group
from rich.progress import TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from blindtally.console.progress import progress_bars
from blindtally.console.tables import fact_table, result_table
from blindtally.console.terminal import Terminal
from blindtally.fleet_run.results import RoundResult, StudyResults, table_capacity
from client.device.device import STEP_OF_PHASE
from client.fleet.config_and_results import FleetProgress
from protocol.api.messages import RoundView
from protocol.api.phases import DEVICE_PHASES, SUM_PHASES, Phase
from protocol.printable import escape_hidden, printable

MAX_SHOWN_ITEMS: Final = 20  # heavy hitters


class Screen:
    """Live progress of a study of `rounds` rounds, and a line on `console` after each round."""

    def __init__(self, console: Terminal, rounds: int) -> None:
        self._rounds, self.round_number = rounds, 0  # the last one that has begun
        self._bar_console = errors = Terminal(stderr=True)
        self._bars = progress_bars(errors, TextColumn("{task.fields[note]}", "dim", markup=False))
        # On a terminal, lines must go above the bars; in a file, they go where the results go.
        self._line_console = errors if errors.is_terminal and console.is_terminal else console
        self._study = self._bars.add_task("rounds", total=rounds, note="")
        self._tasks: dict[Phase, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()

    @property
    def has_bars(self) -> bool:
        return self._bar_console.is_terminal

    def print_line(self, line: str) -> None:
        self._bar_console.print(line, style="dim", soft_wrap=True)

    def show_step(self, progress: FleetProgress) -> None:
        view = progress.view
        if view.number != self.round_number:
            self._begin(view, progress.devices)
        note = f"{progress.dropped_out} dropped out" if progress.dropped_out else ""
        for phase, task in self._tasks.items():
            done = progress.steps_taken.get(STEP_OF_PHASE[phase], 0)
            self._bars.update(task, completed=done, note=note if done else "")

    def show_round(self, result: RoundResult) -> None:
        self._bars.advance(self._study)
        self._remove_phases()
        # Soft wrap: a file has no right edge.
        self._line_console.print(_round_line(result, self._rounds), soft_wrap=True)

    def _begin(self, view: RoundView, devices: int) -> None:
        self.round_number = view.number
        self._remove_phases()
        sampling = f", t = {view.plan.t:.2f}" if table_capacity(view.plan) else ""
        self._bars.update(self._study, note=f"in {view.number}{sampling}")
        self._tasks = {
            phase: self._bars.add_task(f"  {phase}", total=devices, note="")
            for phase in DEVICE_PHASES[view.plan.terms.sum]
        }

    def _remove_phases(self) -> None:
        """Remove the bars of a round that is over: a phase may end without some of its devices."""
        for task in self._tasks.values():
            self._bars.remove_task(task)
        self._tasks = {}


def _round_line(result: RoundResult, rounds: int) -> Text:
    sums = {True: Text("sum exact, ", "green"), False: Text("no sum, ", "yellow"), None: Text()}[
        result.exact
    ]
    sampling = f"sampling t {result.t:.2f}  " if result.capacity else ""
    seconds = sum(result.seconds.values())
    return Text.assemble(
        f"round {result.number}/{rounds}  {sampling}"
        f"{result.participants} of {result.enrolled} devices, ",
        sums,
        f"{escape_hidden(_describe_outcome(result))}, {seconds:.1f} s",
    )


def _describe_outcome(result: RoundResult) -> str:
    """Return the decoded result of a round, or the reasons of its failure."""
    reasons = list(dict.fromkeys(result.failures))
    if result.state == "failed":
        return "; ".join([f"failed: {reason}" for reason in reasons] or ["failed"])
    cohorts = "1 cohort" if len(result.failures) == 1 else f"{len(result.failures)} cohorts"
    missing = f"; {cohorts} without a sum: {reasons[0]}" if reasons else ""
    if result.distinct is None:
        return result.state + missing
    room = f" (room for {result.capacity})" if result.capacity else ""
    items = "item" if result.distinct == 1 else "items"
    return f"{result.state}: {result.distinct:,.0f} {items} shown{room}{missing}"


def print_results(console: Terminal, results: StudyResults) -> None:
    if results.heavy_hitters:
        console.print(_heavy_hitter_table(results))
    for note in results.notes:
        console.print(note)
    if results.missed:
        missed = ", ".join(f"{printable(item)} ({count})" for item, count in results.missed.items())
        console.print(f"missed: {missed}")
    console.print(_round_table(results), _phase_table(results))
    for result in results.rounds:
        for line in result.violations:
            console.print(f"blamed in round {result.number}: {line}")
    console.print(_cost_table(results))


def _heavy_hitter_table(results: StudyResults) -> Group:
    rows = [
        (
            item.item,
            f"{item.estimate:,.0f}",
            f"{item.standard_error:,.1f}",
            f"{item.true_count:,}",
            f"{item.error:+,.0f}",
        )
        for item in results.heavy_hitters[:MAX_SHOWN_ITEMS]
    ]
    if len(results.heavy_hitters) > MAX_SHOWN_ITEMS:
        rows.append((f"and {len(results.heavy_hitters) - MAX_SHOWN_ITEMS} more", "", "", "", ""))
    title = f"Heavy hitters: held {results.threshold:g} times or more"
    return result_table(["item"], ["estimate", "± s.e.", "true", "error"], rows, title)


def _round_table(results: StudyResults) -> Group:
    rows = [
        (
            str(result.number),
            result.state,
            f"{result.t:.2f}",
            str(result.capacity),
            "" if result.distinct is None else f"{result.distinct:,.0f}",
            str(result.enrolled),
            str(result.participants),
            f"{result.threshold} of {result.holders}",
        )
        for result in results.rounds
    ]
    numbers = ["t", "room", "shown", "devices", "in sum", "shares"]
    return result_table(["round", "state"], numbers, rows, "Rounds")


def _phase_table(results: StudyResults) -> Group:
    phases = SUM_PHASES[results.sum]
    rows = [
        (
            str(result.number),
            *(f"{result.dropouts.get(p, 0)}, {result.seconds.get(p, 0.0):.1f} s" for p in phases),
        )
        for result in results.rounds
    ]
    return result_table(["round"], [*phases], rows, "Dropouts and seconds of each phase")


def _cost_table(results: StudyResults) -> Table:
    cost = results.traffic
    return fact_table(
        {
            "rounds decoded": f"{results.rounds_decoded} of {len(results.rounds)}",
            "sampling threshold": " → ".join(f"{result.t:.2f}" for result in results.rounds),
            "dropouts": _describe_dropouts(results),
            "bytes per device": f"{cost.vector:,.0f} packed vector; {cost.sent:,.0f} sent and "
            f"{cost.received:,.0f} received in total",
            "seconds": f"{results.seconds:.1f} in total; by phase: {_describe_seconds(results)}",
        }
    )


def _describe_dropouts(results: StudyResults) -> str:
    phases = [phase for phase in SUM_PHASES[results.sum] if phase in results.dropouts]
    return ", ".join(f"{results.dropouts[phase]} {phase}" for phase in phases)


def _describe_seconds(results: StudyResults) -> str:
    totals = {
        phase: sum(result.seconds.get(phase, 0.0) for result in results.rounds)
        for phase in SUM_PHASES[results.sum]
    }
    return ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in totals.items())

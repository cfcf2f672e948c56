"""The demo on a terminal: progress bars, a line per round, and tables.

Bars are on standard error, if that is a terminal; the lines are the same without bars.
"""

from typing import Final, Self

from rich.console import Group
from rich.progress import TaskID, TextColumn
from rich.text import Text

from blindtally.console.progress import progress_bars
from blindtally.console.tables import result_table
from blindtally.console.terminal import Terminal
from blindtally.fleet_run.results import RoundResult, StudyResults
from blindtally.simulate.scores import CHANCE_OF_MISS
from client.device.device import STEP_OF_PHASE
from client.fleet.config_and_results import FleetProgress
from protocol.api.messages import RoundView
from protocol.api.phases import DEVICE_PHASES, Phase
from protocol.printable import escape_hidden, printable
from protocol.question_and_plan import DEFAULT_MIN_THRESHOLD

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
        # The line of a round counts items of so many devices.
        self._least_holders = DEFAULT_MIN_THRESHOLD

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
        line = _round_line(result, self._rounds, self._least_holders)
        self._line_console.print(line, soft_wrap=True)

    def _begin(self, view: RoundView, devices: int) -> None:
        self.round_number = view.number
        self._least_holders = view.plan.question.least_holders
        self._remove_phases()
        self._bars.update(self._study, note=f"in {view.number}")
        self._tasks = {
            phase: self._bars.add_task(f"  {phase}", total=devices, note="")
            for phase in DEVICE_PHASES[view.plan.terms.sum]
        }

    def _remove_phases(self) -> None:
        """Remove the bars of a round that is over: a phase may end without some of its devices."""
        for task in self._tasks.values():
            self._bars.remove_task(task)
        self._tasks = {}


def _round_line(result: RoundResult, rounds: int, least_holders: float) -> Text:
    sums = {True: Text("sum exact, ", "green"), False: Text("no sum, ", "yellow"), None: Text()}[
        result.exact
    ]
    seconds = sum(result.seconds.values())
    return Text.assemble(
        f"round {result.number}/{rounds}  {result.participants} of {result.enrolled} devices, ",
        sums,
        f"{escape_hidden(_describe_outcome(result, least_holders))}, {seconds:.1f} s",
    )


def _describe_outcome(result: RoundResult, least_holders: float) -> str:
    """Return the decoded result of a round, or the reasons of its failure."""
    reasons = list(dict.fromkeys(result.failures))
    if result.state == "failed":
        return "; ".join([f"failed: {reason}" for reason in reasons] or ["failed"])
    cohorts = "1 cohort" if len(result.failures) == 1 else f"{len(result.failures)} cohorts"
    missing = f"; {cohorts} without a sum: {reasons[0]}" if reasons else ""
    if result.distinct is None:
        return result.state + missing
    items = "item" if result.distinct == 1 else "items"
    held = f"{items} counted at {least_holders:g} or more of them"
    return f"{result.state}: {result.distinct:,.0f} {held}{missing}"


def print_results(console: Terminal, results: StudyResults) -> None:
    if results.heavy_hitters or results.unlisted:
        console.print(_heavy_hitter_table(results))
    if not results.people and not all(item.is_covered for item in results.heavy_hitters):
        console.print(f"A true count is outside its interval: {CHANCE_OF_MISS}.")
    for note in results.notes:
        console.print(note)
    if results.missed:
        missed = ", ".join(f"{printable(item)} ({count})" for item, count in results.missed.items())
        console.print(f"Not found, with a true count of {results.threshold:g} or more: {missed}")
    for result in results.rounds:
        for line in result.violations:
            console.print(f"blamed in round {result.number}: {line}")
    cost = results.traffic
    console.print(
        f"In a round, a device sent {cost.sent / 1000:,.1f} kB and received "
        f"{cost.received / 1000:,.1f} kB."
    )
    for sentence in results.answer:
        console.print(sentence, style="bold")


def _heavy_hitter_table(results: StudyResults) -> Group:
    rows = [
        (item.item, *(f"{n:,.0f}" for n in (item.estimate, item.low, item.high, item.true_count)))
        for item in results.heavy_hitters[:MAX_SHOWN_ITEMS]
    ]
    if len(results.heavy_hitters) > MAX_SHOWN_ITEMS:
        rows.append((f"and {len(results.heavy_hitters) - MAX_SHOWN_ITEMS} more", "", "", "", ""))
    unlisted = list(results.unlisted.items())
    shown = unlisted[: max(0, MAX_SHOWN_ITEMS - len(rows))]
    rows += [(item, words, "", "", "") for item, words in shown]
    if len(unlisted) > len(shown):
        rows.append((f"and {len(unlisted) - len(shown)} more", unlisted[0][1], "", "", ""))
    title = f"Counted at {results.threshold:g} devices or more of all rounds, with 95% intervals"
    return result_table(["item"], ["devices", "from", "to", "true"], rows, title)

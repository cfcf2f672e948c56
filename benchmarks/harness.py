"""Harness of all benchmarks: options, CPU seconds, and rows of figures next to their references."""

import json
import subprocess
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One figure: its name, its value in a unit, and the reference that it is compared with."""

    name: str
    value: float
    unit: str
    reference: float | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.reference if self.reference else None


def argument_parser(docstring: str | None) -> ArgumentParser:
    """Return a parser with the option --json, described by the docstring of a benchmark."""
    parser = ArgumentParser(description=docstring, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="File for the rows as JSON.")
    return parser


def report(rows: Sequence[BenchmarkRow], reference: str, path: Path | None) -> None:
    """Print `rows`, with `reference` as the heading of their references; write JSON to `path`."""
    table = Table()
    for heading in ("figure", "value", "unit", reference, "ratio"):
        table.add_column(heading, justify="left" if heading in ("figure", "unit") else "right")
    for row in rows:
        digits = 0 if row.unit == "B" else 3
        compared = "" if row.reference is None else f"{row.reference:,.{digits}f}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        table.add_row(row.name, f"{row.value:,.{digits}f}", row.unit, compared, ratio)
    Console(width=100).print(table)
    if path:
        rows_as_json = [asdict(row) | {"ratio": row.ratio} for row in rows]
        path.write_text(json.dumps(rows_as_json, indent=2) + "\n")


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds that `work` takes once."""
    start = time.process_time()
    work()
    return time.process_time() - start


def fastest_cpu_seconds(
    work: Callable[[], object], seconds: float = 1.0, min_runs: int = 3
) -> float:
    """Return the smallest CPU seconds of `work`, over `seconds` and at least `min_runs` runs."""
    times, end = list[float](), time.process_time() + seconds
    while len(times) < min_runs or time.process_time() < end:
        times.append(cpu_seconds(work))
    return min(times)


def run_peer(python: str, program: str, request: object) -> Any:  # noqa: ANN401 - as JSON has it
    """Return the JSON that `program` prints in another interpreter, with `request` on its stdin."""
    done = subprocess.run(  # noqa: S603 - the interpreter is the caller's choice
        [python, "-c", program],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)

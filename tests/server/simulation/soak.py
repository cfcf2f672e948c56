"""Thousands of operations in simulated studies, on SQLite and on a real PostgreSQL.

    python -m tests.server.simulation.soak [--operations N] [--database NAME] [--seed S]

Each run has a study with its devices and servers, and 40 operations drawn by a seed
(`operations.py`); all that must be true of it (`study.py`) is checked after each. A run in
which something is not true is printed, made as short as leaving operations out makes it, as a
test that can be kept; the exit code is 1 then.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.server.simulation.databases import Databases, apply_retention, memory, postgres
from tests.server.simulation.operations import Operation, choose_history, play
from tests.server.simulation.study import RunFigures, StudySize

_LENGTH = 40
_SIZES = {
    "SQLite": (StudySize(), StudySize(size=5, cohorts=2), StudySize(size=8)),
    "PostgreSQL": (
        StudySize(servers=2),
        StudySize(size=5, cohorts=2, servers=2),
        StudySize(size=8, servers=3),
    ),
}


def soak(databases: Databases, operations: int, seed: int, progress: Progress) -> RunFigures:
    """Play studies until the number of operations is reached; return their figures."""
    figures, task = RunFigures(), progress.add_task(databases.kind, total=operations)
    while figures.operations.total() < operations:
        rng, seed = Random(seed), seed + 1
        size = rng.choice(_SIZES[databases.kind])
        history, chance = choose_history(rng, _LENGTH), rng.getrandbits(32)
        try:
            url = databases.empty()
            figures.add(play(url, size, chance, history))
            figures.add_rows(*apply_retention(url))
        except BaseException as error:
            short = shorten(databases, size, chance, history)
            lines = ",\n".join(f"    {operation}" for operation in short)
            progress.print(
                f"{databases.kind}: {error}\nplay(url, {size}, {chance}, [\n{lines},\n])"
            )
            raise
        progress.update(task, completed=figures.operations.total())
    return figures


def shorten(
    databases: Databases, size: StudySize, chance: int, operations: list[Operation]
) -> list[Operation]:
    """Return a list of operations without those that the failure does not need."""
    for place in reversed(range(len(operations))):
        rest = operations[:place] + operations[place + 1 :]
        try:
            play(databases.empty(), size, chance, rest)
        except BaseException:  # of any kind
            operations = rest
    return operations


def report(runs: dict[str, RunFigures], seconds: dict[str, float]) -> None:
    """Print the figures of a run without failures."""
    table = Table("", *runs)
    kinds = sorted({kind for figures in runs.values() for kind in figures.operations})
    rows = {kind: [figures.operations[kind] for figures in runs.values()] for kind in kinds}
    rows["operations in all"] = [figures.operations.total() for figures in runs.values()]
    for name in (
        "kills", "summed", "claims", "taken_over", "failed", "acknowledged", "included",
        "rows_stored", "rows_without_devices", "rows_after_retention",
    ):  # fmt: skip
        rows[name.replace("_", " ")] = [getattr(figures, name) for figures in runs.values()]
    for name in ("double counts", "losses", "stuck"):
        rows[name] = [0 for _ in runs]
    for name, row in rows.items():
        table.add_row(name, *(f"{value:,}" for value in row))
    table.add_row("seconds", *(f"{value:,.0f}" for value in seconds.values()))
    Console().print(table)


def main() -> None:
    """Play on both databases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--operations", type=int, default=10_000, help="Operations on each database."
    )
    parser.add_argument(
        "--database", choices=sorted(_SIZES), help="Database to test; the default is both."
    )
    parser.add_argument(
        "--seed", type=int, default=time.time_ns() % 2**32, help="Seed of the studies."
    )
    parser.add_argument("--json", type=Path, help="File for the figures as JSON.")
    arguments = parser.parse_args()
    Console().print(f"seed {arguments.seed}")
    runs, seconds = dict[str, RunFigures](), dict[str, float]()
    with tempfile.TemporaryDirectory(dir=memory()) as folder, postgres() as url:
        for databases in (Databases(Path(folder)), Databases(Path(folder), url)):
            if arguments.database not in (None, databases.kind):
                continue
            start = time.monotonic()
            with Progress(console=Console(file=sys.stderr)) as progress:
                runs[databases.kind] = soak(
                    databases, arguments.operations, arguments.seed, progress
                )
            seconds[databases.kind] = time.monotonic() - start
    report(runs, seconds)
    if arguments.json:
        rows = {kind: vars(figures) | {"seconds": seconds[kind]} for kind, figures in runs.items()}
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

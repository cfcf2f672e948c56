"""Thousands of operations in simulated worlds, on SQLite and on a real PostgreSQL.

    python -m tests.server.simulation.soak [--operations N] [--database NAME] [--seed S]

Each world is a study with its devices and servers, and 40 operations drawn by a seed
(`operations.py`); all that must be true of it (`world.py`) is checked after each. A world in
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

from tests.server.simulation.operations import Operation, choose_history, play
from tests.server.simulation.shelf import Shelf, apply_retention, memory, postgres
from tests.server.simulation.world import Score, Shape

_LENGTH = 40
_SHAPES = {
    "SQLite": (Shape(), Shape(size=5, cohorts=2), Shape(size=8)),
    "PostgreSQL": (Shape(workers=2), Shape(size=5, cohorts=2, workers=2), Shape(size=8, workers=3)),
}


def soak(shelf: Shelf, operations: int, seed: int, progress: Progress) -> Score:
    """Play worlds until the number of operations is reached; return their score."""
    score, task = Score(), progress.add_task(shelf.kind, total=operations)
    while score.operations.total() < operations:
        rng, seed = Random(seed), seed + 1
        shape = rng.choice(_SHAPES[shelf.kind])
        happening, chance = choose_history(rng, _LENGTH), rng.getrandbits(32)
        try:
            url = shelf.empty()
            score.add(play(url, shape, chance, happening))
            score.add_rows(*apply_retention(url))
        except BaseException as error:
            short = shorten(shelf, shape, chance, happening)
            lines = ",\n".join(f"    {operation}" for operation in short)
            progress.print(f"{shelf.kind}: {error}\nplay(url, {shape}, {chance}, [\n{lines},\n])")
            raise
        progress.update(task, completed=score.operations.total())
    return score


def shorten(shelf: Shelf, shape: Shape, chance: int, happening: list[Operation]) -> list[Operation]:
    """Return a list of operations without those that the failure does not need."""
    for place in reversed(range(len(happening))):
        rest = happening[:place] + happening[place + 1 :]
        try:
            play(shelf.empty(), shape, chance, rest)
        except BaseException:  # of any kind
            happening = rest
    return happening


def report(scores: dict[str, Score], seconds: dict[str, float]) -> None:
    """Print the figures of a run without failures."""
    table = Table("", *scores)
    kinds = sorted({kind for score in scores.values() for kind in score.operations})
    rows = {kind: [score.operations[kind] for score in scores.values()] for kind in kinds}
    rows["operations in all"] = [score.operations.total() for score in scores.values()]
    for name in (
        "kills", "summed", "claims", "taken_over", "failed", "acknowledged", "included",
        "rows_stored", "rows_without_devices", "rows_after_retention",
    ):  # fmt: skip
        rows[name.replace("_", " ")] = [getattr(score, name) for score in scores.values()]
    for name in ("double counts", "losses", "stuck"):
        rows[name] = [0 for _ in scores]
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
        "--database", choices=sorted(_SHAPES), help="Database to test; the default is both."
    )
    parser.add_argument(
        "--seed", type=int, default=time.time_ns() % 2**32, help="Seed of the worlds."
    )
    parser.add_argument("--json", type=Path, help="File for the figures as JSON.")
    arguments = parser.parse_args()
    Console().print(f"seed {arguments.seed}")
    scores, seconds = dict[str, Score](), dict[str, float]()
    with tempfile.TemporaryDirectory(dir=memory()) as folder, postgres() as url:
        for shelf in (Shelf(Path(folder)), Shelf(Path(folder), url)):
            if arguments.database not in (None, shelf.kind):
                continue
            start = time.monotonic()
            with Progress(console=Console(file=sys.stderr)) as progress:
                scores[shelf.kind] = soak(shelf, arguments.operations, arguments.seed, progress)
            seconds[shelf.kind] = time.monotonic() - start
    report(scores, seconds)
    if arguments.json:
        rows = {kind: vars(score) | {"seconds": seconds[kind]} for kind, score in scores.items()}
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

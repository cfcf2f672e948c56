"""The command that shows the errors of locally private oracles in the paper's experiments."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from blindtally.figures import drawing, local, pictures
from blindtally.figures.local import METHODS, Errors, Experiment, measure
from blindtally.output import failed, write_json

_WIDTH = 110


def ldp(
    data: Annotated[
        Path | None, typer.Option(help="A file of devices, such as Kosarak's, or of counts.")
    ] = None,
    devices: Annotated[int, typer.Option(min=100, help="The first so many of them.")] = 9_900,
    epsilon: Annotated[
        list[float], typer.Option(min=0.1, max=5, help="Privacy of a report; repeat it.")
    ] = [1, 2, 3, 4, 5],  # noqa: B006  (typer's own way to say it)
    runs: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each point.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same figure.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Draw it: a file that ends in .svg or .png.")
    ] = None,
    json_path: Annotated[
        str | None, typer.Option("--json", metavar="PATH", help="Write JSON; - is stdout.")
    ] = None,
) -> None:
    """Errors of locally private oracles over epsilon: Zipf, Gaussian, and a file's data.

    Example: blindtally figures ldp --data kosarak_100k.txt.gz --out ldp.svg
    """
    pictures.check(out)
    cases = [
        (experiment, level, method)
        for experiment in _experiments(data, devices, np.random.default_rng(seed))
        for level in sorted(set(epsilon))
        for method in METHODS
    ]
    screen = Console(stderr=True)
    watched = track(cases, "oracles", console=screen, disable=not screen.is_terminal)
    found = [measure(one, method, level, runs, seed) for one, level, method in watched]
    if json_path != "-":
        _show(found, runs)
    pictures.draw(out, lambda path: drawing.draw_local(path, found))
    if json_path is not None:
        rows = [row.as_json() for row in found]
        write_json(json_path, {"figure": "ldp", "runs": runs, "rows": rows})


def _experiments(data: Path | None, devices: int, rng: np.random.Generator) -> list[Experiment]:
    experiments = [local.zipf(rng), local.gauss(rng)]
    if data is not None:
        try:
            experiments.append(local.of_file(data, devices, rng))
        except ValueError as error:
            raise failed(error) from None
    return experiments


def _show(found: list[Errors], runs: int) -> None:
    errors = "worst MSE", "l1", "l2"
    headings = [heading for error in errors for heading in (error, "by theory")]
    table = Table("data", "eps", "method", *headings)
    for one in found:
        pairs = (one.worst, one.worst_theory), (one.l1, one.l1_theory), (one.l2, one.l2_theory)
        cells = [f"{value:.2e}" for pair in pairs for value in pair]
        table.add_row(one.experiment, f"{one.epsilon:g}", one.method, *cells)
    screen = Console(width=None if Console().is_terminal else _WIDTH)
    screen.print(f"errors of the {local.INTEREST} most frequent values, {runs} runs", table)

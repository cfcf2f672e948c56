"""Options of the commands, and the files that they read and write.

--out fig1.svg    fig1.svg, and its rows as fig1.csv
--out fig1.png    fig1.png and fig1.csv
--out fig1.csv    the rows alone
--out fig1        fig1.svg, fig1.png and fig1.csv
"""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from blindtally.console.data_files import load_dataset
from blindtally.console.errors import exit_with_error
from blindtally.console.options import complete_data
from blindtally.console.output_files import atomic_write
from blindtally.console.progress import with_progress
from blindtally.datasets.cells import DataError
from blindtally.datasets.device_histograms import DeviceHistograms
from blindtally.simulate.populations import ItemPopulation, population_of
from blindtally.workers import map_bounded, open_workers
from client.extras_installation import install_command
from paper.drawing import PICTURE_SUFFIXES

DataOption = Annotated[
    Path,
    typer.Option(help="A CSV file of items and counts to draw from.", autocompletion=complete_data),
]
DataFilesOption = Annotated[
    list[Path],
    typer.Option(help="A CSV file of items and counts; repeat it.", autocompletion=complete_data),
]
ThresholdOption = Annotated[
    float, typer.Option("--threshold", min=1, help="Count that makes an item heavy (tau).")
]
TokensOption = Annotated[int, typer.Option(min=10, max=10**6, help="Mean tokens in a round (M).")]
RoundsOption = Annotated[int, typer.Option("--rounds", min=1, max=1000, help="Rounds (R).")]
RunsOption = Annotated[int, typer.Option(min=1, max=1000, help="Runs of each point.")]
SeedOption = Annotated[int, typer.Option(min=0, help="The same seed gives the same figure.")]
OutOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Picture to draw: FILE ends in .svg or .png, or has no ending and is both. Its rows "
        "are written next to it as CSV.",
    ),
]
WorkersOption = Annotated[
    int, typer.Option(min=1, max=1024, help="Processes of this machine that share the work.")
]
DaskOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Dask scheduler to use, such as tcp://host:8786, or local for a cluster of "
        "--workers on this machine.",
    ),
]
_DATA_SUFFIX: Final = ".csv"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The number of runs, their seed, and the workers that share them."""

    runs: int
    seed: int
    workers: int
    dask: str | None

    @property
    def seeds(self) -> list[tuple[int, int]]:
        """Return the seed of each run."""
        return [(self.seed, run) for run in range(self.runs)]

    @property
    def error_bars(self) -> str:
        """Return the part of a title that explains points and bars."""
        if self.runs == 1:
            return f"one run a point, seed {self.seed}"
        return f"means of {self.runs} runs; bars: 3 standard deviations; seed {self.seed}"

    def map(self, work: Callable[[Any], T], tasks: Sequence[Any], label: str) -> list[T]:
        """Return the result of `work` for each task, shared among the workers.

        A progress bar has the name `label`.

        Raises:
            typer.Exit: if the workers cannot be used, or died of a task.
        """
        with open_workers(self.workers, self.dask) as (executor, _):
            results: Iterator[T] = map(work, tasks)
            if executor is not None:
                results = map_bounded(executor, work, tasks, len(tasks))
            return list(with_progress(results, label, len(tasks)))


def load_population(path: Path) -> ItemPopulation:
    """Return the population of a file of counts, over the paper's alphabet where it fits.

    Raises:
        typer.Exit: if the file cannot be used.
    """
    try:
        data, _ = load_dataset(path)
        if isinstance(data, DeviceHistograms):
            form = "name a CSV file of item,count, or the bundled words"
            raise DataError(path, f"holds devices, and figures draw from items and counts: {form}")
        return population_of(data)
    except ValueError as error:
        raise exit_with_error(error) from None


def check_output_path(out: Path | None) -> None:
    """Fail if `out` cannot be drawn: before the work, not after it."""
    if out is None:
        return
    if out.suffix not in (*PICTURE_SUFFIXES, _DATA_SUFFIX, ""):
        raise exit_with_error(
            f"cannot draw {out}: its name ends in {' or '.join(PICTURE_SUFFIXES)}, or has no ending"
        )
    if not out.parent.is_dir():
        raise exit_with_error(f"cannot write {out}: there is no folder {out.parent}")


def write_figure(
    out: Path | None, picture: Callable[[Path], None], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Draw `picture` and write `rows` to `out`, unless it is None.

    Raises:
        typer.Exit: if matplotlib is missing, or a file cannot be written.
    """
    if out is None:
        return
    with atomic_write(out.with_suffix(_DATA_SUFFIX)) as file, file.open("w", newline="") as text:
        table = csv.DictWriter(text, [*rows[0]], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    for suffix in PICTURE_SUFFIXES:
        if out.suffix in (suffix, ""):
            with atomic_write(out.with_suffix(suffix)) as file:
                try:
                    picture(file)
                except ImportError:
                    command = install_command("plot")
                    raise exit_with_error(f"pictures need matplotlib: {command}") from None

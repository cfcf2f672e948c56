"""Where the commands of figures meet the files: pictures, and beside them what they show.

--out fig1.svg    fig1.svg, and the rows that it shows as fig1.csv
--out fig1.png    fig1.png and fig1.csv
--out fig1.csv    the rows alone
--out fig1        fig1.svg, fig1.png and fig1.csv
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from blindtally.console.output import atomic_write, exit_with_error
from client.optional_deps import install_command
from paper.drawing import PICTURE_SUFFIXES

OutOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Draw it: FILE ends in .svg or .png, or has no ending and is both. What is shown is "
        "written beside it as CSV.",
    ),
]
_DATA_SUFFIX: Final = ".csv"


def check_output_path(out: Path | None) -> None:
    """Fail if `out` names nothing that can be drawn: before the work, not after it."""
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
    """Draw `picture` and write `rows` where `out` says, if it says so.

    Raises:
        typer.Exit: if matplotlib is missing, or a file cannot be written.
    """
    if out is None:
        return
    with atomic_write(out.with_suffix(_DATA_SUFFIX)) as file, file.open("w", newline="") as text:
        table = csv.DictWriter(text, [*rows[0]], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    for kind in PICTURE_SUFFIXES:
        if out.suffix in (kind, ""):
            with atomic_write(out.with_suffix(kind)) as file:
                _draw(file, picture)


def _draw(file: Path, picture: Callable[[Path], None]) -> None:
    try:
        picture(file)
    except ImportError:
        raise exit_with_error(f"pictures need matplotlib: {install_command('demo')}") from None

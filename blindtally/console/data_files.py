"""Data files of commands: the data, and on standard error the columns and rows that were used."""

from pathlib import Path

from blindtally.console.terminal import print_line
from blindtally.datasets.file_formats import is_bundled
from blindtally.datasets.reader import Dataset, read_dataset
from blindtally.datasets.reading_report import ReadingReport


def load_dataset(path: Path, column: str | None = None) -> tuple[Dataset, ReadingReport]:
    """Return the data in the file at `path`, and print a report on a file of the user.

    Raises:
        DataError: if the file cannot be used.
    """
    dataset, report = read_dataset(path, column)
    if not is_bundled(path):
        for line in report.lines():
            print_line(line, err=True)
    return dataset, report

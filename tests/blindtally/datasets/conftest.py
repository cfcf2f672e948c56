"""Reading of one small file, as the tests of data files need it."""

from pathlib import Path

import pytest

from blindtally.datasets.device_histograms import DeviceHistograms
from blindtally.datasets.reader import read_dataset
from blindtally.datasets.reading_report import ReadingReport
from tests.support.data_files import Read


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return a function that reads a file of some content: the histograms or counts, and report."""

    def read_content(
        content: str | bytes, column: str | None = None
    ) -> tuple[dict[str, int] | list[dict[str, int]], ReadingReport]:
        path = tmp_path / "data.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        dataset, report = read_dataset(path, column)
        if isinstance(dataset, DeviceHistograms):
            return [dict(histogram) for histogram in dataset], report
        return dict(zip(dataset.items, dataset.counts.tolist(), strict=True)), report

    return read_content

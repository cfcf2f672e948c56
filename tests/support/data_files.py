"""The type of the fixture `read`, which reads a data file of some content."""

from collections.abc import Callable
from typing import Any, TypeAlias

from blindtally.datasets.reading_report import ReadingReport

Read: TypeAlias = Callable[..., tuple[Any, ReadingReport]]

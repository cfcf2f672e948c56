"""Error of a data file that cannot be used."""

from pathlib import Path

from secagg.errors import PortableError


class DataError(PortableError, ValueError):
    """A data file cannot be used; the message names the file, and the line if one is at fault."""

    def __init__(self, path: Path, fault: str, line: int | None = None) -> None:
        super().__init__(f"{path}: {fault}" if line is None else f"{path}, line {line}: {fault}")

"""What every benchmark reports: rows beside their references, as a table and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One figure: what it is, its unit, what it stands beside, and their ratio."""

    name: str
    value: float
    unit: str
    reference: float | None = None
    ratio: float | None = None


def report(rows: Sequence[BenchmarkRow], reference: str, path: Path | None) -> None:
    """Print `rows` with the heading `reference` over theirs; write JSON to `path` if given."""
    table = Table()
    for heading in ("figure", "value", "unit", reference, "ratio"):
        table.add_column(heading, justify="left" if heading in ("figure", "unit") else "right")
    for row in rows:
        digits = 0 if row.unit == "B" else 3
        beside = "" if row.reference is None else f"{row.reference:,.{digits}f}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        table.add_row(row.name, f"{row.value:,.{digits}f}", row.unit, beside, ratio)
    Console(width=100).print(table)
    if path:
        path.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")

"""Check of every command: its tables fit a terminal of 80 columns."""

from collections.abc import Iterator

import pytest
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table

COLUMNS = 80


@pytest.fixture(autouse=True)
def tables_fit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail if a table that was printed has to fold a cell; tables of names and prose may."""
    render, wide = Table.__rich_console__, list[str]()

    def measured(table: Table, console: Console, options: ConsoleOptions) -> RenderResult:
        natural = Measurement.get(console, options.update(max_width=1000), table).maximum
        if table.show_header and natural > COLUMNS:
            wide.append(f"{natural} columns: {[str(column.header) for column in table.columns]}")
        return render(table, console, options)

    monkeypatch.setattr(Table, "__rich_console__", measured)
    yield
    if request.node.get_closest_marker("long_cells") is None:
        assert not wide

"""Tables of rows: a sequence, and a data frame if pandas is installed."""

import re
import sys
from types import SimpleNamespace

import pyarrow as pa
import pytest

from client.analyst.result_table import ResultTable
from client.extras_installation import install_command
from protocol.api.messages import QueryResult

COLUMNS = ("at", "value", "low", "high")
ROWS = [QueryResult(at=at, value=2.0 * at, low=0.0, high=9.0) for at in (1.0, 2.0, 3.0)]
TABLE = ResultTable(ROWS, COLUMNS)


def test_a_table_is_a_sequence_of_its_rows() -> None:
    assert list(TABLE) == ROWS
    assert (len(TABLE), TABLE[-1], list(TABLE[1:])) == (3, ROWS[2], ROWS[1:])
    assert TABLE == ResultTable(ROWS, COLUMNS) != TABLE[1:]
    assert len({TABLE, ResultTable(ROWS, COLUMNS)}) == 1
    assert repr(TABLE).splitlines() == [repr(row) for row in ROWS]
    assert repr(TABLE[:0]) == "no rows"


def test_a_table_becomes_a_data_frame_with_a_row_each() -> None:
    frame = TABLE.to_pandas()
    assert list(frame["value"]) == [2.0, 4.0, 6.0]
    assert list(TABLE[:0].to_pandas().columns) == list(COLUMNS)


def test_a_table_is_an_arrow_table_and_stream() -> None:
    table = TABLE.to_arrow()
    assert table.column_names == list(COLUMNS)
    assert table["value"].to_pylist() == [2.0, 4.0, 6.0]
    assert pa.table(TABLE) == table  # as polars, duckdb and pandas read it
    assert TABLE[:0].to_arrow().column_names == list(COLUMNS)


def test_rows_within_a_row_are_structures_in_arrow() -> None:
    row = SimpleNamespace(name="north", items=(ROWS[0],))
    table = ResultTable([row], ("name", "items")).to_arrow()
    assert table["items"].to_pylist() == [[ROWS[0].model_dump()]]


def test_a_notebook_shows_a_table_whose_texts_are_escaped() -> None:
    rows = [SimpleNamespace(item=f"<b>{n}</b>", estimate=1234.5678, low=None) for n in range(101)]
    html = ResultTable(rows, ("item", "estimate", "low"))._repr_html_()
    assert "<th>item</th><th>estimate</th>" in html
    assert "<td>&lt;b&gt;0&lt;/b&gt;</td><td>1,234.57</td><td></td>" in html
    assert html.count("<tr>") == 101
    assert html.endswith("<p>1 more rows</p>")
    assert "more rows" not in TABLE._repr_html_()


def test_without_pyarrow_it_advises_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=re.escape(install_command("arrow"))):
        TABLE.to_arrow()


def test_without_pandas_it_advises_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=re.escape(install_command("pandas"))):
        TABLE.to_pandas()

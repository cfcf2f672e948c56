"""Tables of rows: a sequence, and a data frame if pandas is installed."""

import re
import sys

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


def test_without_pandas_it_advises_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=re.escape(install_command("pandas"))):
        TABLE.to_pandas()

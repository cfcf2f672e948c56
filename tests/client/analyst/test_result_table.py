"""Tables of rows: a sequence, a data frame if pandas is installed, and a chart."""

import re
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import pyarrow as pa
import pytest
from matplotlib import pyplot as plt
from matplotlib.container import BarContainer, ErrorbarContainer

from client.analyst import requests
from client.analyst.requests import PagedRequest
from client.analyst.result_table import ResultTable
from client.extras_installation import install_command
from protocol.api.messages import HeavyHitter, QueryResult
from protocol.api.segments import SegmentItem, SegmentSummary

COLUMNS = ("at", "value", "low", "high")
ROWS = [QueryResult(at=at, value=2.0 * at, low=0.0, high=9.0) for at in (1.0, 2.0, 3.0)]
TABLE = ResultTable(ROWS, COLUMNS)
ITEM_COLUMNS = ("item", "estimate", "low", "high")


@pytest.fixture
def _figures() -> Iterator[None]:
    """Draw without a screen, and close each figure."""
    mpl.use("svg")
    yield
    plt.close("all")


def items(*names: str) -> ResultTable[HeavyHitter]:
    """Return heavy hitters with estimates that fall from 30, and a threshold of 20."""
    rows = [
        HeavyHitter(item=name, estimate=30 - n, standard_error=1, low=28 - n, high=33 - n)
        for n, name in enumerate(names)
    ]
    return ResultTable(rows, ITEM_COLUMNS, 20)


def test_a_table_is_a_sequence_of_its_rows() -> None:
    assert list(TABLE) == ROWS
    assert (len(TABLE), TABLE[-1], list(TABLE[1:])) == (3, ROWS[2], ROWS[1:])
    assert TABLE == ResultTable(ROWS, COLUMNS) != TABLE[1:]
    assert len({TABLE, ResultTable(ROWS, COLUMNS)}) == 1
    assert repr(TABLE[:0]) == "no rows"


def test_a_name_of_a_column_advises_a_data_frame() -> None:
    with pytest.raises(TypeError, match=r"to_pandas\(\)\['item'\]"):
        items("Paris")["item"]  # type: ignore[call-overload]


def test_a_table_prints_as_aligned_text_without_control_characters() -> None:
    lines = str(items("a\x1b[2J\n", "b" * 60)).splitlines()
    assert lines == [
        f"item{' ' * 28}  estimate  low  high",
        rf"a\x1b[2J\n{' ' * 22}        30   28    33",
        f"{'b' * 31}…        29   27    32",
    ]
    many = ResultTable(ROWS * 50, COLUMNS)
    assert str(many).splitlines()[-1] == "50 more rows"
    assert len(str(many).splitlines()) == 102


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


@pytest.mark.parametrize(
    "listing", [requests.studies(), requests.rounds("x"), requests.populations()]
)
def test_an_empty_answer_has_the_arrow_types_of_others(listing: PagedRequest[Any]) -> None:
    schema = ResultTable([], listing.columns, None, listing.row_type).to_arrow().schema
    assert not any(pa.types.is_null(kind) for kind in schema.types)
    assert schema.field("created" if "created" in listing.columns else "closed").type == (
        pa.timestamp("us", "UTC")
    )


def test_arrow_types_do_not_depend_on_the_values() -> None:
    item = HeavyHitter(item="a", estimate=1, standard_error=0, low=1, high=1)
    full, empty = (
        ResultTable(rows, HeavyHitter.model_fields, None, HeavyHitter).to_arrow().schema
        for rows in ([item], [])
    )
    assert full == empty  # also where all values are None
    assert pa.types.is_float64(full.field("top_probability").type)
    item = SegmentItem(item="a", estimate=1, standard_error=0, low=1, high=1)
    segment = SegmentSummary(segment="north", heavy_hitters=1, items=(item,))
    table = ResultTable([segment], SegmentSummary.model_fields, None, SegmentSummary)
    assert table.to_arrow().schema == table[:0].to_arrow().schema
    assert table.to_arrow()["items"].to_pylist() == [[item.model_dump()]]


def test_rows_within_a_row_are_structures_in_arrow() -> None:
    row = SimpleNamespace(name="north", items=(ROWS[0],))
    table = ResultTable([row], ("name", "items")).to_arrow()
    assert table["items"].to_pylist() == [[ROWS[0].model_dump()]]


def test_a_notebook_shows_a_table_whose_texts_are_escaped() -> None:
    rows = [SimpleNamespace(item=f"<b>{n}</b>", estimate=1234.5678, low=None) for n in range(101)]
    table = ResultTable(rows, ("item", "estimate", "low"))
    html = table._repr_html_()
    assert "low" not in f"{html}{table}"  # it is empty in all rows
    assert "<th>item</th><th>estimate</th>" in html
    assert "<td>&lt;b&gt;0&lt;/b&gt;</td><td>1,234.57</td></tr>" in html
    assert html.count("<tr>") == 101
    assert html.endswith("<p>1 more rows</p>")
    assert "more rows" not in TABLE._repr_html_()


@pytest.mark.usefixtures("_figures")
def test_a_plot_has_a_bar_with_whiskers_for_each_row_and_the_threshold() -> None:
    axes = items("a", "b", "c").plot(2)
    bars = [each for each in axes.containers if isinstance(each, BarContainer)]
    assert [bar.get_width() for bar in bars[0]] == [30, 29]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    bottom, top = axes.get_ylim()
    assert bottom > top  # the first row is at the top
    whiskers = [each for each in axes.containers if isinstance(each, ErrorbarContainer)]
    ends = [each[2][0].get_segments()[0][:, 0].tolist() for each in whiskers]
    assert ends == [[28, 33], [27, 32]]
    (line,) = (line for line in axes.lines if line.get_label() == "threshold, 20")
    assert list(line.get_xdata()) == [20, 20]
    assert axes.get_xlabel() == "estimated count, with 95% interval"


@pytest.mark.usefixtures("_figures")
def test_a_plot_shows_names_from_devices_as_text() -> None:
    _, axes = plt.subplots()
    names = ("$x^2$", r"$\frac$", "a\nb", "x" * 99)
    assert items(*names).plot(axes=axes) is axes
    axes.figure.savefig(StringIO(), format="svg")  # a formula with a mistake would raise
    labels = axes.get_yticklabels()
    assert [label.get_text() for label in labels] == [*names[:2], r"a\nb", "x" * 31 + "…"]
    assert not any(label.get_parse_math() or label.get_usetex() for label in labels)


@pytest.mark.usefixtures("_figures")
def test_a_plot_of_other_tables_has_no_threshold_and_leaves_out_unknown_values() -> None:
    assert len(TABLE.plot().containers[0]) == 3
    assert not TABLE.plot().get_legend()
    rows = [
        SimpleNamespace(segment=name, total=total, total_low=total, total_high=None)
        for name, total in (("north", 3.0), ("south", None))
    ]
    axes = ResultTable(rows, ("segment", "total", "total_low", "total_high")).plot()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["north"]
    assert items().plot().get_ylabel() == "item"


@pytest.mark.usefixtures("_figures")
def test_a_table_without_numbers_and_intervals_has_no_plot() -> None:
    with pytest.raises(ValueError, match="rows with the columns number, state have no bars"):
        ResultTable([], ("number", "state")).plot()
    prefix = SimpleNamespace(at=0.5, value="ab", low="aa", high="ac")
    with pytest.raises(ValueError, match="'value' has texts"):
        ResultTable([prefix], COLUMNS).plot()


@pytest.mark.parametrize(
    ("module", "extra", "call"),
    [
        ("pyarrow", "arrow", TABLE.to_arrow),
        ("pandas", "pandas", TABLE.to_pandas),
        ("matplotlib", "plot", TABLE.plot),
    ],
)
def test_without_its_extra_it_advises_what_to_install(
    module: str, extra: str, call: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=re.escape(install_command(extra))):
        call()

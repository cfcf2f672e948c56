"""Rows of CSV, JSON Lines and Parquet give the same items, and uneven rows are counted."""

import re
from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from blindtally.datasets.cells import DataError
from tests.support.data_files import Read


@pytest.mark.parametrize(
    "content",
    [
        "user|item\nu0|a\nu1|b\n",
        "sep=;\r\nuser;item\r\nu0;a\r\nu1;b\r\n",
        '"sep=~"\nuser~item\nu0~a\nu1~b\n',
        "user, item\nu0, a\nu1, b\n",
        "user,item\nu0,a,\nuser,item\nu1,b\n",
        '{"user":"u0","item":"a"}\n\n{"item":"b","user":"u1"}\n',
    ],
)
def test_tables_of_each_form_are_read(read: Read, content: str) -> None:
    assert read(content)[0] == [{"a": 1}, {"b": 1}]


def test_blanks_around_cells_are_left_out_with_a_note(read: Read) -> None:
    rows = ('item\nu, a\nu ,"b "\n', ' item\nu, "a"\nu , b \n', "item\nu,a\nu,b\u00a0\n")
    for data, report in (read(f"user,{each}") for each in rows):
        assert data == [{"a": 1, "b": 1}]
        assert re.fullmatch(r"blanks around (1 cell|2 cells|3 cells) were left out", *report.notes)


def test_blanks_that_fill_items_up_to_one_length_are_kept_with_a_note(read: Read) -> None:
    data, report = read("prefix,count\nthe,3\nof ,2\na  ,1\n")
    assert data == {"the": 3, "of ": 2, "a  ": 1}
    assert report.notes == ["blanks that fill items up to one length were kept"]
    for content in ("prefix,count\n the,3\n of ,2\n", "prefix ,count\nthe,3\nof ,2\n"):
        assert read(content)[0] == {"the": 3, "of": 2}


def test_a_comma_in_the_name_of_a_column_does_not_make_a_table_of_commas(read: Read) -> None:
    assert read("city, country;n\nParis, FR;2\n")[0] == {"Paris, FR": 2}


def test_json_and_parquet_keep_whole_numbers_and_leave_out_missing_values(read: Read) -> None:
    rows: list[dict[str, Any]] = [
        {"device": 1, "item": 404.0, "tags": ["x"]},
        {"device": 2, "item": None, "tags": None},
        {"device": None, "item": 7.0, "tags": []},
        {"device": 1, "item": 0.5, "tags": []},
    ]
    file = BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), file)
    lines = "".join(f"{row}\n" for row in rows).replace("'", '"').replace("None", "null")
    for content in (lines, file.getvalue()):
        histograms, report = read(content)
        assert histograms == [{"0.5": 1, "404": 1}]
        assert report.left_out == {"without an item": (1, 2), "without a user": (1, 3)}
        assert report.unused == ["tags"]


def test_any_line_of_json_may_be_the_first_with_a_name(read: Read) -> None:
    first = '{"item":"a"}\n' * 150
    counts, report = read(first + '{"item":"b","count":7}\n')
    assert counts == {"b": 7}
    assert report.left_out == {"without a count": (150, 1)}
    histograms, report = read(first + '{"item":"b","user":"u","day":"Monday"}\n')
    assert histograms == [{"b": 1}]
    assert report.left_out == {"without a user": (150, 1)}
    assert report.unused == ["day"]
    with pytest.raises(DataError, match="column 'k' may be the count of the item"):
        read('{"user":"u","item":"a"}\n' * 150 + '{"user":"u","item":"b","k":7}\n')


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (b"\xff", "line 3: has a value that cannot be read: 'utf-8' codec can't decode"),
        (b"ok", None),
    ],
)
def test_a_text_of_parquet_that_is_not_utf8_is_named_with_its_row(
    read: Read, value: bytes, fault: str | None
) -> None:
    texts = pa.array([b"a", b"b", value], pa.binary())
    items = pa.Array.from_buffers(pa.string(), 3, texts.buffers())
    file = BytesIO()
    parquet.write_table(pa.table({"user": pa.array(["u", "v", "w"]), "item": items}), file)
    if fault is None:
        assert read(file.getvalue())[0] == [{"a": 1}, {"b": 1}, {"ok": 1}]
        return
    with pytest.raises(DataError, match=fault):
        read(file.getvalue())


def test_a_time_of_parquet_that_python_cannot_hold_is_named_with_its_row(read: Read) -> None:
    for times in (pa.array([3, 2**62], pa.timestamp("us")), pa.array([3, 2**62], pa.duration("s"))):
        file = BytesIO()
        parquet.write_table(pa.table({"user": pa.array(["u", "v"]), "item": times}), file)
        with pytest.raises(DataError, match="line 2: has a value that cannot be read"):
            read(file.getvalue())


def test_whole_decimals_are_the_numbers_that_they_stand_for(read: Read) -> None:
    """Decimals of Parquet have no separators of thousands."""
    file = BytesIO()
    counts = pa.array([Decimal("4.000"), Decimal("25.000")])
    parquet.write_table(pa.table({"item": pa.array(["a", "b"]), "count": counts}), file)
    assert read(file.getvalue())[0] == {"a": 4, "b": 25}


def test_a_damaged_page_of_parquet_is_named(read: Read) -> None:
    file = BytesIO()
    parquet.write_table(pa.table({"item": ["a", "b"] * 99}), file, use_dictionary=False)
    content = file.getvalue()
    with pytest.raises(DataError, match=r"data.csv: is cut off or damaged: \w"):
        read(content[:20] + bytes(40) + content[60:])


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        *(
            (f'{{"item":"a"}}\n{{"item":"a","x":{value}}}\n', "line 2: has a number of too many")
            for value in ("[" * 9999 + "]" * 9999, '{"y":' * 9999 + "1" + "}" * 9999, "9" * 5000)
        ),
        (
            "".join(f'{{"item{n}":1}}\n' for n in range(1001)),
            "line 1001: has more than 1,000 different names: write items as values",
        ),
        ('[{"item":"a"}]\n', "line 1: is not a JSON object: write one object per line, as jq"),
        ('["a","b"]\n', "line 1: is not a JSON object"),
        ('{"user":"u","item":"a","item":"b"}\n', "line 1: has a name twice in one object"),
        ('{\n"item":"a"\n}\n', "line 1: is not a JSON object"),
        ('{"item":"a"}\n{"item":', "line 2: is not a JSON object"),
        ('{"item":["a","b"]}\n', "line 1: .* is neither text nor number: write a row for each"),
        ('{"apple":3,"pear":2}\n', "no name of a column stands for items"),
        ("| user | item |\n|---|---|\n| u | a |\n", "line 2: is a ruler, .* save the table"),
        *(
            (f" user | item \n{ruler}\n" + " u | a \n" * rows, "line 2: is a ruler.*psql --csv")
            for ruler in ("---+---", "---- | :---:")
            for rows in (1, 40)
        ),
        ("user,item\nu0,Paris, FR\nu1,x\n", "line 2: has 3 cells where the header has 2"),
    ],
)
def test_faulty_tables_are_refused(read: Read, content: str, fault: str) -> None:
    with pytest.raises(DataError, match=fault):
        read(content)


def test_a_few_uneven_rows_are_left_out_and_counted(read: Read) -> None:
    histograms, report = read("user,item\nu0,Paris, FR\nu0\n" + "u1,x\n" * 30)
    assert histograms == [{"x": 30}]
    assert report.left_out == {"with another number of cells than the header": (2, 2)}

"""Compression and encoding are recognised by the content, and other formats are named."""

import bz2
import gzip
import lzma
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from blindtally.datasets import reader
from blindtally.datasets.cells import DataError
from blindtally.datasets.reader import read_dataset
from tests.support.data_files import Read

_TABLE = "user,item\nu0,pêche\nu1,pear\n"
_HISTOGRAMS = [{"pêche": 1}, {"pear": 1}]


def zstd(content: bytes) -> bytes:
    compressed: bytes = pa.compress(content, "zstd", asbytes=True)
    return compressed


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstd])
def test_compressed_files_are_read_and_damaged_ones_named(
    read: Read, pack: Callable[[bytes], bytes]
) -> None:
    assert read(pack(_TABLE.encode()))[0] == _HISTOGRAMS
    with pytest.raises(DataError, match=r"data.csv: .*(cut off or damaged|truncated)"):
        read(pack(_TABLE.encode() * 99)[:-9])


@pytest.mark.parametrize(
    "encoding",
    ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "utf-8"],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_unicode_in_each_encoding_and_with_each_end_of_line_is_read(
    read: Read, encoding: str, end: str
) -> None:
    content = _TABLE.replace(",", "\t").replace("\n", end).encode(encoding)
    assert read(content)[0] == _HISTOGRAMS


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (_TABLE.encode("cp1252"), "line 2: is not UTF-8 text: save it as CSV in UTF-8, or"),
        (_TABLE.encode("utf-16")[:-1], "is not whole UTF-16 text"),
        (b"PK\x03\x04", "is a zip archive or a workbook, .*: unpack it, or save a sheet as CSV"),
        (b"\xd0\xcf\x11\xe0", "is an old Office document"),
        (b"SQLite format 3\0", "is an SQLite database, .* sqlite3 -header -csv"),
        (b"\x80\x04\x95", "is a Python pickle"),
        (b"\x93NUMPY\x01", "is a file of arrays"),
        (b"ARROW1\0\0", "is a columnar file"),
        (b"%PDF-1.7", "is a document or picture"),
        (b"\n<html>", "is an HTML or XML document"),
        (b"a.csv".ljust(257, b"\0") + b"ustar", "is a tar archive"),
        (gzip.compress(b"a.csv".ljust(257, b"\0") + b"ustar", mtime=0), "is a tar archive"),
        (b"\x04\x22\x4d\x18", "is compressed with LZ4"),
        (b"7z\xbc\xaf", "is an archive"),
        (b"PAR1\x15junk", "is a damaged Parquet file"),
    ],
)
def test_other_formats_are_named_with_the_way_out(read: Read, content: bytes, fault: str) -> None:
    with pytest.raises(DataError, match=fault):
        read(content)


def test_words_that_begin_as_a_format_are_items(read: Read) -> None:
    assert read("ORCHARD ARROW1 FEA1 PAR1 RDX\n")[0] == [
        dict.fromkeys(("ARROW1", "FEA1", "ORCHARD", "PAR1", "RDX"), 1)
    ]


@pytest.mark.parametrize("form", ["zstd", "Parquet"])
def test_without_pyarrow_the_error_has_the_command_that_installs_it(
    read: Read, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    content, file = zstd(_TABLE.encode()), BytesIO()
    if form == "Parquet":
        parquet.write_table(pa.table({"item": ["a"]}), file)
        content = file.getvalue()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=rf"{form}.*pip install .*\[arrow\]"):
        read(content)


def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.csv"
    path.write_text(_TABLE)
    original = reader.read_text

    def truncate_after(*arguments: Any) -> Any:
        result = original(*arguments)
        path.write_text("user,item\n")
        return result

    monkeypatch.setattr(reader, "read_text", truncate_after)
    with pytest.raises(DataError, match="changed while it was read"):
        read_dataset(path)

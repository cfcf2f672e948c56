"""Bytes of data files as lines of text, and formats that are named because they are not read.

Compression (gzip, bzip2, xz, and zstd with pyarrow) and the encodings UTF-8, UTF-16 and UTF-32 are
recognised by the first bytes, never by the name of the file. Lines are read one by one.
"""

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO, Final, cast

from blindtally.datasets.cells import DataError
from client.extras_installation import install_command

_BUNDLED: Final = files("blindtally.datasets") / "files"
_BUNDLED_SUFFIX: Final = ".csv.gz"
_MAX_LINE_LENGTH: Final = 2**24  # characters
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_SAMPLE_BYTES: Final = 1024
_PARQUET_START: Final = b"PAR1\x15"
# First bytes, the format, and the way out.
_NOT_READ: Final = (
    (rb"PK(\x03\x04|\x05\x06)", "a zip archive or a workbook", "unpack it, or save a sheet as CSV"),
    (rb"\xd0\xcf\x11\xe0", "an old Office document", "save the sheet as CSV"),
    (
        rb"SQLite format 3\0",
        "an SQLite database",
        "export the rows: sqlite3 -header -csv FILE 'SELECT ...'",
    ),
    (rb"\x80[\x02-\x05]", "a Python pickle", "write it as CSV or Parquet"),
    (rb"\x93NUMPY|\x89HDF|RD[AX]\d\n|\$FL[23]|<stata_dta>", "a file of arrays", "write it as CSV"),
    (rb"ARROW1\0|FEA1[\0-\x08]|ORC[\0-\x08]|Obj\x01", "a columnar file", "write it as Parquet"),
    (rb"\x04\x22\x4d\x18|\xff\x06\0\0sNaPpY", "compressed with LZ4 or Snappy", "unpack it"),
    (rb"7z\xbc\xaf|Rar!\x1a|LZIP[\0-\x08]|\x1f\x9d", "an archive", "unpack it"),
    (rb".{257}ustar", "a tar archive", "unpack it"),
    (rb"%PDF-|\{\\rtf|\x89PNG|\xff\xd8\xff|GIF8\d", "a document or picture", "save a table as CSV"),
    (rb"\s*<(\?xml|!DOCTYPE|html|table)", "an HTML or XML document", "save the table as CSV"),
)
_BYTE_ORDER_MARKS: Final = {  # UTF-32 first, because its mark begins with one of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class NotUtf8Error(DataError):
    """A text without a byte order mark is not UTF-8."""


def bundled_datasets() -> list[str]:
    names = sorted(file.name for file in _BUNDLED.iterdir())
    return [name.removesuffix(_BUNDLED_SUFFIX) for name in names if name.endswith(_BUNDLED_SUFFIX)]


def is_bundled(path: Path) -> bool:
    """Return whether `path` is the name of a bundled data set, and no file has the same name."""
    return not path.exists() and str(path) in bundled_datasets()


@contextmanager
def open_unpacked(path: Path) -> Iterator[io.BufferedReader]:
    """Yield the unpacked bytes of the file at `path`, or of a bundled data set of that name.

    Raises:
        DataError: if the format is not read, or the file changed while it was open.
    """
    name = _BUNDLED / f"{path}{_BUNDLED_SUFFIX}" if is_bundled(path) else path
    with name.open("rb") as file:
        version = _version(file)
        unpacked = cast("io.BufferedReader", file)
        start = unpacked.peek(_SAMPLE_BYTES)  # a pipe cannot go back
        if start.startswith(b"\x1f\x8b"):
            unpacked = cast("io.BufferedReader", gzip.GzipFile(fileobj=file))
        elif re.match(rb"BZh\d1AY&SY", start):
            unpacked = cast("io.BufferedReader", bz2.BZ2File(file))
        elif start.startswith(b"\xfd7zXZ\0"):
            unpacked = cast("io.BufferedReader", lzma.LZMAFile(file))  # noqa: SIM115 - closed with `file`
        elif start.startswith(_ZSTD_MAGIC):
            unpacked = _open_zstd(path, cast("BinaryIO", file))
        _refuse_foreign(path, unpacked.peek(_SAMPLE_BYTES))
        yield unpacked
        if _version(file) != version:
            raise DataError(path, "changed while it was read: read a copy of it")


def is_parquet(unpacked: io.BufferedReader) -> bool:
    return unpacked.peek(_SAMPLE_BYTES).startswith(_PARQUET_START)


def text_lines(
    path: Path, unpacked: io.BufferedReader, encoding: str | None = None
) -> Generator[str]:
    """Yield lines with their ends, as the csv module needs them for a quoted cell.

    Without an `encoding` it is recognised.

    Raises:
        DataError: if one is too long to be a line.
    """
    encoding = encoding or _encoding_of(unpacked.peek(_SAMPLE_BYTES)[:_SAMPLE_BYTES])
    text, number = io.TextIOWrapper(unpacked, encoding, newline=""), 0
    try:
        while line := text.readline(_MAX_LINE_LENGTH + 1):
            number += 1
            if len(line) > _MAX_LINE_LENGTH:
                raise DataError(path, f"is longer than {_MAX_LINE_LENGTH:,} characters", number)
            yield line
    except UnicodeError:
        if not encoding.startswith("utf-8"):
            raise DataError(path, f"is not whole {encoding.upper()} text") from None
        place = _first_undecodable_line(path) if path.is_file() else None
        advice = "save it as CSV in UTF-8, or convert it, as iconv -f WINDOWS-1252 -t UTF-8 does"
        raise NotUtf8Error(path, f"is not UTF-8 text: {advice}", place) from None
    finally:
        text.detach()  # the caller closes the file


def _version(file: object) -> tuple[int, int] | None:
    """Return the size and time of an open file, None for a pipe."""
    status = os.fstat(cast("BinaryIO", file).fileno())
    return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


def _open_zstd(path: Path, file: BinaryIO) -> io.BufferedReader:
    try:
        from pyarrow import CompressedInputStream, PythonFile  # noqa: PLC0415 - optional
    except ImportError:
        advice = f"unpack it (zstd -d), or install pyarrow: {install_command('arrow')}"
        raise DataError(path, f"is compressed with zstd: {advice}") from None
    return io.BufferedReader(CompressedInputStream(PythonFile(file, "r"), "zstd"))


def _refuse_foreign(path: Path, start: bytes) -> None:
    for pattern, form, advice in _NOT_READ:
        if re.match(pattern, start, re.DOTALL | re.IGNORECASE):
            raise DataError(path, f"is {form}, which is not read: {advice}")


def _encoding_of(start: bytes) -> str:
    """Return the encoding by the byte order mark, or UTF-16 or 32 without one by zero bytes."""
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            return encoding
    # No character of UTF-32 uses its highest byte, and few the next one.
    zeros = [start[place::4].count(0) / (len(start) // 4 or 1) for place in range(4)]
    if min(zeros[2:]) > 0.9 > zeros[0]:
        return "utf-32-le"
    if min(zeros[:2]) > 0.9 > zeros[3]:
        return "utf-32-be"
    even, odd = start[::2].count(0), start[1::2].count(0)
    if max(even, odd) > len(start) // 5 and min(even, odd) <= len(start) // 50:
        return "utf-16-le" if odd > even else "utf-16-be"
    return "utf-8-sig"


def _first_undecodable_line(path: Path) -> int:
    """Return the line of the first bytes that are not UTF-8, in a file that has such bytes."""
    decoder, lines = codecs.getincrementaldecoder("utf-8")(), 1
    with open_unpacked(path) as stream:
        while chunk := stream.read(_MAX_LINE_LENGTH):
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError as error:
                return lines + bytes(error.object[: error.start]).count(b"\n")
            lines += chunk.count(b"\n")
    return lines  # cut off in the middle of a character

"""Data files of many forms are read, and an error names the place of the fault."""

import errno
import gzip
import os
import tracemalloc
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindtally.datasets import device_histograms
from blindtally.datasets.cells import DataError
from blindtally.datasets.device_histograms import DeviceHistograms
from blindtally.datasets.file_formats import bundled_datasets
from blindtally.datasets.item_counts import ItemCounts
from blindtally.datasets.reader import read_dataset

_NO_COUNT = "line 3: column 'count': a count is a whole number"
_NO_FIRST_COUNT = _NO_COUNT.replace("3", "2")

SHIPPED = (
    Path(__file__).parents[3] / "blindtally" / "datasets" / "files" / "link_user_domains.csv.gz"
)


def written(folder: Path, content: str | bytes, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def counted(path: Path, column: str | None = None) -> dict[str, int]:
    dataset, _ = read_dataset(path, column)
    assert isinstance(dataset, ItemCounts)
    return dict(zip(dataset.items, dataset.counts.tolist(), strict=True))


def held(path: Path, column: str | None = None) -> list[dict[str, int]]:
    dataset, _ = read_dataset(path, column)
    assert isinstance(dataset, DeviceHistograms)
    return [dict(histogram) for histogram in dataset]


def test_bundled_data_sets_are_named_without_folder_and_suffix() -> None:
    words, short = counted(Path("words")), counted(Path("short"))
    assert len(words) > 2000
    assert "blindtally" not in words  # they are those of its documents
    assert short == {word: count for word, count in words.items() if len(word) <= 3}
    assert set(map(int, counted(Path("ages")))) == set(range(96))
    licences = (SHIPPED.parent / "LICENCE.md").read_text()
    assert all(
        f"**{name}**" in licences or f"# {name}.csv.gz" in licences for name in bundled_datasets()
    )


@pytest.mark.parametrize("is_packed", [False, True])
def test_counts_are_read_gzip_or_not(tmp_path: Path, *, is_packed: bool) -> None:
    content = b"word,count\nthe,3\nof,2\n"
    path = written(tmp_path, gzip.compress(content) if is_packed else content)
    assert counted(path) == {"the": 3, "of": 2}


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_pipe_is_read_as_a_file(pack: Callable[[bytes], bytes]) -> None:
    content = pack(b"word,count\nthe,3\n")
    there, here = os.pipe()
    os.write(here, content)
    os.close(here)
    assert counted(Path(f"/dev/fd/{there}")) == {"the": 3}
    os.close(there)


def test_users_are_devices(tmp_path: Path) -> None:
    path = written(tmp_path, "user,word,count\n0,a,2\n1,a,1\n0,b,3\n0,a,1\n")
    assert held(path) == [{"a": 3, "b": 3}, {"a": 1}]
    assert held(path, "word") == held(path)


def test_rows_of_users_without_counts_are_one_item_each(tmp_path: Path) -> None:
    path = written(tmp_path, "user,word\n0,a\n1,17\n0,b\n0,a\n")
    assert held(path) == [{"a": 2, "b": 1}, {"17": 1}]


def test_baskets_are_devices(tmp_path: Path) -> None:
    path = written(tmp_path, "1 2 3\n1\n\n7 7\n")
    assert held(path) == [{"1": 1, "2": 1, "3": 1}, {"1": 1}, {}, {"7": 2}]


@pytest.mark.parametrize(
    "line",
    [
        *("apple 4000", "   4000 apple", "apple: 4000", "apple = 4000", "4.000\tapple"),
        *("4000 ripe pear", "ripe pear 4000", "17 404"),
    ],
)
def test_lines_of_an_item_and_its_count_are_not_baskets(tmp_path: Path, line: str) -> None:
    """Refuse the output of `sort | uniq -c`, also if a few lines have another form."""
    shown = " ".join(line.split())
    for content in (f"{line}\n", f"{line}\n" * 19 + "\nripe red pear\n"):
        path = written(tmp_path, content.replace("\t", "  "))
        with pytest.raises(DataError, match=f"'{shown}' may be an item and its count.*item,count"):
            read_dataset(path)


@pytest.mark.parametrize(
    "lines",
    [
        *("1 2 3\n4 5\n", "tea milk\n", "7up tea\n", "404\n500\n", "3 a\nb\n"),
        *("1 3 5 7 9\n2 4 6 8 9\n", "2026-11-29\n2026-11-30\n", "1.2.30 2.3.4\n9.1.1\n"),
        *("a.org/2026/11/29/x b.org\n", "00:11:22:33:44:55 b\n", "/?x=1 /?y=2\n", "Info desk\n"),
    ],
)
def test_lines_with_other_numbers_are_baskets(tmp_path: Path, lines: str) -> None:
    assert held(written(tmp_path, lines)) == [
        dict(Counter(line.split())) for line in lines.splitlines()
    ]


@pytest.mark.parametrize(
    "lines",
    [
        "apple\npear,plum\nplum,fig,kiwi\n",
        "# Pages\n# ----\n\nPath,Hits\n/a,400\n",
        "apple:4000\npear:2500\n",
        "apple = 4000\npear = 2500\n",
        "- apple\n- pear\n",
        "1::122::5::978\n2::31::4::978\n",
        '1.2.3.4 - - [10/Oct] "GET / HTTP/1.1" 200\n',
        "1 apple 4000\n2 pear 2500\n",
        "4000 iphone 15\n2500 pixel 9\n",
        *(
            f"{start} a disk is full\n{start} b\n  at line\n"
            for start in (
                *("2026-11-29 10:00:01", "2026/11/29", "29.11.2026", "[2026-11-29T10:00:01.5Z]"),
                *("Oct 11 22:14:15 host", "<34>Oct 11 22:14:15", "I1129 10:00:01.123", "10:00"),
                *("29/Nov/2026:10:00:01", "1701254400.123", "level=error", "ts=2024", "a.b=1"),
                *("ERROR", "WARNING:root:", "[INFO]"),
            )
        ),
        *("[    0.000] Linux\n[    1.000] Ready\n", "1 3:1 5:1\n0 2:1\n", "196 242 3\n186 302 3\n"),
        "u0 apple\nu0 pear\nu1 fig\n",
        *("4\n9\n" + "1 118 2.5\n" * 30, "1 0 0 1 1 0\n0 1 1 0 0 0\n"),
    ],
)
def test_lines_of_other_forms_are_not_baskets(tmp_path: Path, lines: str) -> None:
    with pytest.raises(DataError, match=r"or items of a device: .*(a table|the items)"):
        read_dataset(written(tmp_path, lines))


def test_empty_lines_before_a_header_are_skipped(tmp_path: Path) -> None:
    assert counted(written(tmp_path, "\n\r\nword,count\nthe,3\n")) == {"the": 3}


def test_cells_keep_their_commas_and_quotes_without_blanks_around(tmp_path: Path) -> None:
    content = '\ufeffcity,n\n"Paris, FR",2\n a  ,3\n"the ""hi""",1\nof ,1\n'
    expected = {"Paris, FR": 2, "a": 3, 'the "hi"': 1, "of": 1}
    assert counted(written(tmp_path, content)) == expected
    assert counted(written(tmp_path, content.replace("\n", "\r\n"))) == expected


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_cells_may_be_separated_by_semicolons_or_tabs(tmp_path: Path, delimiter: str) -> None:
    """Spreadsheets export them, semicolons where a decimal comma is usual."""
    content = '"city, country";n\n"Paris, FR";2\nOslo, NO;3\n"a;b\tc";1\n'
    cells = content.replace("a;b\tc", "quoted").replace(";", delimiter)
    path = written(tmp_path, cells.replace("quoted", "a;b\tc"))
    expected = {"Paris, FR": 2, "Oslo, NO": 3, "a;b\tc": 1}
    assert counted(path) == expected
    assert counted(path, "city, country") == expected
    users = written(tmp_path, "user;word;count\n0;a;2\n1;b;1\n".replace(";", delimiter))
    assert held(users) == [{"a": 2}, {"b": 1}]
    with pytest.raises(DataError, match=r"header has 3, in a table separated by (semicolons|tabs)"):
        read_dataset(written(tmp_path, f"user{delimiter}word{delimiter}n\n0{delimiter}a\n"))


def test_the_shipped_data_matches_its_note() -> None:
    dataset, _ = read_dataset(SHIPPED)
    assert isinstance(dataset, DeviceHistograms)
    assert len(dataset) == 8_812
    assert len(dataset.items) == 6_934
    assert sum(sum(histogram.values()) for histogram in dataset) == 28_448


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "data.csv: the file is empty"),
        (" \n\n", "data.csv: the file is empty"),
        ('"item, count"\na\n', "line 1: no name of a column stands for items"),
        ("item,count\n", "data.csv: has a header and no rows"),
        ("item,count\na,1\nb,x\n", _NO_COUNT + " from 1 up, got 'x'"),
        ("item,count\na,\nb,0\n", "holds no items: 1 row without a count (in line 2); 1 row whose"),
        ('item,count\na,1\nb,"1,234"\n', _NO_COUNT + " from 1 up, without separators of thousands"),
        ("item;count\na;1\nb;1.234\n", _NO_COUNT + " from 1 up, without separators of thousands"),
        (
            "item;count\na;1.000\nb;500\n",
            _NO_FIRST_COUNT + " from 1 up, without separators of thousands",
        ),
        ("item,count\na,NAN\nb,-nan\n", "holds no items: 2 rows without a count (first in line 2)"),
        ("item,count\na,1\nb,1_0\n", _NO_COUNT),
        ("item,count\na,1\nb,inf\n", _NO_COUNT),
        ("item,count\na,1\nb,-2\n", _NO_COUNT),
        ("item,count\na,1\nb,1.5\n", _NO_COUNT),
        ("item,count\na,1\nb,١\n", _NO_COUNT),
        ("item,count\na,1\nb," + "9" * 30 + "\n", _NO_COUNT),
        ("item,count\na,1\nb,2,3\n", "line 3: has 3 cells where the header has 2"),
        ('item,count\na,1\n\n"b,2\nc,3\n', "line 4: a quotation mark opens a cell, and none"),
        ('item,count\na,1\n"b,2\n' + "c,3\n" * 40_000, "line 3: a quotation mark opens a cell"),
        ("item,count\na,-1\nb,2\n", _NO_FIRST_COUNT),
        ("item;count\na;1,5\nb;2\n", _NO_FIRST_COUNT),
        ("user,item,count\n0,a,1.5\n", _NO_FIRST_COUNT),
        ("item,count\na,1\nb\n", "line 3: has 1 cells"),
        ('user,item\nu,"a\nv,b\nw,"c"\n', "line 4: a quotation mark inside a cell must be doubled"),
        ("item,count\na,b\n", _NO_FIRST_COUNT),
        ("item,n\na,4611686018427387904\n", "counts add up to"),
        (b"item,count\na,1\n\xff,2\n", "line 3: is not UTF-8 text"),
        (b"\x1f\x8bgarbage", "is compressed, and is cut off or damaged"),
        (
            gzip.compress(b"item,count\n" + b"a,1\n" * 99, mtime=0)[:-9],
            "is compressed, and is cut off or damaged",
        ),
        ("item,count\n" + "a" * 2**24 + ",1\n", "line 2: is longer than 16,777,216 characters"),
        ("a" * 2**24 + " b", "line 1: is longer than 16,777,216 characters"),
        ((b"a " + b"b" * 4093 + b"\n") * 2**12 + b"c\n\xc3", "line 4098: is not UTF-8 text"),
    ],
)
def test_faults_are_reported_with_their_place(
    tmp_path: Path, content: str | bytes, fault: str
) -> None:
    with pytest.raises(DataError) as raised:
        read_dataset(written(tmp_path, content))
    assert str(raised.value).startswith(str(tmp_path / "data.csv"))
    assert fault in str(raised.value)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_dataset(tmp_path / "none.csv")
    with pytest.raises(DataError, match="is a directory"):
        read_dataset(tmp_path)


def test_an_unknown_column_is_reported_with_the_known_ones(tmp_path: Path) -> None:
    path = written(tmp_path, "word,count\na,1\n")
    with pytest.raises(
        DataError, match="no column is named 'wrod'; the columns are 'word', 'count'"
    ):
        read_dataset(path, "wrod")
    with pytest.raises(DataError, match="no column 'word', and no delimiter"):
        read_dataset(written(tmp_path, "1 2 3\n"), "word")  # baskets


def test_devices_are_drawn_as_often_as_their_items_count(tmp_path: Path) -> None:
    population, _ = read_dataset(written(tmp_path, "w,n\na,6\nb,3\nc,1\n"))
    rng = np.random.default_rng(1)
    rounds = list(population.rounds([population.devices_per_round(3, 2000)] * 3, 1, rng))
    devices = [list(chain(*blocks)) for blocks in rounds]
    assert [len(some) for some in devices] == [2000, 2000, 2000]
    drawn = Counter(item for some in devices for histogram in some for item in histogram)
    assert abs(drawn["a"] / 6000 - 0.6) < 0.03  # five standard errors
    [[[device]]] = population.rounds([1], 5, rng)
    assert sum(device.values()) == 5


@given(
    st.lists(st.integers(1, 1000) | st.integers(1, 2**56), min_size=1, max_size=40),
    st.integers(0, 9),
)
def test_each_draw_is_the_item_of_the_token_with_that_number(counts: list[int], seed: int) -> None:
    items = tuple(f"{number:02}" for number in range(len(counts)))
    rounds = ItemCounts(items, np.array(counts)).rounds([500], 1, np.random.default_rng(seed), 99)
    drawn = [item for block in next(rounds) for (item,) in block]
    numbers = np.random.default_rng(seed).integers(sum(counts), size=500)
    ends = np.cumsum(counts)
    assert drawn == [items[place] for place in np.searchsorted(ends, numbers, side="right")]


def test_no_device_is_in_two_rounds() -> None:
    people = DeviceHistograms.of({str(number): 1} for number in range(100))
    assert people.devices_per_round(3, 1000) == 33
    assert people.devices_per_round(3, 20) == 20
    rounds = [
        list(chain(*blocks)) for blocks in people.rounds([33] * 3, 1, np.random.default_rng(1))
    ]
    seen = [item for devices in rounds for histogram in devices for item in histogram]
    assert [len(devices) for devices in rounds] == [33, 33, 33]
    assert len(seen) == len(set(seen)) == 99


def most_kept(path: Path) -> int:
    """Return the most bytes that Python kept while it read a file."""
    tracemalloc.start()
    try:
        read_dataset(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("header", "row", "more"),
    [
        ("item,count\n", "w{item},3\n", 3),
        ("user,item,count\n", "u{user},w{item},3\n", 30),
        ("user,item,count\n", "u{other},w{item},3\n", 130),  # rows of a user stand apart
        ("", "w{item} x{item} y\n", 100),
    ],
    ids=["counts", "users", "mixed", "baskets"],
)
def test_a_file_is_not_held_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str, row: str, more: int
) -> None:
    monkeypatch.setattr(device_histograms, "BATCH_HOLDINGS", 2**10)
    kept = []
    for rows in (4_000, 20_000):
        numbers = range(rows)
        cells = ({"item": n % 97, "user": n // 5, "other": n % (rows // 5)} for n in numbers)
        path = written(tmp_path, header + "".join(row.format(**cell) for cell in cells))
        kept.append(most_kept(path))
    # What rows are as Python has them, 300 bytes and more each, is not kept.
    assert kept[1] - kept[0] < more * 16_000


def test_a_full_temporary_folder_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_columns: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(device_histograms.HoldingFile, "write", full)
    with pytest.raises(DataError, match=r"does not fit into .*: let TMPDIR name a larger place"):
        read_dataset(SHIPPED)

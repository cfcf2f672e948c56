"""Files that people have, through the command: right items, or an error, and never a silent guess.

Forty devices hold 33 apples, 23 pears and 11 plums, in each form of the file.
"""

import codecs
import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from blindtally.cli import app

_HOLDINGS = [
    *[(user, "apple") for user in range(33)],
    *[(user, "pear") for user in range(12, 35)],
    *[(user, "plum") for user in range(29, 40)],
]
_TRUTH = Counter(item for _, item in _HOLDINGS)


def table(form: str, header: str = "", end: str = "\n") -> bytes:
    """Return a row for each item that a user holds, below a header."""
    rows = [form.format(user=f"u{user}", number=user, item=item) for user, item in _HOLDINGS]
    return "".join(f"{row}{end}" for row in ([header] if header else []) + rows).encode()


def simulate(path: Path, *options: str) -> Result:
    arguments = ["tracked", "--data", str(path), "--devices", "40", "--rounds", "1"]
    fixed = ["--threshold", "5", "--words", "1000", "--set", "contribution=3", "--json", "-"]
    return CliRunner().invoke(app, ["simulate", *arguments, *fixed, *options])


def listed_items(result: Result) -> dict[str, int]:
    assert result.exit_code == 0, result.output
    return {row["item"]: row["true_count"] for row in json.loads(result.stdout)["heavy_hitters"]}


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (table("{item},{number}", "item,user"), ()),
        (table("{user},{item}", "user_id,item"), ()),
        (table("{user},{item}", "user_id,item"), ("--column", "item")),
        (table("{user},{item}", "who,what"), ("--column", "user=who,item=what")),
        (table("{user},{item},900,1", "user,item,code,count"), ()),
        (table("{user}|{item}", "user|item"), ()),
        (table('{{"device":"{user}","item":"{item}"}}'), ()),
        (codecs.BOM_UTF8 + table("{user};{item}", "sep=;\r\nuser;item", "\r\n"), ()),
        (table("{user}\t{item}", "user\titem").decode().encode("utf-16"), ()),
        (pa.compress(table("{user},{item}", "user,item"), "zstd", asbytes=True), ()),
        (table("{user},{item}", "user,item") + b"u0,\nu1,a\0b\n", ()),
    ],
    ids=[
        "user-last",
        "user_id",
        "column",
        "named",
        "code",
        "pipes",
        "json",
        "excel",
        "utf-16",
        "zstd",
        "missing",
    ],
)
def test_the_items_of_users_are_found_in_every_form(
    tmp_path: Path, content: bytes, options: tuple[str, ...]
) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    result = simulate(path, *options)
    assert listed_items(result) == _TRUTH
    assert "each user is a device" in result.stderr
    assert json.loads(result.stdout)["reading"]["columns"]["user"] is not None


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"apple,4000\npear,2500\n", "line 1: '4000' is a number, not the name of a column"),
        (b"product,price\napple,3\npear,2\n", "--column item=NAME,user=NAME,count=NAME"),
        (b"user,item\nu,p\xeache\n", "line 2: is not UTF-8 text"),
    ],
    ids=["no header", "prices", "latin-1"],
)
def test_files_with_two_readings_are_refused(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    result = simulate(path)
    assert result.exit_code == 2
    assert fault in " ".join(result.output.split())


def test_a_file_of_single_lines_is_read_as_baskets_or_as_a_column(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("query\n" + "ripe pear\n" * 30 + "fig\n" * 10)
    baskets = simulate(path, "--devices", "41")
    assert listed_items(baskets) == {"ripe": 30, "pear": 30, "fig": 10}
    assert "read as baskets without a header" in baskets.stderr
    assert listed_items(simulate(path, "--column", "query")) == {"ripe pear": 30, "fig": 10}


def test_numbers_of_users_are_not_those_that_are_counted(tmp_path: Path) -> None:
    path, out = tmp_path / "data.csv", tmp_path / "out.json"
    path.write_text("user_id,code\n" + "".join(f"{n},{404 + 96 * (n % 2)}\n" for n in range(40)))
    options = ["--data", str(path), "--rounds", "1", "--json", str(out)]
    for mechanism in ("hierarchical-histogram", "number-sums"):
        result = CliRunner().invoke(app, ["simulate", mechanism, *options])
        assert result.exit_code == 0, result.output
        document = json.loads(out.read_text())
        domain = document["question"]["domain"]
        assert (domain["low"], domain["high"]) == (404, 500)
        assert document["reading"]["columns"] == {"item": "code", "user": "user_id", "count": None}

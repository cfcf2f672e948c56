"""The speed tables of tests/conftest.py name tests that exist."""

from pathlib import Path

import pytest

from tests.conftest import ALL, LAWS, MEDIUM, SLOW

ROOT = Path(__file__).parents[1]
ROWS = [(path, begins) for table in (SLOW, MEDIUM) for path, begins in table.items()]


@pytest.mark.parametrize(("path", "begins"), ROWS, ids=[path for path, _ in ROWS])
def test_a_row_of_a_speed_table_names_tests_that_exist(path: str, begins: tuple[str, ...]) -> None:
    assert (ROOT / path).is_file() or any((ROOT / path).rglob("test_*.py"))
    for name in begins if begins != ALL else ():
        assert name.startswith("[") or f"def {name.partition('[')[0]}" in (ROOT / path).read_text()


def test_laws_are_files_that_exist() -> None:
    assert all((ROOT / path).is_file() for path in LAWS)


def test_a_slow_file_is_not_medium_as_well() -> None:
    assert not [path for path in SLOW.keys() & MEDIUM.keys() if SLOW[path] == ALL]

"""The speed tables of tests/speeds.toml name tests that exist."""

from pathlib import Path

import pytest

from tests.conftest import ALL_TESTS, LAW_FILES, MEDIUM_TESTS, REPEATED_TESTS, SLOW_TESTS

ROOT = Path(__file__).parents[1]
TABLES = (SLOW_TESTS, MEDIUM_TESTS, REPEATED_TESTS)
ROWS = [(path, begins) for table in TABLES for path, begins in table.items()]


@pytest.mark.parametrize(("path", "begins"), ROWS, ids=[path for path, _ in ROWS])
def test_a_row_of_a_speed_table_names_tests_that_exist(path: str, begins: tuple[str, ...]) -> None:
    assert (ROOT / path).is_file() or any((ROOT / path).rglob("test_*.py"))
    for name in begins if begins != ALL_TESTS else ():
        assert name.startswith("[") or f"def {name.partition('[')[0]}" in (ROOT / path).read_text()


def test_laws_are_files_that_exist() -> None:
    assert all((ROOT / path).is_file() for path in LAW_FILES)


def test_a_slow_file_is_not_medium_as_well() -> None:
    assert not [
        path for path in SLOW_TESTS.keys() & MEDIUM_TESTS.keys() if SLOW_TESTS[path] == ALL_TESTS
    ]

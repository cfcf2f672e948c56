"""One function decides whether a cell is a count, and the search for columns agrees with it."""

import pytest

from blindtally.datasets.cells import may_be_count, may_be_counts, parse_count


@pytest.mark.parametrize(
    ("cell", "count"),
    [
        *(("7", 7), ("007", 7), (" 7 ", 7), ("+7", 7), ("7.", 7), ("7.0", 7), ("7.00", 7)),
        *(("7e0", 7), ("1E+05", 100_000), ("-0", 0), ("1.0000", 1), ("1000.000", 1000)),
        *((mark, None) for mark in ("", " ", "NaN", "NA", "null", "Null", "<NA>", r"\N", "-", "?")),
        *(
            (nan, None)
            for nan in ("NAN", "Nan", "-nan", "+NaN", "sNaN", "qnan", "nan12", "-nan(ind)")
        ),
    ],
)
def test_a_count_is_read_in_each_notation_with_one_meaning(cell: str, count: int | None) -> None:
    assert parse_count(cell) == count
    assert may_be_count(cell) is (count is not None)


@pytest.mark.parametrize(
    "cell",
    [
        *("1.000", "1,000", "1 000", "1'000", "1_000", "1\u202f000", "12.345.678", "1.000,00"),
        *("-1.000", "1,23,456"),
    ],
)
def test_separators_of_thousands_are_refused_with_the_reason(cell: str) -> None:
    with pytest.raises(ValueError, match="without separators of thousands"):
        parse_count(cell)
    assert may_be_count(cell)


@pytest.mark.parametrize(
    "cell",
    [
        *("-2", "1.5", "inf", "-Infinity", "0x10", "TRUE", "nano", "banana", "40%", "$40", "1e-9"),
        *("1e99", "1e999999999", "1e-9999999", "1.00.0", "4,0", "_"),
    ],
)
def test_no_other_cell_is_a_count(cell: str) -> None:
    with pytest.raises(ValueError, match="a count is a whole number from 1 up, got"):
        parse_count(cell)
    assert not may_be_count(cell)


@pytest.mark.parametrize("cell", ["9" * 30, "9" * 9999, "١"])
def test_a_number_that_is_not_read_may_still_be_a_count(cell: str) -> None:
    with pytest.raises(ValueError, match="a count is a whole number from 1 up, got"):
        parse_count(cell)
    assert may_be_count(cell)


def test_a_column_may_have_counts_if_all_its_filled_cells_may_be_counts() -> None:
    for cells in (["3", "4.0", "NaN"], ["1,234", ""], ["-", "5"], ["١"]):
        assert may_be_counts(cells)
    for cells in ([], ["", "NaN"], ["3", "3.5"], ["3", "x"]):
        assert not may_be_counts(cells)

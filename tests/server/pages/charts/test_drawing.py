"""Charts are SVG with axes, whose numbers are round and whose lines are where they belong."""

import json

import pytest

from server.pages.charts.drawing import Chart, Series


def chart(*series: Series, x: tuple[float, ...] = (1, 2, 3), **fields: object) -> Chart:
    return Chart("name", "Title", x, series, **fields)  # type: ignore[arg-type]


def test_a_line_is_between_zero_and_a_little_more_than_its_largest_value() -> None:
    line, bound = chart(Series("a", [0, 50, 100]), Series("most", [108] * 3, "bound")).lines
    assert line.path == "M0.00 100.00L50.00 57.13L100.00 14.27"
    assert line.latest == "100"
    assert line.points.count("M") == 3
    assert not bound.points


def test_a_line_has_a_gap_at_a_missing_value() -> None:
    (line,) = chart(Series("a", [None, 1, None, 2]), x=(1, 2, 3, 4)).lines
    assert line.path.count("M") == 2
    assert "L" not in line.path


def test_a_line_of_one_round_or_of_none_has_axes() -> None:
    single = chart(Series("a", [3]), x=(1,))
    assert [(tick.at, tick.text) for tick in single.x_ticks] == [(50, "1")]
    nothing = chart(Series("a", [None, None, None]))
    assert nothing.description == "a: nothing yet"
    assert [line.path for line in nothing.lines] == [""]
    assert nothing.y_ticks


@pytest.mark.parametrize(
    ("largest", "texts"),
    [
        (1, ["0", "0.5", "1"]),
        (3.5, ["0", "1", "2", "3"]),
        (541, ["0", "200", "400"]),
        (80_000, ["0", "20,000", "40,000", "60,000", "80,000"]),
    ],
)
def test_ticks_are_round_numbers(largest: float, texts: list[str]) -> None:
    assert [tick.text for tick in chart(Series("a", [0, 0, largest])).y_ticks] == texts


def test_rounds_have_whole_numbers() -> None:
    few = chart(Series("a", [1, 1]), x=(1, 2))
    assert [tick.text for tick in few.x_ticks] == ["1", "2"]
    many = chart(Series("a", [1] * 100), x=tuple(range(1, 101)))
    assert [tick.text for tick in many.x_ticks] == ["20", "40", "60", "80", "100"]
    assert not next(many.lines).points


def test_a_logarithmic_scale_has_powers_of_ten() -> None:
    values = Series("t", [1, 100, 1000])
    drawn = chart(values, scale="log")
    assert [tick.text for tick in drawn.y_ticks] == ["1", "10", "100", "1,000"]
    distances = [tick.at for tick in drawn.y_ticks]
    assert distances[0] - distances[1] == pytest.approx(distances[2] - distances[3])
    assert next(tick.text for tick in chart(Series("t", [1, 2, 4]), scale="log").y_ticks) == "0"


def test_the_cursor_knows_all_values() -> None:
    known = json.loads(chart(Series("a", [1, None, 1234.5])).cursor)
    assert known == {
        "axis": "round",
        "x": [1, 2, 3],
        "at": [0, 50, 100],
        "texts": [["1", "–", "1,234"]],
    }

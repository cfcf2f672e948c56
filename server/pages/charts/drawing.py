"""Drawings of SVG that pages have without scripts: plots with axes, bars, and small lines.

All text is placed outside what is stretched to the width of the page, so it keeps its size.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, TypeAlias

from protocol.api.messages import HeavyHitter
from protocol.api.rates import RoundRate
from server.pages.formatting import significant

OptionalValues: TypeAlias = Sequence[float | None]
_TICKS: Final = 5  # at most about this many on an axis
_ROOM: Final = 1.08  # above the largest value, as a factor
_LOG_ROOM: Final = 1.5
_LOG_FROM: Final = 30  # largest value from which a logarithmic scale is of use
_MAX_MARKED_POINTS: Final = 40
_WIDTH, _HEIGHT, _EDGE = 96.0, 24.0, 2.0  # of a sparkline's viewBox
_MAX_BAND_FACTOR = 2.0  # height of a sparkline's band, in multiples of the largest value
_LAST_VALUES: Final = 5  # that a sparkline's description has


@dataclass(frozen=True, slots=True)
class Series:
    """One line; a `bound` is dashed."""

    label: str
    values: OptionalValues
    style: Literal["line", "bound"] = "line"


@dataclass(frozen=True, slots=True)
class Tick:
    """A number on an axis, at this percentage of it."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart: its path, its points as a path, and its last value."""

    series: Series
    path: str
    points: str
    latest: str


@dataclass(frozen=True)
class Chart:
    """A chart over rounds."""

    name: str
    title: str
    x: Sequence[float]
    series: Sequence[Series]
    x_label: str = "round"
    y_label: str = "count"
    scale: Literal["linear", "log"] = "linear"
    note: str = ""
    help_anchor: str = ""

    @property
    def description(self) -> str:
        """The lines in words."""
        return "; ".join(_description(line) for line in self.series)

    @property
    def lines(self) -> Iterator[Line]:
        """The lines in a square of 100 by 100, whose y axis points down."""
        for series in self.series:
            places = self._places(series.values)
            is_marked = series.style == "line" and len(places) < _MAX_MARKED_POINTS
            yield Line(
                series,
                _path(places),
                "".join(f"M{x:.2f} {y:.2f}h0" for x, y in places if y is not None and is_marked),
                significant(series.values[-1]) if series.values else "–",
            )

    @property
    def x_ticks(self) -> list[Tick]:
        low, high = self._x_range
        numbers = round_numbers(min(self.x), max(self.x), whole=True)
        return [Tick(100 * (at - low) / (high - low), f"{at:,.6g}") for at in numbers]

    @property
    def y_ticks(self) -> list[Tick]:
        low, high = self._y_range
        numbers = _powers_of_ten(low, high) if self._is_log else round_numbers(low, high)
        return [Tick(self._y_place(at) or 0.0, f"{at:,.6g}") for at in numbers]

    @property
    def cursor(self) -> str:
        """The x values with their places, and the texts of all lines, as JSON for the cursor."""
        texts = [[significant(value) for value in line.values] for line in self.series]
        places = [round(place, 2) for place in self._x_places]
        return json.dumps({"axis": self.x_label, "x": list(self.x), "at": places, "texts": texts})

    @cached_property
    def _x_range(self) -> tuple[float, float]:
        low, high = min(self.x, default=0.0), max(self.x, default=1.0)
        return (low, high) if high > low else (low - 1, high + 1)

    @cached_property
    def _x_places(self) -> list[float]:
        low, high = self._x_range
        return [100 * (x - low) / (high - low) for x in self.x]

    @cached_property
    def _known(self) -> list[float]:
        return [value for line in self.series for value in line.values if value is not None]

    @property
    def _is_log(self) -> bool:
        return self.scale == "log" and max(self._known, default=0) > _LOG_FROM

    @cached_property
    def _y_range(self) -> tuple[float, float]:
        low, high = min(self._known, default=0.0), max(self._known, default=0.0)
        if self._is_log:
            return max(1e-9, min(1.0, low)), _LOG_ROOM * high
        return min(0.0, low), _ROOM * high if high > 0 else 1.0

    def _places(self, values: OptionalValues) -> list[tuple[float, float | None]]:
        return list(zip(self._x_places, map(self._y_place, values), strict=True))

    def _y_place(self, value: float | None) -> float | None:
        if value is None:
            return None
        low, high = self._y_range
        if self._is_log:
            value, low, high = (math.log(max(each, 1e-9)) for each in (value, low, high))
        return 100 * (high - min(max(value, low), high)) / (high - low)


def _description(series: Series) -> str:
    known = [value for value in series.values if value is not None]
    if not known:
        return f"{series.label}: nothing yet"
    if len(set(known)) == 1:
        return f"{series.label}: {significant(known[0])}"
    ends = f"from {significant(known[0])} to {significant(known[-1])}"
    return f"{series.label}: {ends}, at most {significant(max(known))}"


def _path(places: Sequence[tuple[float, float | None]]) -> str:
    """Return the SVG path through `places`, which has a gap at one without a value."""
    steps, step = [], "M"
    for x, y in places:
        if y is not None:
            steps.append(f"{step}{x:.2f} {y:.2f}")
        step = "M" if y is None else "L"
    return "".join(steps)


def round_numbers(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten from `low` to `high`."""
    span = max(high - low, 1e-9)
    power = 10 ** math.floor(math.log10(span / _TICKS))
    step = next(each for each in (power, 2 * power, 5 * power, 10 * power) if each * _TICKS >= span)
    step = max(step, 1) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _powers_of_ten(low: float, high: float) -> list[float]:
    exponents = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high)) + 1)
    return [10.0**exponent for exponent in exponents]


@dataclass(frozen=True, slots=True)
class Bar:
    """A horizontal bar of an estimate with its interval; all numbers are percent of the axis."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Bars:
    """The bars of several items on one axis from 0 to `axis_end`, with the threshold on it."""

    bars: tuple[Bar, ...]
    axis_end: float
    threshold: float


def estimate_bars(
    items: Sequence[HeavyHitter], threshold: float, whole: float | None = None
) -> Bars:
    """Return the bars of `items`, on an axis that ends soon after the largest interval.

    The end is a round number, or a round share of the `whole` if there is one.
    """
    end = max([threshold, *(max(item.estimate, item.high) for item in items), 1e-9])
    unit = whole or 1.0
    step = unit * 10.0 ** math.floor(math.log10(end / unit)) / 2
    end = min(step * math.ceil(end / step - 1e-9), whole or math.inf)
    scale = 100 / end

    def place(count: float) -> float:
        return scale * min(max(count, 0.0), end)

    bars = tuple(Bar(*map(place, (item.estimate, item.low, item.high))) for item in items)
    return Bars(bars, end, place(threshold))


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A small line: `points` of an SVG polyline, its end, its last values in words, and its band.

    The points of `band` are those of an SVG polygon.
    """

    points: str
    x: float
    y: float
    description: str
    band: str


def rate_sparkline(rates: Sequence[RoundRate]) -> Sparkline | None:
    """Return the sparkline of an item's rates by round, with their intervals as a band.

    Wide intervals are cut at `_MAX_BAND_FACTOR` times the largest rate.
    """
    known = [
        (index, each.rate, each.low or 0.0, each.high or 0.0)
        for index, each in enumerate(rates)
        if each.rate is not None
    ]
    if not known:
        return None
    values = [(index, rate) for index, rate, _, _ in known]
    limit = _MAX_BAND_FACTOR * max(rate for _, rate in values)
    highs = [(index, min(high, limit) if limit else high) for index, _, _, high in known]
    largest = max(1e-9, *(high for _, high in highs))
    lows = [(index, low) for index, _, low, _ in known]
    band = _svg_points([*highs, *reversed(lows)], len(rates), largest)
    points = _svg_points(values, len(rates), largest)
    last_values = ", ".join(significant(value) for _, value in values[-_LAST_VALUES:])
    return Sparkline(_join(points), *points[-1], last_values, _join(band))


def _svg_points(
    values: Sequence[tuple[int, float]], count: int, largest: float
) -> list[tuple[float, float]]:
    step = (_WIDTH - 2 * _EDGE) / max(count - 1, 1)
    return [
        (_EDGE + index * step, _HEIGHT - _EDGE - (_HEIGHT - 2 * _EDGE) * max(value, 0) / largest)
        for index, value in values
    ]


def _join(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)

"""Charts: series for uPlot as JSON in an attribute, and bars and lines of SVG, without scripts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from protocol.api.messages import HeavyHitter, StudyView
from protocol.api.rates import RoundRate
from protocol.question_and_plan import WORD_BITS
from server.db.repositories.progress import RoundSummary
from server.pages.estimate_histories import EstimateHistory, RoundSize
from server.pages.formatting import items_label, significant

OptionalValues: TypeAlias = Sequence[float | None]
_MAX_LINES: Final = 5  # items in one chart
_WIDTH, _HEIGHT, _EDGE = 96.0, 24.0, 2.0  # of a sparkline's viewBox
_MAX_BAND_FACTOR = 2.0  # height of a sparkline's band, in multiples of the largest value
_MAX_LABEL_CHARS = 24  # characters of an item in a legend


@dataclass(frozen=True, slots=True)
class Series:
    """One line; a `bound` is dashed, and a `band` is an edge of a shaded interval."""

    label: str
    values: OptionalValues
    style: Literal["line", "bound", "band"] = "line"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart over rounds, or over the values of a domain."""

    name: str
    title: str
    x: Sequence[float]
    series: Sequence[Series]
    x_label: str = "round"
    y_label: str = "count"
    scale: Literal["linear", "log", "share"] = "linear"
    note: str = ""
    help_anchor: str = ""

    @property
    def data(self) -> dict[str, object]:
        return {
            "x": list(self.x),
            "xLabel": self.x_label,
            "yLabel": self.y_label,
            "scale": self.scale,
            "series": [
                {"label": line.label, "values": list(line.values), "style": line.style}
                for line in self.series
            ],
        }

    @property
    def description(self) -> str:
        return "; ".join(_description(line) for line in self.series)


def _description(series: Series) -> str:
    known = [value for value in series.values if value is not None]
    if not known:
        return f"{series.label}: nothing yet"
    if len(set(known)) == 1:
        return f"{series.label}: {significant(known[0])}"
    ends = f"from {significant(known[0])} to {significant(known[-1])}"
    return f"{series.label}: {ends}, at most {significant(max(known))}"


def round_charts(
    study: StudyView, rounds: Sequence[RoundSummary], sizes: Mapping[int, RoundSize]
) -> list[Chart]:
    """Return the charts of sampling thresholds, capacities and sizes; none for a single round."""
    if not rounds or study.rounds == 1:
        return []
    x = [summary.number for summary in rounds]
    round_sizes = [sizes[number] for number in x]
    charts = []
    if any(summary.sampling_threshold > 1 for summary in rounds):
        series = [Series("t", [summary.sampling_threshold for summary in rounds])]
        note = (
            "A device keeps an item with count 1 with probability 1/t. At t = 1 it keeps all items."
        )
        charts.append(
            Chart(
                "threshold",
                "Sampling threshold t",
                x,
                series,
                y_label="t",
                scale="log",
                note=note,
                help_anchor="sampling",
            )
        )
    if any(size.capacity for size in round_sizes):
        label = items_label(study.question.mechanism)
        series = [
            Series(f"{label.lower()} in the sum", [summary.distinct for summary in rounds]),
            Series("capacity of the table", [size.capacity for size in round_sizes], "bound"),
        ]
        note = "Above the capacity a sum cannot be decoded; then the next round samples less."
        charts.append(
            Chart(
                "capacity",
                f"{label} and capacity",
                x,
                series,
                y_label="items in a sum",
                note=note,
                help_anchor="capacity",
            )
        )
    word_bytes = WORD_BITS // 8
    series = [Series("sent by each device", [size.nbytes / word_bytes for size in round_sizes])]
    if (max_words := getattr(study.question, "words", None)) is not None:
        series.append(Series("limit of the question", [max_words] * len(x), "bound"))
    note = (
        f"{WORD_BITS}-bit words of a device's vector or report, without keys and shares. "
        f"A word has {word_bytes} bytes."
    )
    charts.append(
        Chart(
            "words",
            "Words per device",
            x,
            series,
            y_label=f"{WORD_BITS}-bit words",
            note=note,
            help_anchor="words",
        )
    )
    return charts


def count_chart(
    study: StudyView, items: Sequence[str], history: EstimateHistory | None
) -> Chart | None:
    """Return the chart of the most frequent items' estimates; None if no history is known."""
    if history is None or not history.rounds or not items or study.rounds == 1:
        return None
    series = [Series(_truncated(item), history.estimates_of(item)) for item in items[:_MAX_LINES]]
    bound = [study.question.threshold] * len(history.rounds)
    series.append(Series("threshold", bound, "bound"))
    note = "Estimates of the most frequent items from all rounds so far."
    return Chart(
        "counts",
        "Estimated counts so far",
        history.rounds,
        series,
        y_label="estimated count",
        note=note,
        help_anchor="estimate",
    )


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


def estimate_bars(items: Sequence[HeavyHitter], threshold: float) -> Bars:
    """Return the bars of `items`, on an axis that ends with the largest interval."""
    end = max([threshold, *(max(item.estimate, item.high) for item in items)])
    scale = 100 / max(end, 1e-9)

    def place(count: float) -> float:
        return scale * min(max(count, 0.0), end)

    bars = tuple(Bar(*map(place, (item.estimate, item.low, item.high))) for item in items)
    return Bars(bars, end, place(threshold))


def _truncated(item: str) -> str:
    return item if len(item) <= _MAX_LABEL_CHARS else item[: _MAX_LABEL_CHARS - 1] + "…"


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A small line: `points` of an SVG polyline, its end, its values in words, and its interval.

    The points of `band` are those of an SVG polygon; empty without intervals.
    """

    points: str
    x: float
    y: float
    description: str
    band: str = ""


def sparkline(values: OptionalValues) -> Sparkline | None:
    """Return a sparkline from zero to the largest of `values`; None if no value is known.

    The line begins at the first known value.
    """
    known = [(index, value) for index, value in enumerate(values) if value is not None]
    if not known:
        return None
    largest = max(1e-9, *(value for _, value in known))
    return _sparkline(known, len(values), largest)


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
    line = _sparkline(values, len(rates), largest)
    return replace(line, band=_join(band))


def _sparkline(known: Sequence[tuple[int, float]], count: int, largest: float) -> Sparkline:
    points = _svg_points(known, count, largest)
    last_values = ", ".join(significant(value) for _, value in known[-_MAX_LINES:])
    return Sparkline(_join(points), *points[-1], last_values)


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

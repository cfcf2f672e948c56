"""Drawing of a distribution of numbers: a histogram with the marks of its quantiles and its mean.

All places are percent of the drawing, whose y axis points down. So text keeps its size at every
width of the page.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.api.headline import known_digits
from protocol.api.messages import QueryResult
from protocol.quantiles.distribution import BoundedEstimate, Distribution
from server.pages.charts.drawing import Tick, round_numbers

_TOP, _BOTTOM, _LEFT = 11.0, 91.0, 8.0  # of the bars
_MAX_BARS, _MIN_BARS = 40, 4
_NEAR: Final = 5.0  # a mark's text leaves out those of closer ones
_NEAR_ON_PHONES: Final = 12.0
_MEDIAN = 0.5


@dataclass(frozen=True, slots=True)
class HistogramBar:
    """A bar from `x` on, from its `top` down, with the ends of its interval, highest first."""

    x: float
    width: float
    top: float
    height: float
    high: float
    low: float


@dataclass(frozen=True, slots=True)
class Mark(Tick):
    """A vertical line with a text that phones leave out if `is_fine`; `kind` is its class."""

    kind: str
    is_fine: bool = False


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram; `bar_error` is half of the widest interval of a bar, as a share of devices."""

    bars: tuple[HistogramBar, ...]
    x_ticks: tuple[Mark, ...]
    y_ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    bar_width: str
    bar_error: float
    left: float = _LEFT


def histogram(
    values: Distribution, quantiles: Sequence[QueryResult], mean: QueryResult
) -> Histogram:
    """Return the histogram of `values`, with the marks of `quantiles` and the `mean`."""
    edges, shares = _bins(values)
    first, last = float(edges[0]), float(edges[-1])
    top = max(float(shares.high.max()), 1e-9)
    rows = zip(*(each.tolist() for each in (shares.values, shares.low, shares.high)), strict=True)
    width = (100 - _LEFT) / len(shares.values)

    def x(value: float) -> float:
        return _LEFT + (100 - _LEFT) * (value - first) / (last - first)

    def y(share: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * max(share, 0.0) / top

    bars = tuple(
        HistogramBar(
            _LEFT + width * (place + 0.05),
            0.9 * width,
            y(value),
            _BOTTOM - y(value),
            y(high),
            y(low),
        )
        for place, (value, low, high) in enumerate(rows)
    )
    numbers = round_numbers(first, last)
    x_ticks = [
        Mark(x(at), f"{at:,.6g}", _anchor(x(at)), is_fine=place % 2 == 1)
        for place, at in enumerate(numbers)
    ]
    y_ticks = [Tick(y(at), f"{100 * at:.3g}%") for at in round_numbers(0.0, top)[1:]]
    marks = [*_quantile_marks([(float(each.at), x(float(each.value))) for each in quantiles])]
    text = f"mean {known_digits(float(mean.value), mean.low, mean.high)}"
    marks.append(Mark(x(float(mean.value)), text, "mean"))
    error = float((shares.high - shares.low).max()) / 2
    bar_width = f"{(last - first) / len(bars):,.4g}"
    return Histogram(bars, tuple(x_ticks), tuple(y_ticks), tuple(marks), bar_width, error)


def _bins(values: Distribution) -> tuple[Sequence[float], BoundedEstimate]:
    """Return the edges and shares of as many bins as are higher, on average, than their errors."""
    leaves = values.cumulative.leaves
    counts = [bins for bins in range(_MAX_BARS, 1, -1) if leaves % bins == 0] or [_MAX_BARS]
    for bins in counts:
        edges, shares = values.histogram(bins)
        is_clear = float((shares.high - shares.low).mean()) / 2 <= 1 / bins
        if is_clear or bins <= _MIN_BARS:
            break
    return edges.tolist(), shares


def _quantile_marks(places: Sequence[tuple[float, float]]) -> Iterator[Mark]:
    """Yield a line for each quantile; one next to another of more weight has no text."""
    shown: list[float] = []
    # First the median, then the ranks that are farthest from it.
    for rank, at in sorted(places, key=lambda each: (each[0] != _MEDIAN, -abs(each[0] - _MEDIAN))):
        nearest = min((abs(at - other) for other in shown), default=100.0)
        text = "median" if rank == _MEDIAN else f"{100 * rank:.3g}%"
        text = text if nearest >= _NEAR else ""
        shown += [at] if text else []
        kind = "median" if rank == _MEDIAN else "quantile"
        yield Mark(at, text, kind, is_fine=nearest < _NEAR_ON_PHONES)


def _anchor(place: float) -> str:
    return "start" if place < _LEFT + 1 else "end" if place > 99 else "middle"

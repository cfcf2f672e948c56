"""Bar chart of a result table, by matplotlib: a bar per row, with its interval as whiskers.

Rows of heavy hitters, segments, numbers and queries have a name, a value, and an interval. Names
come from devices, so matplotlib must not read them as formulas or as TeX.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from client.extras_installation import install_command
from protocol.estimation.number_summary import segment_label
from protocol.printable import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR_INCHES, _MARGIN_INCHES, _WIDTH_INCHES = 0.28, 1.1, 7.0
_BAR_COLOUR, _WHISKER_COLOUR, _THRESHOLD_COLOUR = "#7fb5ae", "#1b1f1e", "#a12622"


@dataclass(frozen=True, slots=True)
class BarColumns:
    """Columns of a bar's name, value and interval, and the title of the axis of values."""

    name: str
    value: str
    low: str
    high: str
    title: str


_KNOWN_COLUMNS: Final = (  # a table is drawn by the first of which it has all columns
    BarColumns("item", "estimate", "low", "high", "estimated count, with 95% interval"),
    BarColumns("segment", "total", "total_low", "total_high", "total count, with 95% interval"),
    BarColumns("segment", "mean", "mean_low", "mean_high", "mean, with interval"),
    BarColumns("at", "value", "low", "high", "value, with interval"),
)


def draw_bars(
    records: Sequence[Sequence[object]],
    columns: Sequence[str],
    threshold: float | None,
    axes: "Axes | None",
) -> "Axes":
    """Draw the `records` as bars, the first one at the top; return the axes.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if the columns are not those of a table with intervals, or a value is a text.
    """
    kind = _columns_of_bars(columns)
    rows = [dict(zip(columns, record, strict=True)) for record in records]
    rows = [row for row in rows if row[kind.value] is not None]
    if any(isinstance(row[kind.value], str) for row in rows):
        raise ValueError(f"the column {kind.value!r} has texts, and a bar needs numbers")
    axes = axes or _new_axes(len(rows))
    _draw(axes, rows, kind)
    if threshold is not None:
        label = f"threshold, {threshold:,.6g}"
        axes.axvline(threshold, color=_THRESHOLD_COLOUR, linestyle="--", linewidth=1, label=label)
        axes.legend(loc="lower right", frameon=False)
    return axes


def _columns_of_bars(columns: Sequence[str]) -> BarColumns:
    for kind in _KNOWN_COLUMNS:
        if {kind.name, kind.value, kind.low, kind.high} <= set(columns):
            return kind
    raise ValueError(
        f"rows with the columns {', '.join(columns)} have no bars; tables of heavy hitters, "
        "segments, numbers and queries do"
    )


def _new_axes(bars: int) -> "Axes":
    try:
        from matplotlib import pyplot as plt  # noqa: PLC0415 - takes a second, and is optional
    except ImportError as error:
        raise ImportError(f"plots need matplotlib: {install_command('plot')}") from error
    height = _MARGIN_INCHES + _BAR_INCHES * max(bars, 1)
    _, axes = plt.subplots(figsize=(_WIDTH_INCHES, height), layout="constrained")
    return axes


def _draw(axes: "Axes", rows: Sequence[dict[str, Any]], kind: BarColumns) -> None:
    places = range(len(rows))
    axes.barh(places, [row[kind.value] for row in rows], color=_BAR_COLOUR, height=0.7)
    for place, row in zip(places, rows, strict=True):
        if row[kind.low] is not None and row[kind.high] is not None:
            axes.errorbar(
                (row[kind.low] + row[kind.high]) / 2,
                place,
                xerr=(row[kind.high] - row[kind.low]) / 2,
                fmt="none",
                ecolor=_WHISKER_COLOUR,
                elinewidth=1,
                capsize=3,
            )
    names = [one_line(segment_label(row[kind.name], len(rows) > 1)) for row in rows]
    axes.set_yticks(places, names)
    for label in axes.get_yticklabels():
        label.set(usetex=False, parse_math=False)
    axes.invert_yaxis()
    axes.set_xlabel(kind.title)
    axes.set_ylabel(kind.name)
    axes.spines[["right", "top"]].set_visible(False)

"""The pictures: curves with error bars of three standard deviations, as the paper draws them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from blindtally.figures.curves import (
    ADAPTIVE,
    BEST_FIXED,
    COUNT_MEDIAN,
    COUNT_SKETCH,
    NO_SUBSAMPLING,
    OURS,
    SAME_HASHES,
    SUBSAMPLED,
    Curve,
)
from blindtally.figures.growth import Growth
from blindtally.figures.local import APPLE, GF, HE, MSE, RHR, Errors, L

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS: Final = (".svg", ".png")
_GREY, _GREEN = "#7f7f7f", "#2ca02c"
_COLOURS: Final = {
    COUNT_SKETCH: _GREY,
    SAME_HASHES: "#111111",
    COUNT_MEDIAN: "#bcbd22",
    NO_SUBSAMPLING: "#ff7f0e",
    SUBSAMPLED: "#1f77b4",
    BEST_FIXED: "#1f77b4",
    ADAPTIVE: _GREEN,
    OURS: "#d62728",
}
_LOCAL_COLOURS: Final = {
    MSE: "#d62728",
    L: _GREEN,
    GF: "#ff7f0e",
    HE: "#1f77b4",
    APPLE: _GREY,
    RHR: "#111111",
}
_CDF_COLOURS: Final = ("#d62728", "#ff7f0e", "#1f77b4")
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "svg.fonttype": "none",  # text as text: a third of the bytes
    "svg.hashsalt": "blindtally",  # the same results give the same bytes
}


def draw_curves(path: Path, curves: Sequence[Curve], x: str, title: str, log: bool) -> None:
    """Write F1 over `x`, one line a method.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    with _Drawing(path, (6.4, 4.8)) as figure:
        axes = figure.subplots()
        for curve in curves:
            axes.errorbar(
                [point.x for point in curve.points],
                [point.mean for point in curve.points],
                yerr=[3 * point.deviation for point in curve.points],
                label=curve.name,
                color=_COLOURS[curve.name],
                marker="o",
                markersize=3,
                linewidth=1.4,
                capsize=2,
            )
        axes.set(xlabel=x, ylabel="F1", title=title, ylim=(-0.02, 1.03))
        axes.set_xscale("log" if log else "linear")
        axes.grid(alpha=0.3)
        figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)


def draw_growth(path: Path, rows: Sequence[Growth], title: str) -> None:
    """Write errors and words over R; raises as `draw_curves`."""
    rounds = [row.rounds for row in rows]
    with _Drawing(path, (8, 3.6)) as figure:
        left, right = figure.subplots(1, 2)
        root = [rows[0].oracle_error * (count / rounds[0]) ** 0.5 for count in rounds]
        left.plot(rounds, root, ":", color="#333333", label="the root of R")
        _line(left, rounds, [row.oracle_error for row in rows], _GREY, COUNT_SKETCH)
        _line(left, rounds, [row.table_error for row in rows], _GREEN, ADAPTIVE)
        left.set(ylabel="error of items held about tau times")
        _line(right, rounds, [row.oracle_words for row in rows], _GREY, COUNT_SKETCH)
        _line(right, rounds, [row.table_words for row in rows], _GREEN, "IBLT, all rounds read")
        right.set(ylabel="words for an error of tau / 4")
        for axes in (left, right):
            axes.set(xscale="log", yscale="log", xlabel="rounds R")
            axes.grid(alpha=0.3)
            axes.legend(fontsize=8)
        figure.suptitle(title, fontsize=10)


def draw_local(path: Path, found: Sequence[Errors]) -> None:
    """Write errors over epsilon, a row an experiment, theory dashed; raises as `draw_curves`."""
    names = list(dict.fromkeys(one.experiment for one in found))
    with _Drawing(path, (9, 2.6 * len(names) + 0.6)) as figure:
        grid = figure.subplots(len(names), 3, squeeze=False)
        for row, name in zip(grid, names, strict=True):
            for axes, measure in zip(row, ("worst", "l1", "l2"), strict=True):
                for method, colour in _LOCAL_COLOURS.items():
                    mine = [one for one in found if (one.experiment, one.method) == (name, method)]
                    over = [one.epsilon for one in mine]
                    seen, theory = (
                        [getattr(one, key) for one in mine]
                        for key in (measure, measure + "_theory")
                    )
                    label = method if (name, measure) == (names[0], "worst") else None
                    axes.plot(over, seen, "o-", color=colour, markersize=3, label=label)
                    axes.plot(over, theory, "--", color=colour, linewidth=0.8)
                axes.set(yscale="log", title=f"{name}: {measure}", xlabel="epsilon")
                axes.grid(alpha=0.3)
        figure.legend(loc="outside lower center", ncols=6, fontsize=8, frameon=False)


def draw_cdf(path: Path, rows: Mapping[str, Mapping[str, Any]], title: str) -> None:
    """Write ranks over values, and what they are off by, one colour a method, with intervals.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    with _Drawing(path, (9, 3.8)) as figure:
        left, right = figure.subplots(1, 2)
        for (name, row), colour in zip(rows.items(), _CDF_COLOURS, strict=False):
            values, true = row["values"], row["true"]
            low, high, off = (
                [rank - truth for rank, truth in zip(row[end], true, strict=True)]
                for end in ("low", "high", "ranks")
            )
            left.plot(values, row["ranks"], color=colour, linewidth=1.2, label=name)
            right.fill_between(values, low, high, color=colour, alpha=0.2, linewidth=0)
            right.plot(values, off, color=colour, linewidth=1)
        left.plot(values, true, ":", color="#111111", linewidth=1.4, label="true")
        left.set(xlabel="value", ylabel="share of devices below")
        right.set(xlabel="value", ylabel="rank found - true rank, 95% interval")
        for axes in (left, right):
            axes.grid(alpha=0.3)
        left.legend(fontsize=8, frameon=False)
        figure.suptitle(title, fontsize=10)


def _line(
    axes: "Axes", rounds: Sequence[int], values: Sequence[float], colour: str, label: str
) -> None:
    axes.plot(rounds, values, "o-", color=colour, label=label, markersize=3)


class _Drawing:
    """A figure that is written to `path` if nothing goes wrong meanwhile."""

    def __init__(self, path: Path, size: tuple[float, float]) -> None:
        import matplotlib as mpl  # noqa: PLC0415 - takes a second, and only the demo has it
        from matplotlib.figure import Figure  # noqa: PLC0415

        self._path, self._style = path, mpl.rc_context(_STYLE)
        with mpl.rc_context(_STYLE):
            self._figure = Figure(figsize=size, layout="constrained")

    def __enter__(self) -> Any:  # noqa: ANN401 - matplotlib's own types are only there with it
        self._style.__enter__()
        return self._figure

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            metadata: dict[str, Any] = {"Date": None} if self._path.suffix == ".svg" else {}
            self._figure.savefig(self._path, dpi=110, metadata=metadata)
        self._style.__exit__(None, None, None)

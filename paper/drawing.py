"""The pictures: curves with error bars of three standard deviations, as the paper draws them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from blindtally.planning.f1_by_words import F1Curve
from paper.cost_growth import FIXED_TOTAL_GOAL, FixedTotalRow, GrowthRow
from paper.f1_curves import (
    ADAPTIVE,
    ADAPTIVE_IBLT,
    BEST_FIXED,
    COUNT_MEDIAN,
    COUNT_SKETCH,
    NO_SUBSAMPLING,
    SAME_HASHES,
    SUBSAMPLED,
    TRACKED_MECHANISM,
    MethodComparison,
)
from paper.oracle_experiments import (
    CMS_HADAMARD,
    HADAMARD,
    L_OCMS,
    MSE_OCMS,
    OCMS_GF,
    RECURSIVE_HADAMARD,
    OracleErrors,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE_SUFFIXES: Final = (".svg", ".png")
# Colours that colour-blind readers can distinguish (Okabe and Ito); markers differ, too.
_BLACK, _GREY, _ORANGE, _SKY = "#000000", "#8a8a8a", "#e69f00", "#56b4e9"
_GREEN, _BLUE, _RED, _PINK = "#009e73", "#0072b2", "#d55e00", "#cc79a7"
_METHOD_STYLES: Final = {
    SAME_HASHES: (_BLACK, "x"),
    COUNT_SKETCH: (_GREY, "s"),
    COUNT_MEDIAN: (_PINK, "v"),
    NO_SUBSAMPLING: (_ORANGE, "^"),
    SUBSAMPLED: (_SKY, "D"),
    BEST_FIXED: (_SKY, "D"),
    ADAPTIVE: (_GREEN, "P"),
    ADAPTIVE_IBLT: (_BLUE, "o"),
    TRACKED_MECHANISM: (_RED, "*"),
}
_ORACLE_STYLES: Final = {
    MSE_OCMS: (_RED, "o"),
    L_OCMS: (_GREEN, "P"),
    OCMS_GF: (_ORANGE, "^"),
    HADAMARD: (_BLUE, "s"),
    CMS_HADAMARD: (_GREY, "D"),
    RECURSIVE_HADAMARD: (_BLACK, "x"),
}
_ERROR_LABELS: Final = {"worst": "worst MSE", "l1": "sum of |error|", "l2": "sum of squares"}
_CDF_COLOURS: Final = (_RED, _ORANGE, _BLUE)
_STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.titlesize": 11,
    "font.size": 10,
    "grid.alpha": 0.3,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text as text: a third of the bytes
    "svg.hashsalt": "blindtally",  # the same results give the same bytes
}


def draw_curves(path: Path, curves: Sequence[F1Curve], x: str, title: str, log: bool) -> None:
    """Write F1 over `x`, one line per method.

    Raises:
        ImportError: if matplotlib is not installed. The same holds for all pictures.
    """
    with _saved_figure(path, (7.2, 5.6)) as figure:
        axes = figure.subplots()
        for curve in curves:
            _draw_curve(axes, curve, *_METHOD_STYLES[curve.name])
        axes.set(xlabel=x, ylabel="F1", ylim=(-0.02, 1.03))
        if log:
            _log_axis(axes)
        figure.suptitle(title)
        figure.legend(loc="outside lower center", ncols=2)


def draw_words(
    path: Path, panels: Mapping[str, Sequence[F1Curve]], styles: Sequence[str], title: str
) -> None:
    """Write F1 over words, one panel per population; `styles` names the methods of the curves."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    with _saved_figure(path, (max(6.4, 3.4 * columns), 2.9 * rows + 1.2)) as figure:
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True).flat
        for axes, (name, curves) in zip(grid, panels.items(), strict=False):
            for curve, method in zip(curves, styles, strict=True):
                _draw_curve(axes, curve, *_METHOD_STYLES[method], named=axes is figure.axes[0])
            axes.set(xlabel="words C", ylim=(-0.02, 1.03))
            _log_axis(axes, subs=(1,))
            axes.set_title(name, fontsize=10)
        for axes in figure.axes[len(panels) :]:
            axes.remove()
        figure.axes[0].set_ylabel("F1")
        figure.suptitle(title)
        figure.legend(loc="outside lower center", ncols=2)


def draw_pairs(path: Path, pairs: Sequence[MethodComparison], title: str) -> None:
    """Write F1 of `tracked` over F1 of the paper's method, one point per setting."""
    with _saved_figure(path, (6.4, 5.6)) as figure:
        axes = figure.subplots()
        axes.axline((0, 0), slope=1, color=_GREY, linewidth=1)
        shown = axes.scatter(
            [pair.paper_f1 for pair in pairs],
            [pair.tracked_f1 for pair in pairs],
            c=[pair.setting.words for pair in pairs],
            norm="log",
            cmap="viridis",
            s=14,
        )
        axes.set(xlabel="F1 of the paper's adaptive IBLT", ylabel="F1 of tracked, ours")
        figure.colorbar(shown, label="words C")
        figure.suptitle(title)


def draw_rules(path: Path, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Write the F1 of each rule for t, side by side for each population."""
    cases = list(dict.fromkeys((row["data"].split(".")[0], row["drift"]) for row in rows))
    kept = list(dict.fromkeys(row["rule"] for row in rows))
    with _saved_figure(path, (7.2, 0.45 * len(cases) + 1.8)) as figure:
        axes = figure.subplots()
        for number, (rule, colour) in enumerate(zip(kept, (_GREEN, _BLUE), strict=True)):
            of_rule = [row for row in rows if row["rule"] == rule]
            axes.errorbar(
                [row["f1"] for row in of_rule],
                [place + 0.2 * number - 0.1 for place in range(len(cases))],
                xerr=[3 * row["f1_deviation"] for row in of_rule],
                fmt="Po"[number],
                color=colour,
                capsize=2,
                label=rule,
            )
        axes.set_yticks(range(len(cases)), [f"{data}, {drift}" for data, drift in cases])
        axes.invert_yaxis()
        axes.set(xlabel="F1", xlim=(None, 1.01))
        figure.suptitle(title)
        figure.legend(loc="outside lower center", ncols=2)


def _log_axis(axes: "Axes", subs: Sequence[int] = (1, 2, 5)) -> None:
    """Make the x axis logarithmic, with whole numbers on it: `subs` of each power of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter  # noqa: PLC0415

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _draw_curve(
    axes: "Axes", curve: F1Curve, colour: str, marker: str, *, named: bool = True
) -> None:
    axes.errorbar(
        [point.x for point in curve.points],
        [point.mean for point in curve.points],
        yerr=[3 * point.standard_deviation for point in curve.points],
        label=curve.name if named else None,
        color=colour,
        marker=marker,
        markersize=7 if marker == "*" else 4.5,
        linewidth=1.4,
        elinewidth=0.9,
        capsize=2,
    )


def draw_growth(
    path: Path, rows: Sequence[GrowthRow], fixed: Sequence[FixedTotalRow], title: str
) -> None:
    """Write errors and words over R, at fixed M and at a fixed number N of all devices."""
    rounds = [row.rounds for row in rows]
    with _saved_figure(path, (12, 4.2)) as figure:
        left, right, last = figure.subplots(1, 3)
        root = [rows[0].oracle_error * (count / rounds[0]) ** 0.5 for count in rounds]
        left.plot(rounds, root, ":", color=_BLACK, label="the root of R")
        _draw_growth_line(left, rows, "oracle_error", COUNT_SKETCH)
        _draw_growth_line(left, rows, "table_error", ADAPTIVE)
        left.set(ylabel="error of items held about tau times")
        _draw_growth_line(right, rows, "oracle_words", COUNT_SKETCH)
        _draw_growth_line(right, rows, "table_words", ADAPTIVE, "IBLT, all rounds read")
        right.set(ylabel="words for an error of tau / 4")
        _draw_fixed_total(last, fixed)
        for axes in (left, right, last):
            axes.set(yscale="log" if axes.dataLim.ymax > 0 else "linear", xlabel="rounds R")
            _log_axis(axes)
            axes.legend()
        figure.suptitle(title)


def draw_local(path: Path, errors: Sequence[OracleErrors], title: str) -> None:
    """Write errors over epsilon, one row of panels per experiment, theory dashed."""
    names = list(dict.fromkeys(point.experiment for point in errors))
    with _saved_figure(path, (10, 2.9 * len(names) + 1)) as figure:
        grid = figure.subplots(len(names), 3, squeeze=False)
        for row, name in zip(grid, names, strict=True):
            for axes, measure in zip(row, ("worst", "l1", "l2"), strict=True):
                for method, (colour, marker) in _ORACLE_STYLES.items():
                    points = [p for p in errors if (p.experiment, p.method) == (name, method)]
                    epsilons = [point.epsilon for point in points]
                    theory = [getattr(point, measure + "_theory") for point in points]
                    axes.errorbar(
                        epsilons,
                        [getattr(point, measure) for point in points],
                        yerr=[3 * getattr(point, measure + "_error") for point in points],
                        color=colour,
                        marker=marker,
                        markersize=4,
                        elinewidth=0.9,
                        capsize=2,
                        label=method if axes is figure.axes[0] else None,
                    )
                    axes.plot(epsilons, theory, "--", color=colour, linewidth=0.9)
                axes.set(yscale="log", xlabel="epsilon")
                axes.set_title(f"{name}: {_ERROR_LABELS[measure]}", fontsize=10)
        figure.suptitle(title)
        figure.legend(loc="outside lower center", ncols=6)


def draw_cdf(path: Path, rows: Mapping[str, Mapping[str, Any]], title: str) -> None:
    """Write ranks over values, and their errors with intervals, one colour per method."""
    with _saved_figure(path, (10, 4.2)) as figure:
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
        left.legend()
        figure.suptitle(title)


def _draw_fixed_total(axes: "Axes", rows: Sequence[FixedTotalRow]) -> None:
    rounds = [row.rounds for row in rows]
    axes.plot(rounds, [row.bound for row in rows], ":", color=_BLACK, label="N / (R tau)")
    for what, method in (("paper", ADAPTIVE), ("tracked", TRACKED_MECHANISM)):
        colour, marker = _METHOD_STYLES[method]
        # matplotlib leaves a gap at nan, where no size reaches the goal.
        words = [getattr(row, what) or float("nan") for row in rows]
        axes.plot(rounds, words, color=colour, marker=marker, label=method)
    total = rows[0].rounds * rows[0].tokens
    axes.set(ylabel=f"words for an F1 of {FIXED_TOTAL_GOAL}, N = {total:,}")


def _draw_growth_line(
    axes: "Axes", rows: Sequence[GrowthRow], what: str, method: str, label: str | None = None
) -> None:
    colour, marker = _METHOD_STYLES[method]
    axes.errorbar(
        [row.rounds for row in rows],
        [getattr(row, what) for row in rows],
        yerr=[3 * row.deviations.get(what, 0.0) for row in rows],
        color=colour,
        marker=marker,
        markersize=4.5,
        capsize=2,
        label=label or method,
    )


@contextmanager
def _saved_figure(path: Path, size: tuple[float, float]) -> Iterator[Any]:
    """Yield a figure that is written to `path` unless an error occurs."""
    import matplotlib as mpl  # noqa: PLC0415 - takes a second, and only the demo has it
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else {})

"""Figure of the demo's results: heavy hitters, thresholds t, capacity and seconds by phase."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from blindtally.fleet_run.results import StudyResults
from protocol.api.phases import SUM_PHASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_SHOWN_ITEMS: Final = 15  # heavy hitters
_TEXT_COLOUR, _GRID_COLOUR = "#1f2933", "#cbd2d9"
_ESTIMATE_COLOUR, _TRUTH_COLOUR, _CAPACITY_COLOUR = "#2364aa", "#f26419", "#8795a1"
_PHASE_COLOURS = ("#bcd4e6", "#7fb2d6", "#56b4a0", "#3f88c5", "#8795a1", "#1c4e80")
_STYLE: dict[Any, Any] = {
    "axes.edgecolor": _GRID_COLOUR,
    "axes.labelcolor": _TEXT_COLOUR,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "legend.frameon": False,
    "svg.hashsalt": "blindtally",  # the same results give the same bytes
    "text.color": _TEXT_COLOUR,
    "xtick.color": _TEXT_COLOUR,
    "ytick.color": _TEXT_COLOUR,
}


def draw(results: StudyResults, folder: Path) -> list[Path]:
    """Write `results.svg` and `results.png` into `folder`; return their paths.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    import matplotlib as mpl  # noqa: PLC0415 - takes a second, and only the demo has it
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11, 6.2), layout="constrained")
        grid = figure.add_gridspec(3, 2, width_ratios=(1.25, 1))
        _draw_heavy_hitters(figure.add_subplot(grid[:, 0]), results)
        _draw_thresholds(figure.add_subplot(grid[0, 1]), results)
        _draw_capacity(figure.add_subplot(grid[1, 1]), results)
        _draw_seconds(figure.add_subplot(grid[2, 1]), results)
        figure.suptitle(_title(results), x=0.01, ha="left", fontsize=12)
        paths = [folder / f"results.{kind}" for kind in ("svg", "png")]
        for path in paths:
            metadata: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
            figure.savefig(path, dpi=150, metadata=metadata)
    return paths


def _title(results: StudyResults) -> str:
    summed = sum(result.participants for result in results.rounds)
    return (
        f"blindtally demo: {len(results.heavy_hitters)} heavy hitters among {summed:,} devices "
        f"(F1 {results.score.f1:.2f}); each sent a masked table of "
        f"{results.traffic.vector / 1000:,.1f} kB"
    )


def _draw_heavy_hitters(axes: "Axes", results: StudyResults) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter  # noqa: PLC0415

    shown = results.heavy_hitters[:MAX_SHOWN_ITEMS]
    places = range(len(shown))
    estimates = [hitter.estimate for hitter in shown]
    errors = [2 * hitter.standard_error for hitter in shown]
    marks: dict[str, Any] = {"fmt": "o", "color": _ESTIMATE_COLOUR, "markersize": 8}
    bars: dict[str, Any] = {"elinewidth": 2, "capsize": 4, "label": "estimate ± 2 s.e."}
    axes.errorbar(estimates, places, xerr=errors, **marks, **bars)
    marks = {"marker": "|", "s": 260, "linewidths": 2.5, "color": _TRUTH_COLOUR, "zorder": 3}
    axes.scatter([hitter.true_count for hitter in shown], places, **marks, label="true count")
    axes.axvline(results.threshold, color=_CAPACITY_COLOUR, linestyle=":", label="threshold")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(places, [hitter.item for hitter in shown], fontsize=10)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.grid(axis="x", color=_GRID_COLOUR, linewidth=0.6)
    axes.set_title("Heavy hitters")
    axes.set_xlabel("total count over all devices (log scale)")
    axes.legend(loc="lower right")


def _draw_thresholds(axes: "Axes", results: StudyResults) -> None:
    numbers = [result.number for result in results.rounds]
    axes.plot(numbers, [result.t for result in results.rounds], "o-", color=_ESTIMATE_COLOUR)
    axes.set_ylim(bottom=0)
    axes.set_title("Sampling threshold t")
    _format_round_axis(axes, numbers)


def _draw_capacity(axes: "Axes", results: StudyResults) -> None:
    numbers = [result.number for result in results.rounds]
    capacities = [result.capacity for result in results.rounds]
    axes.plot(numbers, capacities, "_--", color=_CAPACITY_COLOUR, label="room for")
    for state, marker, colour, label in (
        ("decoded", "o", _ESTIMATE_COLOUR, "shown"),
        ("undecoded", "X", _TRUTH_COLOUR, "estimated, not decoded"),
    ):
        rounds = [result for result in results.rounds if result.state == state]
        points = [(r.number, r.distinct) for r in rounds if r.distinct is not None]
        if points:
            axes.scatter(
                *zip(*points, strict=True), marker=marker, color=colour, zorder=3, label=label
            )
    axes.set_ylim(bottom=0)
    axes.set_title("Items of five devices or more")
    axes.legend(loc="lower right", ncols=2)
    _format_round_axis(axes, numbers)


def _draw_seconds(axes: "Axes", results: StudyResults) -> None:
    numbers = [result.number for result in results.rounds]
    below = [0.0] * len(numbers)
    for phase, colour in zip(SUM_PHASES[results.sum], _PHASE_COLOURS, strict=False):
        seconds = [result.seconds.get(phase, 0.0) for result in results.rounds]
        axes.bar(numbers, seconds, 0.6, bottom=below, color=colour, label=phase)
        below = [height + added for height, added in zip(below, seconds, strict=True)]
    axes.set_ylim(top=max([*below, 0.1]) * 1.7)
    axes.set_title("Seconds by phase")
    axes.legend(loc="upper center", ncols=3, handlelength=1, columnspacing=0.8, fontsize=8)
    axes.set_xlabel("round")
    _format_round_axis(axes, numbers)


def _format_round_axis(axes: "Axes", numbers: list[int]) -> None:
    axes.set_xticks(numbers if len(numbers) <= 20 else numbers[:: len(numbers) // 10])
    axes.grid(axis="y", color=_GRID_COLOUR, linewidth=0.6)
    axes.set_axisbelow(True)

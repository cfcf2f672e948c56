"""The demo's results as one figure: what was found, how t moved, where the time went."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from blindtally.demo.results import Results
from protocol.round import phases

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN: Final = 15  # heavy hitters
_INK, _FAINT = "#1f2933", "#cbd2d9"
_FOUND, _TRUE, _ROOM = "#2364aa", "#f26419", "#8795a1"
_PHASES = ("#bcd4e6", "#7fb2d6", "#3f88c5", "#8795a1", "#1c4e80")
_STYLE: dict[Any, Any] = {
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "legend.frameon": False,
    "svg.hashsalt": "blindtally",  # the same results give the same bytes
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def draw(results: Results, folder: Path) -> list[Path]:
    """Write `results.svg` and `results.png` into `folder`; return their paths.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    import matplotlib as mpl  # noqa: PLC0415 - takes a second, and only the demo has it
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11, 6.2), layout="constrained")
        grid = figure.add_gridspec(3, 2, width_ratios=(1.25, 1))
        _draw_found(figure.add_subplot(grid[:, 0]), results)
        _draw_thresholds(figure.add_subplot(grid[0, 1]), results)
        _draw_room(figure.add_subplot(grid[1, 1]), results)
        _draw_seconds(figure.add_subplot(grid[2, 1]), results)
        figure.suptitle(_title(results), x=0.01, ha="left", fontsize=12)
        paths = [folder / f"results.{kind}" for kind in ("svg", "png")]
        for path in paths:
            metadata: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
            figure.savefig(path, dpi=150, metadata=metadata)
    return paths


def _title(results: Results) -> str:
    summed = sum(one.participants for one in results.rounds)
    return (
        f"blindtally demo: {len(results.found)} heavy hitters among {summed:,} devices "
        f"(F1 {results.score.f1:.2f}); each sent a masked table of "
        f"{results.bytes.vector / 1000:,.1f} kB, and only sums were read"
    )


def _draw_found(axes: "Axes", results: Results) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter  # noqa: PLC0415

    shown = results.found[:SHOWN]
    places = range(len(shown))
    axes.errorbar(
        [one.estimate for one in shown],
        places,
        xerr=[2 * one.standard_error for one in shown],
        fmt="o",
        color=_FOUND,
        ecolor=_FOUND,
        elinewidth=2,
        capsize=4,
        markersize=8,
        label="estimate ± 2 s.e.",
    )
    axes.scatter(
        [one.true_count for one in shown],
        places,
        marker="|",
        s=260,
        linewidths=2.5,
        color=_TRUE,
        zorder=3,
        label="true count",
    )
    axes.axvline(results.threshold, color=_ROOM, linestyle=":", label="threshold")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(places, [one.item for one in shown], fontsize=10)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.grid(axis="x", color=_FAINT, linewidth=0.6)
    axes.set_title("Heavy hitters")
    axes.set_xlabel("how often the devices hold it (log scale)")
    axes.legend(loc="lower right")


def _draw_thresholds(axes: "Axes", results: Results) -> None:
    numbers = [one.number for one in results.rounds]
    axes.plot(numbers, [one.t for one in results.rounds], "o-", color=_FOUND)
    axes.set_ylim(bottom=0)
    axes.set_title("Sampling threshold t")
    _rounds(axes, numbers)


def _draw_room(axes: "Axes", results: Results) -> None:
    numbers = [one.number for one in results.rounds]
    axes.plot(
        numbers, [one.capacity for one in results.rounds], "_--", color=_ROOM, label="room for"
    )
    for state, marker, filled in (("decoded", "o", True), ("undecoded", "X", False)):
        told = [one for one in results.rounds if one.state == state and one.distinct is not None]
        if told:
            axes.scatter(
                [one.number for one in told],
                [one.distinct or 0.0 for one in told],
                marker=marker,
                color=_FOUND if filled else _TRUE,
                zorder=3,
                label="in the sum" if filled else "estimated, not decoded",
            )
    axes.set_ylim(bottom=0)
    axes.set_title("Distinct items in the table")
    axes.legend(loc="lower right", ncols=2)
    _rounds(axes, numbers)


def _draw_seconds(axes: "Axes", results: Results) -> None:
    numbers = [one.number for one in results.rounds]
    below = [0.0] * len(numbers)
    for phase, colour in zip(phases("active"), _PHASES, strict=True):
        if phase not in phases(results.mode):
            continue
        seconds = [one.seconds.get(phase, 0.0) for one in results.rounds]
        axes.bar(numbers, seconds, 0.6, bottom=below, color=colour, label=phase)
        below = [one + more for one, more in zip(below, seconds, strict=True)]
    axes.set_ylim(top=max([*below, 0.1]) * 1.45)
    axes.set_title("Seconds by phase")
    axes.legend(
        loc="upper center", ncols=len(_PHASES), handlelength=1, columnspacing=0.8, fontsize=8
    )
    axes.set_xlabel("round")
    _rounds(axes, numbers)


def _rounds(axes: "Axes", numbers: list[int]) -> None:
    axes.set_xticks(numbers if len(numbers) <= 20 else numbers[:: len(numbers) // 10])
    axes.grid(axis="y", color=_FAINT, linewidth=0.6)
    axes.set_axisbelow(True)

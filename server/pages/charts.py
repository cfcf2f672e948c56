"""What is drawn: series for uPlot as JSON in an attribute, and sparklines as points of SVG.

Each chart says in words what it shows, for whoever does not see it; the figures themselves are
in the table of rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from protocol.messages import StudyView
from server.pages.history import Load, Past
from server.pages.words import items_of, short
from server.store.progress import Step

Values: TypeAlias = Sequence[float | None]
_LINES: Final = 5  # items in one picture
_WIDTH, _HEIGHT, _EDGE = 96.0, 24.0, 2.0  # of a sparkline, as its viewBox
_SHOWN = 24  # characters of an item in a legend
WORD_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class Series:
    """One line: a `bound` is dashed, a `band` the edge of a shaded interval."""

    label: str
    values: Values
    style: Literal["line", "bound", "band"] = "line"

    def as_json(self) -> dict[str, object]:
        """Return what the script reads."""
        return {"label": self.label, "values": list(self.values), "style": self.style}


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture with a `title`; `x` are rounds, or values of a domain."""

    name: str
    title: str
    x: Sequence[float]
    series: Sequence[Series]
    x_label: str = "round"
    scale: Literal["linear", "log", "share"] = "linear"
    note: str = ""
    words: str = field(default="")

    @property
    def data(self) -> dict[str, object]:
        """Return what the script reads."""
        return {
            "x": list(self.x),
            "xLabel": self.x_label,
            "scale": self.scale,
            "series": [one.as_json() for one in self.series],
        }

    @property
    def said(self) -> str:
        """Return the picture in words."""
        return self.words or "; ".join(_said(one) for one in self.series)


def _said(series: Series) -> str:
    known = [value for value in series.values if value is not None]
    if not known:
        return f"{series.label}: nothing yet"
    if len(set(known)) == 1:
        return f"{series.label}: {short(known[0])}"
    ends = f"from {short(known[0])} to {short(known[-1])}"
    return f"{series.label}: {ends}, at most {short(max(known))}"


def of_rounds(study: StudyView, steps: Sequence[Step], loads: Mapping[int, Load]) -> list[Chart]:
    """Return the charts of what rounds asked and held; none of a single round."""
    if not steps or study.rounds == 1:
        return []
    x = [step.number for step in steps]
    known = [loads[step.number] for step in steps]
    charts = []
    if any(step.t > 1 for step in steps):
        series = [Series("t", [step.t for step in steps])]
        note = "A device keeps an item it holds once with odds 1/t; at 1 it keeps all."
        charts.append(Chart("threshold", "Sampling threshold t", x, series, scale="log", note=note))
    if any(load.room for load in known):
        held = [step.distinct for step in steps]
        room = Series("room in the table", [load.room for load in known], "bound")
        what = items_of(study.question.mechanism)
        series = [Series(f"{what.lower()} in the sum", held), room]
        note = "Above the line a sum cannot be read whole; the next round then samples less."
        charts.append(Chart("capacity", f"{what} and capacity", x, series, note=note))
    words = [load.nbytes / WORD_BYTES for load in known]
    series = [Series("sent by each device", words)]
    if (most := getattr(study.question, "words", None)) is not None:
        series.append(Series("at most, as asked", [most] * len(x), "bound"))
    note = "Words of 16 bits in a device's vector or report, keys and shares not counted."
    charts.append(Chart("words", "Words per device", x, series, note=note))
    return charts


def of_counts(study: StudyView, items: Sequence[str], past: Past | None) -> Chart | None:
    """Return how the estimates of the most frequent items grew, if they did and it is known."""
    if past is None or not past.rounds or not items or study.rounds == 1:
        return None
    series = [Series(_cut(item), past.of(item)) for item in items[:_LINES]]
    bound = [study.question.threshold] * len(past.rounds)
    series.append(Series("threshold", bound, "bound"))
    note = "What all rounds so far say together, for the most frequent items."
    return Chart("counts", "Estimated counts so far", past.rounds, series, note=note)


def _cut(item: str) -> str:
    return item if len(item) <= _SHOWN else item[: _SHOWN - 1] + "…"


@dataclass(frozen=True, slots=True)
class Spark:
    """A small line: `points` for SVG's polyline, where it ends, and the same in `words`."""

    points: str
    x: float
    y: float
    words: str


def spark(values: Values) -> Spark | None:
    """Return a sparkline from zero to the greatest of `values`, None if there is nothing to draw.

    It begins where the first of them is known.
    """
    known = [(place, value) for place, value in enumerate(values) if value is not None]
    if not known:
        return None
    most = max(1e-9, *(value for _, value in known))
    step = (_WIDTH - 2 * _EDGE) / max(len(values) - 1, 1)
    points = [
        (_EDGE + place * step, _HEIGHT - _EDGE - (_HEIGHT - 2 * _EDGE) * max(value, 0) / most)
        for place, value in known
    ]
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    told = ", ".join(short(value) for _, value in known[-_LINES:])
    return Spark(drawn, *points[-1], told)

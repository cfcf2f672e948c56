"""The charts of a study's page: sampling thresholds, capacities and sizes by round."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from protocol.api.messages import StudyView
from server.db.repositories.studies.progress import RoundSummary
from server.pages.charts.drawing import Chart, Series
from server.pages.charts.round_history import RoundSize
from server.pages.formatting import items_label
from server.pages.rendering import DrawnChart, draw_chart

_Rounds: TypeAlias = Sequence[RoundSummary]
_Sizes: TypeAlias = Mapping[int, RoundSize]  # by the number of a round


def round_charts(study: StudyView, rounds: _Rounds, sizes: _Sizes) -> list[DrawnChart]:
    """Return the charts of sampling thresholds, capacities and sizes; none for a single round."""
    if not rounds or study.rounds == 1:
        return []
    charts: dict[str, Callable[[StudyView, _Rounds, _Sizes], Chart | None]] = {
        "Sampling threshold t": _threshold_chart,
        "Capacity": _capacity_chart,
        "Bytes per device": _size_chart,
    }
    drawn = (
        draw_chart(study.id, title, partial(make, study, rounds, sizes))
        for title, make in charts.items()
    )
    return [chart for chart in drawn if chart is not None]


def _threshold_chart(_study: StudyView, rounds: _Rounds, _sizes: _Sizes) -> Chart | None:
    thresholds = [summary.sampling_threshold for summary in rounds]
    if max(thresholds) <= 1:
        return None
    return Chart(
        "threshold",
        "Sampling threshold t",
        [summary.number for summary in rounds],
        [Series("t", thresholds)],
        y_label="t",
        scale="log",
        note="A device keeps an item with count 1 with probability 1/t. At t = 1 it keeps all.",
        help_anchor="sampling",
    )


def _capacity_chart(study: StudyView, rounds: _Rounds, sizes: _Sizes) -> Chart | None:
    capacities = [sizes[summary.number].capacity for summary in rounds]
    if not any(capacities):
        return None
    label = items_label(study.question.mechanism)
    series = [
        Series(f"{label.lower()} in the sum", [summary.distinct for summary in rounds]),
        Series("capacity of the table", capacities, "bound"),
    ]
    return Chart(
        "capacity",
        f"{label} and capacity",
        [summary.number for summary in rounds],
        series,
        y_label="items in a sum",
        note="Above the capacity a sum cannot be decoded; then the next round samples less.",
        help_anchor="capacity",
    )


def _size_chart(study: StudyView, rounds: _Rounds, sizes: _Sizes) -> Chart:
    sent = [float(sizes[summary.number].sent_bytes) for summary in rounds]
    series = [Series("message of each device", sent)]
    if (most := getattr(study.question, "message_bytes", None)) is not None:
        series.append(Series("limit of the question", [most] * len(sent), "bound"))
    return Chart(
        "bytes",
        "Bytes per device",
        [summary.number for summary in rounds],
        series,
        y_label="bytes in a round",
        help_anchor="message-bytes",
    )

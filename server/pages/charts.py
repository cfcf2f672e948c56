"""The charts of a study's page: counts, sampling thresholds, capacities and sizes by round."""

from collections.abc import Mapping, Sequence
from typing import Final

from protocol.api.messages import StudyView
from protocol.question_and_plan import WORD_BITS
from server.db.repositories.progress import RoundSummary
from server.pages.drawing import Chart, Series
from server.pages.estimate_histories import EstimateHistory, RoundSize
from server.pages.formatting import items_label

_MAX_LINES: Final = 5  # items in one chart
_MAX_LABEL_CHARS = 24  # characters of an item in a legend


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
    label = "in each device's vector" if study.terms.is_one_shot else "sent by each device"
    series = [Series(label, [size.nbytes / word_bytes for size in round_sizes])]
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
    study: StudyView,
    items: Sequence[str],
    history: EstimateHistory | None,
    *,
    is_pending: bool,
) -> Chart | None:
    """Return the chart of the most frequent items' estimates; None if no history is known.

    `is_pending`: further rounds are being read.
    """
    if history is None or not history.rounds or not items or study.rounds == 1:
        return None
    series = [Series(_truncated(item), history.estimates_of(item)) for item in items[:_MAX_LINES]]
    bound = [study.question.threshold] * len(history.rounds)
    series.append(Series("threshold", bound, "bound"))
    note = "Estimates of the most frequent items after each round."
    if is_pending:
        note += " Later rounds are being read: load the page again in a moment."
    return Chart(
        "counts",
        "Estimated counts so far",
        history.rounds,
        series,
        y_label="estimated count",
        note=note,
        help_anchor="estimate",
    )


def _truncated(item: str) -> str:
    return item if len(item) <= _MAX_LABEL_CHARS else item[: _MAX_LABEL_CHARS - 1] + "…"

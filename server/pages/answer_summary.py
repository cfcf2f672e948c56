"""Answer of a study in one sentence, and how good its list is, for the top of its page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from protocol.api.headline import headline
from protocol.api.messages import HeavyHitter, QueryResult, StudyView
from protocol.description import AnswerKind
from protocol.estimation.estimates import ListQuality, missed_text
from protocol.estimation.number_summary import NumberSummary
from protocol.mechanisms.registry import mechanism_of
from protocol.printable import printable
from server.db.repositories.studies.progress import StudyProgress
from server.pages.formatting import share

_MEDIAN = 0.5


@dataclass(frozen=True, slots=True)
class Chip:
    """One number on the quality of a list, its meaning, its term, and what it rests on."""

    value: str
    label: str
    term: str
    sentence: str


def answer_sentence(
    study: StudyView,
    progress: StudyProgress,
    items: Sequence[HeavyHitter],
    numbers: Sequence[NumberSummary],
    quantiles: Sequence[QueryResult],
) -> Markup:
    """Return the answer so far as one sentence of HTML, or why there is none yet."""
    if not progress.decoded_rounds:
        return escape(_no_answer(study, progress))
    median = next((each for each in quantiles if each.at == _MEDIAN), None)
    first = numbers[0] if numbers else None
    result = headline(study.question, progress.devices, items, first, median)
    if result is None:
        return escape("The sums have no answer to show yet.")
    item = Markup('<bdi class="item">{}</bdi>').format(printable(result.item))
    return escape(result.template).format(item=item)


def _no_answer(study: StudyView, progress: StudyProgress) -> str:
    is_over = study.state in ("finished", "stopped")
    if progress.summed_rounds:
        return "No sum could be read" + ("." if is_over else " so far.")
    if progress.closed_rounds:
        return "No round has a sum" + ("." if is_over else " so far.")
    if is_over:
        return "No answer: it was stopped before its first round was over."
    devices = f"{study.terms.cohorts * study.terms.minimum:,} devices"
    if study.state == "created":
        return f"Not started: no device was asked yet, and {devices} or more are needed."
    return f"No answer yet: the first round needs {devices} or more."


def quality_chips(study: StudyView, quality: ListQuality | None) -> Iterator[Chip]:
    """Yield the expected precision, the expected recall, and the number of missed items."""
    kind = mechanism_of(study.question).answer_kind(study.question)
    if quality is None or kind is not AnswerKind.ITEMS:
        return
    least = f"{study.question.threshold:,g}"
    precision, recall = quality.expected_precision, quality.expected_recall
    if precision is not None and recall is not None:
        yield Chip(
            share(precision),
            "of the list is right",
            "expected precision",
            f"The other listed items are probably held less than {least} times. Items whose "
            "strings are not known count as wrong.",
        )
        yield Chip(
            share(recall),
            "of what is common is listed",
            "expected recall",
            f"The expected share of items that are held {least} times or more and are listed.",
        )
    yield Chip(
        missed_text(quality.expected_missed),
        "common items are not listed",
        "expected number missed",
        f"So many items are expected to be held {least} times or more and are not listed.",
    )

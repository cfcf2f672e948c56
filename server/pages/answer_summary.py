"""Question and answer of a study in sentences, and how good its list is, for its page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup, escape

from protocol.api.headline import headline, known_digits
from protocol.api.messages import HeavyHitter, StudyView
from protocol.description import AnswerKind
from protocol.domains.numeric import NumericInterval
from protocol.estimation.estimates import ListQuality, missed_text
from protocol.estimation.number_summary import NumberSummary
from protocol.mechanisms.registry import REPORT_MECHANISMS, mechanism_of
from protocol.printable import printable
from server.api.answers.question_differences import domain_in_words
from server.db.repositories.studies.progress import StudyProgress
from server.pages.answers import DistributionSummary, ItemTable, UnlistedItems
from server.pages.formatting import share

_MAX_ITEM_CHARS = 80  # of the most common item in the sentence; the list has it whole

_ANSWER_TITLES: Final = {
    AnswerKind.DISTRIBUTION: "Distribution",
    AnswerKind.MEANS: "Means",
    AnswerKind.NUMBER: "Answer",
}


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
    distribution: DistributionSummary | None,
    unlisted: UnlistedItems | None,
) -> Markup:
    """Return the answer so far as one sentence of HTML, or why there is none yet."""
    if not progress.decoded_rounds:
        return escape(_no_answer(study, progress))
    median = distribution.median if distribution else None
    first = numbers[0] if numbers else None
    least = unlisted.least if unlisted else None
    result = headline(study.question, progress.devices, items, first, median, least)
    if result is None:
        return escape("The sums have no answer to show yet.")
    item = printable(result.item)
    item = item if len(item) <= _MAX_ITEM_CHARS else f"{item[: _MAX_ITEM_CHARS - 1]}…"
    marked = Markup('<bdi class="item">{}</bdi>').format(item)
    so_far = "So far: " if study.state == "running" else ""
    return escape(so_far + result.template).format(item=marked)


def _error_chip(of: str, low: float, high: float) -> Chip:
    ends = f"{known_digits(low, low, high)} to {known_digits(high, low, high)}"
    return Chip(
        f"± {(high - low) / 2:.2g}",
        f"error of {of}",
        f"95% interval: {ends}",
        f"With a probability of 95%, {of} is from {ends}.",
    )


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


def quality_chips(
    study: StudyView,
    quality: ListQuality | None,
    items: Sequence[HeavyHitter],
    numbers: Sequence[NumberSummary],
    distribution: DistributionSummary | None,
) -> Iterator[Chip]:
    """Yield the errors of numbers, or the expected precision, recall and missed items of a list."""
    kind = mechanism_of(study.question).answer_kind(study.question)
    if distribution:
        yield _error_chip("the median", distribution.median.low, distribution.median.high)
        yield _error_chip("the mean", distribution.mean.low, distribution.mean.high)
        if distribution.histogram:
            yield Chip(
                f"± {share(distribution.histogram.bar_error)}",
                "error of each bar",
                "of all devices",
                "With a probability of 95% a bar is at most so far from the share of all devices. "
                "Noise for privacy is included.",
            )
    if numbers:
        yield _error_chip("the mean", numbers[0].mean_low, numbers[0].mean_high)
    if quality is None and items and (first := items[0]).share is not None:
        low, high = first.share_low or 0.0, first.share_high or 0.0
        if low < high:
            yield Chip(
                f"± {share((high - low) / 2)}",
                "error of the largest share",
                f"95% interval: {share(low)} to {share(high)}",
                "With a probability of 95%, the largest share is in this interval.",
            )
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


def answer_title(study: StudyView, table: ItemTable, unlisted: UnlistedItems | None) -> str:
    """Return the heading above the answer."""
    question = study.question
    kind = mechanism_of(question).answer_kind(question)
    if kind is not AnswerKind.ITEMS:
        return _ANSWER_TITLES[kind]
    if options := mechanism_of(question).options(question):
        return f"All {len(options):,} options"
    least = unlisted.least if unlisted else f"{question.threshold:,g}"
    return (
        f"Items of {least} or more devices"
        if table.has_shares
        else f"Items counted {least} times or more"
    )


def question_in_words(study: StudyView) -> str:
    """Return the question of `study` as some sentences."""
    return " ".join(f"{sentence}." for sentence in _sentences(study))


def _sentences(study: StudyView) -> Iterator[str]:
    question: Any = study.question
    yield mechanism_of(question).aim(question, domain_in_words(question.domain))
    privacy = getattr(question, "epsilon", None)
    if question.mechanism in REPORT_MECHANISMS:
        yield f"Each device adds noise to its one report, with a privacy loss of {privacy:g}"
    elif privacy is not None:
        yield f"The answer is differentially private, with an epsilon of {privacy:g}"
    yield _participation(study)


def _participation(study: StudyView) -> str:
    question, terms = study.question, study.terms
    most = "one item" if question.contribution == 1 else f"at most {question.contribution:,} items"
    if isinstance(question.domain, NumericInterval):
        most = "one number"
    devices = f"at most {terms.max_devices:,} devices"
    if study.rounds == 1:
        return f"There is one round of {devices}; a device gives {most}"
    part = "every round" if question.asks_every_round else "one of them"
    rounds = f"There are {study.rounds:,} rounds of {devices}"
    return f"{rounds}; a device takes part in {part}, and gives {most}"

"""Question of a study in words: what it finds, among which items, and what each device gives."""

from collections.abc import Iterator
from typing import Any, Final

from protocol.api.messages import StudyView
from protocol.domains import Domain
from protocol.domains.hashed import Hashed, HashedProduct
from protocol.domains.numeric import NumericInterval
from protocol.domains.product import Product
from protocol.domains.strings import Alphabet, Listed, Utf8
from protocol.mechanisms.registry import REPORT_MECHANISMS
from server.pages.formatting import significant

_COUNTING_MECHANISMS: Final = ("count-median", "count-sketch")  # of each item of a domain


def question_in_words(study: StudyView) -> str:
    """Return the question of `study` as some sentences."""
    return " ".join(f"{sentence}." for sentence in _sentences(study))


def _sentences(study: StudyView) -> Iterator[str]:
    question: Any = study.question
    yield _aim(question)
    privacy = getattr(question, "epsilon", None)
    if question.mechanism in REPORT_MECHANISMS:
        yield f"Each device adds noise to its one report, with a privacy loss of {privacy:g}"
    elif privacy is not None:
        yield f"The answer is differentially private, with an epsilon of {privacy:g}"
    yield _participation(study)


def _aim(question: Any) -> str:  # noqa: ANN401 - of any mechanism
    items = domain_in_words(question.domain)
    if question.mechanism == "number-sums":
        return f"Finds the mean and the variance of {items}"
    if question.mechanism == "hierarchical-histogram":
        return f"Finds the distribution of {items}"
    if question.mechanism == "triehh":
        return f"Finds the common ones among {items}"
    total = f"a total of {question.threshold:,.6g} or more"
    if question.mechanism in _COUNTING_MECHANISMS or isinstance(question.domain, Listed):
        return f"Counts {items}, and lists those with {total}"
    return f"Finds {items} with {total}"


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


def domain_in_words(domain: Domain) -> str:
    """Return the items of a domain, as a noun phrase in the plural."""
    match domain:
        case HashedProduct():
            return f"texts of up to {domain.max_bytes:,} bytes in {_segments(domain.segments)}"
        case Hashed() | Utf8():
            return f"texts of up to {domain.max_bytes:,} bytes"
        case Alphabet():
            length = f"up to {domain.length:,}" if domain.pad else f"{domain.length:,}"
            return f"strings of {length} characters from an alphabet of {len(domain.characters):,}"
        case Listed():
            return f"{len(domain.items):,} listed items"
        case NumericInterval():
            return f"numbers from {significant(domain.low)} to {significant(domain.high)}"
        case Product():
            return f"{domain_in_words(domain.inner)} in {_segments(domain.segments)}"


def _segments(segments: tuple[str, ...]) -> str:
    return f"{len(segments):,} {'segment' if len(segments) == 1 else 'segments'}"

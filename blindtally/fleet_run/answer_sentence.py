"""Answer of a finished study as a few sentences, for people who do not know its mechanism."""

from collections.abc import Iterator, Sequence

from blindtally.fleet_run.results import RoundResult
from client.analyst.analyst import Study
from protocol.api.headline import headline
from protocol.api.messages import HeavyHitter
from protocol.description import AnswerKind
from protocol.mechanisms.registry import mechanism_of


def answer_sentences(
    study: Study, rows: Sequence[HeavyHitter], rounds: Sequence[RoundResult]
) -> Iterator[str]:
    """Yield the answer, and the sums that the server saw.

    `rows` are the heavy hitters of the study.
    """
    question = study.view.question
    kind = mechanism_of(question).answer_kind(question)
    # A sum with vectors of people is not compared, so it is neither exact nor false.
    sums = [each.participants for each in rounds if each.exact is not False]
    devices = sum(sums)
    if not sums:
        yield "There is no answer, because no round has a sum."
    elif rows or kind is not AnswerKind.ITEMS:
        numbers = study.numbers()[0] if kind is AnswerKind.MEANS else None
        median = study.quantiles([0.5])[0] if kind is AnswerKind.DISTRIBUTION else None
        yield str(headline(question, devices, rows, numbers, median))
    seen = f"{len(sums)} sums, each of {min(sums)} devices or more" if sums else "no sum"
    if len(sums) == 1:
        seen = f"one sum, of {devices:,} devices"
    yield f"The server saw {seen}; it could not see what any one device holds."
    if (epsilon := getattr(question, "epsilon", None)) is not None:
        yield f"Random noise hides each device in this answer too (epsilon {epsilon:g})."

"""Answer of a finished study as a few sentences, for people who do not know its mechanism."""

from collections.abc import Iterator, Sequence

from blindtally.fleet_run.results import RoundResult
from client.analyst.analyst import Study
from protocol.api.messages import HeavyHitter
from protocol.description import AnswerKind
from protocol.mechanisms.registry import mechanism_of
from protocol.printable import printable


def answer_sentences(
    study: Study, rows: Sequence[HeavyHitter], rounds: Sequence[RoundResult]
) -> Iterator[str]:
    """Yield the answer, and the sums that the server saw.

    `rows` are the heavy hitters of the study. Each device counts an item once at most.
    """
    question = study.view.question
    kind = mechanism_of(question).answer_kind(question)
    sums = [each.participants for each in rounds if each.exact]
    devices = sum(sums)
    if not sums:
        yield "There is no answer, because no round has a sum."
    elif kind is AnswerKind.MEANS:
        numbers = study.numbers()[0]
        yield (
            f"The mean of the numbers of {numbers.devices:,} devices is {numbers.mean:.4g}, and "
            f"their sum is {numbers.sum:,.6g} (each rounded by up to {numbers.rounding:.2g})."
        )
    elif kind is AnswerKind.DISTRIBUTION:
        middle = study.quantiles([0.5])[0]
        yield (
            f"Half of {devices:,} devices have {middle.value:.3g} or less. The true median is "
            f"between {middle.low:.3g} and {middle.high:.3g} with 95% confidence."
        )
    elif rows:
        first, others = rows[0], len(rows) - 1
        about = "about " if first.standard_error >= 0.5 else ""
        more = f", and {others:,} more at {question.threshold:g} or more" if others else ""
        share = first.estimate / devices
        yield (
            f"{printable(first.item)} was counted at {about}{first.estimate:,.0f} of {devices:,} "
            f"devices ({share:.0%}){more}."
        )
    seen = f"{len(sums)} sums, each of {min(sums)} devices or more" if sums else "no sum"
    if len(sums) == 1:
        seen = f"one sum, of {devices:,} devices"
    yield f"The server saw {seen}; it could not see what any one device holds."
    if (epsilon := getattr(question, "epsilon", None)) is not None:
        yield f"Random noise hides each device in this answer too (epsilon {epsilon:g})."

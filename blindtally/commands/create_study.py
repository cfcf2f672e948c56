"""`blindtally studies create`: a study from options, with warnings of possible mistakes."""

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from blindtally.console.errors import exit_with_error
from blindtally.console.options import (
    DEFAULT_URL,
    ApiKeyOption,
    ContributionOption,
    StopAtOption,
    UrlOption,
    complete_mechanism,
    parse_field,
    parse_words,
)
from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.terminal import print_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from protocol.api.messages import StudyView
    from protocol.committee_terms import AnyCommitteeTerms
    from protocol.mechanisms.registry import AnyQuestion


def create_study(
    name: Annotated[str, Argument(help="Name of the study, for people.")],
    devices: Annotated[int, Option(min=3, help="Largest number of devices in a round.")],
    threshold: Annotated[float, Option(help="Total count from which an item is heavy.")],
    mechanism: Annotated[
        str,
        Option(
            help="Mechanism; `blindtally mechanisms` lists them.",
            autocompletion=complete_mechanism,
        ),
    ] = "tracked",
    rounds: Annotated[
        int | None,
        Option(
            min=1,
            help="Largest number of rounds.",
            show_default="5; for triehh, those that the longest strings need",
        ),
    ] = None,
    contribution: ContributionOption = 1,
    words: Annotated[
        int | None,
        Option(
            parser=parse_words,
            metavar="NUMBER|auto",
            help="16-bit words that a device sends in a round. With auto, a simulation chooses the "
            "words of tracked.",
            show_default="auto for tracked",
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            help="Field of the mechanism's question as JSON, such as "
            'domain={"kind": "hashed", "max_bytes": 200} or epsilon=1; repeatable.',
        ),
    ] = None,
    cohorts: Annotated[
        int | None, Option(min=1, help="Cohorts of a round.", show_default="1 per 1,000 devices")
    ] = None,
    registrar: Annotated[
        str | None,
        Option(help="Public key of the registrar; without it, most devices refuse a sum."),
    ] = None,
    member: Annotated[
        list[str] | None,
        Option(
            metavar="KEY",
            help="Public key of a committee's member, repeatable: devices then send one message "
            "each, and the members open the sum (`blindtally member`).",
        ),
    ] = None,
    volunteers: Annotated[
        int | None,
        Option(
            min=3,
            help="Number of devices that volunteer in each round, of which the registrar draws a "
            "committee of --committee-size (`blindtally seat`).",
        ),
    ] = None,
    committee_size: Annotated[
        int | None,
        Option(
            min=3,
            help="Number of members of a committee of volunteers, or the largest number of members "
            "of one of operators.",
            show_default="all operators",
        ),
    ] = None,
    population: Annotated[
        str | None, Option(help="Population whose privacy budget the study uses.")
    ] = None,
    stop_at: StopAtOption = None,
    draft: Annotated[bool, Option("--draft", help="Do not start the study.")] = False,
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
    json_path: JsonOption = None,
) -> None:
    """Create a study, start it, and print its id.

    Without --words, a simulation of some seconds, or of a minute for large studies, chooses the
    words with which `tracked` reaches an F1 of 0.95, and states them.

    Example:
      blindtally studies create words --devices 200 --threshold 20 --words auto
      blindtally studies create ages --devices 1000 --threshold 50 --draft
    """
    from blindtally.console.service_connection import open_analyst
    from protocol.mechanisms.quality_goal import parse_goal
    from protocol.question_and_plan import AUTO_WORDS

    fields: dict[str, Any] = {"threshold": threshold, "contribution": contribution}
    if words is not None:
        fields["words"] = words
    try:
        fields |= dict(map(parse_field, sets or []))
        goal = parse_goal(stop_at)
        question = _question(mechanism, fields)
        committee = _committee(member, volunteers, committee_size)
    except ValueError as error:
        raise exit_with_error(error) from None
    if getattr(question, "words", None) == AUTO_WORDS:
        print_line("choosing the words by simulation", err=True)
    with open_analyst(url, key) as analyst:
        study = analyst.create(
            name,
            question,
            devices=devices,
            cohorts=cohorts,
            registrar=registrar,
            committee=committee,
            rounds=rounds,
            population=population,
            stop_at=goal,
            start=not draft,
        )
        if study.words_reason:
            print_line(f"chose {study.words_reason}", err=True)
        for warning in _warnings(study.view):
            print_line(warning, err=True)
    if json_path != "-":
        print_line(study.id)
        print_line(f"{study.state}; see `blindtally studies show {study.id}`", err=True)
    write_json(json_path, study.view.model_dump(mode="json"))


def _warnings(view: "StudyView") -> "Iterator[str]":
    """Yield a sentence for each setting of a study that is allowed, and perhaps a mistake."""
    from random import Random

    from protocol.api.plan_check import default_refusals
    from protocol.mechanisms.registry import mechanism_of

    mechanism = mechanism_of(view.question)
    plan = mechanism.first_plan(view.question, view.terms, view.id, view.rounds, Random(0))
    needed = mechanism.rounds_needed(view.question)
    if needed is not None and view.rounds < needed:
        needed_rounds = f"the longest strings need {needed} rounds"
        yield f"{needed_rounds}: with {view.rounds}, only shorter ones are found"
    for refusal in default_refusals(plan):
        yield f"devices with default settings refuse the study: it {refusal.reason}"


def _committee(
    operators: list[str] | None, volunteers: int | None, size: int | None
) -> "AnyCommitteeTerms | None":
    """Return the committee of a one-shot sum, None for a pairwise sum.

    Raises:
        ValueError: if the options name no committee, or two, or one that cannot be safe.
    """
    from protocol.committee_terms import CommitteeTerms, VolunteerTerms

    if operators and volunteers is not None:
        raise ValueError("a committee has operators or volunteers: leave out one of them")
    if operators:
        return CommitteeTerms(members=tuple(operators), size=size)
    if volunteers is not None and size is not None:
        return VolunteerTerms(volunteers=volunteers, size=size)
    if volunteers is not None or size is not None:
        raise ValueError("pass --committee-size with --volunteers, or with each --member")
    return None


def _question(mechanism: str, fields: dict[str, Any]) -> "AnyQuestion":
    """Return the question of `mechanism` with `fields`; `tracked` has the words "auto" by default.

    Raises:
        ValueError: if the mechanism does not exist, or a field is missing or invalid.
    """
    from difflib import get_close_matches

    from blindtally.console.mechanism_catalogue import unknown_mechanism
    from protocol.mechanisms.registry import MECHANISMS, parse_question
    from protocol.question_and_plan import AUTO_WORDS

    if mechanism not in MECHANISMS:
        raise ValueError(unknown_mechanism(mechanism))
    defaults = MECHANISMS[mechanism].description.defaults
    if fields.get("words") == AUTO_WORDS and "words" not in defaults:
        raise ValueError(f"the words of {mechanism} cannot be simulated: pass a number")
    fields = {**defaults, **fields}
    known = _question_fields(mechanism)
    for name in fields:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
            raise ValueError(f"{mechanism} has no field {name!r}: {hint}")
    return parse_question({"mechanism": mechanism} | fields)


def _question_fields(mechanism: str) -> list[str]:
    """Return the names of the fields of a question, but not `mechanism`."""
    from protocol.mechanisms.registry import MECHANISMS

    fields = MECHANISMS[mechanism].question_type.model_fields
    return [name for name in fields if name != "mechanism"]

"""`blindtally studies create`: a study from options, with warnings of possible mistakes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Argument, Option

from blindtally.console.errors import exit_with_error
from blindtally.console.field_options import FieldOptions, parse_field, unknown_field
from blindtally.console.options import (
    DEFAULT_URL,
    ApiKeyOption,
    UrlOption,
    complete_mechanism,
    parse_words,
)
from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.terminal import print_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from protocol.api.messages import StudyView
    from protocol.committee_terms import AnyCommitteeTerms
    from protocol.mechanisms.registry import AnyQuestion


_COMMITTEE_FIELDS: Final = ("member", "volunteers", "committee_size")


class StudyOptions(FieldOptions):
    """The command, with the fields of questions and of the committee as options."""

    def field_types(self) -> Mapping[str, object]:
        from blindtally.console.mechanism_catalogue import question_field_types

        return question_field_types() | dict.fromkeys(_COMMITTEE_FIELDS, object)


def create_study(
    name: Annotated[str, Argument(help="Name of the study, for people.")],
    devices: Annotated[
        int, Option(min=3, metavar="NUMBER", help="Largest number of devices in a round, from 3.")
    ],
    threshold: Annotated[float, Option(help="Total count from which an item is heavy.")],
    mechanism: Annotated[
        str,
        Option(
            help="Mechanism; `blindtally mechanisms` lists them.", autocompletion=complete_mechanism
        ),
    ] = "tracked",
    rounds: Annotated[
        int | None,
        Option(
            min=1,
            metavar="NUMBER",
            help="Largest number of rounds.",
            show_default="5; for triehh, those that the longest strings need",
        ),
    ] = None,
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
            help="Field of the mechanism's question as JSON, such as contribution=2 or "
            'domain={"kind": "hashed", "max_bytes": 200}; or of the committee of one-shot sums: '
            "member=KEY, volunteers or committee_size (docs/cli.md). Repeatable; each is an "
            "option, too: --epsilon 1.",
        ),
    ] = None,
    cohorts: Annotated[
        int | None,
        Option(
            min=1, metavar="NUMBER", help="Cohorts of a round.", show_default="1 per 1,000 devices"
        ),
    ] = None,
    registrar: Annotated[
        str | None,
        Option(help="Public key of the registrar; without it, most devices refuse a sum."),
    ] = None,
    population: Annotated[
        str | None, Option(help="Population whose privacy budget the study uses.")
    ] = None,
    stop_at: Annotated[
        str | None,
        Option(
            metavar="PRECISION,RECALL",
            help="Expected precision and recall of the list, such as 0.95,0.9, at which the study "
            "ends before its last round. The true values can be lower, above all if the list is "
            "short.",
        ),
    ] = None,
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

    fields: dict[str, Any] = {"threshold": threshold, "contribution": 1}
    if words is not None:
        fields["words"] = words
    try:
        pairs = [*map(parse_field, sets or [])]
        fields |= {name: value for name, value in pairs if name not in _COMMITTEE_FIELDS}
        goal = parse_goal(stop_at)
        question = _question(mechanism, fields)
        committee = _committee(pairs)
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

    from protocol.api.unlisted import why_nothing_can_be_listed
    from protocol.device_policy.plan_check import default_refusals
    from protocol.mechanisms.registry import mechanism_of

    mechanism = mechanism_of(view.question)
    plan = mechanism.first_plan(view.question, view.terms, view.id, view.rounds, Random(0))
    needed = mechanism.rounds_needed(view.question)
    if needed is not None and view.rounds < needed:
        needed_rounds = f"the longest strings need {needed} rounds"
        yield f"{needed_rounds}: with {view.rounds}, only shorter ones are found"
    if reason := why_nothing_can_be_listed(plan):
        yield reason
    for refusal in default_refusals(plan):
        yield f"devices with default settings refuse the study: it {refusal.reason}"


def _committee(pairs: list[tuple[str, Any]]) -> "AnyCommitteeTerms | None":
    """Return the committee of a one-shot sum, None for a pairwise sum.

    Raises:
        ValueError: if the `pairs` name no committee, or two, or one that cannot be safe.
    """
    from protocol.committee_terms import CommitteeTerms, VolunteerTerms

    operators = [value for name, value in pairs if name == "member"]
    volunteers, size = (dict(pairs).get(name) for name in ("volunteers", "committee_size"))
    if operators and volunteers is not None:
        raise ValueError("a committee has operators or volunteers: leave out one of them")
    if operators:
        return CommitteeTerms.model_validate({"members": operators, "size": size})
    if volunteers is not None and size is not None:
        return VolunteerTerms.model_validate({"volunteers": volunteers, "size": size})
    if volunteers is not None or size is not None:
        raise ValueError("pass --committee-size with --volunteers, or with each --member")
    return None


def _question(mechanism: str, fields: dict[str, Any]) -> "AnyQuestion":
    """Return the question of `mechanism` with `fields`; `tracked` has the words "auto" by default.

    Raises:
        ValueError: if the mechanism does not exist, or a field is missing or invalid.
    """
    from blindtally.console.mechanism_catalogue import unknown_mechanism
    from protocol.mechanisms.registry import MECHANISMS, parse_question
    from protocol.question_and_plan import AUTO_WORDS

    if mechanism not in MECHANISMS:
        raise ValueError(unknown_mechanism(mechanism))
    defaults = MECHANISMS[mechanism].description.defaults
    if fields.get("words") == AUTO_WORDS and "words" not in defaults:
        raise ValueError(f"the words of {mechanism} cannot be simulated: pass a number")
    fields = {**defaults, **fields}
    known = sorted(MECHANISMS[mechanism].question_type.model_fields.keys() - {"mechanism"})
    for name in fields:
        if name not in known:
            raise ValueError(unknown_field(mechanism, name, known))
    return parse_question({"mechanism": mechanism} | fields)

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
    parse_size,
)
from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.terminal import print_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from protocol.api.messages import StudyView
    from protocol.committee_terms import AnyCommitteeTerms
    from protocol.mechanisms.registry import AnyQuestion
    from protocol.question_and_plan import Terms


_COMMITTEE_FIELDS: Final = ("member", "volunteers", "committee_size")
# Rare settings of the study, not of its question.
_STUDY_FIELDS: Final = {
    "cohorts": int,
    "population": str,
    "stop_at": str,
    "draft": bool,
    "tags": str,
    "webhook": str,
}


class StudyOptions(FieldOptions):
    """The command, with the fields of questions and of the committee as options."""

    def field_types(self) -> Mapping[str, object]:
        from blindtally.console.mechanism_catalogue import question_field_types

        return question_field_types() | dict.fromkeys(_COMMITTEE_FIELDS, object) | _STUDY_FIELDS


def create_study(
    name: Annotated[str, Argument(help="Name of the study, for people.")],
    devices: Annotated[
        int, Option(min=3, metavar="NUMBER", help="Largest number of devices in a round.")
    ],
    threshold: Annotated[float, Option(help="Total count from which an item is heavy.")],
    numbers: Annotated[
        str | None, Option(metavar="LOW:HIGH", help="Numbers, such as 0:100, for their mean.")
    ] = None,
    strings: Annotated[
        int | None, Option(min=1, metavar="BYTES", help="Strings of up to this number of bytes.")
    ] = None,
    options: Annotated[
        str | None, Option(metavar="A,B,C", help="Answers to choose from, all of which are shown.")
    ] = None,
    private: Annotated[
        float | None,
        Option(
            min=1e-6,
            metavar="EPSILON",
            help="Privacy loss of a device, by noise. Devices accept up to 4 by default.",
            show_default="exact sums",
        ),
    ] = None,
    mechanism: Annotated[
        str | None,
        Option(
            help="Mechanism; `blindtally mechanisms` lists them.",
            show_default="that of the items, or tracked",
            autocompletion=complete_mechanism,
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        Option(
            min=1,
            metavar="NUMBER",
            help="Largest number of rounds.",
            show_default="5; for triehh, those that the longest strings need",
        ),
    ] = None,
    message_bytes: Annotated[
        int | None,
        Option(
            parser=parse_size,
            metavar="NUMBER|auto",
            help="Largest message of a device in a round: its vector and key shares. With auto, a "
            "simulation chooses it for tracked.",
            show_default="auto for tracked, else the fewest",
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            help="Field of the mechanism's question as JSON, such as contribution=2; of the study: "
            "cohorts, population, stop_at=PRECISION,RECALL, tags=A,B, webhook=URL or draft=true; "
            "or of the committee of one-shot sums: member=KEY, volunteers or committee_size "
            "(docs/cli.md). Repeatable; each is an option, too: --cohorts 2.",
        ),
    ] = None,
    registrar: Annotated[
        str | None,
        Option(
            help="Public key of the registrar, as `blindtally registrar create` prints it; without "
            "it, most devices refuse a sum."
        ),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
    json_path: JsonOption = None,
) -> None:
    r"""Create a study, start it, and print its id.

    Name what devices hold: --numbers, --strings or --options. A simulation of some
    seconds, or of a minute for large studies, chooses the --message-bytes with which `tracked`
    reaches an F1 of 0.95, unless you pass them, and states them. --stop-at is a goal of expected
    precision and recall, and --population has a privacy budget.

    Example:
      blindtally registrar create registrar.key
      blindtally studies create \
       pets --devices 900 --threshold 90 --options a,b --registrar KEY
      blindtally studies create \
       age --devices 900 --threshold 90 --numbers 0:99 --private 1 --registrar KEY
    """
    from blindtally.console.presets import preset_fields
    from blindtally.console.service_connection import open_analyst
    from client.analyst.study_creation import study_terms
    from protocol.mechanisms.quality_goal import parse_goal
    from protocol.question_and_plan import AUTO_BYTES

    fields: dict[str, Any] = {"threshold": threshold, "contribution": 1}
    try:
        pairs = [*map(parse_field, sets or [])]
        # As they were typed: a population may have the name 1e3.
        study = {each.partition("=")[0]: each.partition("=")[2] for each in sets or []}
        fields |= preset_fields(numbers, strings, options, private, mechanism)
        others = {*_COMMITTEE_FIELDS, *_STUDY_FIELDS}
        fields |= {"mechanism": mechanism} if mechanism else {}
        fields |= {"message_bytes": message_bytes} if message_bytes is not None else {}
        fields |= {name: value for name, value in pairs if name not in others}
        goal = parse_goal(study.get("stop_at"))
        cohorts, committee = dict(pairs).get("cohorts"), _committee(pairs)
        terms = study_terms(None, devices, cohorts, registrar, committee)
        question = _question(fields, terms, rounds)
    except ValueError as error:
        raise exit_with_error(error) from None
    epsilon = getattr(question, "epsilon", None)
    if private is not None and epsilon is None:
        raise exit_with_error("--private asks for an epsilon, and the question has none")
    if getattr(question, "message_bytes", None) == AUTO_BYTES:
        print_line("choosing message_bytes by simulation", err=True)
    with open_analyst(url, key) as analyst:
        if private is not None:
            loss = f"epsilon {epsilon:.4g} at delta {getattr(question, 'delta', 0):g}"
            print_line(f"private: {loss}", err=True)
        created = analyst.create(
            name,
            question,
            terms,
            rounds=rounds,
            population=study.get("population"),
            tags=[tag for tag in study.get("tags", "").split(",") if tag],
            stop_at=goal,
            webhook=study.get("webhook"),
            start=study.get("draft") != "true",
        )
        if created.size_reason:
            print_line(f"chose {created.size_reason}", err=True)
        if created.webhook_secret:
            print_line(f"webhook secret, shown only now: {created.webhook_secret}", err=True)
        for warning in _warnings(created.view):
            print_line(warning, err=True)
    if json_path != "-":
        print_line(created.id)
        print_line(f"{created.state}; see `blindtally studies show {created.id}`", err=True)
    is_secret = bool(created.webhook_secret)
    write_json(json_path, created.view.model_dump(mode="json"), is_secret=is_secret)


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


def _question(fields: dict[str, Any], terms: "Terms", rounds: int | None) -> "AnyQuestion":
    """Return the question with `fields`; `tracked` has the size "auto" by default.

    Raises:
        ValueError: if the mechanism does not exist, or a field is missing or invalid.
    """
    from blindtally.console.mechanism_catalogue import unknown_mechanism
    from blindtally.console.presets import fitting_bytes
    from protocol.mechanisms.registry import MECHANISMS, parse_question
    from protocol.question_and_plan import AUTO_BYTES

    mechanism = fields.setdefault("mechanism", "tracked")
    if mechanism not in MECHANISMS:
        raise ValueError(unknown_mechanism(mechanism))
    defaults = MECHANISMS[mechanism].description.defaults
    if fields.get("message_bytes") == AUTO_BYTES and "message_bytes" not in defaults:
        raise ValueError(f"the message_bytes of {mechanism} cannot be simulated: pass a number")
    has_size, domain = "message_bytes" in fields, fields.get("domain")
    options = len(domain.get("items", ())) if isinstance(domain, Mapping) else 0
    fields = {**defaults, **fields}
    known = sorted(MECHANISMS[mechanism].question_type.model_fields)
    for name in fields:
        if name not in known:
            raise ValueError(unknown_field(mechanism, name, known))
    if "message_bytes" in known and not has_size:
        if options:  # a simulation would need assumed texts; a table has room for all options
            fields["message_bytes"] = fitting_bytes(fields, terms, rounds or 1, 2 * options)
        elif "message_bytes" not in fields:
            fields["message_bytes"] = fitting_bytes(fields, terms, rounds or 1)
    return parse_question(fields)

"""`blindtally studies`: the studies of a service, from their creation to their answers."""

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from blindtally.commands.changes import compare_studies
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
from blindtally.console.output_files import (
    JsonOption,
    atomic_write,
    refuse_option_as_path,
    write_json,
)
from blindtally.console.tables import fact_table, key_notes, print_parts, result_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from client.analyst.analyst import Study
    from protocol.api.messages import HeavyHitter, RoundView, StudyView
    from protocol.committee_terms import AnyCommitteeTerms
    from protocol.mechanisms.registry import AnyQuestion

StudyArgument = Annotated[str, Argument(help="Id of the study.")]
_DEFAULT_TOP = 20
_DEFAULT_DOMAIN = {"kind": "hashed", "max_bytes": 64}

studies = typer.Typer(
    name="studies",
    no_args_is_help=True,
    add_completion=False,
    help="Create, watch, read, compare, stop and delete studies.\n\n"
    "Example:\n  blindtally studies list",
)
studies.command("compare")(compare_studies)


@studies.command("list")
def list_studies(
    url: UrlOption = DEFAULT_URL, key: ApiKeyOption = None, json_path: JsonOption = None
) -> None:
    """List all studies, the newest first.

    Example:
      blindtally studies list
    """
    from blindtally.console.service_connection import open_analyst

    with open_analyst(url, key) as analyst:
        views = [study.view for study in analyst.studies()]
    if json_path != "-":
        rows = [[view.id, view.name, view.question.mechanism, *_progress(view)] for view in views]
        table = result_table(["id", "name", "mechanism", "state"], ["round"], rows)
        print_parts(table if rows else "no studies yet: `blindtally studies create` makes one")
    write_json(json_path, {"studies": [view.model_dump(mode="json") for view in views]})


@studies.command("create")
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
        typer.echo("choosing the words by simulation", err=True)
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
        typer.echo(f"chose {study.words_reason}", err=True)
    for warning in _warnings(study.view):
        typer.echo(warning, err=True)
    if json_path != "-":
        typer.echo(study.id)
        typer.echo(f"{study.state}; see `blindtally studies show {study.id}`", err=True)
    write_json(json_path, study.view.model_dump(mode="json"))


def _warnings(view: "StudyView") -> "Iterator[str]":
    """Yield a sentence for each setting of a study that is allowed, and perhaps a mistake."""
    from random import Random

    from protocol.api.device_policy import default_refusals
    from protocol.mechanisms.registry import MECHANISMS

    mechanism = MECHANISMS[view.question.mechanism]
    plan = mechanism.first_plan(view.question, view.terms, view.id, view.rounds, Random(0))
    levels = getattr(view.question, "levels", 0)  # of triehh
    if view.rounds < levels:
        needed = f"the longest strings need {levels} rounds"
        yield f"{needed}: with {view.rounds}, only shorter ones are found"
    for refusal in default_refusals(plan):
        yield f"devices with default settings refuse the study: it {refusal.reason}"


@studies.command("show")
def show_study(
    study: StudyArgument,
    watch: Annotated[
        bool, Option("--watch", help="Print each round when it changes, until the study ends.")
    ] = False,
    top: Annotated[
        int, Option(min=0, max=1000, help="Number of items to show; files have all.")
    ] = _DEFAULT_TOP,
    csv_path: Annotated[
        str | None,
        Option(
            "--csv",
            metavar="PATH",
            help="Write all heavy hitters as CSV; - is stdout.",
            callback=refuse_option_as_path,
        ),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
    json_path: JsonOption = None,
) -> None:
    """Show a study with its rounds and its heavy hitters, or export them.

    Other answers are those of `blindtally query`, `changes` and `privacy`.

    Example:
      blindtally studies show 3f2a0c55d1e9b7a4 --watch
      blindtally studies show 3f2a0c55d1e9b7a4 --csv answer.csv
    """
    from blindtally.console.service_connection import open_analyst

    if "-" in (csv_path, json_path) and csv_path == json_path:
        raise exit_with_error("--csv and --json cannot both be written to standard output")
    is_quiet = "-" in (csv_path, json_path)
    with open_analyst(url, key) as analyst:
        target = analyst.study(study)
        if watch:
            target.wait(_round_printer())
        rounds, rows = list(target.rounds()), list(target.heavy_hitters())
        view = target.refresh()
    if not is_quiet:
        _print_study(view, rounds, rows[:top], len(rows))
    _write_csv(csv_path, rows)
    document = {
        "study": view.model_dump(mode="json"),
        "rounds": [_round_document(each) for each in rounds],
        "heavy_hitters": [row.model_dump(mode="json") for row in rows],
    }
    write_json(json_path, document)


@studies.command("start")
def start_study(
    study: StudyArgument,
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
    json_path: JsonOption = None,
) -> None:
    """Start a study that was created as a draft; a running study does not change.

    Example:
      blindtally studies start 3f2a0c55d1e9b7a4
    """
    _change(study, "start", url, key, json_path)


@studies.command("stop")
def stop_study(
    study: StudyArgument,
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
    json_path: JsonOption = None,
) -> None:
    """Stop a study permanently: its running round fails, and its answer stays.

    Example:
      blindtally studies stop 3f2a0c55d1e9b7a4
    """
    _change(study, "stop", url, key, json_path)


@studies.command("delete")
def delete_study(
    study: StudyArgument,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask.")] = False,
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
) -> None:
    """Delete a study with its answer, and with all that the service has of its devices.

    What it has spent of a population's privacy budget stays spent.

    Example:
      blindtally studies delete 3f2a0c55d1e9b7a4
    """
    from blindtally.console.service_connection import open_analyst

    with open_analyst(url, key) as analyst:
        target: Study = analyst.study(study)
        view = target.refresh()
        if not yes:
            typer.confirm(f"delete {view.name!r} ({view.id}, {view.state}) for ever?", abort=True)
        target.delete()
    typer.echo(f"{view.id} is deleted")


def _change(study: str, action: str, url: str, key: str | None, json_path: str | None) -> None:
    from blindtally.console.service_connection import open_analyst

    with open_analyst(url, key) as analyst:
        target: Study = analyst.study(study)
        view: StudyView = target.start() if action == "start" else target.stop()
    if json_path != "-":
        typer.echo(f"{view.id} is {view.state}")
    write_json(json_path, view.model_dump(mode="json"))


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
    if mechanism == "tracked":
        fields = {"domain": _DEFAULT_DOMAIN, "words": "auto"} | fields
    elif fields.get("words") == AUTO_WORDS:
        raise ValueError(f"only the words of tracked can be chosen: pass a number for {mechanism}")
    known = _question_fields(mechanism)
    for name in fields:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
            raise ValueError(f"{mechanism} has no field {name!r}: {hint}")
    return parse_question({"mechanism": mechanism} | fields)


def _question_fields(mechanism: str) -> list[str]:
    """Return the names of the fields of a question, but not `mechanism`."""
    from typing import get_args

    from protocol.mechanisms.registry import AnyQuestion

    union, *_ = get_args(AnyQuestion)
    (model,) = (
        model
        for model in get_args(union)
        if mechanism in get_args(model.model_fields["mechanism"].annotation)
    )
    return [name for name in model.model_fields if name != "mechanism"]


def _progress(view: "StudyView") -> list[str]:
    return [view.outcome, f"{view.round or 0} of {view.rounds}"]


def _round_printer() -> "Callable[[RoundView], None]":
    """Return a function that prints a line for a round, unless it is that of the last call."""
    last = ""

    def print_round(view: "RoundView") -> None:
        nonlocal last
        devices = "" if view.participants is None else f", {view.participants:,} devices"
        line = f"round {view.number}: {view.state}{devices}"
        if line != last:
            typer.echo(line, err=True)
        last = line

    return print_round


def _print_study(
    view: "StudyView",
    rounds: "Sequence[RoundView]",
    rows: "Sequence[HeavyHitter]",
    total: int,
) -> None:
    state, done = _progress(view)
    facts = {
        "study": f"{view.name} ({view.id})",
        "mechanism": view.question.mechanism,
        "state": f"{state}, round {done}",
    }
    if view.end_reason:
        facts["ended"] = view.end_reason
    table = result_table(
        ["state"],
        ["round", "devices", "distinct items"],
        [
            [each.state, str(each.number), _count(each.participants), _count(each.distinct)]
            for each in rounds
        ],
    )
    answer = result_table(
        ["item"],
        ["estimate", "95% from", "to"],
        [[row.item, *(f"{x:,.0f}" for x in (row.estimate, row.low, row.high))] for row in rows],
    )
    none = "no heavy hitters" if view.end_cause else "no heavy hitters yet"
    more = f"{total - len(rows):,} more: --top {total} shows them, --csv writes them"
    print_parts(
        fact_table(facts),
        *([table] if rounds else []),
        *_failure_reasons(rounds),
        *([answer] if rows else [] if total else [none]),
        *([more] if total > len(rows) else []),
        *key_notes(view.question, (row.item for row in rows)),
    )


def _failure_reasons(rounds: "Sequence[RoundView]") -> list[str]:
    """Return a line for each reason for which cohorts have no sum, with the rounds."""
    numbers = dict[str, list[int]]()
    for view in rounds:
        for reason in dict.fromkeys(cohort.failure for cohort in view.cohorts if cohort.failure):
            numbers.setdefault(reason, []).append(view.number)
    return [
        f"failure in {'rounds' if len(each) > 1 else 'round'} {', '.join(map(str, each))}: {reason}"
        for reason, each in numbers.items()
    ]


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _round_document(view: "RoundView") -> dict[str, Any]:
    """Return a round without its plan, which may list thousands of items."""
    return view.model_dump(mode="json", exclude={"plan"})


def _write_csv(path: str | None, rows: "Sequence[HeavyHitter]") -> None:
    """Write all rows; a spreadsheet shows texts that look like formulas as texts.

    Texts are quoted, because spreadsheets may separate cells by semicolons.

    Raises:
        typer.Exit: if the file cannot be written.
    """
    from client.analyst.requests import HEAVY_HITTER_COLUMNS

    if path is None:
        return
    first, *others = HEAVY_HITTER_COLUMNS
    table = [
        [first, *others],
        *([row.csv_item, *(getattr(row, x) for x in others)] for row in rows),
    ]
    style: dict[str, Any] = {"lineterminator": "\n", "quoting": csv.QUOTE_NONNUMERIC}
    if path == "-":
        csv.writer(sys.stdout, **style).writerows(table)
        return
    with (
        atomic_write(Path(path)) as file,
        file.open("w", encoding="utf-8", newline="") as stream,
    ):
        csv.writer(stream, **style).writerows(table)

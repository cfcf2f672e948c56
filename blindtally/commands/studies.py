"""`blindtally studies`: the studies of a service, from their creation to their answers."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from blindtally.commands.changes import compare_studies
from blindtally.commands.create_study import StudyOptions, create_study
from blindtally.console.options import DEFAULT_URL, ApiKeyOption, UrlOption
from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.tables import fact_table, key_notes, print_parts, result_table
from blindtally.console.terminal import ask, print_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from client.analyst.analyst import Study
    from protocol.api.messages import HeavyHitter, RoundView, StudyView

StudyArgument = Annotated[str, Argument(help="Name or id of the study.")]
_DEFAULT_TOP = 20
_NO_STUDIES = "no studies yet: `blindtally studies create` makes one"

studies = typer.Typer(
    name="studies",
    no_args_is_help=True,
    add_completion=False,
    help="Create, read, compare, stop and delete studies.\n\nExample:\n  blindtally studies list",
)
studies.command("compare")(compare_studies)
studies.command("create", cls=StudyOptions)(create_study)


@studies.command("list")
def list_studies(
    search: Annotated[
        str | None, Option(metavar="TEXT", help="Only those with TEXT in name, question or tags.")
    ] = None,
    tag: Annotated[str | None, Option(help="Only those with this tag.")] = None,
    owner: Annotated[
        str | None, Option(help="Only those of the API key with this name, or of this person.")
    ] = None,
    state: Annotated[
        Literal["created", "running", "finished", "stopped", "failed"] | None,
        Option(help="Only those in this state: created, running, finished, stopped or failed."),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
    json_path: JsonOption = None,
) -> None:
    """List all studies, or those that meet all conditions, the newest first.

    Example:
      blindtally studies list
      blindtally studies list --search domains --state running
    """
    from blindtally.console.service_connection import open_analyst

    filters = {"search": search, "tag": tag, "owner": owner, "state": state}
    with open_analyst(url, key) as analyst:
        views = [study.view for study in analyst.studies(**filters)]
    if json_path != "-":
        rows = [[view.id, view.name, view.question.mechanism, *_progress(view)] for view in views]
        table = result_table(["id", "name", "mechanism", "state"], ["round"], rows)
        none = "no study matches" if any(filters.values()) else _NO_STUDIES
        print_parts(table if rows else none)
    write_json(json_path, {"studies": [view.model_dump(mode="json") for view in views]})


@studies.command("show")
def show_study(
    study: StudyArgument,
    top: Annotated[
        int | None,
        Option(
            min=0,
            max=1000,
            help="Number of items to show.",
            show_default="20, or all options of a list",
        ),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
    json_path: JsonOption = None,
) -> None:
    """Show a study with its rounds and its heavy hitters.

    Other answers are those of `blindtally query`, which also writes files, `changes` and `privacy`.

    Example:
      blindtally studies show 3f2a0c55d1e9b7a4
      blindtally studies show words --top 50
    """
    from blindtally.console.answer_notes import unlisted_counts
    from blindtally.console.service_connection import open_analyst

    with open_analyst(url, key) as analyst:
        target = analyst.study(study)
        # The state is read first: one that is read later may be ahead of the rounds that are shown.
        view = target.refresh()
        rounds, rows = list(target.rounds()), list(target.heavy_hitters())
    if json_path != "-":
        print_study(view, rounds, rows, top)
    unlisted = unlisted_counts(rounds, [row.item for row in rows])
    document = {
        "study": view.model_dump(mode="json"),
        "rounds": [each.model_dump(mode="json", exclude={"plan"}) for each in rounds],
        "heavy_hitters": [row.model_dump(mode="json") for row in rows],
        "unlisted": unlisted,
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


@studies.command("share")
def share_study(
    study: StudyArgument,
    days: Annotated[float, Option(min=0.01, max=3650, help="Days until the link ends.")] = 30.0,
    revoke: Annotated[bool, Option("--revoke", help="End all links to the study.")] = False,
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
    json_path: JsonOption = None,
) -> None:
    """Print a new link at which everybody can read one study without a key, or end all such links.

    Example:
      blindtally studies share words --days 7
      blindtally studies share words --revoke
    """
    from blindtally.console.service_connection import open_analyst

    with open_analyst(url, key) as analyst:
        target: Study = analyst.study(study)
        if revoke:
            target.end_links()
            print_line(f"all links to {target.id} have ended")
            return
        link = target.share(days)
    if json_path != "-":
        print_line(link.url)
        print_line(f"it is valid until {link.expires:%Y-%m-%d %H:%M} UTC", err=True)
    write_json(json_path, link.model_dump(mode="json"), is_secret=True)


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
        # The service refuses to delete a running study, so nobody needs to be asked.
        if not yes and view.state != "running":
            ask(f"delete {view.name!r} ({view.id}, {view.state}) for ever?")
        target.delete()
    print_line(f"{view.id} is deleted")


def _change(study: str, action: str, url: str, key: str | None, json_path: str | None) -> None:
    from blindtally.console.service_connection import open_analyst

    with open_analyst(url, key) as analyst:
        target: Study = analyst.study(study)
        view: StudyView = target.start() if action == "start" else target.stop()
    if json_path != "-":
        print_line(f"{view.id} is {view.state}")
    write_json(json_path, view.model_dump(mode="json"))


def _progress(view: "StudyView") -> list[str]:
    return [view.outcome, f"{view.round or 0} of {view.rounds}"]


def print_study(
    view: "StudyView", rounds: "Sequence[RoundView]", rows: "Sequence[HeavyHitter]", top: int | None
) -> None:
    from blindtally.console.answer_notes import notes_on_list, option_rows
    from protocol.mechanisms.registry import mechanism_of

    if top is None:
        top = max(_DEFAULT_TOP, len(mechanism_of(view.question).options(view.question)))
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
        ["round", "devices", "items shown"],
        [
            [each.state, str(each.number), _count(each.participants), _count(each.distinct)]
            for each in rounds
        ],
    )
    listed = [row.item for row in rows]
    options, more_options = option_rows(rounds, listed, top - len(rows))
    cells = [
        [row.item, *(f"{x:,.0f}" for x in (row.estimate, row.low, row.high))] for row in rows[:top]
    ] + [[*option] for option in options]
    answer = result_table(["item"], ["estimate", "95% from", "to"], cells)
    more = f"{len(rows) - top:,} more: --top {len(rows)} shows them, `query --out` writes them"
    print_parts(
        fact_table(facts),
        *([table] if rounds else []),
        *_failure_reasons(rounds),
        *([answer] if cells else []),
        *([more] if len(rows) > top else []),
        *more_options,
        *notes_on_list(view, rounds, listed),
        *key_notes(view.question, listed[:top]),
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

"""A fleet's run on a terminal: its progress, the answer, and the next steps."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import Any

import typer
from rich.console import Group
from rich.text import Text

from blindtally.console.answer_notes import notes_on_list, option_rows, unlisted_counts
from blindtally.console.errors import exit_with_error
from blindtally.console.options import DEFAULT_URL
from blindtally.console.output_files import write_json
from blindtally.console.service_connection import service_error_exit
from blindtally.console.tables import key_notes, result_table
from blindtally.console.terminal import Terminal, print_line
from blindtally.fleet_run.fleet_setup import FleetSetup
from blindtally.fleet_run.results import InexactSumError, RoundResult, left_out_notes
from blindtally.fleet_run.scenario import POLICY_FIELDS
from blindtally.fleet_run.screen import MAX_SHOWN_ITEMS, Screen
from blindtally.fleet_run.study_run import StudyObservers, run_fleet
from blindtally.fleet_run.study_status import report_status, study_url
from blindtally.workers import open_workers
from client.analyst.analyst import Study
from client.fleet.fleet import NobodyEnteredError
from client.fleet.shards import LostWorkersError, ShardPool
from client.http.address_and_retries import shown_url
from protocol.api.messages import HeavyHitter, RoundView, StudyView
from protocol.description import AnswerKind
from protocol.device_policy.policy import PolicyError
from protocol.mechanisms.registry import mechanism_of
from protocol.printable import printable

# The options with which devices take part, by the limit of the policy that refuses.
_OPTION_BY_LIMIT = {
    name: f"--{name.replace('_', '-')}" + ("" if kind is bool else " {}")
    for name, kind in POLICY_FIELDS.items()
} | {"registrar": "--registrar FILE"}
_COHORT_NOTE = "much more or less common in some cohorts, as by lying devices"


def run_on_terminal(
    url: str,
    key: str | None,
    study: Study,
    setup: FleetSetup,
    shards: ShardPool | None,
    json_path: str | None,
) -> None:
    console = Terminal(stderr=json_path == "-")
    count = study.view.rounds
    title = f"study {study.id} of {count} {'round' if count == 1 else 'rounds'} at {shown_url(url)}"
    console.print(title)
    with Screen(console, study.view.rounds) as screen:
        patience = setup.fleet_config.patience
        reporting = partial(
            report_status, url, key, study.id, screen, patience, has_steps=shards is None
        )
        with _saving_partial_rounds(study.view, json_path) as rounds:

            def show_round(result: RoundResult) -> None:
                rounds.append(result)
                screen.show_round(result)

            observers = StudyObservers(screen.show_step, show_round, lambda: None, reporting)
            played, _ = run_fleet(url, study, setup, observers, shards)
    hitters, view = study.heavy_hitters(), study.refresh()
    all_rounds = list(study.rounds())
    console.print(heavy_hitter_table(view, all_rounds, hitters))
    for note in left_out_notes(played, view.question):
        console.print(note)
    for line in next_steps(url, view, took_part=bool(rounds)):
        console.print(line, soft_wrap=True)
    answer = {
        "heavy_hitters": [row.model_dump() for row in hitters],
        "unlisted": unlisted_counts(all_rounds, [row.item for row in hitters]),
        "end_cause": view.end_cause,
    }
    source = {"reading": setup.reading.as_json()}
    write_json(json_path, _rounds_json(study.view, rounds) | answer | source)


@contextmanager
def exit_on_errors() -> Iterator[None]:
    """Turn the errors of a fleet into exits of the command, with advice.

    Raises:
        typer.Exit: for each error, and if the fleet is interrupted.
    """
    try:
        yield
    except KeyboardInterrupt:
        print_line(
            "stopped; the study goes on without these devices, and an open round that has too few "
            "others will fail",
            err=True,
        )
        raise typer.Exit(130) from None
    except NobodyEnteredError as error:
        advice = suggest_options(error.refusals)
        raise exit_with_error(f"{error}{advice}", code=1) from None
    except (InexactSumError, LostWorkersError, ValueError) as error:
        raise service_error_exit(error) from None


def suggest_options(refusals: Sequence[PolicyError]) -> str:
    """Return the options with which the devices that refused take part."""
    by = _OPTION_BY_LIMIT
    options = [
        by[refusal.limit].format(refusal.needed)
        for refusal in refusals
        if refusal.limit in by and (refusal.needed is not None or "{}" not in by[refusal.limit])
    ]
    others = [refusal.limit for refusal in refusals if refusal.limit not in by]
    advice = f". To take part all the same: {' '.join(options)}" if options else ""
    if others:
        advice += f". No option here changes {', '.join(others)}: use other terms"
    return advice


@contextmanager
def open_shard_pool(count: int, dask: str | None) -> Iterator[ShardPool | None]:
    """Yield the workers that run shards of the devices, or None for this process.

    Raises:
        typer.Exit: as `blindtally.workers.open_workers`.
    """
    with open_workers(count, dask, once=True) as (executor, threads):
        yield None if executor is None else ShardPool(executor, threads)


@contextmanager
def _saving_partial_rounds(study: StudyView, json_path: str | None) -> Iterator[list[RoundResult]]:
    """Yield a list for finished rounds; if the study does not end, write them as partial."""
    rounds: list[RoundResult] = []
    try:
        yield rounds
    except BaseException:
        if rounds:
            print_line(f"the result is partial: round {len(rounds)} of {study.rounds}", err=True)
            with suppress(typer.Exit):  # the exit code is that of the first error
                write_json(json_path, _rounds_json(study, rounds) | {"partial": True})
        raise


def heavy_hitter_table(
    study: StudyView, rounds: Sequence[RoundView], hitters: Sequence[HeavyHitter]
) -> Group:
    """Return the table of heavy hitters, with notes on keys and on cohorts that differ.

    Of sums of numbers, it has the number of devices in each segment. Notes state why it is empty or
    short.
    """
    listed = [hitter.item for hitter in hitters]
    options, notes = option_rows(rounds, listed, MAX_SHOWN_ITEMS - len(hitters))
    notes += notes_on_list(study, rounds, listed)
    mechanism = mechanism_of(study.question)
    if mechanism.answer_kind(study.question) is AnswerKind.MEANS:
        counts = [(hitter.item, f"{hitter.estimate:,.0f}") for hitter in hitters]
        counts += [(option, words) for option, words, *_ in options]
        heading = [mechanism.description.counted]
        table = result_table(heading, ["devices"], counts, "Devices with a number")
        return Group(*([table] if counts else []), *map(Text, notes))
    rows = [
        (hitter.item, f"{hitter.estimate:,.0f}", f"{hitter.standard_error:,.1f}")
        for hitter in hitters[:MAX_SHOWN_ITEMS]
    ] + [(option, words, "") for option, words, *_ in options]
    title = f"Held {study.question.threshold:g} times or more"
    table = result_table(["item"], ["estimate", "± s.e."], rows, title)
    notes += key_notes(study.question, listed)
    shown = hitters[:MAX_SHOWN_ITEMS]
    flagged = ", ".join(printable(each.item) for each in shown if each.cohort_p_value is not None)
    if flagged:
        notes.append(f"{_COHORT_NOTE}: {flagged}")
    return Group(*([table] if rows else []), *(Text(note, "dim") for note in notes))


def next_steps(url: str, study: StudyView, *, took_part: bool) -> Iterator[str]:
    """Yield the state of the study or why it ended, its page, and a command to query it."""
    if not took_part:
        yield f"no device of this fleet took part: the study is {study.state}"
    elif study.state == "running":
        yield (
            "the study goes on without this fleet: all devices here have contributed, "
            f"round {study.round} is open"
        )
    elif study.end_reason:
        yield study.end_reason
    yield f"its page: {study_url(url, study.id)}"
    elsewhere = "" if url == DEFAULT_URL else f" --url {url}"
    yield f"to query it: blindtally query {study.id}{elsewhere}"


def _rounds_json(study: StudyView, rounds: list[RoundResult]) -> dict[str, Any]:
    return {"study": study.id, "rounds": [asdict(result) for result in rounds]}

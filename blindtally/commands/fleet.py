"""`blindtally fleet`: simulated devices that take part in a study of a running service."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import stamina.instrumentation
import typer
from rich.console import Console, Group
from rich.text import Text
from typer import Option

from blindtally.commands.registrar_key import load_or_create_key_file, load_registrar_of
from blindtally.console.errors import exit_with_error
from blindtally.console.options import (
    DropoutOption,
    FleetDataOption,
    FleetRoundsOption,
    ModeOption,
    SeedOption,
)
from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.service_connection import (
    DEFAULT_URL,
    ApiKeyOption,
    UrlOption,
    open_analyst,
    service_error_exit,
)
from blindtally.console.tables import result_table
from blindtally.fleet_run.results import InexactSumError, RoundResult
from blindtally.fleet_run.screen import Screen
from blindtally.fleet_run.setup import (
    DEFAULT_DEVICES,
    DEFAULT_DROPOUT,
    DEFAULT_MIN_COHORT,
    DEFAULT_ROUNDS,
    TIMEOUTS,
    joined_study_setup,
    min_cohort_for,
    new_study_setup,
    parse_dropout,
)
from blindtally.fleet_run.study_run import FleetSetup, StudyObservers, create_study, run_fleet
from blindtally.fleet_run.study_status import StatusReporter, report_status, study_url
from blindtally.workers import DaskOption, WorkersOption, open_workers
from client.analyst.analyst import Study
from client.device.policy import Policy, PolicyError
from client.fleet.behaviour import Arrivals, FleetBehaviour
from client.fleet.config_and_results import FleetConfig
from client.fleet.fleet import NobodyEnteredError
from client.fleet.shards import LostWorkersError, ShardPool
from protocol.api.messages import HeavyHitter, StudyView
from protocol.domains.hashed import Hashed
from secagg.keys import Identity
from secagg.parameters import Mode

DEFAULT_KEY_FILE = Path("registrar.key")
MAX_SHOWN_ITEMS = 20  # heavy hitters
_QUERYABLE_MECHANISMS = ("hierarchical-histogram", "number-sums", "triehh")
# The option with which devices take part, by the limit of the policy that refuses.
_OPTION_BY_LIMIT = {
    "max_contribution": "--max-contribution {}",
    "max_epsilon": "--max-epsilon {}",
    "min_cohort": "--min-cohort {}",
    "min_threshold": "--min-threshold {:g}",
    "modes": "--mode {}",
    "registrar": "--registrar FILE",
    "repeat_exact": "--repeat-exact",
}
_KEY_NOTE = (
    "# and digits: key of an item whose string was not fetched, because it was too rare or too late"
)
_COHORT_NOTE = "much more or less common in some cohorts, as by lying devices"


def fleet(
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
    token: Annotated[
        str | None,
        Option(
            envvar="BLINDTALLY_ENROLMENT_TOKEN",
            show_envvar=False,  # too long for a narrow terminal
            help="Enrolment token of the devices. [env: BLINDTALLY_ENROLMENT_TOKEN]",
        ),
    ] = None,
    study: Annotated[str | None, Option(help="Id of the study to join.")] = None,
    new: Annotated[
        bool, Option("--create", help="Create a study first, as the demo does.")
    ] = False,
    data: FleetDataOption = None,
    devices: Annotated[
        int | None,
        Option(
            min=3,
            help="Number of devices selected for a round.",
            show_default="160 with --create, otherwise all that fit in the cohorts",
        ),
    ] = None,
    rounds: FleetRoundsOption = DEFAULT_ROUNDS,
    idle: Annotated[
        float,
        Option(
            min=0,
            help="Seconds without a message after which a phase with a quorum ends, for --create. "
            "Use more than 3 if a replica may die, so that its devices can try again.",
        ),
    ] = TIMEOUTS.idle,
    dropout: DropoutOption = DEFAULT_DROPOUT,
    dropout_in: Annotated[
        list[str] | None,
        Option(
            metavar="PHASE=SHARE",
            help="Fraction that drops out in one phase, such as sharing=0.1, instead of --dropout; "
            "repeatable.",
        ),
    ] = None,
    arrivals: Annotated[
        Arrivals, Option(help="Arrival pattern of the devices, see --over.")
    ] = Arrivals.AT_ONCE,
    over: Annotated[
        float,
        Option(
            min=0, help="Seconds over which devices arrive; with diurnal arrivals, length of a day."
        ),
    ] = 0.0,
    slow: Annotated[float, Option(min=0, max=0.9, help="Fraction of slow devices.")] = 0.0,
    pause: Annotated[
        float, Option(min=0, help="Mean seconds of a slow device for each answer.")
    ] = 2.0,
    seed: SeedOption = 1,
    max_contribution: Annotated[
        int, Option(min=1, help="Largest number of items that devices agree to add.")
    ] = 100,
    min_cohort: Annotated[
        int | None,
        Option(
            min=2,
            help="Smallest cohort that devices agree to join.",
            show_default="20; with --create at most a quarter of the devices",
        ),
    ] = None,
    min_threshold: Annotated[
        float, Option(min=1, help="Smallest threshold of exact sums that devices accept.")
    ] = 5.0,
    mode: ModeOption = "active",
    max_epsilon: Annotated[
        float, Option(min=0, help="Largest total epsilon of all reports that a device accepts.")
    ] = 4.0,
    repeat_exact: Annotated[
        bool,
        Option("--repeat-exact", help="Take part in all rounds, even if exact sums have no noise."),
    ] = False,
    registrar: Annotated[
        Path,
        Option(
            help="Key file of the registrar that enrols the devices. --create makes it if missing."
        ),
    ] = DEFAULT_KEY_FILE,
    trust_server_identities: Annotated[
        bool,
        Option(
            "--no-registrar",
            help="Use no registrar: trust the server not to invent devices.",
        ),
    ] = False,
    workers: WorkersOption = 1,
    dask: DaskOption = None,
    json_path: JsonOption = None,
) -> None:
    """Let simulated devices take part in a study, round after round, until it is over.

    Every sum is compared with the vectors in it, so no other devices may take part. If a worker
    dies, its devices drop out and the fleet ends; the rounds so far are written.

    Example:
      blindtally fleet --create --devices 60 --rounds 3
      blindtally fleet --study 3f2a0c55d1e9b7a4
    """
    if (study is None) is not new:
        raise exit_with_error("name a study with --study, or make one with --create")
    try:
        dropouts = parse_dropout(dropout_in or [], mode)
        behaviour = FleetBehaviour(arrivals, over, slow, pause, dropouts)
    except ValueError as error:
        raise exit_with_error(error) from None
    stamina.instrumentation.set_on_retry_hooks([])  # hundreds of devices would log the same
    default_cohort = min_cohort_for(devices or DEFAULT_DEVICES) if new else DEFAULT_MIN_COHORT
    try:
        policy = Policy(
            max_contribution=max_contribution,
            min_cohort=min_cohort or default_cohort,
            min_threshold=min_threshold,
            max_epsilon=max_epsilon,
            repeat_exact=repeat_exact,
            modes=frozenset[Mode]({mode, "active"}),  # a device may always trust the server less
            trust_server_identities=trust_server_identities,
            accept_exact_estimates=True,  # simulated devices have no secrets
        )
        config = FleetConfig(
            devices or DEFAULT_DEVICES,
            dropout,
            seed,
            policy,
            token=token,
            api_key=key,
            behaviour=behaviour,
        )
        key_file = None if trust_server_identities else registrar
        with open_shard_pool(workers, dask) as shards, open_analyst(url, key) as analyst:
            if study is None:
                identity = load_or_create_key_file(key_file) if key_file else None
                setup = new_study_setup(data, _pin_registrar(config, identity), rounds, mode, idle)
                joined = create_study(analyst, setup)
            else:
                joined = analyst.study(study)
                identity = load_registrar_of(joined.view, key_file) if key_file else None
                setup = joined_study_setup(
                    data, _pin_registrar(config, identity), joined.view, devices
                )
            _run(url, key, joined, setup, shards, json_path)
    except KeyboardInterrupt:
        typer.echo("stopped; the study goes on without these devices", err=True)
        raise typer.Exit(130) from None
    except NobodyEnteredError as error:
        raise exit_with_error(
            f"{error}{suggest_options(error.refusals, _OPTION_BY_LIMIT)}", code=1
        ) from None
    except (InexactSumError, LostWorkersError, ValueError) as error:
        raise service_error_exit(error) from None


def _pin_registrar(config: FleetConfig, registrar: Identity | None) -> FleetConfig:
    """Return `config` with devices that `registrar` enrols, and that accept no other registrar."""
    if registrar is None:
        return config
    policy = replace(config.policy, registrar=registrar.public)
    return replace(config, registrar=registrar, policy=policy)


def _run(
    url: str,
    key: str | None,
    study: Study,
    setup: FleetSetup,
    shards: ShardPool | None,
    json_path: str | None,
) -> None:
    console = Console(stderr=json_path == "-")
    title = f"study {study.id} of {study.view.rounds} rounds at {url}"
    console.print(title, highlight=False)
    with Screen(console, study.view.rounds) as screen:
        status = StatusReporter(screen.print_line, shows_progress=not screen.has_bars)
        reporting = partial(report_status, url, key, study.id, status)
        with _saving_partial_rounds(study.view, json_path) as rounds:

            def show_round(result: RoundResult) -> None:
                rounds.append(result)
                screen.show_round(result)

            observers = StudyObservers(screen.show_step, show_round, lambda: None, reporting)
            run_fleet(url, study, setup, observers, shards)
    hitters = study.heavy_hitters()
    console.print(heavy_hitter_table(study.view, hitters))
    for line in _next_steps(url, study.refresh(), took_part=bool(rounds)):
        console.print(line, highlight=False, soft_wrap=True)
    answer = {"heavy_hitters": [row.model_dump() for row in hitters]}
    write_json(json_path, _rounds_json(study.view, rounds) | answer)


def suggest_options(refusals: Sequence[PolicyError], by: Mapping[str, str]) -> str:
    """Return the options with which the devices that refused take part."""
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
            typer.echo(f"the result is partial: {len(rounds)} rounds of {study.rounds}", err=True)
            with suppress(typer.Exit):  # the exit code is that of the first error
                write_json(json_path, _rounds_json(study, rounds) | {"partial": True})
        raise


def heavy_hitter_table(study: StudyView, hitters: Sequence[HeavyHitter]) -> Group:
    """Return the table of heavy hitters, with notes on keys and on cohorts that differ."""
    rows = [
        (hitter.item, f"{hitter.estimate:,.0f}", f"{hitter.standard_error:,.1f}")
        for hitter in hitters[:MAX_SHOWN_ITEMS]
    ]
    title = f"Held {study.question.threshold:g} times or more"
    table, notes = result_table(["item"], ["estimate", "± s.e."], rows, title), list[str]()
    has_keys = any(hitter.item.startswith("#") for hitter in hitters)
    if isinstance(study.question.domain, Hashed) and has_keys:
        notes.append(_KEY_NOTE)
    shown = hitters[:MAX_SHOWN_ITEMS]
    flagged = ", ".join(each.item for each in shown if each.cohort_p_value is not None)
    if flagged:
        notes.append(f"{_COHORT_NOTE}: {flagged}")
    return Group(table, *(Text(note, "dim") for note in notes))


def _next_steps(url: str, study: StudyView, *, took_part: bool) -> Iterator[str]:
    """Yield the state of the study, its page, and a command to query it."""
    if not took_part:
        yield f"no device of this fleet took part: the study is {study.state}"
    elif study.state == "running":
        yield (
            "the study goes on without this fleet: all devices here have contributed, "
            f"round {study.round} is open"
        )
    yield f"its page: {study_url(url, study.id)}"
    if study.question.mechanism in _QUERYABLE_MECHANISMS:
        elsewhere = "" if url == DEFAULT_URL else f" --url {url}"
        rank = "" if study.question.mechanism == "number-sums" else " --quantile 0.5"
        yield f"to query it: blindtally query {study.id}{rank}{elsewhere}"
    else:
        yield f'from Python: client.Analyst("{url}").study("{study.id}").heavy_hitters()'


def _rounds_json(study: StudyView, rounds: list[RoundResult]) -> dict[str, Any]:
    return {"study": study.id, "rounds": [asdict(result) for result in rounds]}

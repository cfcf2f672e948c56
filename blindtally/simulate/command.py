"""The command `blindtally simulate`: a study over a data file, in memory, against the truth."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from blindtally.console import completion
from blindtally.console.output import JsonOption, exit_with_error, refuse_unused_options, write_json
from blindtally.console.tables import print_parts
from blindtally.parallel import DaskOption, WorkersOption
from blindtally.simulate import heavy, numbers, releases, reports, sums
from blindtally.simulate.request import SimulationRequest, accepted_options, parse_settings
from blindtally.simulate.result import SimulationResult
from protocol.mechanisms.registry import MECHANISMS, REPORT_MECHANISMS
from protocol.oracles.registry import ORACLES
from protocol.privacy.release import ReleaseMode

_REQUEST_FIELDS: Final = {field.name for field in fields(SimulationRequest)} - {"settings"}


def simulate(
    context: typer.Context,
    mechanism: Annotated[
        str,
        typer.Argument(
            help=f"One of: {', '.join(MECHANISMS)}.", autocompletion=completion.complete_mechanism
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(
            help="CSV of item,count or user,item,count; baskets; or a bundled data set: "
            "link_user_domains, words, short, ages.",
            autocompletion=completion.complete_data,
        ),
    ],
    column: Annotated[str | None, typer.Option(help="Column of the items in a CSV file.")] = None,
    rounds: Annotated[
        int, typer.Option(min=1, max=10_000, help="Number of rounds (R); reports have one.")
    ] = 30,
    clients: Annotated[int, typer.Option(min=3, help="Number of devices in a round (n).")] = 10_000,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=1e12,
            help="Total count over all rounds from which an item is heavy.",
            show_default="50; with reports, a count that noise alone rarely reaches",
        ),
    ] = None,
    confidence: Annotated[
        float,
        typer.Option(
            min=0.01, max=0.999, help="Confidence that an item found by reports is heavy."
        ),
    ] = 0.5,
    words: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of 16-bit words that a device sends in a round.",
            show_default="2000; with triehh 65536",
        ),
    ] = None,
    contribution: Annotated[
        int, typer.Option(min=1, help="Maximum number of items that a device adds (m).")
    ] = 1,
    alphabet: Annotated[str | None, typer.Option(help="Characters of the items.")] = None,
    length: Annotated[
        int | None,
        typer.Option(
            min=1, max=1024, help="Maximum length of an item in bytes, or characters of --alphabet."
        ),
    ] = None,
    secagg: Annotated[
        bool, typer.Option("--secagg", help="Run secure sums with every message of the protocol.")
    ] = False,
    corrupt: Annotated[float, typer.Option(help="Fraction of corrupt devices.")] = 0.1,
    dropout: Annotated[float, typer.Option(help="Fraction of devices that drop out.")] = 0.0,
    mode: Annotated[
        Literal["semi-honest", "active"],
        typer.Option(help="Behaviour of the server to protect against."),
    ] = "active",
    epsilon: Annotated[
        float, typer.Option(help="Privacy loss of a report, or of all released counts.")
    ] = 1.0,
    delta: Annotated[
        float | None,
        typer.Option(
            help="Delta of --epsilon.",
            show_default="1e-6 for released counts, 0 for reports",
        ),
    ] = None,
    levels: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help="Levels of the tree, with one symbol or digit per level.",
            show_default="10, with hierarchical-histogram 8",
        ),
    ] = None,
    low: Annotated[
        float | None,
        typer.Option(help="Lower end of the interval, if items are numbers."),
    ] = None,
    high: Annotated[float | None, typer.Option(help="Upper end of the interval.")] = None,
    release: Annotated[
        ReleaseMode | None,
        typer.Option(
            help="Release of counts; with noise they are also hidden from the server.",
            show_default="sample-threshold with triehh, else noise",
        ),
    ] = None,
    invited: Annotated[
        float,
        typer.Option(help="Probability that a device joins a level of triehh over strings."),
    ] = 1.0,
    goal: Annotated[
        Literal["worst-mse", "l2"], typer.Option(help="Error of reports to minimise.")
    ] = "l2",
    most: Annotated[
        float,
        typer.Option(help="Upper bound on an item's share (f*), for --goal worst-mse."),
    ] = 1.0,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Field of the mechanism's question; repeatable."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed: the same seed gives the same result.")
    ] = 1,
    workers: WorkersOption = 1,
    dask: DaskOption = None,
    json_path: JsonOption = None,
) -> None:
    """Simulate a study over a data file and compare its answer with the truth.

    Example:
      blindtally simulate subsampled-iblt --data words --words 2000 --set t=5
      blindtally simulate triehh --data words --clients 1000000 --epsilon 1
    """
    options = {name: value for name, value in locals().items() if name in _REQUEST_FIELDS}
    if mechanism not in MECHANISMS:
        raise exit_with_error(f"no mechanism {mechanism!r}; known are {', '.join(MECHANISMS)}")
    request = SimulationRequest(**options)
    all_options = {option.name for option in context.command.params if option.name is not None}
    refuse_unused_options(context, *accepted_options(request, all_options))
    try:
        result = run(replace(request, settings=parse_settings(sets or [])))
    except ValueError as error:
        raise exit_with_error(error) from None
    if json_path != "-":
        print_parts(*result.tables)
    # Last, so that a file that cannot be written costs no result.
    write_json(json_path, result.document)
    if result.stopped_after:
        typer.echo(f"stopped; the result is partial: {result.stopped_after}", err=True)
        raise typer.Exit(130)


def run(request: SimulationRequest) -> SimulationResult:
    """Run the simulation of the request's kind of mechanism.

    Raises:
        ValueError: if the data or the parameters do not allow it.
    """
    if request.mechanism in ORACLES:
        return reports.simulate(request)
    if request.mechanism in REPORT_MECHANISMS:
        return heavy.simulate(request)
    if request.is_of_numbers:
        return numbers.simulate(request)
    return releases.simulate(request) if request.mechanism == "triehh" else sums.simulate(request)

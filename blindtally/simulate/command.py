"""The command `blindtally simulate`: a study over a data file, in memory, against the truth."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from typer import Argument, Option

from blindtally.console.errors import exit_with_error
from blindtally.console.field_options import FieldOptions, annotations_of
from blindtally.console.options import ColumnOption, SeedOption, complete_data, complete_mechanism
from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.tables import print_parts
from blindtally.console.terminal import print_line

if TYPE_CHECKING:
    from blindtally.simulate.result import SimulationResult
    from blindtally.simulate.scenario import SimulationRequest


class SimulationOptions(FieldOptions):
    """The command, with the fields of questions and of the scenario as options."""

    def field_types(self) -> Mapping[str, object]:
        from blindtally.console.mechanism_catalogue import question_field_types
        from blindtally.simulate.scenario import Scenario

        return {**question_field_types(), **annotations_of(Scenario)}


COMMAND_CLASS: Final = SimulationOptions
# Without compiled readers, the sums of so many devices take seconds to read.
_LARGE_FLEET: Final = 10_000


def simulate(
    mechanism: Annotated[
        str,
        Argument(
            help="Name of a mechanism, such as tracked; `blindtally mechanisms` lists them.",
            autocompletion=complete_mechanism,
        ),
    ],
    data: Annotated[
        Path,
        Option(
            help="File of items: columns user,item or item,count, or baskets; or a bundled data "
            "set: link_user_domains, words, short, ages.",
            autocompletion=complete_data,
        ),
    ],
    column: ColumnOption = None,
    rounds: Annotated[
        int | None,
        Option(
            min=1,
            max=10_000,
            help="Number of rounds (R).",
            show_default="one for each level of a trie, 1 of reports and of histograms, else 30",
        ),
    ] = None,
    devices: Annotated[
        int | None, Option(min=3, help="Number of devices in a round (n).", show_default="10,000")
    ] = None,
    threshold: Annotated[
        float | None,
        Option(
            min=1,
            max=1e12,
            help="Total count over all rounds from which an item is heavy.",
            show_default="50; with reports, a count that noise alone rarely reaches",
        ),
    ] = None,
    words: Annotated[
        int | None,
        Option(
            min=1,
            help="Largest vector of a device in 16-bit words, as in the papers; or --set "
            "message_bytes=SIZE, with the shares of its keys.",
            show_default="2000, if that is what limits a mechanism",
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        Option(help="Privacy loss of a report, or of all released counts.", show_default="1"),
    ] = None,
    delta: Annotated[
        float | None,
        Option(help="Delta of --epsilon.", show_default="1e-6 for released counts, 0 for reports"),
    ] = None,
    levels: Annotated[
        int | None,
        Option(
            min=1,
            max=1024,
            help="Characters, bytes or digits of an item, each a level of a tree.",
            show_default="those of the items; in a trie 10, in intervals 8 or 4",
        ),
    ] = None,
    goal: Annotated[
        Literal["worst-mse", "l2"] | None,
        Option(help="Error of reports to minimise.", show_default="l2"),
    ] = None,
    sets: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            help="Another field of the mechanism's question, such as t=5 (docs/mechanisms.md), or "
            "of the scenario, such as drift=gradual (docs/cli.md); repeatable.",
        ),
    ] = None,
    seed: SeedOption = 1,
    workers: Annotated[
        str,
        Option(
            metavar="COUNT",
            help="Processes that share the work; or a Dask scheduler, such as tcp://host:8786, or "
            "local:4 for a cluster of four on this machine.",
        ),
    ] = "1",
    json_path: JsonOption = None,
) -> None:
    """Simulate a study over a data file and compare its answer with the truth.

    Example:
      blindtally simulate tracked --data words --words 600 --set drift=late
      blindtally simulate triehh --data words --devices 1000000 --epsilon 1
    """
    from blindtally.console.mechanism_catalogue import unknown_mechanism
    from blindtally.simulate.scenario import SimulationRequest, parse_settings
    from protocol.mechanisms.registry import MECHANISMS

    if mechanism not in MECHANISMS:
        raise exit_with_error(unknown_mechanism(mechanism))
    chosen = MECHANISMS[mechanism]
    options = {"threshold": threshold, "epsilon": epsilon, "delta": delta, "goal": goal}
    given = {name: value for name, value in options.items() if value is not None}
    unknown = [f"--{name}" for name in given if name not in chosen.question_type.model_fields]
    if words is not None and "message_bytes" not in chosen.question_type.model_fields:
        unknown.append("--words")
    if unknown:
        raise exit_with_error(f"a simulation of {mechanism} takes no {', '.join(unknown)}")
    try:
        fields, scenario = parse_settings(sets or [], chosen)
        _refuse_twice(fields, given | ({} if words is None else {"message_bytes": words}))
        count, dask = _parse_workers(workers)
        request = SimulationRequest(
            mechanism=chosen,
            data=data,
            column=column,
            rounds=rounds,
            devices=devices,
            levels=levels,
            words=words,
            fields=given | fields,
            scenario=scenario,
            seed=seed,
            workers=count,
            dask=dask,
        )
        result = run(request)
    except ValueError as error:
        raise exit_with_error(error) from None
    if json_path != "-":
        print_parts(*result.tables)
    # Last, so that a file that cannot be written costs no result.
    write_json(json_path, result.document)
    if result.stopped_after:
        print_line(f"stopped; the result is partial: {result.stopped_after}", err=True)
        raise typer.Exit(130)


def run(request: "SimulationRequest") -> "SimulationResult":
    """Return the result of a simulation over the data file that the request names.

    Raises:
        ValueError: if the data or the parameters do not allow it.
    """
    from blindtally.console.data_files import load_dataset
    from blindtally.simulate.result import result_of
    from blindtally.simulate.study import simulate_study
    from client.extras_installation import slower_reader

    dataset, report = load_dataset(request.data, request.column)
    is_large = (request.devices or 0) >= _LARGE_FLEET
    if is_large and (notice := slower_reader("simulate")):
        print_line(notice, err=True)
    result = result_of(request, dataset, simulate_study(request, dataset))
    result.document["reading"] = report.as_json()
    return result


def _refuse_twice(fields: Mapping[str, object], options: Mapping[str, object]) -> None:
    for name in fields.keys() & options.keys():
        option = "words" if name == "message_bytes" else name
        raise ValueError(f"--{option} and --set {name} contradict each other: leave out one")


def _parse_workers(text: str) -> tuple[int, str | None]:
    """Return the number of processes, and the address of a Dask scheduler or None.

    Raises:
        ValueError: if the text has neither.
    """
    address, _, count = text.rpartition(":")
    if text.isdecimal() and int(text):
        return int(text), None
    if address == "local" and count.isdecimal() and int(count):
        return int(count), address
    if "://" in text:
        return 1, text
    raise ValueError(
        f"--workers takes a number, local:NUMBER or the address of a scheduler, got {text!r}"
    )

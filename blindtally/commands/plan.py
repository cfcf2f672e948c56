"""`blindtally plan`: mechanism and parameters for a study, and a forecast of its results.

There is a subcommand for each family of studies. Without its name, the options decide: a plan with
a `--mechanism` is of released counts, another with an `--epsilon` is of reports.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from blindtally.console.errors import exit_with_error, refuse_unused_options
from blindtally.console.field_options import FieldOptions, annotations_of
from blindtally.console.options import ColumnOption, SeedOption, complete_data, complete_mechanism
from blindtally.console.output_files import JsonOption

DevicesOption = Annotated[int, Option(min=1, help="Number of devices in a round (n).")]
MaxBytesOption = Annotated[int, Option(min=1, max=4096, help="Maximum bytes of a string.")]
PlanContributionOption = Annotated[
    int, Option(min=1, max=1000, help="Maximum number of items that a device adds (m).")
]


class _Families(TyperGroup):
    """The subcommands; options without the name of one decide which one is called."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 (typer's)
        if args and args[0].startswith("--") and args[0] != "--help":
            args = [_family_of({arg.partition("=")[0] for arg in args}), *args]
        return super().parse_args(ctx, args)


def _family_of(options: set[str]) -> str:
    if "--mechanism" in options:
        return "release"
    return "reports" if "--epsilon" in options else "sum"


plan = typer.Typer(
    name="plan",
    cls=_Families,
    no_args_is_help=True,
    add_completion=False,
    help="Recommend a mechanism and its parameters, and predict the results of a study.\n\n"
    "Example:\n"
    "  blindtally plan sum \\\n   --devices 10000 --rounds 30 --threshold 50 --message-bytes 14000",
)


class SumPlanOptions(FieldOptions):
    """The command, with the fields of its assumed items as options."""

    def field_types(self) -> Mapping[str, object]:
        from blindtally.planning.sum_plan import AssumedItems

        return annotations_of(AssumedItems)


@plan.command("sum", cls=SumPlanOptions)
def plan_sum(
    devices: DevicesOption,
    rounds: Annotated[int, Option(min=1, max=1000, help="Number of rounds (R).")],
    threshold: Annotated[
        float, Option(min=1, help="Total count over all rounds from which an item is heavy.")
    ],
    message_bytes: Annotated[
        int | None,
        Option(
            min=1,
            help="Largest message of a device: vector and key shares; or --words with its vector "
            "in words of 16 bits, as in the papers.",
            show_default=False,
        ),
    ] = None,
    contribution: PlanContributionOption = 1,
    cohorts: Annotated[
        int | None,
        Option(
            min=1,
            max=1000,
            help="Number of cohorts of a round, which limit what lying devices can do.",
            show_default="as few as possible",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        Option(
            help="File of items with counts, or of users, that is simulated instead of assumed "
            "items.",
            autocompletion=complete_data,
        ),
    ] = None,
    column: ColumnOption = None,
    sets: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            help="Assumptions about the items without --data: items=5000, zipf=1.2 and "
            "max_bytes=16, or domain=alphabet with alphabet=abc and length=3 (docs/cli.md); "
            "repeatable. Each is an option, too: --items 5000.",
        ),
    ] = None,
    runs: Annotated[int, Option(min=1, max=100, help="Number of simulated studies.")] = 3,
    seed: SeedOption = 1,
    json_path: JsonOption = None,
) -> None:
    r"""Recommend a mechanism of exact sums by simulated studies, and the size of each F1.

    Example:
      blindtally plan sum \
       --devices 10000 --rounds 30 --threshold 50 --message-bytes 14000
    """
    _name_missing_extra()
    from blindtally.planning.sum_plan import SumPlanRequest, plan_sums

    request = SumPlanRequest(
        devices=devices,
        rounds=rounds,
        threshold=threshold,
        size=message_bytes,
        contribution=contribution,
        cohorts=cohorts,
        sets=sets or [],
        data=data,
        column=column,
        runs=runs,
        seed=seed,
    )
    plan_sums(request, json_path)


@plan.command("release")
def plan_release(
    devices: DevicesOption,
    epsilon: Annotated[float, Option(help="Privacy loss of all released counts.")],
    mechanism: Annotated[
        str, Option(help="Mechanism whose counts are released.", autocompletion=complete_mechanism)
    ] = "triehh",
    delta: Annotated[float, Option(help="Delta of --epsilon.")] = 1e-6,
    levels: Annotated[int, Option(help="Number of levels, each of them a round.")] = 10,
    contribution: PlanContributionOption = 1,
    json_path: JsonOption = None,
) -> None:
    """Compare the ways to release counts with central privacy: coins, noise, or both.

    Example:
      blindtally plan release --devices 1000000 --epsilon 1 --levels 10
    """
    _name_missing_extra()
    from blindtally.console.mechanism_catalogue import unknown_mechanism
    from blindtally.planning.release_designs import compare_releases
    from protocol.mechanisms.registry import MECHANISMS

    if mechanism not in MECHANISMS:
        raise exit_with_error(unknown_mechanism(mechanism))
    compare_releases(mechanism, devices, epsilon, delta, levels, contribution, json_path)


@plan.command("reports")
def plan_reports(
    context: typer.Context,
    devices: DevicesOption,
    epsilon: Annotated[float, Option(help="Local privacy loss of a report.")],
    domain: Annotated[
        str, Option(help="Items: strings of any length, or the number of values in a dictionary.")
    ] = "strings",
    max_bytes: MaxBytesOption = 64,
    goal: Annotated[
        str | None,
        Option(
            help="Error to minimise: worst-mse, l1, l2 or heavy.",
            show_default="heavy for strings, else l2",
            autocompletion=lambda: ["worst-mse", "l1", "l2", "heavy"],
        ),
    ] = None,
    most: Annotated[
        float,
        Option(
            "--most",
            min=0,
            max=1,
            help="Upper bound on an item's share (f*), for --goal worst-mse.",
        ),
    ] = 1.0,
    json_path: JsonOption = None,
) -> None:
    """Recommend a mechanism of locally private reports by its predicted error.

    Example:
      blindtally plan reports --devices 100000 --domain 1000 --epsilon 2
    """
    _name_missing_extra()
    from blindtally.planning.oracle_recommendation import recommend_reports

    if domain != "strings":
        used = {option.name for option in context.command.params} - {"max_bytes"}
        refuse_unused_options(context, used, f"a plan of reports over {domain} values")
    goal = goal or ("heavy" if domain == "strings" else "l2")
    recommend_reports(devices, domain, max_bytes, epsilon, goal, most, json_path)


def _name_missing_extra() -> None:
    """Import what all plans need, so that a missing extra is named before the simulations."""
    import scipy.special  # noqa: F401

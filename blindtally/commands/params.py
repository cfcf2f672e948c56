"""`blindtally params`: parameters of a secure sum, with their reasons and costs."""

from typing import Annotated, Final, Literal

import typer
from typer import Option

from blindtally.console.errors import exit_with_error
from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.terminal import print_line

MAX_DEVICES: Final = 100_000  # as in a study's terms
_PAIRWISE_CORRUPT, _OPERATORS_CORRUPT, _DROPOUT = 0.1, 0.2, 0.2
_PAIRWISE_WORDS, _ONE_SHOT_WORDS = 100_000, 1_000
_OPERATORS = 7
_ONE_MODE: Final = (
    "sums have one mode: every sum is secure against an active server, which may depart from the "
    "protocol. Leave out --mode"
)
_NO_DEVICES: Final = "a pairwise sum needs --devices, the number of devices in a cohort"


def _refuse_mode(mode: str | None) -> None:
    if mode is not None:
        raise exit_with_error(f"--mode {mode}: {_ONE_MODE}")


def params(
    devices: Annotated[
        int | None,
        Option(min=2, max=MAX_DEVICES, help="Devices in a cohort (n) of a pairwise sum."),
    ] = None,
    corrupt: Annotated[
        float | None,
        Option(
            help="Fraction of corrupt devices (gamma), or members of a committee.",
            show_default="0.1, of operators 0.2",
        ),
    ] = None,
    dropout: Annotated[
        float, Option(help="Fraction of dropouts (delta), or absent members of a committee.")
    ] = _DROPOUT,
    sigma: Annotated[int, Option(help="Privacy fails with probability 2^-sigma.")] = 40,
    eta: Annotated[int, Option(help="Correctness fails with probability 2^-eta.")] = 30,
    _mode: Annotated[
        str | None,
        Option("--mode", hidden=True, callback=_refuse_mode, help="Refused: there is one mode."),
    ] = None,
    has_registrar: Annotated[
        bool, Option("--registrar/--no-registrar", help="Whether a registrar enrols devices.")
    ] = True,
    cohorts: Annotated[
        int, Option(min=1, max=1_000, help="Cohorts in a round, of this size each.")
    ] = 1,
    words: Annotated[
        int | None,
        Option(
            min=0,
            max=10**9,
            help="Words of a vector: 32-bit words in a pairwise sum, 16-bit words in a "
            "one-shot sum.",
            show_default="100,000, in a one-shot sum 1,000",
        ),
    ] = None,
    kind: Annotated[
        Literal["pairwise", "one-shot"],
        Option(
            "--sum",
            help="Kind of sum: devices mask for one another (pairwise), or send one message each "
            "to a committee (one-shot).",
        ),
    ] = "pairwise",
    members: Annotated[
        int | None,
        Option(
            min=3,
            max=1_000,
            help="Members of the committee of a one-shot sum (m).",
            show_default="7 operators, or all volunteers",
        ),
    ] = None,
    volunteers: Annotated[
        int | None,
        Option(
            min=3,
            max=5_000,
            help="Devices from which a registrar draws the committee (V), instead of operators.",
        ),
    ] = None,
    json_path: JsonOption = None,
) -> None:
    """Compute the secure parameters of a sum, and its cost to devices and server.

    Example:
      blindtally params --devices 1000 --corrupt 0.2 --dropout 0.2
      blindtally params --sum one-shot --members 7
      blindtally params --sum one-shot --members 100 --volunteers 900 --dropout .1
    """
    if kind == "one-shot":
        size = _ONE_SHOT_WORDS if words is None else words
        fraction = _OPERATORS_CORRUPT if volunteers is None else _PAIRWISE_CORRUPT
        rates = (fraction if corrupt is None else corrupt), dropout, sigma, eta
        _show_committee(members, volunteers, rates, size, has_registrar, json_path)
        return
    if devices is None:
        raise exit_with_error(_NO_DEVICES)
    corrupt = _PAIRWISE_CORRUPT if corrupt is None else corrupt
    words = _PAIRWISE_WORDS if words is None else words
    from blindtally.planning.parameter_report import as_json, feasible_alternatives, show_parameters
    from blindtally.planning.sum_costs import SumCost
    from secagg.errors import InfeasibleError
    from secagg.parameters import Assumptions, choose_parameters

    try:
        assumptions = Assumptions(corrupt, dropout, sigma, eta)
    except ValueError as error:
        raise exit_with_error(error) from None
    try:
        parameters = choose_parameters(devices, assumptions)
    except InfeasibleError as error:
        print_line(f"infeasible: {error}", err=True)
        for option in feasible_alternatives(devices, assumptions):
            print_line(f"  it can be done with {option}", err=True)
        raise typer.Exit(1) from None
    cost = SumCost(parameters, assumptions, has_registrar)
    if json_path != "-":
        show_parameters(cost, words, cohorts)
    write_json(json_path, as_json(cost, words, cohorts))


def _show_committee(
    members: int | None,
    volunteers: int | None,
    rates: tuple[float, float, int, int],
    words: int,
    has_registrar: bool,
    json_path: str | None,
) -> None:
    """Show the numbers of a committee, and the cost of a one-shot sum with it.

    `rates` are the fractions of corrupt and absent members, sigma and eta.
    """
    from blindtally.planning.parameter_report import show_rows
    from blindtally.planning.sum_costs import MAX_WORDS, CommitteeCost
    from secagg.oneshot.parameters import committee_parameters, drawn_committee_parameters

    corrupt, dropout, sigma, eta = rates
    size = members or volunteers or _OPERATORS
    try:
        parameters = (
            committee_parameters(size, corrupt, dropout)
            if volunteers is None
            else drawn_committee_parameters(
                size, corrupt, dropout, volunteers, sigma=sigma, eta=eta
            )
        )
    except ValueError as error:
        raise exit_with_error(error) from None
    if parameters.corrupt < 1:
        raise exit_with_error(
            f"a corrupt fraction of {corrupt:g} lets none of {size} members collude, so that "
            "each of them could read devices: raise --corrupt"
        )
    if not 1 <= words <= MAX_WORDS:
        raise exit_with_error(f"--words is 1 to {MAX_WORDS:,} in a one-shot sum, got {words:,}")
    cost = CommitteeCost(parameters, words, has_registrar, volunteers)
    if json_path != "-":
        show_rows(cost.rows())
    write_json(json_path, cost.as_json())

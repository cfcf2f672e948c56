"""`blindtally params`: parameters of a cohort's secure sum, with their reasons and costs."""

from typing import Annotated, Final

import typer
from typer import Option

from blindtally.console.errors import exit_with_error
from blindtally.console.options import ModeOption
from blindtally.console.output_files import JsonOption, write_json

MAX_CLIENTS: Final = 100_000  # as in a study's terms


def params(
    clients: Annotated[int, Option(min=2, max=MAX_CLIENTS, help="Devices in a cohort (n).")],
    corrupt: Annotated[float, Option(help="Fraction of corrupt devices (gamma).")] = 0.1,
    dropout: Annotated[float, Option(help="Fraction of dropouts (delta).")] = 0.2,
    sigma: Annotated[int, Option(help="Privacy fails with probability 2^-sigma.")] = 40,
    eta: Annotated[int, Option(help="Correctness fails with probability 2^-eta.")] = 30,
    mode: ModeOption = "active",
    has_registrar: Annotated[
        bool, Option("--registrar/--no-registrar", help="Whether a registrar enrols devices.")
    ] = True,
    cohorts: Annotated[
        int, Option(min=1, max=1_000, help="Cohorts in a round, of this size each.")
    ] = 1,
    words: Annotated[
        int, Option(min=0, max=10**9, help="32-bit words of a vector, for the times.")
    ] = 100_000,
    json_path: JsonOption = None,
) -> None:
    """Compute the secure parameters of a cohort, and their cost to devices and server.

    Example:
      blindtally params --clients 1000 --corrupt 0.2 --dropout 0.2
    """
    from blindtally.planning.parameter_report import (
        as_json,
        feasible_alternatives,
        show_parameters,
    )
    from blindtally.planning.sum_costs import SumCost, measure_operations
    from secagg.errors import InfeasibleError
    from secagg.parameters import Assumptions, choose_parameters

    try:
        assumptions = Assumptions(corrupt, dropout, sigma, eta, mode)
    except ValueError as error:
        raise exit_with_error(error) from None
    try:
        parameters = choose_parameters(clients, assumptions)
    except InfeasibleError as error:
        typer.echo(f"infeasible: {error}", err=True)
        for option in feasible_alternatives(clients, assumptions):
            typer.echo(f"  it can be done with {option}", err=True)
        raise typer.Exit(1) from None
    cost = SumCost(parameters, assumptions, has_registrar)
    units = measure_operations(parameters)
    if json_path != "-":
        show_parameters(cost, units, words, cohorts)
    write_json(json_path, as_json(cost, units, words, cohorts))

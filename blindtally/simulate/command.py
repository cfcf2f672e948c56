"""The command `blindtally simulate`: a study over a data file, in memory, against the truth."""

from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any

import typer

from blindtally.console.errors import exit_with_error, refuse_unused_options
from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.tables import print_parts
from blindtally.simulate.options import SimulationRequest, accepted_options

if TYPE_CHECKING:
    from blindtally.simulate.result import SimulationResult


def simulate(
    context: typer.Context,
    *,
    json_path: JsonOption = None,
    **options: Any,  # noqa: ANN401 - the fields of the request, see below
) -> None:
    """Simulate a study over a data file and compare its answer with the truth.

    Example:
      blindtally simulate subsampled-iblt --data words --words 4000 --set t=20
      blindtally simulate triehh --data words --devices 1000000 --epsilon 1
    """
    from blindtally.console.mechanism_catalogue import unknown_mechanism
    from protocol.mechanisms.registry import MECHANISMS

    request = SimulationRequest(**options)
    if request.mechanism not in MECHANISMS:
        raise exit_with_error(unknown_mechanism(request.mechanism))
    all_options = {option.name for option in context.command.params if option.name is not None}
    refuse_unused_options(context, *accepted_options(request, all_options))
    try:
        result = run(request)
    except ValueError as error:
        raise exit_with_error(error) from None
    if json_path != "-":
        print_parts(*result.tables)
    # Last, so that a file that cannot be written costs no result.
    write_json(json_path, result.document)
    if result.stopped_after:
        typer.echo(f"stopped; the result is partial: {result.stopped_after}", err=True)
        raise typer.Exit(130)


# Typer reads the options of the command from its signature.
_context, _json_path, _ = signature(simulate).parameters.values()
_fields = [
    field.replace(kind=Parameter.KEYWORD_ONLY)
    for field in signature(SimulationRequest).parameters.values()
]
simulate.__signature__ = Signature(  # type: ignore[attr-defined]
    [_context, *_fields, _json_path]
)


def run(request: SimulationRequest) -> "SimulationResult":
    """Run the simulation of the request's kind of mechanism.

    Raises:
        ValueError: if the data or the parameters do not allow it.
    """
    from blindtally.simulate import local_privacy, numbers, quantiles, secure_sums, triehh
    from protocol.mechanisms.number_sums import NumberSums
    from protocol.mechanisms.registry import REPORT_MECHANISMS

    if request.mechanism in REPORT_MECHANISMS:
        return local_privacy.simulate(request)
    if request.mechanism == NumberSums.name:
        return numbers.simulate(request)
    if request.is_of_numbers:
        return quantiles.simulate(request)
    if request.mechanism == "triehh":
        return triehh.simulate(request)
    return secure_sums.simulate(request)

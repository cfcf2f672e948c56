"""`blindtally params`: who holds, masks and vouches in a cohort, what it costs, and why."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from itertools import chain, islice
from typing import Annotated, Any, Final, Literal, TypeAlias

import typer
from rich.console import Console
from rich.table import Table

from blindtally.console.format import seconds
from blindtally.console.output import JsonOption, exit_with_error, write_json
from blindtally.planning.sum_costs import OperationSeconds, SumCost, measure_operations
from secagg.errors import InfeasibleError
from secagg.keys import SIGNATURE_BYTES
from secagg.parameters import Assumptions, choose_parameters

MAX_CLIENTS: Final = 100_000  # as in a study's terms
_RATE_STEP: Final = 0.05  # between two rates that are tried where those asked for cannot be


def params(
    clients: Annotated[int, typer.Option(min=2, max=MAX_CLIENTS, help="Devices in a cohort (n).")],
    corrupt: Annotated[float, typer.Option(help="Fraction that may collude (gamma).")] = 0.1,
    dropout: Annotated[float, typer.Option(help="Fraction that may be lost (delta).")] = 0.2,
    sigma: Annotated[int, typer.Option(help="Privacy fails with odds 2^-sigma.")] = 40,
    eta: Annotated[int, typer.Option(help="Correctness fails with odds 2^-eta.")] = 30,
    mode: Annotated[
        Literal["semi-honest", "active"], typer.Option(help="What the server may do.")
    ] = "active",
    has_registrar: Annotated[
        bool, typer.Option("--registrar/--no-registrar", help="Are the devices enrolled?")
    ] = True,
    words: Annotated[
        int, typer.Option(min=0, max=10**9, help="32-bit words of a vector, for the times.")
    ] = 100_000,
    json_path: JsonOption = None,
) -> None:
    """Compute the secure parameters of a cohort, and their cost for devices and the server.

    Example:
      blindtally params --clients 1000 --corrupt 0.2 --dropout 0.2
    """
    try:
        assumptions = Assumptions(corrupt, dropout, sigma, eta, mode)
    except ValueError as error:
        raise exit_with_error(error) from None
    try:
        found = choose_parameters(clients, assumptions)
    except InfeasibleError as error:
        typer.echo(f"infeasible: {error}", err=True)
        for way in feasible_alternatives(clients, assumptions):
            typer.echo(f"  it can be done with {way}", err=True)
        raise typer.Exit(1) from None
    cost, units = SumCost(found, assumptions, has_registrar), measure_operations(found)
    if json_path != "-":
        _show(cost, units, words)
    write_json(json_path, as_json(cost, units, words))


def feasible_alternatives(n: int, assumptions: Assumptions) -> list[str]:
    """Return which options would make it feasible, one change each."""
    a, ways = assumptions, []
    tried: list[tuple[str, Iterable[tuple[str, int, Assumptions]]]] = [
        ("--dropout", ((f"{x:g}", n, replace(a, dropout=x)) for x in _lower_rates(a.dropout))),
        ("--corrupt", ((f"{x:g}", n, replace(a, corrupt=x)) for x in _lower_rates(a.corrupt))),
        ("--mode", [("semi-honest", n, replace(a, mode="semi-honest"))]),
        ("--clients", ((str(m), m, a) for m in (n << i for i in range(1, 7)) if m <= MAX_CLIENTS)),
        ("--clients", ((str(m), m, a) for m in (n >> i for i in range(1, 7)) if m >= 2)),
    ]
    for option, values in tried:
        found = (value for value, m, other in values if _is_feasible(m, other))
        ways += [f"{option} {value}" for value in islice(found, 1)]
    return ways


def _lower_rates(rate: float) -> list[float]:
    """Return lower rates, highest first."""
    steps = (round(step * _RATE_STEP, 2) for step in range(int(rate / _RATE_STEP), -1, -1))
    return [lower for lower in steps if lower < rate]


def _is_feasible(n: int, assumptions: Assumptions) -> bool:
    try:
        choose_parameters(n, assumptions)
    except InfeasibleError:
        return False
    return True


def as_json(cost: SumCost, units: OperationSeconds, words: int) -> dict[str, Any]:
    """Return what scripts read: `k`, `t` and the cost beside what was assumed."""
    found, assumptions = cost.parameters, cost.assumptions
    lost = assumptions.max_dropouts(found.n)
    return {
        "clients": found.n,
        **asdict(assumptions),
        "registrar": cost.has_registrar,
        "k": found.holders,
        "t": found.threshold,
        "t_most": found.threshold + found.slack,
        "partners": found.neighbours,
        "witnesses": found.spot_checks,
        "complete": found.is_complete,
        "quorum": assumptions.quorum(found.n),
        "messages": cost.message_count,
        "bytes_up": cost.upload_bytes,
        "bytes_of_signatures": cost.message_count * SIGNATURE_BYTES,
        "bytes_down": cost.download_bytes,
        "words": words,
        "seconds_of_device": cost.device_seconds(units, words),
        "seconds_of_server": cost.server_seconds(units, words, 0),
        "seconds_of_server_with_losses": cost.server_seconds(units, words, lost),
        "seconds_of_one": asdict(units),
    }


_MESSAGE_NOTES: Final = {
    "join": "identity and keys, as JSON",
    "shares": "of its mask key, one sealed for each holder",
    "deal": "of its seed, likewise; it goes with the masked vector",
    "confirmation": "its signature under who is in the sum",
    "reveal": "a share for each device that made it a holder, and its own",
    "roster": "everybody's identity and keys",
    "sharers": "who shared, with contributions and digests",
    "survivors": "who is in the sum, as JSON",
    "confirmations": "everybody's signatures under that",
    "parcels": "the shares that it holds, still sealed",
}
TableRow: TypeAlias = tuple[str, str, str]


def _show(cost: SumCost, units: OperationSeconds, words: int) -> None:
    table = Table(show_header=False, box=None, pad_edge=False, width=80)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for row in chain(_parameter_rows(cost), _byte_rows(cost), _time_rows(cost, units, words)):
        table.add_row(*row)
    Console().print(table)


def _parameter_rows(cost: SumCost) -> Iterator[TableRow]:
    found, a = cost.parameters, cost.assumptions
    n, corrupt, lost = found.n, a.max_corrupt(found.n), a.max_dropouts(found.n)
    why_k = "fewest with which there is such a threshold"
    if found.is_complete:
        why_k = "everybody holds everybody's shares: fewer do not keep the promises"
    yield "holders k", str(found.holders), why_k
    why_t = (
        f"nobody has so many corrupt holders ({corrupt} are corrupt; odds 2^-{a.sigma}), and "
        f"everybody so many that survive ({lost} may be lost; odds 2^-{a.eta})"
    )
    yield "threshold t", str(found.threshold), why_t
    why_m = f"each picks to mask with: {lost} random losses cut nobody off (2^-{a.sigma})"
    why_s = "nobody confirms: the server is trusted to tell all the same"
    if a.is_active:
        why_m = "each picks to mask with, all its holders: the server may choose whom it loses"
        why_s = "signatures each checks: the server cannot show two sets of survivors"
    yield "partners", str(found.neighbours), why_m
    yield "witnesses", str(found.spot_checks), why_s
    yield "quorum", str(a.quorum(n)), "devices that each phase must keep"


def _byte_rows(cost: SumCost) -> Iterator[TableRow]:
    signed = (
        f"from each device, each signed: {cost.message_count * SIGNATURE_BYTES} B of these bytes"
    )
    yield "messages", str(cost.message_count), signed
    yield (
        "bytes up",
        f"{sum(cost.upload_bytes.values()):,} B",
        "from each device, but for its vector",
    )
    for name, size in cost.upload_bytes.items():
        yield f"  {name}", f"{size:,} B", _MESSAGE_NOTES[name]
    yield "bytes down", f"{sum(cost.download_bytes.values()):,} B", "to each device"
    for name, size in cost.download_bytes.items():
        yield f"  {name}", f"{size:,} B", _MESSAGE_NOTES[name]


def _time_rows(cost: SumCost, units: OperationSeconds, words: int) -> Iterator[TableRow]:
    lost = cost.assumptions.max_dropouts(cost.parameters.n)
    yield "time", "", f"one thread of this machine, {words:,} words of 32 bits; estimated"
    for name, spent, who in (
        ("device", cost.device_seconds(units, words), "each"),
        ("server", cost.server_seconds(units, words, 0), "nobody lost"),
        ("server", cost.server_seconds(units, words, lost), f"{lost} lost"),
    ):
        total = sum(spent.values())
        most = sorted(spent.items(), key=lambda part: -part[1])[:3]
        parts = ", ".join(f"{part} {share / total:.0%}" for part, share in most)
        yield f"  {name}", seconds(total), f"{who}: {parts}"

"""`blindtally params`: degree and threshold of a cohort, what they cost, and why."""

from dataclasses import dataclass
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from blindtally.output import failed, write_json
from secagg.errors import InfeasibleError
from secagg.graph import Assumptions, Parameters, parameters
from secagg.participant import ENVELOPE_BYTES
from secagg.shamir import MOST_HOLDER, SHARE_BYTES

_SLOT_BYTES = 4  # each envelope and share travels with the slot of the other end
_KIND_BYTES = 1


@dataclass(frozen=True, slots=True)
class Cost:
    """What one participant sends besides its packed vector, in messages and bytes.

    `envelope_bytes` are its envelopes to `k` neighbours, `reveal_bytes` its shares of their
    secrets and its own.
    """

    messages: int
    envelope_bytes: int
    reveal_bytes: int

    @classmethod
    def of(cls, degree: int) -> "Cost":
        """Return the cost of having `degree` neighbours."""
        return cls(
            messages=4,  # join, envelopes, vector, reveal
            envelope_bytes=degree * (_SLOT_BYTES + ENVELOPE_BYTES),
            reveal_bytes=(degree + 1) * (_SLOT_BYTES + _KIND_BYTES + SHARE_BYTES),
        )


def params(
    clients: Annotated[
        int, typer.Option(min=2, max=MOST_HOLDER, help="Devices in the cohort (n).")
    ],
    corrupt: Annotated[float, typer.Option(help="Fraction that may collude (gamma).")] = 0.1,
    dropout: Annotated[float, typer.Option(help="Fraction that may be lost (delta).")] = 0.2,
    sigma: Annotated[int, typer.Option(help="Privacy fails with odds 2^-sigma.")] = 40,
    eta: Annotated[int, typer.Option(help="Correctness fails with odds 2^-eta.")] = 30,
    mode: Annotated[
        Literal["semi-honest", "active"], typer.Option(help="What the server may do.")
    ] = "semi-honest",
    json_path: Annotated[
        str | None, typer.Option("--json", metavar="PATH", help="Write JSON; - is stdout.")
    ] = None,
) -> None:
    """Compute the degree k and the sharing threshold t of a cohort, and what they cost.

    Example: blindtally params --clients 1000 --corrupt 0.2 --dropout 0.2
    """
    try:
        assumptions = Assumptions(corrupt, dropout, sigma, eta, mode)
        found = parameters(clients, assumptions)
    except InfeasibleError as error:
        typer.echo(f"infeasible: {error}", err=True)
        raise typer.Exit(1) from None
    except ValueError as error:
        raise failed(str(error)) from None
    if json_path != "-":
        _show(found, assumptions)
    if json_path is not None:
        write_json(json_path, as_json(found, assumptions))


def as_json(found: Parameters, assumptions: Assumptions) -> dict[str, object]:
    """Return what scripts read: `k`, `t` and the cost beside what was assumed."""
    cost = Cost.of(found.degree)
    return {
        "clients": found.n,
        "corrupt": assumptions.corrupt,
        "dropout": assumptions.dropout,
        "sigma": assumptions.sigma,
        "eta": assumptions.eta,
        "mode": assumptions.mode,
        "k": found.degree,
        "t": found.threshold,
        "t_most": found.threshold + found.slack,
        "complete": found.is_complete,
        "quorum": assumptions.quorum(found.n),
        "messages": cost.messages,
        "envelope_bytes": cost.envelope_bytes,
        "reveal_bytes": cost.reveal_bytes,
    }


def _show(found: Parameters, assumptions: Assumptions) -> None:
    n, k, t = found.n, found.degree, found.threshold
    corrupt, lost = assumptions.corrupted(n), assumptions.lost(n)
    cost = Cost.of(k)
    why_k = "everybody is everybody's neighbour: no sparser graph keeps the promises"
    if not found.is_complete:
        why_k = f"fewest neighbours with which losing {lost} cuts no honest group off"
    table = Table(show_header=False, box=None, pad_edge=False, width=80)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    table.add_row("degree k", str(k), why_k)
    table.add_row(
        "threshold t",
        str(t),
        f"more than {corrupt} corrupt of {n} put among {k} neighbours, but for odds 2^-"
        f"{assumptions.sigma}; up to {t + found.slack} would survive the losses (2^-"
        f"{assumptions.eta})",
    )
    table.add_row("quorum", str(assumptions.quorum(n)), "survivors that each phase needs")
    table.add_row("messages", str(cost.messages), "sent by each device: join and three more")
    table.add_row("envelopes", f"{cost.envelope_bytes:,} B", "sent by each device, once")
    table.add_row("shares", f"{cost.reveal_bytes:,} B", "sent by each survivor, once")
    Console().print(table)

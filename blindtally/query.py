"""`blindtally query`: what a study that counts prefixes says of its values."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Literal

import httpx
import typer

from blindtally.output import HERE, ApiKey, Json, Url, failed, write_json
from blindtally.refused import refused
from blindtally.tables import show, table
from client.analyst import Analyst
from client.problems import ServiceError
from client.tables import Told

_PATIENCE = 30.0
_QUANTILES = [0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99]


def query(
    study: Annotated[str, typer.Argument(help="The study to ask.")],
    quantile: Annotated[
        list[float] | None, typer.Option(help="The value of a rank, from 0 to 1.")
    ] = None,
    rank: Annotated[
        list[str] | None, typer.Option(help="The share of devices below a value.")
    ] = None,
    within: Annotated[
        list[str] | None,
        typer.Option("--range", metavar="LOW:HIGH", help="The share within a range of values."),
    ] = None,
    prefix: Annotated[
        list[str] | None, typer.Option(help="The share whose item begins so.")
    ] = None,
    cdf: Annotated[
        int | None, typer.Option(min=2, max=1000, help="The ranks of so many values.")
    ] = None,
    estimator: Annotated[
        Literal["ratio", "plain"],
        typer.Option(help="Of tries: plain takes what was pruned for 0, ratio keeps the mass."),
    ] = "ratio",
    beta: Annotated[float, typer.Option(help="Odds that an interval misses the truth.")] = 0.05,
    url: Url = HERE,
    key: ApiKey = None,
    json_path: Json = None,
) -> None:
    """Ask a study for quantiles, ranks, ranges, frequencies of prefixes, or its whole CDF.

    Every option may be given several times; with none, some quantiles are told. All is made of
    what was released before: asking costs no privacy.

    Example:
      blindtally query 3f2a0c55d1e9b7a4 --quantile 0.5 --rank 37.5 --range 20:40
    """
    if not (quantile or rank or within or prefix or cdf):
        quantile = _QUANTILES
    how = {"estimator": estimator, "beta": beta}
    try:
        ranges = [_ends(text) for text in within or []]
        with Analyst(url, key, patience=_PATIENCE) as analyst:
            asked = analyst.study(study)
            asks: dict[str, tuple[Callable[..., Sequence[Told]], object]] = {
                "quantiles": (asked.quantiles, quantile),
                "ranks": (asked.ranks, rank),
                "ranges": (asked.masses, ranges),
                "frequencies": (asked.frequencies, prefix),
                "cdf": (asked.cdf, cdf),
            }
            told = {name: ask(at, **how) for name, (ask, at) in asks.items() if at}
    except httpx.TransportError as error:
        raise failed(f"{url} is out of reach: {error}", code=1) from None
    except (ServiceError, ValueError) as error:
        raise refused(error) from None
    if json_path != "-":
        _show(told, beta)
    document = {name: [asdict(one) for one in rows] for name, rows in told.items()}
    write_json(json_path, document | {"estimator": estimator, "beta": beta})


def _ends(text: str) -> tuple[str, str]:
    low, colon, high = text.partition(":")
    if not colon:
        raise ValueError(f"--range takes LOW:HIGH, not {text!r}")
    return low, high


def _show(told: dict[str, Sequence[Told]], beta: float) -> None:
    for name, rows in told.items():
        cells = [[_cell(value) for value in (one.at, one.value, one.low, one.high)] for one in rows]
        show(table([name], ["value", f"{1 - beta:.0%} from", "to"], cells), "")


def _cell(value: float | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)

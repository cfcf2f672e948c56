"""`blindtally query`: quantiles, ranks and frequencies from a study that counts prefixes."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from typer import Argument, Option

from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.service import DEFAULT_URL, ApiKeyOption, UrlOption, open_analyst
from blindtally.console.tables import print_parts, result_table
from protocol.api.messages import QueryResult

_DEFAULT_QUANTILES = [0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99]


def query(
    study: Annotated[str, Argument(help="Id of the study.")],
    quantile: Annotated[
        list[float] | None, Option(help="Rank from 0 to 1 whose value to return; repeatable.")
    ] = None,
    rank: Annotated[
        list[str] | None,
        Option(help="Value below which to return the share of devices; repeatable."),
    ] = None,
    within: Annotated[
        list[str] | None,
        Option(
            "--range",
            metavar="LOW:HIGH",
            help="Range of values whose share of devices to return; repeatable.",
        ),
    ] = None,
    prefix: Annotated[
        list[str] | None, Option(help="Prefix whose share of devices to return; repeatable.")
    ] = None,
    cdf: Annotated[
        int | None, Option(min=2, max=1000, help="Number of values whose ranks to return.")
    ] = None,
    estimator: Annotated[
        Literal["ratio", "plain"],
        Option(
            help="Estimator of tries: plain counts pruned prefixes as 0, ratio keeps their mass."
        ),
    ] = "ratio",
    beta: Annotated[
        float, Option(help="Probability that an interval does not contain the true value.")
    ] = 0.05,
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
    json_path: JsonOption = None,
) -> None:
    """Query a study for quantiles, ranks, ranges, frequencies of prefixes, or the CDF.

    Options can be repeated; without any, some quantiles are returned. A query uses only counts that
    are released already, so it costs no privacy.

    Example:
      blindtally query 3f2a0c55d1e9b7a4 --quantile 0.5 --rank 37.5 --range 20:40
    """
    if not (quantile or rank or within or prefix or cdf):
        quantile = _DEFAULT_QUANTILES
    options: dict[str, Any] = {"estimator": estimator, "beta": beta}
    with open_analyst(url, key) as analyst:
        ranges = [_parse_range(text) for text in within or []]
        target = analyst.study(study)
        queries: dict[str, tuple[Callable[..., Sequence[QueryResult]], object]] = {
            "quantiles": (target.quantiles, quantile),
            "ranks": (target.ranks, rank),
            "ranges": (target.masses, ranges),
            "frequencies": (target.frequencies, prefix),
            "cdf": (target.cdf, cdf),
        }
        results = {name: ask(at, **options) for name, (ask, at) in queries.items() if at}
    if json_path != "-":
        _show(results, beta)
    document = {name: [row.model_dump() for row in rows] for name, rows in results.items()}
    write_json(json_path, document | {"estimator": estimator, "beta": beta})


def _parse_range(text: str) -> tuple[str, str]:
    low, colon, high = text.partition(":")
    if not colon:
        raise ValueError(f"--range takes LOW:HIGH, not {text!r}")
    return low, high


def _show(results: dict[str, Sequence[QueryResult]], beta: float) -> None:
    for name, rows in results.items():
        cells = [
            [_format_value(value) for value in (row.at, row.value, row.low, row.high)]
            for row in rows
        ]
        print_parts(result_table([name], ["value", f"{1 - beta:.0%} from", "to"], cells), "")


def _format_value(value: float | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)

"""The command that shows a distribution of numbers: true, and by each way to release counts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from blindtally import completion, simulate_numbers
from blindtally.figures import drawing, pictures
from blindtally.output import Json, failed, write_json
from blindtally.simulate_numbers import LEVELS, WORDS, Counted, Wanted
from blindtally.tables import show, table
from protocol.interval import Interval
from protocol.privacy.release import Mode

METHODS: dict[str, tuple[str, Mode]] = {
    "histogram, in noise": ("hierarchical-histogram", "noise"),
    "trie, in noise": ("triehh", "noise"),
    "trie, sampled": ("triehh", "sample-threshold"),
}
_POINTS = 401


def cdf(
    data: Annotated[
        Path,
        typer.Option(help="A CSV file of numbers and counts.", autocompletion=completion.data),
    ],
    column: Annotated[str | None, typer.Option(help="The column of the numbers.")] = None,
    low: Annotated[
        float | None, typer.Option(help="Numbers from here on.", show_default="the least")
    ] = None,
    high: Annotated[
        float | None, typer.Option(help="And up to here.", show_default="the greatest")
    ] = None,
    clients: Annotated[int, typer.Option(min=10, help="Devices (n).")] = 100_000,
    epsilon: Annotated[float, typer.Option(help="What all rounds may cost.")] = 1.0,
    delta: Annotated[float, typer.Option(help="And the delta of that.")] = 1e-6,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same figure.")] = 1,
    out: pictures.Out = None,
    json_path: Json = None,
) -> None:
    """Distribution of numbers beside the truth, and errors of ranks, by histogram and trie.

    Example:
      blindtally figures cdf --data ages --low 0 --high 120 --out cdf
    """
    pictures.check(out)
    found: dict[str, Counted] = {}
    try:
        for name, (mechanism, mode) in METHODS.items():
            found[name] = simulate_numbers.run(
                Wanted(
                    mechanism=mechanism,
                    data=data,
                    column=column,
                    clients=clients,
                    low=low,
                    high=high,
                    levels=LEVELS["hierarchical-histogram"],  # the same cells for all
                    words=WORDS,
                    epsilon=epsilon,
                    delta=delta,
                    mode=mode,
                    corrupt=0.1,
                    settings={},
                    seed=seed,
                )
            )
    except ValueError as error:
        raise failed(error) from None
    rows = {name: _row(one) for name, one in found.items()}
    if json_path != "-":
        _show(rows, clients, epsilon, delta)
    title = (
        f"{data.name}: {clients:,} devices, epsilon {epsilon:g}, delta {delta:g}\n"
        f"one study each, seed {seed}; bands: 95% intervals"
    )
    pictures.draw(out, lambda path: drawing.draw_cdf(path, rows, title), list(_points(rows)))
    write_json(json_path, {"figure": "cdf", "clients": clients, "epsilon": epsilon, **rows})


def _points(rows: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each method's points, one by one."""
    for name, row in rows.items():
        columns = {"value": "values", "true": "true", "rank": "ranks", "low": "low", "high": "high"}
        for values in zip(*(row[column] for column in columns.values()), strict=True):
            yield {"method": name} | dict(zip(columns, values, strict=True))


def _row(result: Counted) -> dict[str, Any]:
    """Return values, their true ranks, and those found with their intervals."""
    domain = result.plan.question.domain
    assert isinstance(domain, Interval)  # `simulate_numbers` made it
    values, ranks = result.found.cdf(_POINTS)
    before = np.concatenate(([0], np.cumsum(result.leaves))) / result.devices
    cells = np.arange(_POINTS) * domain.cells // (_POINTS - 1)
    errors = result.rank_errors()
    return {
        "values": values.tolist(),
        "true": before[cells].tolist(),
        "ranks": ranks.values.tolist(),
        "low": ranks.low.tolist(),
        "high": ranks.high.tolist(),
        "max_error": float(errors.max()),
        "mean_error": float(errors.mean()),
    }


def _show(rows: dict[str, dict[str, Any]], clients: int, epsilon: float, delta: float) -> None:
    cells = [(k, f"{row['max_error']:.2g}", f"{row['mean_error']:.2g}") for k, row in rows.items()]
    title = f"{clients:,} devices, epsilon {epsilon:g}, delta {delta:g}"
    show(table(["released by"], ["rank error, most", "mean"], cells, title))

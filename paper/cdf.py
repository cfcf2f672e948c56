"""The command that shows a distribution of numbers: true, and by each way to release counts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from blindtally.console.data_files import load_dataset
from blindtally.console.errors import exit_with_error
from blindtally.console.options import complete_data
from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.tables import print_parts, result_table
from blindtally.simulate.answers import RankComparison
from blindtally.simulate.scenario import Scenario, SimulationRequest
from blindtally.simulate.study import simulate_study
from paper import drawing, options
from protocol.mechanisms.registry import MECHANISMS
from protocol.privacy.release import ReleaseMode

RELEASE_METHODS: dict[str, tuple[str, ReleaseMode]] = {
    "histogram, in noise": ("hierarchical-histogram", "noise"),
    "trie, in noise": ("triehh", "noise"),
    "trie, sampled": ("triehh", "sample-threshold"),
}
_CDF_POINTS = 401
_LEVELS, _WORDS = 8, 2**18  # the same cells for all


def cdf(
    data: Annotated[
        Path,
        typer.Option(help="A file of numbers and counts.", autocompletion=complete_data),
    ],
    column: Annotated[str | None, typer.Option(help="The column of the numbers.")] = None,
    low: Annotated[
        float | None, typer.Option(help="Lower bound of the numbers.", show_default="the smallest")
    ] = None,
    high: Annotated[
        float | None, typer.Option(help="Upper bound of the numbers.", show_default="the greatest")
    ] = None,
    devices: Annotated[int, typer.Option(min=10, help="Devices (n).")] = 100_000,
    epsilon: Annotated[float, typer.Option(help="Privacy of all rounds.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Delta of all rounds.")] = 1e-6,
    seed: options.SeedOption = 1,
    out: options.OutOption = None,
    json_path: JsonOption = None,
) -> None:
    """Distribution of numbers and its true one, and errors of ranks, by histogram and trie.

    Example:
      python -m paper cdf --data ages --low 0 --high 120 --out cdf
    """
    options.check_output_path(out)
    studies: dict[str, RankComparison] = {}
    try:
        numbers, _ = load_dataset(data, column)
        for name, (mechanism, mode) in RELEASE_METHODS.items():
            request = SimulationRequest(
                mechanism=MECHANISMS[mechanism],
                data=data,
                column=column,
                devices=devices,
                levels=_LEVELS,
                words=_WORDS,
                fields={"epsilon": epsilon, "delta": delta, "mode": mode},
                scenario=Scenario(domain="numbers", low=low, high=high),
                seed=seed,
            )
            studies[name] = RankComparison(simulate_study(request, numbers, None).played)
    except ValueError as error:
        raise exit_with_error(error) from None
    rows = {name: _cdf_columns(study) for name, study in studies.items()}
    if json_path != "-":
        _show(rows, devices, epsilon, delta)
    title = (
        f"{data.name}: {devices:,} devices, epsilon {epsilon:g}, delta {delta:g}\n"
        f"one study each, seed {seed}; bands: 95% intervals"
    )
    options.write_figure(
        out, lambda path: drawing.draw_cdf(path, rows, title), list(_point_rows(rows))
    )
    write_json(json_path, {"figure": "cdf", "devices": devices, "epsilon": epsilon, **rows})


def _point_rows(rows: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the points of each method."""
    for name, row in rows.items():
        columns = {"value": "values", "true": "true", "rank": "ranks", "low": "low", "high": "high"}
        for values in zip(*(row[column] for column in columns.values()), strict=True):
            yield {"method": name} | dict(zip(columns, values, strict=True))


def _cdf_columns(result: RankComparison) -> dict[str, Any]:
    """Return values, their true ranks, and the estimated ones with their intervals."""
    values, ranks = result.distribution.cdf(_CDF_POINTS)
    cells = np.arange(_CDF_POINTS) * result.domain.cells // (_CDF_POINTS - 1)
    errors = result.rank_errors()
    return {
        "values": values.tolist(),
        "true": result.ends[cells].tolist(),
        "ranks": ranks.values.tolist(),
        "low": ranks.low.tolist(),
        "high": ranks.high.tolist(),
        "max_error": float(errors.max()),
        "mean_error": float(errors.mean()),
    }


def _show(rows: dict[str, dict[str, Any]], clients: int, epsilon: float, delta: float) -> None:
    cells = [(k, f"{row['max_error']:.2g}", f"{row['mean_error']:.2g}") for k, row in rows.items()]
    title = f"{clients:,} devices, epsilon {epsilon:g}, delta {delta:g}"
    print_parts(result_table(["released by"], ["rank error, most", "mean"], cells, title))

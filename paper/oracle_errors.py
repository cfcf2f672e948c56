"""The command that shows the errors of locally private oracles in the paper's experiments."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from blindtally.console.errors import exit_with_error
from blindtally.console.options import complete_data
from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.tables import print_parts, result_table
from paper import drawing, options, oracle_experiments
from paper.oracle_experiments import METHODS, OracleErrors, OracleExperiment, measure_errors


def ldp(
    data: Annotated[
        Path | None,
        typer.Option(
            help="A file of devices, such as Kosarak's, or of counts.",
            autocompletion=complete_data,
        ),
    ] = None,
    devices: Annotated[
        int, typer.Option(min=100, help="Number of devices, from the first.")
    ] = 9_900,
    epsilon: Annotated[
        list[float], typer.Option(min=0.1, max=5, help="Privacy of a report; repeat it.")
    ] = [1, 2, 3, 4, 5],  # noqa: B006  (the form that typer expects)
    runs: options.RunsOption = 100,
    seed: options.SeedOption = 1,
    workers: options.WorkersOption = 1,
    dask: options.DaskOption = None,
    out: options.OutOption = None,
    json_path: JsonOption = None,
) -> None:
    """Errors of locally private oracles over epsilon: Zipf, Gaussian, and a file's data.

    Example:
      python -m paper ldp --epsilon 1 --epsilon 2 --runs 5
      python -m paper ldp --data kosarak_100k.txt.gz --out ldp
    """
    options.check_output_path(out)
    cases = [
        (experiment, level, method)
        for experiment in _experiments(data, devices, np.random.default_rng(seed))
        for level in sorted(set(epsilon))
        for method in METHODS
    ]
    run_options = options.RunOptions(runs, seed, workers, dask)
    errors = run_options.map(partial(measure_errors, runs=runs, seed=seed), cases, "oracles")
    rows = [asdict(point) for point in errors]
    if json_path != "-":
        _show(errors, runs)
    about = f"one run, seed {seed}" if runs == 1 else f"means of {runs} runs, seed {seed}"
    title = (
        f"Errors of the {oracle_experiments.TOP_VALUES} most frequent values, {about}\n"
        "bars: 3 standard errors; dashed: theory"
    )
    options.write_figure(out, lambda path: drawing.draw_local(path, errors, title), rows)
    write_json(json_path, {"figure": "ldp", "runs": runs, "rows": rows})


def _experiments(
    data: Path | None, devices: int, rng: np.random.Generator
) -> list[OracleExperiment]:
    experiments = [
        oracle_experiments.zipf_experiment(rng),
        oracle_experiments.gaussian_experiment(rng),
    ]
    if data is not None:
        try:
            experiments.append(oracle_experiments.file_experiment(data, devices, rng))
        except ValueError as error:
            raise exit_with_error(error) from None
    return experiments


def _show(errors: list[OracleErrors], runs: int) -> None:
    measures = ("worst", "worst_theory", "l1", "l1_theory", "l2", "l2_theory")
    headings = ["epsilon", "worst MSE", "theory", "l1", "theory", "l2", "theory"]
    for name in dict.fromkeys(point.experiment for point in errors):
        rows = [
            (
                point.method,
                f"{point.epsilon:g}",
                *(f"{getattr(point, measure):.2g}" for measure in measures),
            )
            for point in errors
            if point.experiment == name
        ]
        top = oracle_experiments.TOP_VALUES
        title = f"{name}: errors of the {top} most frequent values, {runs} runs"
        print_parts(result_table(["method"], headings, rows, title), "")

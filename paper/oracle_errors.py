"""The command that shows the errors of locally private oracles in the paper's experiments."""

from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from blindtally.console import completion
from blindtally.console.output import JsonOption, exit_with_error, write_json
from blindtally.console.tables import print_parts, result_table
from blindtally.parallel import DaskOption, WorkersOption, run_parallel
from paper import drawing, oracle_experiments, output
from paper.oracle_experiments import METHODS, OracleErrors, OracleExperiment, measure_errors


def ldp(
    data: Annotated[
        Path | None,
        typer.Option(
            help="A file of devices, such as Kosarak's, or of counts.",
            autocompletion=completion.complete_data,
        ),
    ] = None,
    devices: Annotated[int, typer.Option(min=100, help="The first so many of them.")] = 9_900,
    epsilon: Annotated[
        list[float], typer.Option(min=0.1, max=5, help="Privacy of a report; repeat it.")
    ] = [1, 2, 3, 4, 5],  # noqa: B006  (typer's own way to say it)
    runs: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each point.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same figure.")] = 1,
    workers: WorkersOption = 1,
    dask: DaskOption = None,
    out: output.OutOption = None,
    json_path: JsonOption = None,
) -> None:
    """Errors of locally private oracles over epsilon: Zipf, Gaussian, and a file's data.

    Example:
      python -m paper ldp --epsilon 1 --epsilon 2 --runs 5
      python -m paper ldp --data kosarak_100k.txt.gz --out ldp
    """
    output.check_output_path(out)
    cases = [
        (experiment, level, method)
        for experiment in _experiments(data, devices, np.random.default_rng(seed))
        for level in sorted(set(epsilon))
        for method in METHODS
    ]
    found = run_parallel(partial(_measure_case, runs, seed), cases, "oracles", workers, dask)
    rows = [one.as_json() for one in found]
    if json_path != "-":
        _show(found, runs)
    about = f"one run, seed {seed}" if runs == 1 else f"means of {runs} runs, seed {seed}"
    title = (
        f"Errors of the {oracle_experiments.TOP_VALUES} most frequent values, {about}\n"
        "bars: 3 standard errors; dashed: theory"
    )
    output.write_figure(out, lambda path: drawing.draw_local(path, found, title), rows)
    write_json(json_path, {"figure": "ldp", "runs": runs, "rows": rows})


def _measure_case(runs: int, seed: int, case: tuple[OracleExperiment, float, str]) -> OracleErrors:
    experiment, level, method = case
    return measure_errors(experiment, method, level, runs, seed)


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


def _show(found: list[OracleErrors], runs: int) -> None:
    headings = [heading for error in ("worst MSE", "l1", "l2") for heading in (error, "theory")]
    for name in dict.fromkeys(one.experiment for one in found):
        rows = []
        for one in found:
            pairs = (one.worst, one.worst_theory), (one.l1, one.l1_theory), (one.l2, one.l2_theory)
            if one.experiment == name:
                cells = [f"{value:.2g}" for pair in pairs for value in pair]
                rows.append((one.method, f"{one.epsilon:g}", *cells))
        top = oracle_experiments.TOP_VALUES
        title = f"{name}: errors of the {top} most frequent values, {runs} runs"
        print_parts(result_table(["method"], ["epsilon", *headings], rows, title), "")

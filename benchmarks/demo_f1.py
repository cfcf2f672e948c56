"""F1 of the demo's study over many seeds, in memory.

    python -m benchmarks.demo_f1 [--seeds 300] [--json PATH]

Plays the study that `blindtally demo` plays by default, with its devices, dropouts, questions
and table, but without network and masks (the sums are the same), once for each seed.
`reference` is the F1 that a run must reach, `ratio` is value / reference.
"""

import sys
from random import Random

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.harness import BenchmarkRow, argument_parser, report
from blindtally.console.options import (
    DEFAULT_CONTRIBUTION,
    DEFAULT_DEVICES,
    DEFAULT_DROPOUT,
    DEFAULT_ROUNDS,
)
from blindtally.fleet_run.fleet_setup import DataFile, build_setup
from blindtally.simulate.answers import compare_study
from blindtally.simulate.study import gather
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.simulation.study import run_study

F1_GOAL = 0.9
FIRST_SEED = 1_000  # seeds that nothing was chosen on


def f1(seed: int) -> float:
    """Return the F1 of one study."""
    setup = build_setup(
        DataFile(),
        devices=DEFAULT_DEVICES,
        rounds=DEFAULT_ROUNDS,
        dropout=DEFAULT_DROPOUT,
        seed=seed,
        threshold=None,
        contribution=DEFAULT_CONTRIBUTION,
        words=None,
    )
    domain = setup.question.domain
    order = np.random.default_rng(seed).permutation(len(setup.holdings))
    holdings = [
        {item: count for item, count in setup.holdings[device].items() if item in domain}
        for device in order[: DEFAULT_DEVICES * DEFAULT_ROUNDS]
    ]
    rounds = [
        [holdings[start : start + DEFAULT_DEVICES]]
        for start in range(0, len(holdings), DEFAULT_DEVICES)
    ]
    study = run_study(
        SUM_MECHANISMS[setup.question.mechanism],
        setup.question,
        setup.terms,
        rounds,
        Random(seed),
        planned=DEFAULT_ROUNDS,
        dropout=DEFAULT_DROPOUT,
    )
    return compare_study(gather(study, setup.question)).score.f1


def main() -> None:
    """Measure, print a table, and write JSON rows if asked."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    options = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    console = Console(file=sys.stderr)
    scores = np.array([f1(seed) for seed in track(seeds, "seeds", console=console, transient=True)])
    enough = float((scores >= F1_GOAL).mean())
    rows = [
        BenchmarkRow(f"studies of {len(scores)} with F1 of {F1_GOAL} or more", enough, "share"),
        BenchmarkRow("F1, mean", float(scores.mean()), "F1", F1_GOAL),
        BenchmarkRow("F1, least", float(scores.min()), "F1", F1_GOAL),
    ]
    report(rows, "reference", options.json)


if __name__ == "__main__":
    main()

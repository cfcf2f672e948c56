"""How often the demo's study finds what there is: F1 over many seeds, in memory.

    python -m benchmarks.demo [--seeds 300] [--json PATH]

Plays the study that `blindtally demo` plays by default, with its devices, losses, questions
and table, but without network and masks (the sums are the same), once for each seed.
`reference` is the F1 that a run must reach, `ratio` the value beside it.
"""

import argparse
import sys
from pathlib import Path
from random import Random

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.rows import BenchmarkRow, report
from blindtally.fleet_run.setup import (
    DEFAULT_CONTRIBUTION,
    DEFAULT_DEVICES,
    DEFAULT_DROPOUT,
    DEFAULT_ROUNDS,
    build_setup,
)
from blindtally.simulate.accuracy import score_study
from protocol.mechanisms.registry import MECHANISMS
from protocol.simulation.study import run_study

F1_GOAL = 0.9
FIRST_SEED = 1_000  # seeds that nothing was chosen on


def f1(seed: int) -> float:
    """Return the F1 of one study."""
    setup = build_setup(
        None,
        devices=DEFAULT_DEVICES,
        rounds=DEFAULT_ROUNDS,
        dropout=DEFAULT_DROPOUT,
        seed=seed,
        threshold=None,
        contribution=DEFAULT_CONTRIBUTION,
        words=None,
    )
    domain = setup.question.domain
    order = np.random.default_rng(seed).permutation(len(setup.holdings))[
        : DEFAULT_DEVICES * DEFAULT_ROUNDS
    ]
    held = [
        {item: count for item, count in setup.holdings[device].items() if item in domain}
        for device in order
    ]
    rounds = [
        [held[start : start + DEFAULT_DEVICES]] for start in range(0, len(held), DEFAULT_DEVICES)
    ]
    mechanism = MECHANISMS[setup.question.mechanism]
    study = run_study(
        mechanism,
        setup.question,
        setup.terms,
        rounds,
        Random(seed),
        planned=DEFAULT_ROUNDS,
        dropout=DEFAULT_DROPOUT,
    )
    return score_study(study, setup.question).comparison.score.f1


def main() -> None:
    """Measure, print a table, and write JSON rows if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--json", type=Path, help="write the rows as JSON here")
    arguments = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    shown = Console(file=sys.stderr)
    scores = np.array([f1(seed) for seed in track(seeds, "seeds", console=shown, transient=True)])
    enough = float((scores >= F1_GOAL).mean())
    rows = [
        BenchmarkRow(f"studies of {len(scores)} with F1 of {F1_GOAL} or more", enough, "share"),
        BenchmarkRow(
            "F1, mean", float(scores.mean()), "F1", F1_GOAL, float(scores.mean()) / F1_GOAL
        ),
        BenchmarkRow(
            "F1, least", float(scores.min()), "F1", F1_GOAL, float(scores.min()) / F1_GOAL
        ),
    ]
    report(rows, "reference", arguments.json)


if __name__ == "__main__":
    main()

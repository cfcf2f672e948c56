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

from benchmarks.rows import Row, report
from blindtally.demo.setup import CONTRIBUTION, DEVICES, DROPOUT, ROUNDS, choose
from blindtally.measures import measure
from protocol.mechanisms import MECHANISMS
from protocol.simulation import run_study

ENOUGH = 0.9
FIRST = 1_000  # seeds that nothing was chosen on


def f1(seed: int) -> float:
    """Return the F1 of one study."""
    setup = choose(
        None,
        devices=DEVICES,
        rounds=ROUNDS,
        dropout=DROPOUT,
        seed=seed,
        threshold=None,
        contribution=CONTRIBUTION,
        words=None,
    )
    domain = setup.question.domain
    order = np.random.default_rng(seed).permutation(len(setup.holdings))[: DEVICES * ROUNDS]
    held = [
        {item: count for item, count in setup.holdings[device].items() if item in domain}
        for device in order
    ]
    rounds = [[held[start : start + DEVICES]] for start in range(0, len(held), DEVICES)]
    mechanism = MECHANISMS[setup.question.mechanism]
    study = run_study(
        mechanism,
        setup.question,
        setup.terms,
        rounds,
        Random(seed),
        planned=ROUNDS,
        dropout=DROPOUT,
    )
    return measure(study, setup.question).comparison.score.f1


def main() -> None:
    """Measure, print a table, and write JSON rows if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--json", type=Path, help="write the rows as JSON here")
    arguments = parser.parse_args()
    seeds = range(FIRST, FIRST + arguments.seeds)
    shown = Console(file=sys.stderr)
    scores = np.array([f1(seed) for seed in track(seeds, "seeds", console=shown, transient=True)])
    enough = float((scores >= ENOUGH).mean())
    rows = [
        Row(f"studies of {len(scores)} with F1 of {ENOUGH} or more", enough, "share"),
        Row("F1, mean", float(scores.mean()), "F1", ENOUGH, float(scores.mean()) / ENOUGH),
        Row("F1, least", float(scores.min()), "F1", ENOUGH, float(scores.min()) / ENOUGH),
    ]
    report(rows, "reference", arguments.json)


if __name__ == "__main__":
    main()

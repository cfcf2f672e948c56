"""How many words TrieHH finds in a large population, how well, and how fast.

    python -m benchmarks.triehh [--words PATH] [--devices N ...] [--epsilon E] [--mode MODE ...]
                                [--stride S] [--tables] [--seeds N] [--json PATH]

Each of N devices holds one word of 3 to 9 letters, drawn by the counts in PATH: lines of
"word,count" or "word count", also in gzip. Without PATH words are made up, with frequencies like
those of real ones. There are ten levels of 27 symbols, delta is 1e-6 over all of them, frontiers
fill 2^16 words of 16 bits at most, and figures are means over the seeds. Cohorts are of 100,000:
with noise each has all of it, so ten have ten times the variance. --stride takes so many symbols a
level, and with --tables votes travel in tables where these are smaller.

    recall@K   the share of the K words held by most that are found at all
    F1@K       the harmonic mean of that and of the share of the K best that are among these K
    CPU        of one thread for all levels, from coins to conclusion; the design is apart
    bytes      of a device's vector, of its largest level and of all

`reference` is an independent prototype's at epsilon 1, sampled, on words of film subtitles
(https://github.com/hermitdave/FrequencyWords, content/2018/en/en_50k.txt), means of three seeds.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast, get_args

import numpy as np

sys.path[0] = str(Path(__file__).parents[1])  # not this folder: its secagg.py would hide ours

from benchmarks.rows import BenchmarkRow, report
from benchmarks.words import (
    TrieStudyResult,
    WordPopulation,
    draw_population,
    first_plan,
    frequencies,
    run_study,
)
from protocol.privacy.release import ReleaseMode
from protocol.randomness import seeded_words

_PROTOTYPE_FIGURES = {  # by n: what the prototype found at epsilon 1
    10**6: {"found": 1066, "CPU": 0.148, "recall@100": 1, "recall@300": 1, "F1@300": 0.98},
    10**5: {"found": 153, "CPU": 0.014, "recall@100": 1, "recall@300": 0.51, "F1@300": 0.68},
}


def study_figures(found: TrieStudyResult, devices: WordPopulation) -> dict[str, tuple[float, str]]:
    """Return the figures of one study by name, with their units."""
    return {
        "found": (len(found.words), "words"),
        "recall@50": (found.recall(devices, 50), "share"),
        "recall@100": (found.recall(devices, 100), "share"),
        "recall@300": (found.recall(devices, 300), "share"),
        "F1@300": (found.f1(devices, 300), ""),
        "CPU": (found.seconds, "s"),
        "largest level": (max(found.nbytes), "B"),
        "all levels": (sum(found.nbytes), "B"),
    }


def study_rows(
    devices: int, mode: ReleaseMode, options: argparse.Namespace
) -> Iterator[BenchmarkRow]:
    """Yield the rows of studies of one kind."""
    source = frequencies(options.words)
    started = time.process_time()
    plan = first_plan(devices, options.epsilon, mode, stride=options.stride, tables=options.tables)
    name = f"{devices:.0e} {mode}"
    yield BenchmarkRow(f"{name}: design, CPU", time.process_time() - started, "s")
    runs = []
    for seed in range(options.seeds):
        rng = np.random.default_rng(seed)
        people = draw_population(*source, devices, rng)
        runs.append(study_figures(run_study(plan, people, seeded_words(rng), rng), people))
    alike = (options.epsilon, mode, options.stride) == (1, "sample-threshold", 1)
    known = _PROTOTYPE_FIGURES.get(devices, {}) if alike else {}
    for figure, (_, unit) in runs[0].items():
        value = float(np.mean([run[figure][0] for run in runs]))
        beside = known.get(figure)
        ratio = None if beside is None else value / beside
        yield BenchmarkRow(f"{name}: {figure}", value, unit, beside, ratio)


def main() -> None:
    """Measure, and print a table."""
    modes = get_args(ReleaseMode)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--words", type=Path, help="a file of words and counts")
    parser.add_argument("--devices", type=int, nargs="+", default=[10**6, 10**5])
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--mode", nargs="+", choices=modes, default=["sample-threshold"])
    parser.add_argument("--stride", type=int, default=1, help="symbols a level")
    parser.add_argument("--tables", action="store_true", help="votes in tables where smaller")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    if options.words is None:
        print("no --words: words are made up, and the references are of others")
    rows = [
        row
        for mode in options.mode
        for devices in options.devices
        for row in study_rows(devices, cast("ReleaseMode", mode), options)
    ]
    report(rows, "prototype", options.json)


if __name__ == "__main__":
    main()

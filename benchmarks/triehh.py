"""Words that TrieHH finds in a large population: recall, F1, CPU seconds and bytes.

    python -m benchmarks.triehh [--words PATH] [--devices N ...] [--epsilon E] [--mode MODE ...]
                                [--stride S] [--tables] [--seeds N] [--json PATH]

Each of N devices holds one word of 3 to 9 letters, drawn by the counts in PATH: lines of
"word,count" or "word count", also in gzip. Without PATH words are made up, with frequencies like
those of real ones. There are ten levels of 27 symbols, delta is 1e-6 over all of them, frontiers
fill 2^16 16-bit words at most, and figures are means over the seeds. Cohorts have 100,000 devices:
each adds the whole noise, so ten have ten times the variance. --stride is the number of symbols
per level, and with --tables votes travel in tables where these are smaller.

    recall@K   the share of the K words held by most devices that are found at all
    F1@K       the harmonic mean of that and of the share of the K best that are among these K
    CPU        of one thread for all levels, from coins to conclusion, without the design
    bytes      of a device's vector, of its largest level and of all levels

`reference` is an independent prototype's at epsilon 1, sampled, on words of film subtitles
(https://github.com/hermitdave/FrequencyWords, content/2018/en/en_50k.txt), means of three seeds.
"""

import gzip
import random
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import BenchmarkRow, argument_parser, report
from protocol.domains.strings import Alphabet
from protocol.estimation.estimates import Estimate
from protocol.mechanisms.central.release_design import max_noise_variance
from protocol.mechanisms.central.trie_plan import TrieHhPlan, TrieHhQuestion
from protocol.mechanisms.central.trie_votes import encode_votes
from protocol.mechanisms.central.triehh import TrieHh
from protocol.numerics.arrays import DigitRows
from protocol.privacy.release import ReleaseMode
from protocol.question_and_plan import Terms
from protocol.randomness import RandomWords, seeded_words
from protocol.study_state import EMPTY_STATE
from secagg.ring import Vector

LEVELS = 10
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORD_DOMAIN = Alphabet(characters="_" + LETTERS, length=LEVELS, pad="_")
DELTA = 1e-6
_MAX_COHORT_SIZE = 100_000
_SYNTHETIC_WORDS = 40_000
_TRIE = TrieHh()
_PROTOTYPE_FIGURES = {  # by n: what the prototype found at epsilon 1
    10**6: {"found": 1066, "CPU": 0.148, "recall@100": 1, "recall@300": 1, "F1@300": 0.98},
    10**5: {"found": 153, "CPU": 0.014, "recall@100": 1, "recall@300": 0.51, "F1@300": 0.68},
}


@dataclass(frozen=True, slots=True)
class WordPopulation:
    """Devices with one word each: `held` has a row of `rows`, the digits of `words`, for each."""

    words: Sequence[str]  # those that most devices hold come first
    rows: DigitRows
    held: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TrieStudyResult:
    """The words that a study found, best first, and its CPU seconds from votes to conclusion."""

    words: Sequence[str]
    seconds: float
    nbytes: tuple[int, ...]  # size of a vector, by level

    def recall(self, population: WordPopulation, most: int) -> float:
        """Return the share found of the `most` words that most devices hold."""
        return len(set(self.words) & set(population.words[:most])) / most

    def f1(self, population: WordPopulation, most: int) -> float:
        """Return the harmonic mean of the recall and of the precision of the `most` best."""
        best, recall = self.words[:most], self.recall(population, most)
        right = len(set(best) & set(population.words[:most]))
        return 2 * recall / (recall * len(best) / right + 1) if right else 0.0


def frequencies(path: Path | None = None) -> tuple[list[str], NDArray[np.float64]]:
    """Return words of 3 to 9 letters and their shares: lines of "word,count,...", or made up."""
    if path is None:
        return _synthetic_words()
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        lines = [line.replace(",", " ").split() for line in file]
    kept = {word: int(count) for word, count, *_ in lines if count.isdigit() and _is_word(word)}
    shares = np.array(list(kept.values()), np.float64)
    return list(kept), shares / shares.sum()


def _is_word(word: str) -> bool:
    return 3 <= len(word) <= 9 and set(word) <= set(LETTERS)


def _synthetic_words() -> tuple[list[str], NDArray[np.float64]]:
    """Return random words, the k-th with a share in proportion to (k + 20)^-1.28.

    In a million draws the 100th, 300th and 1,000th most common word have 1,616, 461 and 104; of the
    words of film subtitles they have 1,470, 454 and 96.
    """
    rng = random.Random(0)
    words: dict[str, None] = {}
    while len(words) < _SYNTHETIC_WORDS:
        words["".join(rng.choices(LETTERS, k=rng.randint(3, 9)))] = None
    shares = (np.arange(1, _SYNTHETIC_WORDS + 1) + 20) ** -1.28
    return list(words), shares / shares.sum()


def draw_population(
    words: Sequence[str], shares: NDArray[np.float64], devices: int, rng: np.random.Generator
) -> WordPopulation:
    """Return a population of `devices`, each of which drew a word."""
    counts = rng.multinomial(devices, shares)
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    held = np.repeat(np.arange(len(order)), counts[order])
    rng.shuffle(held)
    names = [words[place] for place in order.tolist()]
    return WordPopulation(names, WORD_DOMAIN.digits_of(names), held)


def first_plan(
    devices: int,
    epsilon: float,
    mode: ReleaseMode = "sample-threshold",
    *,
    stride: int = 1,
    tables: bool = False,
) -> TrieHhPlan:
    """Return the first plan of a study over `devices`, in cohorts of 100,000 at most."""
    cohort = min(devices, _MAX_COHORT_SIZE)
    terms = Terms(cohort_size=cohort, minimum=cohort // 2, cohorts=-(-devices // cohort))
    question = TrieHhQuestion(
        threshold=1,
        contribution=1,
        domain=WORD_DOMAIN,
        words=2**16,
        epsilon=epsilon,
        delta=DELTA,
        mode=mode,
        stride=stride,
        vote_tables=tables,
    )
    return _TRIE.first_plan(question, terms, "benchmark", question.levels, random.Random(1))


def run_study(
    plan: TrieHhPlan, devices: WordPopulation, chance: RandomWords, rng: np.random.Generator
) -> TrieStudyResult:
    """Return the result of a study that starts with `plan` and has no dropouts."""
    state, nbytes, started = EMPTY_STATE, [], time.process_time()
    while True:
        total = _round_sum(plan, devices, chance, rng)
        nbytes.append(_TRIE.ring(plan).nbytes)
        answer = _TRIE.decode(plan, total, len(devices.held), state)
        state = answer.state
        if _TRIE.is_over(plan, answer, state):
            break
        plan = _TRIE.next_plan(plan, answer, state, random.Random(plan.round))
    estimates: list[Estimate] = _TRIE.final_estimates(plan.question, state)
    seconds = time.process_time() - started
    return TrieStudyResult([estimate.item for estimate in estimates], seconds, tuple(nbytes))


def _round_sum(
    plan: TrieHhPlan, devices: WordPopulation, chance: RandomWords, rng: np.random.Generator
) -> Vector:
    total, release = encode_votes(plan, devices.rows, devices.held, chance), plan.release
    if not release.variance:
        return total
    noise = max_noise_variance(release, plan.terms, plan.terms.cohorts)
    return plan.simulate_noise(total[0], noise, rng)


def study_figures(result: TrieStudyResult, devices: WordPopulation) -> dict[str, tuple[float, str]]:
    """Return the figures of one study by name, with their units."""
    return {
        "found": (len(result.words), "words"),
        "recall@50": (result.recall(devices, 50), "share"),
        "recall@100": (result.recall(devices, 100), "share"),
        "recall@300": (result.recall(devices, 300), "share"),
        "F1@300": (result.f1(devices, 300), ""),
        "CPU": (result.seconds, "s"),
        "largest level": (max(result.nbytes), "B"),
        "all levels": (sum(result.nbytes), "B"),
    }


def study_rows(devices: int, mode: ReleaseMode, options: Namespace) -> Iterator[BenchmarkRow]:
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
    is_comparable = (options.epsilon, mode, options.stride) == (1, "sample-threshold", 1)
    known = _PROTOTYPE_FIGURES.get(devices, {}) if is_comparable else {}
    for figure, (_, unit) in runs[0].items():
        value = float(np.mean([run[figure][0] for run in runs]))
        yield BenchmarkRow(f"{name}: {figure}", value, unit, known.get(figure))


def main() -> None:
    """Measure, and print a table."""
    parser = argument_parser(__doc__)
    parser.add_argument("--words", type=Path, help="File of words and counts.")
    parser.add_argument("--devices", type=int, nargs="+", default=[10**6, 10**5])
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument(
        "--mode", nargs="+", choices=get_args(ReleaseMode), default=["sample-threshold"]
    )
    parser.add_argument("--stride", type=int, default=1, help="Symbols per level.")
    parser.add_argument("--tables", action="store_true", help="Votes in tables where smaller.")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if options.words is None:
        print("no --words: words are made up, and the references are those of other words")
    rows = [
        row
        for mode in options.mode
        for devices in options.devices
        for row in study_rows(devices, cast("ReleaseMode", mode), options)
    ]
    report(rows, "prototype", options.json)


if __name__ == "__main__":
    main()

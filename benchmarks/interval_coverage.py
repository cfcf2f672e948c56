"""Stated errors, probabilities and list qualities against the truth: a table for each regime.

    python -m benchmarks.interval_coverage [--regime NAME ...] [--data FILE ...] [--runs 4]

A regime is a way in which studies of `tracked` are hard (`REGIMES`); `oracles` are frequency
oracles. A table has a column for each data set, whose files are read as by `blindtally simulate`.
Columns without known names follow a colon, as in `links.csv:item=page,count=links`. Data with the
items of each user have no drift, and `flat` and `steep` data are by formula.

    covered, beyond 5     share of the 95% intervals of listed items that hold the true count, and
                          the errors of more than five standard errors
    lowest, top tenth     the same share in tenths of the sorted lists
    P(heavy)              mean stated probability, share of the items that are heavy, their number
    recall, precision     of the list, as its quality states them, and the true ones
    top                   stated and true share of the first tenth that is in the true first tenth
    all shown             root mean square of the errors of sums of all totals, in standard errors

The goals are a coverage of 0.93 to 0.97, one error of 2,000 beyond five, sums within 1.5 standard
errors, and stated values within 0.01 of the true ones. A star marks a cell that misses its goal by
more than three standard errors, which for recall, precision and top are those of the studies.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.special import chdtrc, pdtrc

from benchmarks.harness import argument_parser
from blindtally.datasets.item_counts import ItemCounts
from blindtally.datasets.reader import Dataset, read_dataset
from blindtally.simulate.populations import DriftKind
from blindtally.simulate.round_schedule import RoundSchedule
from blindtally.simulate.scenario import Scenario, study_terms
from blindtally.simulate.scores import compare_estimates
from blindtally.simulate.study import PlayedStudy, gather
from protocol.api.segments import sum_variances
from protocol.domains.hashed import Hashed
from protocol.domains.known_items import KnownItems
from protocol.estimation.empirical_bayes import probabilities_of_top
from protocol.histograms import Histograms
from protocol.mechanisms.quality_goal import QualityGoal
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.numerics.array_types import Flags, Floats
from protocol.oracles.krr import KaryRandomizedResponse
from protocol.randomness import seeded_words
from protocol.reference_mechanisms.oracles.recursive_hadamard import RecursiveHadamard
from protocol.round_sizes import message_bytes_of
from protocol.simulation.rounds import RoundDevices
from protocol.simulation.study import run_study

_PREFIX: Final = "https://www.example.org/"
_BINS: Final = (0.5, 0.7, 0.9, 1.0001)  # of stated probabilities
_CHANCE: Final = 3.0  # standard errors
Figure: TypeAlias = tuple[str, str, bool]  # its name and text, and whether it misses its goal


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """Studies with these `sizes` of rounds, repeated, and a device's number of equal `copies`."""

    rounds: int = 30
    sizes: tuple[int, ...] = (10_000,)
    drift: DriftKind = "none"
    lost: frozenset[int] = frozenset()
    sum: str = "plain"
    words: int = 1000
    threshold: int = 50
    contribution: int = 1
    copies: int = 1
    goal: QualityGoal | None = None
    prefix: str = ""  # of all items
    data: str = ""  # in place of the files

    @property
    def all_sizes(self) -> tuple[int, ...]:
        return (self.sizes * self.rounds)[: self.rounds]


_GROWTH: Final = tuple(min(10_000, 20 * 3**number) for number in range(30))
_GOAL: Final = QualityGoal(precision=0.9, recall=0.9)
REGIMES: Final = {
    "iid": Regime(),
    "gradual": Regime(drift="gradual"),
    "sudden": Regime(drift="sudden"),
    "late": Regime(drift="late"),
    "weekly": Regime(drift="weekly"),
    "bursts": Regime(drift="bursts"),
    "night": Regime(sizes=(10_000, 500)),
    "thirds": Regime(sizes=(10_000, 10_000, 500)),
    "growth": Regime(sizes=_GROWTH),
    "lost": Regime(sizes=(10_000, 3_000), lost=frozenset({2, 7, 20})),
    "one": Regime(rounds=1),
    "one-low": Regime(rounds=1, threshold=20),
    "two": Regime(rounds=2),
    "three": Regime(rounds=3),
    "five": Regime(rounds=5),
    "flat": Regime(rounds=1, words=4000, threshold=20, data="flat"),
    "copies": Regime(rounds=3, copies=5),
    "weights": Regime(words=400, contribution=100, threshold=2000, data="steep"),
    "stop": Regime(goal=_GOAL),
    "stop-sudden": Regime(goal=_GOAL, drift="sudden"),
    "strings-sudden": Regime(drift="sudden", words=1465, prefix=_PREFIX),
    "one-shot": Regime(sum="one-shot"),
    "one-shot-gradual": Regime(sum="one-shot", drift="gradual"),
    "one-shot-sudden": Regime(sum="one-shot", drift="sudden"),
    "one-shot-bursts": Regime(sum="one-shot", drift="bursts"),
}


@dataclass(slots=True)
class Record:
    """Listed items (rows: z-score, covered, rank, probability, true count reached) and studies."""

    items: list[Floats] = field(default_factory=list)
    studies: list[dict[str, float]] = field(default_factory=list)

    def add(self, played: PlayedStudy) -> None:
        """Add the list, its quality and the total of a study."""
        question, truth, final = played.question, played.truth, played.final
        listed = final.heavy_hitters
        threshold, domain = question.threshold, question.domain
        compared = compare_estimates(played.mechanism, listed, truth, threshold, domain)
        variances = [max(each.variance, 1 / 12) for each in listed]
        errors = np.array([each.error for each in compared.found_items]) / np.sqrt(variances)
        true = np.array([each.true_count for each in compared.found_items])
        covered = [each.is_covered for each in compared.found_items]
        ranks = np.arange(len(listed)) / max(1, len(listed))
        stated = [each.probability or 0.0 for each in listed]
        self.items.append(np.array([errors, covered, ranks, stated, true >= threshold]))
        facts = {"F1": compared.score.f1, "read": played.rounds_decoded / len(played.thresholds)}
        facts["rounds"] = len(played.thresholds)
        quality = final.quality
        if quality is not None and quality.expected_precision is not None:
            assert quality.expected_recall is not None
            facts |= {"recall": quality.expected_recall, "precision": quality.expected_precision}
            facts["true recall"] = compared.score.recall
            facts["true precision"] = compared.score.precision
        k = len(listed) // 10
        if k and quality is not None:
            counts, spread = np.array([[each.count, each.variance] for each in listed]).T
            stated_top = probabilities_of_top(counts, spread, k, quality.expected_missed)
            bar = sorted(truth.values())[-k]
            facts["top"] = float(stated_top[:k].mean())
            facts["true top"] = float((true[:k] >= bar).mean())
        shown = played.mechanism.shown_totals(question, played.state)
        if shown:
            totals = compare_estimates(played.mechanism, shown, truth, threshold, domain)
            error = sum(each.error for each in totals.found_items)
            spread = np.array([each.variance for each in shown])
            (variance,) = sum_variances(spread, np.zeros(len(shown), np.int64), 1)
            facts["all shown"] = error / variance**0.5
        self.studies.append(facts)

    def column(self, name: str) -> Floats:
        return np.array([each[name] for each in self.studies if name in each])

    def figures(self) -> Iterator[Figure]:
        z_scores, covered, ranks, stated, heavy = np.concatenate(self.items, axis=1)
        yield "studies", f"{len(self.studies)}", False
        for name in ("F1", "read", "rounds"):
            yield name, f"{self.column(name).mean():.3f}", False
        yield "listed items", f"{len(covered):,}", False
        if len(covered):
            yield "covered", *_coverage(covered)
            by_tenth = ((ranks >= n / 10) & (ranks < (n + 1) / 10) for n in range(10))
            tenths = [covered[rows] for rows in by_tenth if rows.any()]
            yield "lowest tenth", *_coverage(min(tenths, key=lambda part: part.mean()))
            yield "top tenth", *_coverage(tenths[0])
            yield "rms error", f"{np.sqrt((z_scores**2).mean()):.2f}", False
            beyond = int((np.abs(z_scores) > 5).sum())
            chance = pdtrc(beyond - 1, len(covered) / 2000) if beyond else 1.0
            yield "beyond 5", f"{beyond}", bool(chance < 0.003)
        for low, high in pairwise(_BINS):
            part = (low <= stated) & (stated < high)
            if part.any():
                yield f"P(heavy) from {low}", *_agreement(stated[part], heavy[part], exact=True)
        for name in ("recall", "precision", "top"):
            if len(self.column(name)):
                yield name, *_agreement(self.column(name), self.column(f"true {name}"))
        sums = self.column("all shown")
        if len(sums):
            rms = float(np.sqrt((sums**2).mean()))
            yield (
                "all shown",
                f"{rms:.2f}",
                bool(chdtrc(len(sums), (sums**2).sum() / 1.5**2) < 0.003),
            )


def _coverage(covered: Floats) -> tuple[str, bool]:
    share, error = float(covered.mean()), _CHANCE * (0.05 / max(1, len(covered))) ** 0.5
    return f"{share:.3f}", bool(not 0.93 - error <= share <= 0.97 + error)


def _agreement(stated: Floats, true: Floats, *, exact: bool = False) -> tuple[str, bool]:
    """Return two means as text, and whether they differ; `exact` is for probabilities of events."""
    off = true - stated
    spread = (
        (stated * (1 - stated)).mean() if exact else off.var(ddof=1) if len(off) > 1 else np.inf
    )
    allowed = 0.01 + _CHANCE * float(spread / len(off)) ** 0.5
    text = f"{stated.mean():.3f}, {true.mean():.3f}"
    return text + (f" ({len(off):,})" if exact else ""), bool(abs(off.mean()) > allowed)


def load(source: str) -> Dataset:
    """Return the data of a file, or by formula."""
    if source == "flat":  # some 400 counts near the threshold, no two far apart
        shares = np.exp(0.3 * np.random.default_rng(1).normal(size=400))
    elif source == "steep":
        shares = np.arange(1, 2001) ** -1.5
    else:
        path, _, columns = source.partition(":")
        return read_dataset(Path(path), columns or None)[0]
    items = tuple(f"item{number:05}" for number in range(len(shares)))
    return ItemCounts(items, np.rint(2**40 * shares / shares.sum()).astype(np.int64))


def _with_copies(devices: RoundDevices[Histograms], copies: int) -> RoundDevices[Histograms]:
    """Return the devices with this number of each of their items."""
    parts = [devices.first_batches, *(chunk() for chunk in devices.later_chunks)]
    batches = [held.with_counts(held.counts * copies) for part in parts for held in part]
    return RoundDevices(tuple(batches))


def play(dataset: Dataset, regime: Regime, seed: int) -> PlayedStudy:
    """Play a study of `tracked` in a regime."""
    mechanism, sizes = SUM_MECHANISMS["tracked"], regime.all_sizes
    items = tuple(dataset.items)
    if isinstance(dataset, ItemCounts):
        items = tuple(regime.prefix + item for item in items)
        dataset = ItemCounts(items, dataset.counts)
    else:
        least = dataset.devices_per_round(regime.rounds, max(sizes))
        sizes = tuple(min(size, least) for size in sizes)
    terms = study_terms(Scenario.model_validate({"sum": regime.sum}), max(sizes))
    known = KnownItems(
        items=items, devices=terms.max_devices, rounds=regime.rounds, words=regime.words
    )
    fields = {"threshold": regime.threshold, "contribution": regime.contribution}
    fields["message_bytes"] = message_bytes_of(terms, 2 * regime.words)
    question = mechanism.question_about(known, fields)
    if isinstance(question.domain, Hashed):  # two items with one shorter key are counted together
        hashed = Hashed(max_bytes=question.domain.max_bytes)
        question = question.model_copy(update={"domain": hashed})
    schedule = RoundSchedule(sizes, regime.lost, regime.drift)
    rounds = schedule.rounds(dataset, regime.contribution if regime.copies == 1 else 1, seed)
    if regime.copies > 1:
        rounds = (_with_copies(devices, regime.copies) for devices in rounds)
    rng, goal = Random(seed), regime.goal
    played = run_study(mechanism, question, terms, rounds, rng, planned=regime.rounds, stop_at=goal)
    return gather(played, question, goal)


def oracle_figures(runs: int) -> dict[str, list[Figure]]:
    """Return the coverage of rare and of frequent values, of 64 values by 600 reports."""
    columns = {}
    for oracle in (KaryRandomizedResponse(4.0, 64), RecursiveHadamard(3.0, 64, 8)):
        rng, held = seeded_words(np.random.default_rng(1)), list[Flags]()
        values = np.random.default_rng(2).geometric(0.08, 600).astype(np.uint64) % np.uint64(64)
        true = np.bincount(values.astype(np.int64), minlength=64) / len(values)
        for _ in range(50 * runs):
            low, high = oracle.interval(oracle.aggregate(oracle.perturb(values, rng)))
            held.append((low <= true) & (true <= high))
        is_rare = true < np.median(true)
        names = ("rare values covered", is_rare), ("frequent values covered", ~is_rare)
        columns[oracle.name] = [
            (name, *_coverage(np.array(held, np.float64)[:, rows])) for name, rows in names
        ]
    return columns


def show(name: str, columns: dict[str, list[Figure]]) -> None:
    """Print the figures of each data set as a column."""
    table = Table("", *columns, title=name)
    cells = {
        source: {figure: text + "*" * int(is_outside) for figure, text, is_outside in figures}
        for source, figures in columns.items()
    }
    for figure in dict.fromkeys(figure for column in cells.values() for figure in column):
        table.add_row(figure, *(column.get(figure, "") for column in cells.values()))
    Console(width=40 + 20 * len(columns)).print(table)


def main() -> None:
    """Print a table for each regime as soon as it is measured."""
    parser = argument_parser(__doc__)
    names = [*REGIMES, "oracles"]
    parser.add_argument("--regime", nargs="+", choices=names, default=names)
    parser.add_argument("--data", nargs="+", default=["short"])
    parser.add_argument("--runs", type=int, default=4, help="Studies of each cell.")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--words", type=int, help="16-bit words, in place of the regime's.")
    options = parser.parse_args()
    tables = dict[str, dict[str, list[Figure]]]()
    for name in options.regime:
        if name == "oracles":
            tables[name] = oracle_figures(options.runs)
        else:
            regime, pooled, columns = REGIMES[name], Record(), {}
            regime = replace(regime, words=options.words or regime.words)
            for source in [regime.data] if regime.data else options.data:
                dataset, record = load(source), Record()
                if isinstance(dataset, ItemCounts) or regime.drift == "none":
                    for seed in range(options.first_seed, options.first_seed + options.runs):
                        record.add(play(dataset, regime, seed))
                    columns[Path(source).name.split(".")[0]] = list(record.figures())
                    pooled = Record(pooled.items + record.items, pooled.studies + record.studies)
            if len(columns) > 1:
                columns["all"] = list(pooled.figures())
            tables[name] = columns
        show(name, tables[name])
        if options.json:
            options.json.write_text(json.dumps(tables, indent=2) + "\n")


if __name__ == "__main__":
    main()

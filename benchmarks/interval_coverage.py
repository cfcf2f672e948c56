"""Share of the intervals that hold the true counts, by data, mechanism and regime.

    python -m benchmarks.interval_coverage [--data FILE ...] [--mechanism NAME ...]
        [--regime NAME ...]

`--data` takes files and bundled data sets, folders of files, and `flat`: 10,000 items of equal
shares. Columns that have no known names follow a colon, as in `web.csv:item=page,count=links`. Each
row is a study as `blindtally simulate` runs it, with these `devices_by_round` and this `drift`:

    iid, gradual, sudden, late, weekly, bursts    30 rounds of n devices, with this drift
    night     every second round has a twentieth of the devices
    thirds    every third round has
    growth    20, 60, 180 devices and so on, up to n
    few, one  3 rounds, or one

Where a file has the items of each user, a user is a device in one round, n is a thirtieth of them,
and items have no drift; else n is 10,000. Where the domain is too large to list, all mechanisms but
`tracked` know a dictionary of all items: they would report hashed keys.

The columns for *reported* items are about those that the study lists; *listed heavy* items are
those among them whose true count reaches the threshold; *all heavy* items are also those that are
not listed, some of which have no estimate; *known* items are all with an estimate. `covered` is the
share whose 95% interval holds the true count, `rms z` the root of the mean square of the errors in
standard errors, and `over 5` counts the errors of more than five standard errors. A good mechanism
has 0.93 to 0.97, 0.9 to 1.1, and at most one item in 2,000. An estimate is a mean given all items,
so that its error is as stated for reported and for known items. Heavy items that are not listed
were sampled less often than they should have been, so their estimates, which nobody is shown, are
too low. The last lines list the cells for reported and for listed heavy items beyond these by more
than chance explains, as if all errors were independent.
"""

import json
import math
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias

import numpy as np
from scipy.special import pdtrc

from benchmarks.harness import argument_parser
from blindtally.datasets.item_counts import ItemCounts
from blindtally.datasets.reader import Dataset, read_dataset
from blindtally.simulate.populations import DriftKind
from blindtally.simulate.round_schedule import RoundSchedule
from blindtally.simulate.scores import score
from protocol.domains import Domain
from protocol.domains.hashed import Hashed
from protocol.domains.known_items import KnownItems
from protocol.domains.strings import Listed
from protocol.estimation.estimates import Estimate
from protocol.mechanism import SumMechanism
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyQuestion, parse_question
from protocol.reference_mechanisms.count_sketches import MAX_CANDIDATES, candidate_count
from protocol.round_sizes import terms_for
from protocol.simulation.study import run_study
from protocol.study_state import EMPTY_STATE, StudyState

_ROUNDS: Final = 30
_DEVICES: Final = 10_000
_COHORT_SIZE: Final = 1000
_USER_CONTRIBUTION: Final = 3  # items of a device, where a file has the items of each user
_FLAT_DATA: Final = "flat"
_ITEMS_OF_FLAT_DATA: Final = 10_000
# The mechanism, and its own settings.
_MECHANISMS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "tracked": ("tracked", {}),
    "adaptive-iblt": ("adaptive-iblt", {}),
    "subsampled-iblt": ("subsampled-iblt", {}),
    "approximate-histogram": ("approximate-histogram", {}),
    "count-sketch": ("count-sketch", {}),
    "count-median": ("count-median", {}),
}
_GROUPS: Final = ("reported", "listed heavy", "all heavy")
_ANY_CONFIDENCE: Final = 1e-9  # with which all items with an estimate are reported
_COVERED_GOAL: Final = (0.93, 0.97)
_RMS_GOAL: Final = (0.9, 1.1)
_OVER_5_GOAL: Final = 1 / 2000
_CHANCE_Z_SCORE: Final = 3.0  # standard errors beyond a goal that chance does not explain
# Standard deviation of the square of an error: the root of 2 if it is normal, and skewed ones more.
_SQUARE_DEVIATION: Final = 2.0
AnySumMechanism: TypeAlias = SumMechanism[Any, Any]


@dataclass(frozen=True, slots=True)
class _Regime:
    """Drift of items and, for n devices, the sizes of the rounds."""

    sizes: Callable[[int], Sequence[int]] = lambda n: [n] * _ROUNDS
    drift: DriftKind = "none"


_REGIMES: Final = {
    "iid": _Regime(),
    "gradual": _Regime(drift="gradual"),
    "sudden": _Regime(drift="sudden"),
    "late": _Regime(drift="late"),
    "weekly": _Regime(drift="weekly"),
    "bursts": _Regime(drift="bursts"),
    "night": _Regime(lambda n: [n, max(3, n // 20)] * (_ROUNDS // 2)),
    "thirds": _Regime(lambda n: [n, n, max(3, n // 20)] * (_ROUNDS // 3)),
    "growth": _Regime(lambda n: [min(n, 20 * 3**number) for number in range(_ROUNDS)]),
    "few": _Regime(lambda n: [n] * 3),
    "one": _Regime(lambda n: [n]),
}


@dataclass
class Errors:
    """Errors of estimates against true counts."""

    z_scores: list[float] = field(default_factory=list)
    covered: list[bool] = field(default_factory=list)

    def merge(self, other: "Errors") -> None:
        self.z_scores += other.z_scores
        self.covered += other.covered

    def summary(self) -> dict[str, float]:
        z_scores = np.array(self.z_scores)
        return {
            "items": len(self.covered),
            "covered": float(np.mean(self.covered)) if self.covered else float("nan"),
            "rms z": float(np.sqrt(np.mean(z_scores**2))) if self.z_scores else float("nan"),
            "over 5": int((np.abs(z_scores) > 5).sum()),
        }

    def violations(self) -> Iterator[str]:
        """Yield each goal that the errors miss by more than chance explains."""
        if not self.z_scores:
            return
        summary = self.summary()
        items, covered, rms = summary["items"], summary["covered"], summary["rms z"]
        low, high = _COVERED_GOAL
        error = _CHANCE_Z_SCORE * math.sqrt(low * (1 - low) / items)
        if not low - error <= covered <= high + error:
            yield f"covered {covered:.3f}"
        low, high = _RMS_GOAL
        error = _CHANCE_Z_SCORE * _SQUARE_DEVIATION / math.sqrt(items)
        if rms**2 + error < low**2 or rms**2 - error > high**2:
            yield f"rms z {rms:.2f}"
        if summary["over 5"] and pdtrc(summary["over 5"] - 1, items * _OVER_5_GOAL) < 1 / 400:
            yield f"over 5 {summary['over 5']:.0f} of {items:,.0f}"


@dataclass
class Calibration:
    """Errors of all studies of a mechanism in a regime, and their mean F1 and rounds read."""

    reported: Errors = field(default_factory=Errors)
    listed_heavy: Errors = field(default_factory=Errors)
    heavy: Errors = field(default_factory=Errors)
    known: Errors = field(default_factory=Errors)
    f1: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)

    def merge(self, other: "Calibration") -> None:
        self.reported.merge(other.reported)
        self.listed_heavy.merge(other.listed_heavy)
        self.heavy.merge(other.heavy)
        self.known.merge(other.known)
        self.f1 += other.f1
        self.read += other.read

    def summary(self) -> dict[str, Any]:
        return {
            "f1": float(np.mean(self.f1)),
            "read": float(np.mean(self.read)),
            "reported": self.reported.summary(),
            "listed heavy": self.listed_heavy.summary(),
            "all heavy": self.heavy.summary(),
            "known": self.known.summary(),
            "outside": [
                f"{name}: {text}"
                for name, errors in (
                    ("reported", self.reported),
                    ("listed heavy", self.listed_heavy),
                )
                for text in errors.violations()
            ],
        }

    def add_study(self, question: AnyQuestion, state: StudyState, truth: dict[str, int]) -> None:
        """Add the errors of a study, whose items have the true counts `truth`."""
        mechanism = SUM_MECHANISMS[question.mechanism]
        reported = mechanism.final_estimates(question, state)
        everything = question.model_copy(update={"confidence": _ANY_CONFIDENCE})
        known = {each.item: each for each in mechanism.final_estimates(everything, state)}
        names = {item: item if item in known else question.domain.name(item) for item in truth}
        heavy = {item for item, count in truth.items() if count >= question.threshold}
        counts = {names[item]: count for item, count in truth.items()} | truth
        self.reported.merge(_errors_of(mechanism, reported, counts))
        listed = [each for each in reported if counts.get(each.item, 0) >= question.threshold]
        self.listed_heavy.merge(_errors_of(mechanism, listed, counts))
        held = [each for each in known.values() if each.item in counts]
        self.known.merge(_errors_of(mechanism, held, counts))
        in_state = [known[names[item]] for item in heavy if names[item] in known]
        self.heavy.merge(_errors_of(mechanism, in_state, counts))
        self.heavy.covered += [False] * (len(heavy) - len(in_state))
        self.f1.append(score({each.item for each in reported}, heavy).f1)


def _errors_of(
    mechanism: AnySumMechanism, estimates: Sequence[Estimate], truth: dict[str, int]
) -> Errors:
    counts = np.array([each.count for each in estimates])
    variances = np.array([each.variance for each in estimates])
    true_counts = np.array([truth.get(each.item, 0) for each in estimates])
    low, high = mechanism.confidence_interval(counts, variances)
    # An interval of an integer that is known to a half holds it.
    covered = (low - 0.5 <= true_counts) & (true_counts <= high + 0.5)
    z_scores = (counts - true_counts) / np.sqrt(np.maximum(variances, 1 / 12))
    return Errors(z_scores.tolist(), covered.tolist())


def load(source: str) -> Dataset:
    """Return the data of a file, a bundled data set, or `flat`; columns may follow a colon."""
    if source != _FLAT_DATA:
        path, _, columns = source.partition(":")
        return read_dataset(Path(path), columns or None)[0]
    items = tuple(f"item{number:05}" for number in range(_ITEMS_OF_FLAT_DATA))
    return ItemCounts(items, np.ones(_ITEMS_OF_FLAT_DATA, np.int64))


def devices_per_round(data: Dataset, regime: str) -> int:
    rounds = len(_REGIMES[regime].sizes(_DEVICES))
    return data.devices_per_round(rounds, _DEVICES)


def has_regime(data: Dataset, regime: str) -> bool:
    return isinstance(data, ItemCounts) or _REGIMES[regime].drift == "none"


def domain_for(data: Dataset, mechanism: str, rounds: int, tokens: int, words: int) -> Domain:
    """Return the domain that `simulate` chooses, or a dictionary where that is too large.

    Hashed keys have their default size: two items that share a shorter key are counted together.
    """
    known = KnownItems(items=data.items, devices=tokens, rounds=rounds)
    fields = {"contribution": 1, "words": words}  # tokens are those of all devices
    domain = SUM_MECHANISMS[mechanism].domain_about(known, fields)
    if isinstance(domain, Hashed):
        domain = Hashed(max_bytes=domain.max_bytes)
    if mechanism == "tracked" or candidate_count(domain) <= MAX_CANDIDATES:
        return domain
    return Listed(items=data.items)


def measure(data: Dataset, which: str, regime: str, options: Namespace) -> Calibration:
    """Return the errors of the studies of a mechanism in a regime."""
    mechanism, settings = _MECHANISMS[which]
    contribution = 1 if isinstance(data, ItemCounts) else _USER_CONTRIBUTION
    sizes = tuple(_REGIMES[regime].sizes(devices_per_round(data, regime)))
    terms = terms_for(max(sizes), _COHORT_SIZE)
    fields = {"mechanism": mechanism, "threshold": options.threshold, "words": options.words}
    tokens = terms.max_devices * contribution
    fields |= {"contribution": contribution, **settings}
    fields["domain"] = domain_for(data, mechanism, len(sizes), tokens, fields["words"])
    question = parse_question(fields)
    calibration = Calibration()
    for seed in range(options.first_seed, options.first_seed + options.runs):
        schedule = RoundSchedule(sizes, frozenset(), _REGIMES[regime].drift)
        rounds = schedule.rounds(data, contribution, seed)
        state, truth, decoded = EMPTY_STATE, Counter[str](), 0
        for outcome in run_study(
            SUM_MECHANISMS[mechanism], question, terms, rounds, Random(seed), planned=len(sizes)
        ):
            state = outcome.study_state
            truth.update(outcome.truth)
            decoded += outcome.answer is not None and outcome.answer.decoded
        calibration.read.append(decoded / len(sizes))
        calibration.add_study(question, state, dict(truth))
    return calibration


def _sources(data: Sequence[str]) -> Iterator[str]:
    """Yield the files of folders, and other sources as they are."""
    for source in data:
        if Path(source).is_dir():
            yield from sorted(str(path) for path in Path(source).glob("*.gz"))
        else:
            yield source


def main() -> None:
    """Print a row for each mechanism and regime, as soon as it is measured."""
    parser = argument_parser(__doc__)
    parser.add_argument("--data", nargs="+", default=["short"])
    parser.add_argument("--mechanism", nargs="+", choices=_MECHANISMS, default=list(_MECHANISMS))
    parser.add_argument("--regime", nargs="+", choices=_REGIMES, default=list(_REGIMES))
    parser.add_argument("--words", type=int, default=1000, help="16-bit words of a device.")
    parser.add_argument("--threshold", type=float, default=50)
    parser.add_argument("--runs", type=int, default=4, help="Studies of each row.")
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    rows, pooled = list[dict[str, Any]](), dict[tuple[str, str], Calibration]()
    sources = list(_sources(options.data))
    errors = f"{'items':>7} {'covered':>8} {'rms z':>6} {'over 5':>6}"
    groups = "   ".join(f"{name:30}" for name in _GROUPS)
    print(f"{'':46} {'':11}   {groups}   known")
    errors = "   ".join([errors] * len(_GROUPS))
    print(f"{'data, mechanism, regime':46} {'F1':>5} {'read':>5}   {errors}   rms z")
    for number, source in enumerate(sources):
        print(f"{source}, {number + 1} of {len(sources)}", file=sys.stderr)
        data, name = load(source), Path(source).name.split(".")[0]
        for which, regime in product(options.mechanism, options.regime):
            if has_regime(data, regime):
                calibration = measure(data, which, regime, options)
                pooled.setdefault((which, regime), Calibration()).merge(calibration)
                _add_row(rows, (name, which, regime), calibration)
    if len(sources) > 1:
        for key, calibration in pooled.items():
            _add_row(rows, ("all", *key), calibration)
    outside = [row for row in rows if row["outside"]]
    print(f"outside the goal, beyond chance: {len(outside)} of {len(rows)} rows")
    for row in outside:
        print(f"  {row['data']}, {row['mechanism']}, {row['regime']}: {', '.join(row['outside'])}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


def _add_row(
    rows: list[dict[str, Any]], key: tuple[str, str, str], calibration: Calibration
) -> None:
    row = dict(zip(("data", "mechanism", "regime"), key, strict=True)) | calibration.summary()
    rows.append(row)
    errors = (
        f"{each['items']:7,} {each['covered']:8.3f} {each['rms z']:6.2f} {each['over 5']:6,}"
        for each in map(row.__getitem__, _GROUPS)
    )
    known = f"{row['known']['rms z']:5.2f}"
    figures = "   ".join([f"{row['f1']:5.2f} {row['read']:5.2f}", *errors, known])
    print(f"{', '.join(key):46} {figures}", flush=True)


if __name__ == "__main__":
    main()

"""Share of the intervals that hold the true counts, by mechanism and regime.

    python -m benchmarks.interval_coverage [--data FILE ...] [--mechanism NAME ...]
        [--regime NAME ...]

Studies are simulated with one item per device. Where the domain is too large to list, all
mechanisms but `tracked` know a dictionary of all items: they would report hashed keys. Regimes, of
30 rounds of 10,000 devices each if nothing else is stated:

    iid          every round from the same distribution
    gradual, sudden, late    the drifts of `blindtally/simulate/populations.py`
    night        every second round has 500 devices
    thirds       every third round has 500 devices
    growth       20, 60, 180 devices and so on, up to 10,000
    weekly       a fifth of the items are three times as frequent on two days of seven
    bursts       a fifth of the items come in three rounds of thirty only
    flat         1,000 items of equal shares, and rounds of 1,000 devices
    few          3 rounds

The columns for *reported* items are about those that the study reports; those for *heavy* items are
about all whose true count reaches the threshold, also if they are not reported. `covered` is the
share whose 95% interval holds the true count, `rms z` the root of the mean square of the errors in
standard errors, and `over 5` counts the errors of more than five standard errors. A good mechanism
has 0.93 to 0.97, 0.9 to 1.1, and at most one item in 2,000.
"""

import json
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import argument_parser
from blindtally.simulate.domain_and_drift_choices import DriftKind
from blindtally.simulate.populations import ItemPopulation, load_item_population
from blindtally.simulate.scores import score
from blindtally.simulate.token_study import KeyedPopulation, run_tokens
from protocol.domains.strings import Listed
from protocol.estimates import Estimate
from protocol.mechanism import SumMechanism
from protocol.mechanisms.frequency_sketches import MAX_CANDIDATES, candidate_count
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyQuestion
from protocol.study_state import StudyState

_ROUNDS: Final = 30
_DEVICES: Final = 10_000
_FEW_DEVICES: Final = 500
# The mechanism, and its own settings.
_MECHANISMS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "tracked": ("tracked", {}),
    "tracked, nothing": ("tracked", {"assume": "nothing"}),
    "adaptive-iblt": ("adaptive-iblt", {}),
    "subsampled-iblt": ("subsampled-iblt", {}),
    # With the words at which these answer.
    "approximate-histogram": ("approximate-histogram", {"words": 30_000}),
    "count-sketch": ("count-sketch", {"words": 16_000}),
    "count-median": ("count-median", {"words": 30_000}),
}
_DICTIONARY_MECHANISMS: Final = {
    "count-sketch",
    "count-median",
}  # which score every item of their domain
AnySumMechanism: TypeAlias = SumMechanism[Any, Any]
Counts = NDArray[np.int64]


def _drift(kind: DriftKind) -> Callable[[ItemPopulation, np.random.Generator], Iterator[Counts]]:
    return lambda population, rng: population.rounds(_ROUNDS, _DEVICES, rng, kind)


def _sizes(*sizes: int) -> Callable[[ItemPopulation, np.random.Generator], Iterator[Counts]]:
    return lambda population, rng: (rng.multinomial(size, population.shares) for size in sizes)


def _weekly(population: ItemPopulation, rng: np.random.Generator) -> Iterator[Counts]:
    is_weekly = rng.random(len(population.items)) < 0.2
    for number in range(_ROUNDS):
        weights = population.shares * np.where(is_weekly & (number % 7 >= 5), 3, 1)
        yield rng.multinomial(_DEVICES, weights / weights.sum())


def _bursts(population: ItemPopulation, rng: np.random.Generator) -> Iterator[Counts]:
    is_burst = rng.random(len(population.items)) < 0.2
    starts = rng.integers(0, _ROUNDS - 2, len(population.items))
    for number in range(_ROUNDS):
        comes = (starts <= number) & (number < starts + 3)
        weights = population.shares * np.where(is_burst, 10 * comes, 1)
        yield rng.multinomial(_DEVICES, weights / weights.sum())


def _flat(population: ItemPopulation, rng: np.random.Generator) -> Iterator[Counts]:
    shares = np.zeros(len(population.items))
    shares[:1000] = 1 / min(1000, len(shares))
    for _ in range(_ROUNDS):
        yield rng.multinomial(_DEVICES // 10, shares)


_REGIMES: Final = {
    **{name: _drift(name) for name in ("gradual", "sudden", "late")},
    "iid": _drift("none"),
    "night": _sizes(*[_DEVICES, _FEW_DEVICES] * (_ROUNDS // 2)),
    "thirds": _sizes(*[_DEVICES, _DEVICES, _FEW_DEVICES] * (_ROUNDS // 3)),
    "growth": _sizes(*(min(_DEVICES, 20 * 3**number) for number in range(_ROUNDS))),
    "weekly": _weekly,
    "bursts": _bursts,
    "flat": _flat,
    "few": _sizes(*[_DEVICES] * 3),
}


@dataclass
class Errors:
    """Errors of estimates against true counts."""

    z_scores: list[float] = field(default_factory=list)
    covered: list[bool] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        z_scores = np.array(self.z_scores)
        return {
            "items": len(self.covered),
            "covered": float(np.mean(self.covered)) if self.covered else float("nan"),
            "rms z": float(np.sqrt(np.mean(z_scores**2))) if self.z_scores else float("nan"),
            "over 5": int((np.abs(z_scores) > 5).sum()),
        }


@dataclass
class Calibration:
    """Errors of all studies of a mechanism in a regime, and their mean F1 and rounds read."""

    reported: Errors = field(default_factory=Errors)
    heavy: Errors = field(default_factory=Errors)
    f1: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)


def compare(
    calibration: Calibration, question: AnyQuestion, state: StudyState, truth: dict[str, int]
) -> None:
    """Add the errors of a study, whose items have the true counts `truth`."""
    mechanism = SUM_MECHANISMS[question.mechanism]
    reported = mechanism.final_estimates(question, state)
    everything = question.model_copy(update={"threshold": 1.0})
    known = {each.item: each for each in mechanism.final_estimates(everything, state)}
    heavy = {item for item, count in truth.items() if count >= question.threshold}
    _add(calibration.reported, mechanism, reported, truth)
    _add(calibration.heavy, mechanism, [known[item] for item in heavy if item in known], truth)
    calibration.heavy.covered += [False] * len(heavy - known.keys())
    calibration.f1.append(score({each.item for each in reported}, heavy).f1)


def _add(
    errors: Errors, mechanism: AnySumMechanism, estimates: Sequence[Estimate], truth: dict[str, int]
) -> None:
    counts = np.array([each.count for each in estimates])
    variances = np.array([each.variance for each in estimates])
    true_counts = np.array([truth.get(each.item, 0) for each in estimates])
    low, high = mechanism.confidence_interval(counts, variances)
    # An interval of an integer that is known to a half holds it.
    errors.covered += ((low - 0.5 <= true_counts) & (true_counts <= high + 0.5)).tolist()
    spread = np.sqrt(np.maximum(variances, 1 / 12))
    errors.z_scores += ((counts - true_counts) / spread).tolist()


def measure(known: KeyedPopulation, which: str, regime: str, options: Namespace) -> dict[str, Any]:
    """Return the figures of the studies of a mechanism in a regime."""
    mechanism, settings = _MECHANISMS[which]
    if mechanism != "tracked" and candidate_count(known.domain) > MAX_CANDIDATES:
        known = KeyedPopulation(known.population, Listed(items=known.population.items))
    calibration = Calibration()
    for seed in range(options.runs):
        rng = np.random.default_rng(seed)
        counts = list(_REGIMES[regime](known.population, rng))
        tokens = known.distribute(counts, 1, rng)
        study = run_tokens(mechanism, tokens, options.words, options.threshold, rng, settings)
        total = np.sum(counts, axis=0)
        truth = {known.population.items[i]: int(total[i]) for i in np.flatnonzero(total)}
        calibration.read.append(study.rounds_decoded / len(counts))
        compare(calibration, study.question, study.state, truth)
    return {
        "f1": float(np.mean(calibration.f1)),
        "read": float(np.mean(calibration.read)),
        "reported": calibration.reported.summary(),
        "heavy": calibration.heavy.summary(),
    }


def main() -> None:
    """Print a row for each mechanism and regime, as soon as it is measured."""
    parser = argument_parser(__doc__)
    parser.add_argument("--data", nargs="+", type=Path, default=[Path("short")])
    parser.add_argument("--mechanism", nargs="+", choices=_MECHANISMS, default=list(_MECHANISMS))
    parser.add_argument("--regime", nargs="+", choices=_REGIMES, default=list(_REGIMES))
    parser.add_argument("--words", type=int, default=1000, help="16-bit words of a device.")
    parser.add_argument("--threshold", type=float, default=50)
    parser.add_argument("--runs", type=int, default=4, help="Studies of each row.")
    options = parser.parse_args()
    rows, errors = list[dict[str, Any]](), f"{'items':>7} {'covered':>8} {'rms z':>6} {'over 5':>6}"
    print(f"{'':46} {'':11}   {'reported':30}   heavy")
    print(f"{'data, mechanism, regime':46} {'F1':>5} {'read':>5}   {errors}   {errors}")
    for path in options.data:
        known = KeyedPopulation.of(load_item_population(path), _DEVICES)
        for which, regime in product(options.mechanism, options.regime):
            row = measure(known, which, regime, options)
            name = path.name.split(".")[0]
            rows.append({"data": name, "mechanism": which, "regime": regime} | row)
            print(f"{f'{name}, {which}, {regime}':46}", _columns(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


def _columns(row: dict[str, Any]) -> str:
    errors = (
        f"{each['items']:7,} {each['covered']:8.3f} {each['rms z']:6.2f} {each['over 5']:6,}"
        for each in (row["reported"], row["heavy"])
    )
    return "   ".join([f"{row['f1']:5.2f} {row['read']:5.2f}", *errors])


if __name__ == "__main__":
    main()

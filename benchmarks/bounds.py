"""What keeps `run_tracked` from finding all: F1 if it knew what it does not.

    python -m benchmarks.bounds --data PATH [--drift gradual] [--words 4828] [--runs 5]

Studies of `python -m paper words` (R = 30, tau = 50, M = 10,000, seed 1), each with the same sums:

    found          what the study finds, by the strings that it fetched
    as estimated   what its estimates make heavy, whether or not a string came
    no sketch      the same without what sketches tell of the past
    true rates     each item's rate in every round is given; sketches tell how chance fell
    rates alone    the same without sketches
    true totals    each known item's total is given: the rest is what was never known

and of items that are within 8 counts of the threshold, the errors of their totals (a deviation).
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path[0] = str(Path(__file__).parents[1])  # not this folder: its secagg.py would hide ours

from benchmarks.rows import BenchmarkRow, report
from blindtally.planning.f1_curves import f1
from blindtally.simulate.populations import DRIFT_KINDS, load_item_population
from blindtally.simulate.token_rounds import KeyedPopulation, run_tokens
from protocol.arrays import Floats
from protocol.mechanisms.tracked import past_sketch
from protocol.mechanisms.tracked.forecast import decision_threshold, drift_of, history_of
from protocol.mechanisms.tracked.local_level import History, filter_levels
from protocol.study_state import StudyState

_ROUNDS, _TAU, _TOKENS, _NEAR_THRESHOLD_COUNTS = 30, 50.0, 10_000, 8


def estimated_totals(
    known: KeyedPopulation, tally: StudyState, rates: Floats
) -> Iterator[tuple[str, Floats]]:
    """Yield what each way makes of the totals of the items of `tally`, whose `rates` are true."""
    history, drift, domain = history_of(tally), drift_of(tally), known.domain
    yield "as estimated", past_sketch.estimate_levels(domain, tally, history, drift).totals
    yield "no sketch", filter_levels(history, drift).totals
    unseen = history.devices - history.exposure
    unseen = np.where(unseen > 1e-9 * history.devices, unseen, 0.0)
    expected, seen = unseen * rates, history.observed.sum(axis=1)
    pasts = list(past_sketch._stored_sketches(domain, tally, len(history.devices)))
    told = past_sketch._with_sketch_counts(history, pasts, unseen, expected)
    yield "true rates", seen + _posterior_counts(told, expected).sum(axis=1)
    yield "rates alone", seen + expected.sum(axis=1)


def _posterior_counts(told: History, expected: Floats) -> Floats:
    """Return what to believe of Poisson counts that are `expected`, and of which a sketch told."""
    assert told.sketch_counts is not None
    assert told.sketch_variances is not None
    spread = np.where(expected > 0, expected + told.sketch_variances, 1.0)
    gain = np.where(np.isfinite(spread), expected / spread, 0.0)
    found: Floats = expected + gain * (told.sketch_counts - expected)
    return found


def score_study(
    known: KeyedPopulation, drift: str, words: int, number: int
) -> dict[str, tuple[float, float]]:
    """Return each way's F1 and the deviation of its errors near the threshold."""
    people, seed = known.population, (1, number)
    kind = next(one for one in DRIFT_KINDS if one == drift)
    rng = np.random.default_rng([*seed, 0])
    rounds = list(people.rounds(_ROUNDS, _TOKENS, rng, kind))
    counts = np.sum(rounds, axis=0)
    tokens = known.distribute(rounds, 1, rng)
    found = run_tokens("tracked", tokens, words, _TAU, np.random.default_rng(seed))
    courses = list(people.shares_by_round(_ROUNDS, np.random.default_rng([*seed, 0]), kind))
    named: dict[str, list[int]] = {}
    for row, item in enumerate(people.items):
        if item in known.domain:
            named.setdefault(known.domain.name(item), []).append(row)
    rows = [named.get(item, []) for item in found.state.items]  # several share a key
    truth = np.array([counts[of].sum() for of in rows])
    shares = np.array(courses).T
    rates = np.array([shares[of].sum(axis=0) for of in rows])
    heavy, unknown = truth >= _TAU, int((counts >= _TAU).sum()) - int((truth >= _TAU).sum())
    missed = np.concatenate([heavy, np.ones(max(0, unknown), np.bool_)])
    near = np.abs(truth - _TAU) <= _NEAR_THRESHOLD_COUNTS
    wrong = np.zeros(len(found.found_items) - len(counts), np.bool_)
    scores = {"found": (f1(found.found_items, np.concatenate([counts >= _TAU, wrong])), np.nan)}
    for name, of in [
        *estimated_totals(known, found.state, rates),
        ("true totals", truth.astype(float)),
    ]:
        reached = np.concatenate(
            [of >= decision_threshold(_TAU), np.zeros(max(0, unknown), np.bool_)]
        )
        scores[name] = f1(reached, missed), float((of - truth)[near].std())
    return scores


def main() -> None:
    """Print the means over runs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--drift", choices=DRIFT_KINDS, default="gradual")
    parser.add_argument("--words", type=int, default=4828)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    known = KeyedPopulation.of(load_item_population(options.data), _TOKENS)
    scored = [
        score_study(known, options.drift, options.words, number) for number in range(options.runs)
    ]
    rows = []
    for name in scored[0]:
        score, error = np.mean([one[name] for one in scored], axis=0).tolist()
        rows.append(BenchmarkRow(f"{name}, F1", score, ""))
        if np.isfinite(error):
            rows.append(BenchmarkRow(f"{name}, error of totals", error, "counts"))
    report(rows, "reference", options.json)


if __name__ == "__main__":
    main()

"""What keeps `tracked` from finding all: F1 if it knew what it does not.

    python -m benchmarks.bounds --data PATH [--drift gradual] [--words 4828] [--runs 5]

Studies of `figures words` (R = 30, tau = 50, M = 10,000, seed 1), each with the same sums:

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

from benchmarks.rows import Row, report
from blindtally.figures.curves import f1
from blindtally.figures.devices import Known, deal, tracked
from blindtally.figures.populations import DRIFTS, load
from protocol.local_level import Floats, History, filter_levels
from protocol.mechanisms import hindsight
from protocol.mechanisms.outlook import drift_of, history_of, likely_from
from protocol.tally import Tally

_ROUNDS, _TAU, _TOKENS, _NEAR = 30, 50.0, 10_000, 8


def totals(known: Known, tally: Tally, rates: Floats) -> Iterator[tuple[str, Floats]]:
    """Yield what each way makes of the totals of the items of `tally`, whose `rates` are true."""
    history, drift, domain = history_of(tally), drift_of(tally), known.domain
    yield "as estimated", hindsight.levels_of(domain, tally, history, drift).totals
    yield "no sketch", filter_levels(history, drift).totals
    unseen = history.devices - history.exposed
    unseen = np.where(unseen > 1e-9 * history.devices, unseen, 0.0)
    expected, seen = unseen * rates, history.seen.sum(axis=1)
    pasts = list(hindsight._pasts(domain, tally, len(history.devices)))
    told = hindsight._told(history, pasts, unseen, expected)
    yield "true rates", seen + _weighed(told, expected).sum(axis=1)
    yield "rates alone", seen + expected.sum(axis=1)


def _weighed(told: History, expected: Floats) -> Floats:
    """Return what to believe of Poisson counts that are `expected`, and of which a sketch told."""
    assert told.told is not None
    assert told.noise is not None
    spread = np.where(expected > 0, expected + told.noise, 1.0)
    gain = np.where(np.isfinite(spread), expected / spread, 0.0)
    found: Floats = expected + gain * (told.told - expected)
    return found


def run(known: Known, drift: str, words: int, number: int) -> dict[str, tuple[float, float]]:
    """Return each way's F1 and the deviation of its errors near the threshold."""
    people, seed = known.population, (1, number)
    kind = next(one for one in DRIFTS if one == drift)
    rng = np.random.default_rng([*seed, 0])
    rounds = list(people.rounds(_ROUNDS, _TOKENS, rng, kind))
    counts = np.sum(rounds, axis=0)
    held = [deal(one, 1, rng) for one in rounds]
    found = tracked(held, known, words, _TAU, np.random.default_rng(seed))
    courses = list(people.courses(_ROUNDS, np.random.default_rng([*seed, 0]), kind))
    named = {name: rows for name, rows in known.members.items() if name in found.tally.rows}
    rows = [named.get(item, []) for item in found.tally.items]  # several share a key
    truth = np.array([counts[of].sum() for of in rows])
    shares = np.array(courses).T
    rates = np.array([shares[of].sum(axis=0) for of in rows])
    heavy, unknown = truth >= _TAU, int((counts >= _TAU).sum()) - int((truth >= _TAU).sum())
    missed = np.concatenate([heavy, np.ones(max(0, unknown), np.bool_)])
    near = np.abs(truth - _TAU) <= _NEAR
    wrong = np.zeros(len(found.mask) - len(counts), np.bool_)
    scores = {"found": (f1(found.mask, np.concatenate([counts >= _TAU, wrong])), np.nan)}
    for name, of in [*totals(known, found.tally, rates), ("true totals", truth.astype(float))]:
        reached = np.concatenate([of >= likely_from(_TAU), np.zeros(max(0, unknown), np.bool_)])
        scores[name] = f1(reached, missed), float((of - truth)[near].std())
    return scores


def main() -> None:
    """Print the means over runs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--drift", choices=DRIFTS, default="gradual")
    parser.add_argument("--words", type=int, default=4828)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    known = Known.of(load(options.data), _TOKENS)
    scored = [run(known, options.drift, options.words, number) for number in range(options.runs)]
    rows = []
    for name in scored[0]:
        score, error = np.mean([one[name] for one in scored], axis=0).tolist()
        rows.append(Row(f"{name}, F1", score, ""))
        if np.isfinite(error):
            rows.append(Row(f"{name}, error of totals", error, "counts"))
    report(rows, "reference", options.json)


if __name__ == "__main__":
    main()

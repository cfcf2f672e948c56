"""Limits of `run_tracked`: its F1 if it knew more than it can know.

    python -m benchmarks.tracked_f1_limits --data PATH [--drift gradual] [--words 4828] [--runs 5]

Studies of `python -m paper words` (R = 30, tau = 50, M = 10,000, seed 1), each with the same sums:

    found          the study's heavy hitters, by the strings that it fetched
    as estimated   the items whose totals in its answer are heavy, with or without their strings
    filter         the same, if the filter estimates the totals, without change points
    no sketch      the same without sketches of past rounds
    true rates     each item's rate in every round is given; sketches show the deviations
    rates alone    the same without sketches
    true totals    each known item's total is given: the rest is what was never known

The errors of totals are deviations over the items within 8 counts of the threshold.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.harness import BenchmarkRow, argument_parser, report
from blindtally.planning.f1_by_words import f1
from blindtally.simulate.options import DriftKind
from blindtally.simulate.populations import DRIFT_KINDS, load_item_population
from blindtally.simulate.token_study import KeyedPopulation, run_tokens
from protocol.estimation.empirical_bayes import decision_threshold
from protocol.estimation.history import History
from protocol.mechanisms.tracked import past_sketch
from protocol.mechanisms.tracked.observations import drift_of, history_of
from protocol.mechanisms.tracked.rate_filter import filter_levels
from protocol.mechanisms.tracked.totals import estimate_totals
from protocol.numerics.arrays import Floats
from protocol.study_state import StudyState

_ROUNDS, _TAU, _TOKENS, _NEAR_THRESHOLD_COUNTS = 30, 50.0, 10_000, 8


def estimated_totals(
    known: KeyedPopulation, state: StudyState, rates: Floats
) -> Iterator[tuple[str, Floats]]:
    """Yield the totals of the items of `state` by each method, given their true `rates`."""
    history, drift, domain = history_of(state), drift_of(state), known.domain
    yield "as estimated", estimate_totals(domain, state, history, drift, _TAU)[0]
    yield "filter", past_sketch.estimate_levels(domain, state, history, drift).totals
    yield "no sketch", filter_levels(history, drift).totals
    unseen = history.devices - history.exposure
    unseen = np.where(unseen > 1e-9 * history.devices, unseen, 0.0)
    expected, seen = unseen * rates, history.observed.sum(axis=1)
    pasts = list(past_sketch._stored_sketches(domain, state, len(history.devices)))
    sketched = past_sketch._with_sketch_counts(history, pasts, unseen, expected)
    yield "true rates", seen + _posterior_counts(sketched, expected).sum(axis=1)
    yield "rates alone", seen + expected.sum(axis=1)


def _posterior_counts(sketched: History, expected: Floats) -> Floats:
    """Return the posterior means of Poisson counts, given their expectations and sketches."""
    assert sketched.sketch_counts is not None
    assert sketched.sketch_variances is not None
    spread = np.where(expected > 0, expected + sketched.sketch_variances, 1.0)
    gain = np.where(np.isfinite(spread), expected / spread, 0.0)
    return np.asarray(expected + gain * (sketched.sketch_counts - expected))


def score_study(
    known: KeyedPopulation, drift: DriftKind, words: int, number: int
) -> dict[str, tuple[float, float]]:
    """Return each method's F1 and the deviation of its errors near the threshold."""
    people, seed = known.population, (1, number)
    rng = np.random.default_rng([*seed, 0])
    rounds = list(people.rounds(_ROUNDS, _TOKENS, rng, drift))
    counts = np.sum(rounds, axis=0)
    tokens = known.distribute(rounds, 1, rng)
    study = run_tokens("tracked", tokens, words, _TAU, np.random.default_rng(seed))
    shares = np.array(
        list(people.shares_by_round(_ROUNDS, np.random.default_rng([*seed, 0]), drift))
    ).T
    rows_of_key: dict[str, list[int]] = {}
    for row, item in enumerate(people.items):
        if item in known.domain:
            rows_of_key.setdefault(known.domain.name(item), []).append(row)
    rows = [rows_of_key.get(item, []) for item in study.state.items]  # several share a key
    truth = np.array([counts[of].sum() for of in rows])
    rates = np.array([shares[of].sum(axis=0) for of in rows])
    unknown = max(0, int((counts >= _TAU).sum()) - int((truth >= _TAU).sum()))
    heavy = np.concatenate([truth >= _TAU, np.ones(unknown, np.bool_)])
    near = np.abs(truth - _TAU) <= _NEAR_THRESHOLD_COUNTS
    false = np.zeros(len(study.found_items) - len(counts), np.bool_)
    scores = {"found": (f1(study.found_items, np.concatenate([counts >= _TAU, false])), np.nan)}
    totals_by_method = dict(estimated_totals(known, study.state, rates))
    for name, totals in (totals_by_method | {"true totals": truth.astype(float)}).items():
        reached = np.concatenate([totals >= decision_threshold(_TAU), np.zeros(unknown, np.bool_)])
        scores[name] = f1(reached, heavy), float((totals - truth)[near].std())
    return scores


def main() -> None:
    """Print the means over runs."""
    parser = argument_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--drift", choices=DRIFT_KINDS, default="gradual")
    parser.add_argument("--words", type=int, default=4828)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    known = KeyedPopulation.of(load_item_population(options.data), _TOKENS)
    scores_of_runs = [
        score_study(known, options.drift, options.words, number) for number in range(options.runs)
    ]
    rows = []
    for name in scores_of_runs[0]:
        score, error = np.mean([scores[name] for scores in scores_of_runs], axis=0).tolist()
        rows.append(BenchmarkRow(f"{name}, F1", score, ""))
        if np.isfinite(error):
            rows.append(BenchmarkRow(f"{name}, error of totals", error, "counts"))
    report(rows, "reference", options.json)


if __name__ == "__main__":
    main()

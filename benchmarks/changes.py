"""False discoveries and found items among the changes that studies report.

A stationary study draws all rounds from the same shares, proportional to 1 / rank. In a changed one
ten items of rank 5 to 60 change half way: two each rise to three times and to twice their share,
fall to a third, appear, and disappear. Rare items make up for the difference.

    python -m benchmarks.changes --mechanism tracked --words 250 --studies 30 --changed
"""

import argparse
from dataclasses import dataclass
from random import Random

import numpy as np

from blindtally.simulate.populations import PAPER_ALPHABET, ItemPopulation
from blindtally.simulate.token_study import KeyedPopulation, terms_for_tokens
from protocol.estimation.rate_changes import compare_rates
from protocol.mechanisms.registry import SUM_MECHANISMS, parse_question
from protocol.numerics.arrays import Floats
from protocol.simulation.study import run_study
from protocol.study_state import EMPTY_STATE

ITEMS = [a + b + c for a in "abcdefghijklmnopqrst" for b in "abcdefghij" for c in "abcdefghijklmno"]
FACTORS = (3.0, 2.0, 1 / 3, np.inf, 0.0)  # infinite: it appears half way
ROUNDS, TOKENS, THRESHOLD, RATE = 20, 3000, 60, 0.05


@dataclass(frozen=True)
class StudyResult:
    """P-values of the items that did not change, and the numbers of reported changes."""

    p_values: Floats
    true_changes: int
    false_changes: int


def shares_by_round(rng: np.random.Generator, is_changed: bool) -> tuple[Floats, list[int]]:
    """Return the shares of each round (rounds, items), and the items that change."""
    shares = np.tile(1 / np.arange(1, len(ITEMS) + 1), (ROUNDS, 1))
    shares /= shares[0].sum()
    if not is_changed:
        return shares, []
    changed = rng.choice(np.arange(5, 60), 10, replace=False).tolist()
    for item, factor in zip(changed, 2 * FACTORS, strict=True):
        if np.isinf(factor):
            shares[: ROUNDS // 2, item] = 0
        else:
            shares[ROUNDS // 2 :, item] *= factor
    rest = 1 - shares.sum(axis=1, keepdims=True)
    shares[:, -len(ITEMS) // 2 :] += rest / (len(ITEMS) // 2)
    return np.maximum(shares, 0) / np.maximum(shares, 0).sum(axis=1, keepdims=True), changed


def run(mechanism_name: str, words: int, seed: int, is_changed: bool) -> StudyResult:
    """Return the changes that one study reports."""
    rng, mechanism = np.random.default_rng(seed), SUM_MECHANISMS[mechanism_name]
    shares, changed = shares_by_round(rng, is_changed)
    population = ItemPopulation(tuple(ITEMS), shares[0], PAPER_ALPHABET)
    counts = [rng.multinomial(max(1, round(rng.normal(TOKENS, TOKENS / 10))), s) for s in shares]
    tokens = KeyedPopulation.of(population, TOKENS).distribute(counts, 1, rng)
    question = parse_question(
        {"mechanism": mechanism_name, "threshold": THRESHOLD, "contribution": 1, "words": words}
        | {"domain": PAPER_ALPHABET}
    )
    terms, plan, state = terms_for_tokens(max(map(len, tokens.rounds))), None, EMPTY_STATE
    rounds = ([histograms] for histograms in tokens.rounds)
    for outcome in run_study(mechanism, question, terms, rounds, Random(seed), planned=ROUNDS):
        plan, state = outcome.plan, outcome.study_state
    items = [each.item for each in mechanism.final_estimates(question, state)]
    history = mechanism.rate_history(plan, state, items)
    if history is None:
        raise SystemExit(f"{mechanism_name} keeps totals only")
    changes = compare_rates(*(history.sample(*half) for half in history.halves()), RATE)
    does_change = np.isin(items, [ITEMS[item] for item in changed])
    is_reported = np.array([kind is not None for kind in changes.kinds], np.bool_)
    true_changes = int((is_reported & does_change).sum())
    false_changes = int((is_reported & ~does_change).sum())
    return StudyResult(changes.p_values[~does_change], true_changes, false_changes)


def main() -> None:
    """Print the shares over all studies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mechanism", default="tracked")
    parser.add_argument("--words", type=int, default=250)
    parser.add_argument("--studies", type=int, default=30)
    parser.add_argument("--changed", action="store_true")
    args = parser.parse_args()
    results = [run(args.mechanism, args.words, seed, args.changed) for seed in range(args.studies)]
    p_values = np.concatenate([each.p_values for each in results])
    reported = [each.true_changes + each.false_changes for each in results]
    false_shares = [
        each.false_changes / max(1, total) for each, total in zip(results, reported, strict=True)
    ]
    print(f"studies with a false change  {sum(each.false_changes > 0 for each in results)}")
    print(f"false share of all changes   {np.mean(false_shares):.3f}")
    print(f"found, of ten items          {np.mean([each.true_changes for each in results]):.2f}")
    print(f"p-values of other items      {len(p_values):,}")
    for level in (0.05, 0.01, 0.001):
        print(f"  below {level:<5g}                {(p_values < level).mean():.4f}")


if __name__ == "__main__":
    main()

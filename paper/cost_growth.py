"""Growth of the cost with R: at fixed M, and at a fixed number N = R M of all devices.

Two costs at fixed M and tau, of a plain frequency oracle and of sampled tables:

    errors    root mean square, over items that are held tau / 2 to 2 tau times over all rounds: of
              a count-sketch of C words with 7 rows it grows with the root of R, as any oracle's
              must (theorem 4); of an adaptive table of C words it stays, because it is the root of
              tau (t - 1), and t does not depend on R
    words     of a count-sketch for an error of tau / 4, and of a table at the t with that error, so
              that *all* R rounds are read with probability 15/16: the paper's log R (theorem 1). It
              results from more hash functions for more rounds, as its gamma = log R has it; with
              three, two keys meet in all cells too often

At fixed N and tau the words for an F1 of 0.93 fall as rounds get smaller: theorem 2 has the bound
m N / (R tau), up to logarithms, which the paper's adaptive table and `tracked` are compared with.

Source: theorems 1, 2 and 4, and table 1, of [Gascon23].
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from blindtally.planning.f1_by_words import (
    TRACKED,
    Method,
    StudyCase,
    StudySetting,
    f1_over_sizes,
)
from blindtally.simulate.populations import ItemPopulation, RoundCounts
from blindtally.simulate.token_study import KeyedPopulation
from paper import frequency_sketches, gascon23
from paper.f1_curves import PAPER

SKETCH_ROWS: Final = 7
_TRIED_WORDS: Final = tuple(2**power for power in range(7, 19))  # sizes of the oracle
_TABLE_HASHES: Final = (3, 4, 5, 6)
_READ_PROBABILITY: Final = 15 / 16
_EXPECTED_FAILURES: Final = 16  # over the trials of a number of words
_MAX_TRIALS: Final = 4000
_SAMPLED_ROUNDS: Final = 50  # their numbers of distinct keys stand for all rounds
_WORDS_PER_CELL: Final = gascon23.WORDS_PER_KEY / gascon23.CELLS_PER_KEY


@dataclass(frozen=True, slots=True)
class GrowthRow:
    """At `rounds` rounds: errors with the words given, and words for an error of tau / 4.

    These may be means; then `deviations` has each one's standard deviation over the runs.
    """

    rounds: int
    oracle_error: float
    table_error: float
    oracle_words: float
    table_words: float
    deviations: dict[str, float] = field(default_factory=dict)


FIXED_TOTAL_ROUNDS: Final = (8, 32, 128)
FIXED_TOTAL_GOAL: Final = 0.93  # F1
_TOTAL_IN_ROUNDS: Final = 32  # N = 32 M
_TRACKED_STEP: Final = 5  # sizes of tracked that are skipped far from the goal


@dataclass(frozen=True, slots=True)
class FixedTotalRow:
    """Words of a device for the goal's F1, where N devices are divided among `rounds` rounds.

    `bound` is m N / (R tau) for m = 1, without its constant and logarithm.
    """

    rounds: int
    tokens: int
    bound: float
    paper: float | None
    tracked: float | None


GROWTH_MEASURES: Final = ("oracle_error", "table_error", "oracle_words", "table_words")


def mean_of_runs(rows: Sequence[GrowthRow]) -> GrowthRow:
    """Return the means of runs with the same number of rounds, and their deviations."""
    columns = {name: [getattr(row, name) for row in rows] for name in GROWTH_MEASURES}
    spread = {k: float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for k, v in columns.items()}
    means = {name: float(np.mean(values)) for name, values in columns.items()}
    return GrowthRow(rows[0].rounds, **means, deviations=spread)


def measure_growth(
    population: ItemPopulation, tokens: int, tau: float, words: int, case: tuple[int, int, int]
) -> GrowthRow:
    """Return the cost of a number of rounds; `case` has the seed, that number, and the run.

    The domain must be one that oracles can enumerate.
    """
    rounds, rng = case[1], np.random.default_rng(case)
    drawn = list(population.rounds(rounds, tokens, rng))
    truth = np.sum(drawn, axis=0)
    near = (truth >= tau / 2) & (truth <= 2 * tau)
    errors = _oracle_errors(population, drawn, truth, near, words, rng)
    estimates = gascon23.run_adaptive(drawn, words, tokens, rng)
    return GrowthRow(
        rounds,
        errors[words],
        _rms((estimates - truth)[near]),
        _words_reaching(errors, tau / 4),
        table_words(population, rounds, tokens, 1 + tau / 16, rng),
    )


def table_words(
    population: ItemPopulation, rounds: int, tokens: int, t: float, rng: np.random.Generator
) -> int:
    """Return the words with which all rounds are read with probability 15/16, at threshold t."""
    seen = list(population.rounds(_SAMPLED_ROUNDS, tokens, rng))
    keys = [int((rng.binomial(counts, 1 / t) > 0).sum()) for counts in seen]
    return min(
        _min_table_words(keys, (1 - _READ_PROBABILITY) / rounds, hashes, rng)
        for hashes in _TABLE_HASHES
    )


def fixed_total_tokens(tokens: int, rounds: int) -> int:
    """Return M of a round if N = 32 `tokens` are divided among `rounds` rounds."""
    return max(1, tokens * _TOTAL_IN_ROUNDS // rounds)


def words_at_fixed_total(
    population: ItemPopulation,
    tokens: int,
    tau: float,
    seeds: Sequence[Sequence[int]],
    case: tuple[Method, int],
) -> float | None:
    """Return the words with which a method reaches the goal; `case` has it and the rounds."""
    method, rounds = case
    size = fixed_total_tokens(tokens, rounds)
    curve = f1_over_sizes(
        StudyCase(KeyedPopulation.of(population, size), "none", 1),
        method,
        StudySetting(rounds, tau, size, 0),
        seeds,
        every=_TRACKED_STEP if method is TRACKED else 1,
        goals=(FIXED_TOTAL_GOAL,),
    )
    return curve.x_reaching(FIXED_TOTAL_GOAL)


def fixed_total_cases() -> list[tuple[Method, int]]:
    """Return each number of rounds with the paper's method, and with `tracked`."""
    return [(method, rounds) for rounds in FIXED_TOTAL_ROUNDS for method in (PAPER, TRACKED)]


def fixed_total_rows(tokens: int, tau: float, words: Sequence[float | None]) -> list[FixedTotalRow]:
    """Return a row for each number of rounds; `words` are those of `fixed_total_cases`."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return [
        FixedTotalRow(
            rounds,
            fixed_total_tokens(tokens, rounds),
            tokens * _TOTAL_IN_ROUNDS / (rounds * tau),
            paper,
            tracked,
        )
        for rounds, (paper, tracked) in zip(FIXED_TOTAL_ROUNDS, pairs, strict=True)
    ]


def _min_table_words(
    keys: list[int], failure_probability: float, hashes: int, rng: np.random.Generator
) -> int:
    """Return the words of the smallest table that fails rarely enough, to 3%."""
    low, high = max(keys), 40 * max(keys)
    while high > 1.03 * low and high > low + 1:
        middle = math.ceil(math.sqrt(low * high))
        fails = _fails_too_often(keys, failure_probability, hashes, middle, rng)
        low, high = (middle, high) if fails else (low, middle)
    return math.ceil(high * _WORDS_PER_CELL)


def _fails_too_often(
    keys: list[int], failure_probability: float, hashes: int, cells: int, rng: np.random.Generator
) -> bool:
    """Return whether tables of `cells` cells fail with more than `failure_probability`."""
    failures, trials = 0, min(_MAX_TRIALS, math.ceil(_EXPECTED_FAILURES / failure_probability))
    for trial in range(trials):
        failures += gascon23.stuck_cells(keys[trial % len(keys)], cells, rng, hashes) > 0
        if failures > failure_probability * trials:
            return True
    return False


def _oracle_errors(
    population: ItemPopulation,
    drawn: Sequence[RoundCounts],
    truth: NDArray[np.int64],
    near: NDArray[np.bool_],
    words: int,
    rng: np.random.Generator,
) -> dict[int, float]:
    """Return the sketch's error by words."""
    where = population.domain.encode(population.items)[:, 0].astype(np.int64)
    kept, errors = where[near], {}
    sizes, kind = sorted({*_TRIED_WORDS, words}), frequency_sketches.SketchKind(signed=True)
    scores = frequency_sketches.score_candidates(
        drawn, where, population.domain.bound, sizes, (SKETCH_ROWS,), kind, rng
    )
    for (size, _), estimates in scores.items():
        errors[size] = _rms(estimates[kept] - truth[near])
    return errors


def _words_reaching(errors: dict[int, float], goal: float) -> float:
    """Return the words with which the error is `goal`, interpolated between tried sizes."""
    sizes = sorted(errors)
    falling = np.minimum.accumulate([max(errors[size], 1e-9) for size in sizes])
    return float(np.exp(np.interp(-math.log(goal), -np.log(falling), np.log(sizes))))


def _rms(errors: NDArray[Any]) -> float:
    return float(np.sqrt((errors.astype(np.float64) ** 2).mean())) if len(errors) else 0.0

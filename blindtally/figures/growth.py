"""How the cost grows with R: a plain frequency oracle beside sampled tables, at fixed M and tau.

    errors    root mean square, of items that are held tau / 2 to 2 tau times over all rounds: of a
              count-sketch of C words with 7 rows it grows with the root of R, as any oracle's
              must (theorem 4); of an adaptive table of C words it stays, for it is the root of
              tau (t - 1), and t does not hang on R
    words     that a count-sketch takes for an error of tau / 4, and that a table takes at the t
              with that error, so that *all* R rounds are read with odds of 15/16: the paper's
              log R (theorem 1). It comes from more hash functions for more rounds, as its
              gamma = log R has it; with three, two keys meet in all cells too often

Source: theorems 1 and 4 of [Gascon23].
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from blindtally.figures import paper, sketches
from blindtally.figures.populations import Population, Round

HASHES: Final = 7  # of the sketch
_WORDS: Final = tuple(2**power for power in range(7, 19))  # in which the oracle's are sought
_TABLE_HASHES: Final = (3, 4, 5, 6)
_ODDS: Final = 15 / 16
_TRIALS: Final = 16  # expected failures that a choice of words is judged by
_MOST_TRIALS: Final = 4000
_SEEN: Final = 50  # rounds whose numbers of distinct keys stand for all
_WORDS_PER_CELL: Final = paper.WORDS_PER_KEY / paper.CELLS_PER_KEY


@dataclass(frozen=True, slots=True)
class Growth:
    """At `rounds` rounds: errors with the words given, and words for an error of tau / 4.

    These may be means; then `deviations` has each one's standard deviation over the runs.
    """

    rounds: int
    oracle_error: float
    table_error: float
    oracle_words: float
    table_words: float
    deviations: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return what scripts read."""
        return asdict(self)


MEASURES: Final = ("oracle_error", "table_error", "oracle_words", "table_words")


def over_runs(rows: Sequence[Growth]) -> Growth:
    """Return the means of runs of as many rounds, with their deviations."""
    columns = {name: [getattr(row, name) for row in rows] for name in MEASURES}
    spread = {k: float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for k, v in columns.items()}
    means = {name: float(np.mean(values)) for name, values in columns.items()}
    return Growth(rows[0].rounds, **means, deviations=spread)


def grow(
    population: Population, tokens: int, tau: float, words: int, case: tuple[int, int, int]
) -> Growth:
    """Return what so many rounds cost, by `case`: the seed, how many, and which run of it.

    The domain must be one that oracles can enumerate.
    """
    rounds, rng = case[1], np.random.default_rng(case)
    drawn = list(population.rounds(rounds, tokens, rng))
    truth = np.sum(drawn, axis=0)
    near = (truth >= tau / 2) & (truth <= 2 * tau)
    errors = _oracle_errors(population, drawn, truth, near, words, rng)
    estimates = paper.adaptive(drawn, words, tokens, rng)
    return Growth(
        rounds,
        errors[words],
        _rms((estimates - truth)[near]),
        _reached(errors, tau / 4),
        table_words(population, rounds, tokens, 1 + tau / 16, rng),
    )


def table_words(
    population: Population, rounds: int, tokens: int, t: float, rng: np.random.Generator
) -> int:
    """Return the words with which all rounds are read with odds of 15/16, at threshold t."""
    seen = list(population.rounds(_SEEN, tokens, rng))
    keys = [int((rng.binomial(counts, 1 / t) > 0).sum()) for counts in seen]
    return min(_fewest(keys, (1 - _ODDS) / rounds, hashes, rng) for hashes in _TABLE_HASHES)


def _fewest(keys: list[int], odds: float, hashes: int, rng: np.random.Generator) -> int:
    """Return the words of the smallest table that fails with at most `odds`, to 3%."""
    low, high = max(keys), 40 * max(keys)
    while high > 1.03 * low and high > low + 1:
        middle = math.ceil(math.sqrt(low * high))
        fails = _fails(keys, odds, hashes, middle, rng)
        low, high = (middle, high) if fails else (low, middle)
    return math.ceil(high * _WORDS_PER_CELL)


def _fails(keys: list[int], odds: float, hashes: int, cells: int, rng: np.random.Generator) -> bool:
    """Return whether tables of `cells` cells fail more often than with `odds`."""
    failures, trials = 0, min(_MOST_TRIALS, math.ceil(_TRIALS / odds))
    for trial in range(trials):
        failures += paper.core(keys[trial % len(keys)], cells, rng, hashes) > 0
        if failures > odds * trials:
            return True
    return False


def _oracle_errors(
    population: Population,
    drawn: Sequence[Round],
    truth: NDArray[np.int64],
    near: NDArray[np.bool_],
    words: int,
    rng: np.random.Generator,
) -> dict[int, float]:
    """Return the sketch's error by words."""
    where = population.domain.encode(population.items)[:, 0].astype(np.int64)
    kept, errors = where[near], {}
    sizes, kind = sorted({*_WORDS, words}), sketches.Kind(signed=True)
    scores = sketches.score(drawn, where, population.domain.bound, sizes, (HASHES,), kind, rng)
    for (size, _), estimates in scores.items():
        errors[size] = _rms(estimates[kept] - truth[near])
    return errors


def _reached(errors: dict[int, float], goal: float) -> float:
    """Return the words with which the error is `goal`, between those that were tried."""
    sizes = sorted(errors)
    falling = np.minimum.accumulate([max(errors[size], 1e-9) for size in sizes])
    return float(np.exp(np.interp(-math.log(goal), -np.log(falling), np.log(sizes))))


def _rms(errors: NDArray[Any]) -> float:
    return float(np.sqrt((errors.astype(np.float64) ** 2).mean())) if len(errors) else 0.0

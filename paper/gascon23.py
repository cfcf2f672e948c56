"""The paper's methods at the paper's price: 8 words and 1.3 cells per unit of capacity.

A table of C words has capacity L0 = C / 8 and 1.3 L0 cells in three sub-tables; it is read if
peeling ends empty. Peeling depends only on the cells that keys hash to, so only these are
simulated: random cells, no contents (a false key has a probability of 2^-31).

Source: Algorithms 2 and 4, section 7 and appendix C of [Gascon23].
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from blindtally.simulate.populations import RoundCounts
from blindtally.simulate.token_study import ItemMask, TokenRounds
from protocol.histograms import Histograms
from protocol.mechanisms.iblt.threshold_control import paper_threshold
from protocol.mechanisms.iblt.threshold_sampling import ThresholdSampler

WORDS_PER_KEY = 8
CELLS_PER_KEY = 1.3
_SUBTABLES = 3
FIXED_THRESHOLDS = (1, 1.25, 2, 5, 10, 20, 50, 100)  # the candidates of figure 3

_HASH_BITS, _WORD_BITS = 32, 16
Estimates = NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table of `words` words."""

    words: int

    @property
    def capacity(self) -> float:
        """Return L0."""
        return self.words / WORDS_PER_KEY

    @property
    def cells(self) -> int:
        """Return the cells, a multiple of three."""
        return _SUBTABLES * max(1, math.floor(CELLS_PER_KEY * self.capacity / _SUBTABLES))

    def decode(self, keys: int, rng: np.random.Generator) -> tuple[bool, float]:
        """Return whether `keys` keys can be read, and how many they are, or seem to be."""
        stuck = stuck_cells(keys, self.cells, rng)
        return stuck == 0, float(keys) if stuck == 0 else estimate_stuck_keys(stuck, self.cells)


def words_per_string(max_bytes: int, tokens: float) -> float:
    """Return the words per key of a table whose cells have strings as keys, with their length.

    Strings have up to `max_bytes` bytes, and the devices of a round hold `tokens` items. For
    example, 8.6 words are for strings of 6 bytes and 10,000 items, and 44 for 61 bytes.

    Source: 1.3 L0 (32 + log2 d + 2 log2(m n)) bits, "Sketch size" in appendix C of [Gascon23].
    """
    bits = _HASH_BITS + 8 * max_bytes + 2 * math.log2(tokens)
    return max(WORDS_PER_KEY, CELLS_PER_KEY * bits / _WORD_BITS)


def stuck_cells(keys: int, cells: int, rng: np.random.Generator, hashes: int = _SUBTABLES) -> int:
    """Return the cells that stay non-empty when `keys` random keys are peeled; 0 if none.

    Each key is in `hashes` cells, one in each of `hashes` sub-tables.
    """
    width = cells // hashes
    places = rng.integers(0, width, (keys, hashes)) + np.arange(hashes) * width
    while len(places):
        load = np.bincount(places.reshape(-1), minlength=cells)
        alone = (load[places] == 1).any(axis=1)
        if not alone.any():
            return int((load > 0).sum())
        places = places[~alone]
    return 0


def estimate_stuck_keys(stuck: int, cells: int) -> float:
    """Return the keys that equations (3) and (4) see in a core of `stuck` of `cells` cells.

    A full core would be infinitely many; it counts as one with half a cell empty.
    """
    share = min(stuck, cells - 0.5) / cells
    x = float(brentq(lambda x: -math.expm1(-x) - x * math.exp(-x) - share, 1e-9, 700.0))
    return cells * x / (3 * math.expm1(-x) ** 2)


def practical_threshold(words: int, tokens: int, tau: float) -> float:
    """Return t = max(1, min(M / L0, tau / 2))."""
    return max(1.0, min(tokens / PaperTable(words).capacity, tau / 2))


def run_fixed_threshold(
    rounds: Sequence[RoundCounts], words: int, t: float, rng: np.random.Generator
) -> Estimates:
    """Return the estimates of algorithm 2 with one table at threshold `t`; 1 keeps all tokens."""
    table, estimates = PaperTable(words), np.zeros(len(rounds[0]))
    for counts in rounds:
        sampled = rng.binomial(counts, 1 / t)
        if table.decode(int((sampled > 0).sum()), rng)[0]:
            estimates += sampled * t
    return estimates


def run_adaptive(
    rounds: Sequence[RoundCounts], words: int, tokens: int, rng: np.random.Generator
) -> Estimates:
    """Return the estimates of algorithm 4, starting from t = M / L0."""

    def sample(counts: RoundCounts, t: float) -> Estimates:
        return np.asarray(rng.binomial(counts, 1 / t) * t, np.float64)

    return _adapt(PaperTable(words), tokens, rounds, len(rounds[0]), sample, rng)


def run_paper_adaptive(
    tokens: TokenRounds, words: int, tau: float, rng: np.random.Generator
) -> ItemMask:
    """Return the items that algorithm 4 finds at the paper's price."""
    places, contribution = tokens.known.places, tokens.contribution

    def sample(devices: Histograms, t: float) -> Estimates:
        threshold = ThresholdSampler(t, contribution)
        kept = threshold.sample(devices.counts, rng.random(len(devices.counts)))
        return np.asarray(devices.item_totals(kept)[places] * threshold.unit, np.float64)

    size = len(tokens.rounds[0]) * contribution
    return _adapt(PaperTable(words), size, tokens.rounds, len(places), sample, rng) >= tau


def _adapt(
    table: PaperTable,
    tokens: float,
    rounds: Sequence[T],
    items: int,
    sample: Callable[[T, float], Estimates],
    rng: np.random.Generator,
) -> Estimates:
    """Return the sum of the sampled estimates of the rounds that are read; t adapts to each."""
    total, t = np.zeros(items), max(1.0, tokens / table.capacity)
    for held in rounds:
        estimates = sample(held, t)
        is_read, distinct = table.decode(int((estimates > 0).sum()), rng)
        if is_read:
            total += estimates
        t = max(1.0, paper_threshold(t, distinct, table.capacity))
    return total

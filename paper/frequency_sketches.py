"""Count-median and count-sketch at the paper's price: a word per cell, every candidate scored.

As in `protocol/reference_mechanisms/count_sketch.py`, with true chance instead of hash functions:
each candidate of the domain gets its cell and sign in each row at random, again in each round or
once for the study. One draw serves all widths and numbers of rows, so that curves over words are
smoother than runs are. Without signs, the mean of what else is in a cell is subtracted, where our
mechanism subtracts the bias of the median.

Source: the baseline of section 7 of [Gascon23], which does not specify whether its hash functions
are fresh each round, nor whether there are signs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blindtally.simulate.populations import RoundCounts
from protocol.reference_mechanisms.median_estimates import median

TRIED_ROWS = (5, 7, 9, 11)
ScoresByShape = dict[tuple[int, int], NDArray[np.float32]]  # by words and hashes, by candidate


@dataclass(frozen=True, slots=True)
class SketchKind:
    """A sketch: with signs or without, with hash functions fresh each round or the same."""

    signed: bool
    fresh: bool = True


def score_candidates(
    rounds: Sequence[RoundCounts],
    where: NDArray[np.int64],
    candidates: int,
    words: Sequence[int],
    hashes: Sequence[int],
    kind: SketchKind,
    rng: np.random.Generator,
) -> ScoresByShape:
    """Return the sums over rounds of every candidate's estimates; item i is `where[i]` of them."""
    shapes = [(size, rows) for size in words for rows in hashes if size >= 2 * rows]
    scores: ScoresByShape = {of: np.zeros(candidates, np.float32) for of in shapes}
    shape = (max(hashes), candidates)
    for number, counts in enumerate(rounds):
        if kind.fresh or number == 0:
            chance = rng.random(shape, np.float32)
            signs = 2 * rng.integers(0, 2, shape, np.int8) - 1
        held = np.flatnonzero(counts)
        for size, count in shapes:
            width = size // count
            rows = np.empty((count, candidates), np.float32)
            for row in range(count):
                cells = (chance[row] * width).astype(np.intp)
                sign = signs[row] if kind.signed else None
                np.take(
                    _cell_estimates(cells, sign, width, where[held], counts[held]),
                    cells,
                    out=rows[row],
                    mode="clip",
                )
                if sign is not None:
                    rows[row] *= sign
            scores[size, count] += median(rows)
    return scores


def _cell_estimates(
    cells: NDArray[np.intp],
    sign: NDArray[np.int8] | None,
    width: int,
    where: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> NDArray[np.float32]:
    """Return each cell's estimate for every candidate in it, up to the candidate's sign."""
    # The chance of 1 - 2^-25 is rounded to 1.
    amounts = counts if sign is None else counts * sign[where]
    sums = np.bincount(cells[where], weights=amounts, minlength=width + 1).astype(np.float32)
    if sign is None:
        sums = ((sums * width - sums.sum()) / (width - 1)).astype(np.float32)
    return sums

"""The votes for a level of a trie, and how they travel: in a lane of all cells, or in a table.

A table (`protocol/sketches/vote_table.py`) is for a level of which few cells are used. It is sized
for as many votes as coins may give, whatever devices hold: the heads of n m coins of odds p exceed
that with a tenth of the odds f that a round may fail with. So it is smaller than a lane of all
cells where n m p is less than some 8% of them, and hardly grows with them: frontiers may be longer,
and strides several symbols.

**What a failure tells.** A table that is not read whole shows, by what is missing, that there was
more than is published. So f is charged. If neighbours are epsilon, d apart where all is read, then
where either fails with odds of f, by going over to what is read and back,

    Pr[S] <= Pr[S; all read] + f <= e^epsilon (Pr'[S] + f) + d + f,   delta = d + (1 + e^epsilon) f

A hundredth of delta pays for all rounds, at twice (1 + e^epsilon), as epsilon may be more where
several studies are accounted for together. Nothing says that a table was not read: what was read is
published from theta on. Counts with noise cannot be read off a table.
"""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from protocol.chance import Chance
from protocol.digits import Rows
from protocol.histograms import Histograms
from protocol.mechanism import Histogram, Terms
from protocol.mechanisms.releasing import ReleaseQuestion
from protocol.privacy.release import Release
from protocol.sketches.vote_table import Shape, most_votes
from protocol.tree import NOWHERE, Places
from secagg.ring import Lane, Vector

if TYPE_CHECKING:
    from protocol.mechanisms.triehh import TrieHhPlan

UNREAD = 0.01  # of delta, for tables that are not read whole
_MORE = 0.1  # of the odds of a failure: for more votes than a table is made for


def odds_of(question: ReleaseQuestion, rounds: int) -> float:
    """Return the odds with which each of so many rounds may fail."""
    releases = rounds if question.repeat else 1
    return question.unread / releases / (1 + math.exp(question.epsilon)) / 2


def shape_of(
    question: ReleaseQuestion, terms: Terms, release: Release, rounds: int, bound: int
) -> Shape | None:
    """Return the table for votes for numbers below `bound`; None if the words hold none."""
    odds = odds_of(question, rounds)
    if not odds:
        return None
    coins = terms.devices * question.contribution
    votes = most_votes(coins, release.probability, _MORE * odds)
    if bound <= votes:  # then every cell may be in use, and a lane of all is smaller
        return None
    shape = Shape.fitting(bound, votes, (1 - _MORE) * odds)
    return shape if shape is not None and shape.ring.nbytes <= question.nbytes else None


def vector_of(
    plan: "TrieHhPlan",
    rows: Rows,
    held: Places,
    chance: Chance,
    device: Places | None = None,
) -> Vector:
    """Return the sum of many devices' vectors, without noise; arguments are those of `votes_of`."""
    table = plan.votes_in
    if table is not None:
        cells, times = _voted(plan, rows, held, chance, device)
        different, where = np.unique(cells, return_inverse=True)
        return table.insert(different, _sums(where, times, len(different)))
    votes = votes_of(plan, rows, held, chance, device)
    return (votes.astype(Lane(2**plan.bits, plan.cells).dtype),)


def votes_of(
    plan: "TrieHhPlan",
    rows: Rows,
    held: Places,
    chance: Chance,
    device: Places | None = None,
) -> Places:
    """Return the votes in each cell of a plan without a table, by a coin for each holding.

    `held` are the places of holdings in `rows`, the digits of items; `device` the devices that hold
    them, 0 or more; None if each holds one thing. A device's holdings of one cell are one vote, by
    the coin of the first.
    """
    return _sums(*_voted(plan, rows, held, chance, device), plan.cells)


def _voted(
    plan: "TrieHhPlan", rows: Rows, held: Places, chance: Chance, device: Places | None
) -> tuple[Places, Places]:
    """Return the cells that items vote for, and each item's votes."""
    heads = plan.coins(chance, len(held))
    if device is not None and plan.question.contribution > 1:
        voted = np.stack((device, plan.cells_of(rows)[held]))
        order = np.lexsort(voted)  # stable, so that of one cell and device the first stays first
        again = (voted[:, order[1:]] == voted[:, order[:-1]]).all(axis=0)
        heads[order[1:][again]] = False
    # Few items have heads, and of many devices few have an item of their own.
    times = np.bincount(held[heads], minlength=len(rows))
    some = np.flatnonzero(times)
    cells, times = plan.cells_of(rows[some]), times[some]
    kept = cells != NOWHERE
    return cells[kept], times[kept]


def _sums(where: Places, times: Places, count: int) -> Places:
    """Return the sums of `times`, below 2^53, that go to each of `count` places."""
    return np.bincount(where, times, count).astype(np.int64)


def held_by(
    histograms: Iterable[Histogram], most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], Sequence[str]]:
    """Return each holding's device and item by number, and the items; in one order, whatever."""
    held = Histograms.of(histograms)
    held.check(most)
    items, which = np.unique(held.which, return_inverse=True)
    return held.devices, which, [held.items[place] for place in items.tolist()]

"""Votes of devices on one level of a trie, in a lane of all cells or in a vote table.

A vote table (`protocol/sketches/vote_table.py`) suits a level with few used cells. Its size is for
the largest number of votes that coins may give, for any data of devices: the heads of n m coins of
probability p exceed it with a tenth of the probability f that a round may fail with. So it is
smaller than a lane of all cells if n m p is less than some 8% of the number of cells, and it
grows very little with that number. Frontiers may be longer, and a stride may be several symbols.

**Cost of a failure.** A table that cannot be read whole reveals, by the missing counts, that there
was more than is published. So f is charged. Let neighbours be (epsilon, d)-indistinguishable where
all tables are read, and let each table fail with probability f. Then, by replacing the output by
the complete one and back,

    Pr[S] <= Pr[S; all read] + f <= e^epsilon (Pr'[S] + f) + d + f,   delta = d + (1 + e^epsilon) f

A hundredth of delta pays for all rounds, at twice (1 + e^epsilon), since epsilon may be larger
where several studies are accounted for together. The answer does not reveal that a table was not
read: counts of theta or more are published from the part that was read. Counts with noise cannot be
read from a table.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from protocol.histograms import Histogram, Histograms
from protocol.mechanisms.central.release_question import ReleaseQuestion
from protocol.mechanisms.central.trie_plan import TrieHhPlan
from protocol.numerics.array_types import DigitRows, Indices, Integers
from protocol.privacy.release import Release
from protocol.quantiles.prefix_tree import NO_PREFIX
from protocol.question_and_plan import Terms
from protocol.randomness import RandomWords
from protocol.round_sizes import message_bytes
from protocol.sketches.vote_table import VoteTableShape, max_votes
from secagg.ring import Lane, Vector

_OVERFLOW_SHARE = 0.1  # part of the failure probability for more votes than a table is sized for


def table_failure_probability(question: ReleaseQuestion, rounds: int) -> float:
    """Return the probability with which each of `rounds` rounds may fail."""
    releases = rounds if question.every_round else 1
    return question.table_failure_delta / releases / (1 + math.exp(question.epsilon)) / 2


def vote_table_shape(
    question: ReleaseQuestion, terms: Terms, release: Release, rounds: int, bound: int
) -> VoteTableShape | None:
    """Return the table of votes for numbers below `bound`; None if it does not fit or help."""
    failure = table_failure_probability(question, rounds)
    if not failure:
        return None
    coins = terms.max_devices * question.contribution
    votes = max_votes(coins, release.probability, _OVERFLOW_SHARE * failure)
    if bound <= votes:  # all cells may be used, so a lane of all cells is smaller
        return None
    shape = VoteTableShape.fitting(bound, votes, (1 - _OVERFLOW_SHARE) * failure)
    if shape is None or message_bytes(terms, shape.ring(terms.moduli)) > question.message_bytes:
        return None
    return shape


def encode_votes(
    plan: TrieHhPlan,
    rows: DigitRows,
    items: Indices,
    chance: RandomWords,
    devices: Indices | None = None,
) -> Vector:
    """Return the sum of the devices' vectors, without noise; arguments as in `votes_per_cell`."""
    table = plan.vote_table
    if table is not None:
        cells, votes = _draw_votes(plan, rows, items, chance, devices)
        distinct, positions = np.unique(cells, return_inverse=True)
        return table.insert(distinct, _sum_at(positions, votes, len(distinct)))
    counts = votes_per_cell(plan, rows, items, chance, devices)
    return (counts.astype(Lane(plan.cell_modulus, plan.cells).dtype),)


def votes_per_cell(
    plan: TrieHhPlan,
    rows: DigitRows,
    items: Indices,
    chance: RandomWords,
    devices: Indices | None = None,
) -> Integers:
    """Return the votes in each cell of a plan without a table, with a coin for each holding.

    Holding i is item `rows[items[i]]`, a row of digits, of device `devices[i]`. If `devices` is
    None, each device has one holding. Several holdings of a device in one cell give one vote, by
    the coin of the first.
    """
    return _sum_at(*_draw_votes(plan, rows, items, chance, devices), plan.cells)


def _draw_votes(
    plan: TrieHhPlan, rows: DigitRows, items: Indices, chance: RandomWords, devices: Indices | None
) -> tuple[Indices, Integers]:
    """Return the cell of each item that has votes, and the number of its votes."""
    heads = plan.vote_coins(chance, len(items))
    if devices is not None and plan.question.contribution > 1:
        pairs = np.stack((devices, plan.cells_of(rows)[items]))
        order = np.lexsort(pairs)  # stable, so the first holding of a device and cell stays first
        repeated = (pairs[:, order[1:]] == pairs[:, order[:-1]]).all(axis=0)
        heads[order[1:][repeated]] = False
    # Few items have heads, and few of many devices have an item that no other device has.
    votes = np.bincount(items[heads], minlength=len(rows))
    voted = np.flatnonzero(votes)
    cells, votes = plan.cells_of(rows[voted]), votes[voted]
    is_open = cells != NO_PREFIX
    return cells[is_open], votes[is_open]


def _sum_at(positions: Indices, amounts: Integers, length: int) -> Integers:
    """Return the sums of `amounts`, below 2^53, at each of `length` positions."""
    return np.bincount(positions, amounts, length).astype(np.int64)


def device_items(
    histograms: Iterable[Histogram], contribution: int
) -> tuple[Indices, Indices, Sequence[str]]:
    """Return each holding's device and item index, and the items, in a fixed order."""
    held = Histograms.from_mappings(histograms)
    held.check(contribution)
    present, items = np.unique(held.item_indices, return_inverse=True)
    return held.devices, items, [held.items[index] for index in present.tolist()]

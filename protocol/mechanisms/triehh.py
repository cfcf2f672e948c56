"""TrieHH: strings of a population found symbol by symbol, with counts, at a central epsilon.

    level l   each device whose item begins with a prefix of the frontier votes for that prefix
              and what follows; votes are sampled, hidden in noise, or both (`release.py`)
    shown     the cells of theta votes or more: they are nodes of the tree, with their counts
    frontier  the shown nodes of level l that have not ended; those with most votes if the words
              do not hold all
    heavy     the shown nodes that have ended, or are as long as items get

A level is a round: one secure sum over frontier x what may follow, `stride` digits of an item
(`protocol/digits.py`) a level. Who has no vote, because the prefix was pruned or the coin fell
tails, sends a vector of zeros and its noise like everybody else. A device votes once a cell, so
of several items with one prefix it tells that prefix once; each vote has a coin of its own.
Coins are fresh in each level: votes of one sample on two levels would show whoever is alone in
the difference. A round that failed is asked again, if there are rounds left.

Items longer than the domain may be cut down to what fits (`truncate`): what is found is then a
prefix of items, or an item of exactly that length. Where a pad ends items, none may have it inside:
such an item would count for what stands before it.

Source: [Cormode21, sections 2 and 3], with counts; theta and p by the exact loss, where the note
has lemma 3; votes for "nothing" are not needed in a secure sum, which hides zeros as well. Noise
in shares, several items and several symbols a level are ours.
"""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, StringConstraints, model_validator

from protocol.chance import Chance
from protocol.confidence import reaches
from protocol.digits import Digits, Rows
from protocol.mechanism import (
    WORD_BITS,
    Answer,
    Estimate,
    Histogram,
    Terms,
    first_fields,
    ranked,
)
from protocol.mechanisms.releasing import (
    DEVICES,
    ReleasePlan,
    ReleaseQuestion,
    Releasing,
    cell_bits,
    design,
    devices_of,
    loss_of,
)
from protocol.mechanisms.trie_votes import UNREAD, held_by, shape_of, vector_of
from protocol.privacy.entries import Mechanism as Loss
from protocol.public import refuse
from protocol.sketches.vote_table import Shape, VoteTable
from protocol.tally import Tally
from protocol.tree import NOWHERE, Places, Tree, digits_of, numbers, places
from secagg.ring import Lane, Ring, Vector

MOST_CELLS = 2**24
MOST_PREFIXES = 2**20
_Prefix = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2})*$", max_length=2048)]


class TrieHhQuestion(ReleaseQuestion):
    """Which strings are common, found `stride` symbols a round; `truncate` cuts longer ones.

    With `tables`, votes travel in a table (`trie_votes.py`) in rounds in which that is smaller.
    """

    mechanism: Literal["triehh"] = "triehh"
    stride: int = Field(default=1, ge=1, le=8)
    truncate: bool = False
    tables: bool = False

    @model_validator(mode="after")
    def _has_digits(self) -> Self:
        faults = []
        if not isinstance(self.domain, Digits) or self.domain.base > 256:
            faults.append("a trie takes a domain of strings: an alphabet of 256, or utf8")
        if self.tables and self.mode != "sample-threshold":
            faults.append("tables are for mode sample-threshold: none is read under noise")
        if self.tables and self.invited < 1:
            faults.append(
                "a table's failures are paid for at the epsilon of who knows no coin, and devices "
                "know who joins: ask for tables or for invited below 1"
            )
        refuse(faults)
        return self

    @property
    def unread(self) -> float:
        """Return the part of delta that pays for tables which may not be read whole."""
        return self.delta * UNREAD if self.tables else 0.0

    @property
    def digits(self) -> Digits:
        """Return the domain as digits."""
        assert isinstance(self.domain, Digits)  # `_has_digits`
        return self.domain

    @property
    def levels(self) -> int:
        """Return how many rounds reach the ends of the longest items."""
        return -(-self.digits.width // self.stride)

    def admit(self, item: str) -> str | None:
        """Return what of `item` is counted: nothing, if it is outside the domain, or has a pad."""
        whole = self.digits.cut(item) if self.truncate else super().admit(item)
        return None if whole is None or self.digits.ends_within(whole) else whole

    def rows_of(self, items: Sequence[str]) -> Rows:
        """Return the digits of `items`.

        Raises:
            ValueError: if an item is outside the domain, or has a pad inside.
        """
        for item in items:
            if self.digits.ends_within(item):
                raise ValueError(f"{item!r} has a pad inside, so it is outside the domain of tries")
        return self.digits.rows_of(items)


class TrieHhPlan(ReleasePlan):
    """Vote for what follows each prefix of `frontier`, all of them of the digits before `level`.

    There is a lane of all cells, or a `table` of their numbers.
    """

    mechanism: Literal["triehh"] = "triehh"
    question: TrieHhQuestion
    level: int = Field(ge=1, le=1024)
    frontier: tuple[_Prefix, ...] = Field(min_length=1, max_length=MOST_PREFIXES)
    table: Shape | None = None

    @model_validator(mode="after")
    def _is_of_one_level(self) -> Self:
        if self.level > self.question.levels:
            raise ValueError(f"there are {self.question.levels} levels, not {self.level}")
        if any(len(prefix) != 2 * self.start for prefix in self.frontier):
            raise ValueError(f"level {self.level} has prefixes of {self.start} digits")
        if len(set(self.frontier)) < len(self.frontier):
            raise ValueError("a prefix stands twice in the frontier")
        if int(self.prefixes.max(initial=0)) >= self.question.digits.base:
            raise ValueError(f"a digit is not below {self.question.digits.base}")
        if self.table is not None:
            if self.question.mode != "sample-threshold" or self.table.bound != self.cells:
                raise ValueError(f"the table is not one of {self.cells} cells without noise")
            if self.table.ring.nbytes > self.question.nbytes:
                raise ValueError("the table is more than the words hold")
        elif self.cells > MOST_CELLS or self.cells * self.bits > 8 * self.question.nbytes:
            raise ValueError(f"{self.cells} cells of {self.bits} bits are more than the words hold")
        self.check_noise(self.cells)
        return self

    @property
    def start(self) -> int:
        """Return the digits of a prefix of the frontier."""
        return (self.level - 1) * self.question.stride

    @property
    def end(self) -> int:
        """Return the digits of a node of this level."""
        return min(self.start + self.question.stride, self.question.digits.width)

    @property
    def choices(self) -> int:
        """Return the cells of one prefix."""
        return int(self.question.digits.base ** (self.end - self.start))

    @property
    def cells(self) -> int:
        """Return the cells of all prefixes, one prefix after the other."""
        return len(self.frontier) * self.choices

    @property
    def votes_in(self) -> VoteTable | None:
        """Return the table that votes travel in; None if each cell does."""
        return None if self.table is None else VoteTable(self.table, bytes.fromhex(self.seed))

    @property
    def prefixes(self) -> Rows:
        """Return the frontier as rows of digits."""
        joined = bytes.fromhex("".join(self.frontier))
        return np.frombuffer(joined, np.uint8).reshape(len(self.frontier), self.start)

    def cells_of(self, rows: Rows) -> Places:
        """Return the cell that each item votes for, `NOWHERE` if its prefix was pruned."""
        place = places(rows, self.prefixes)
        following = numbers(rows[:, self.start : self.end], self.question.digits.base)
        return np.where(place == NOWHERE, NOWHERE, place * self.choices + following)

    def nodes_at(self, cells: Places) -> Rows:
        """Return the rows of the nodes that `cells` are, as wide as items."""
        place, following = np.divmod(cells, self.choices)
        rows = np.zeros((len(cells), self.question.digits.width), np.uint8)
        rows[:, : self.start] = self.prefixes[place]
        base, count = self.question.digits.base, self.end - self.start
        rows[:, self.start : self.end] = digits_of(following, base, count)
        return rows


class TrieHh(Releasing[TrieHhQuestion, TrieHhPlan]):
    """See the module's docstring."""

    name = "triehh"

    def first_plan(
        self, question: TrieHhQuestion, terms: Terms, study: str, rounds: int, rng: Random
    ) -> TrieHhPlan:
        """Return the plan of level 1.

        Raises:
            ValueError: if the budget cannot be met, or the words do not hold the first level;
                says what would do.
        """
        releases = rounds if question.repeat else 1
        release = design(question, terms, releases, question.levels)
        cells = question.digits.base ** min(question.stride, question.digits.width)
        bits = cells * cell_bits(release, terms)
        table = shape_of(question, terms, release, rounds, cells)
        holds = cells <= MOST_CELLS and bits <= 8 * question.nbytes
        if table is None and not holds:
            raise ValueError(
                f"{question.words} words are too few: what may follow a prefix takes {cells:,} "
                f"cells, or {-(-bits // WORD_BITS):,} words; or ask for a smaller stride"
            )
        return TrieHhPlan(
            **first_fields(question, terms, study, rounds, rng),
            release=release,
            level=1,
            frontier=("",),
            table=None if table is None or (holds and bits <= 8 * table.ring.nbytes) else table,
        )

    def next_plan(
        self, plan: TrieHhPlan, answer: Answer | None, tally: Tally, rng: Random
    ) -> TrieHhPlan:
        """Return the plan of the next level; of the same if it has no answer, or is the last."""
        rows, table = self._frontier(plan, Tree.of(tally))
        if answer is None or not answer.decoded or not len(rows):
            return plan.following(rng)
        prefixes = tuple(row.tobytes().hex() for row in rows)
        return plan.following(rng, level=plan.level + 1, frontier=prefixes, table=table)

    def is_over(self, plan: TrieHhPlan, answer: Answer | None, tally: Tally) -> bool:
        """Return whether the trie has no more to grow."""
        if answer is None or not answer.decoded:
            return False
        return not len(self._frontier(plan, Tree.of(tally))[0])

    def _frontier(self, plan: TrieHhPlan, tree: Tree) -> tuple[Rows, Shape | None]:
        """Return the prefixes that the next level asks for, those with most votes first.

        And the table of its votes, if that is smaller, or alone holds all.
        """
        digits, level = plan.question.digits, tree.level(plan.end)
        if plan.level == plan.question.levels:
            return np.zeros((0, plan.end), np.uint8), None
        if digits.terminator is not None:
            level = level.where((level.rows[:, : plan.end] != digits.terminator).all(axis=1))
        following = min(plan.question.stride, digits.width - plan.end)
        choices = digits.base**following
        order = np.argsort(-level.counts, kind="stable")[:MOST_PREFIXES]
        rows, most = level.rows[order, : plan.end], MOST_CELLS // choices
        most = min(most, 8 * plan.question.nbytes // plan.bits // choices)
        most = min(most, plan.most_noisy // choices)
        # The words hold a table of as many, or of half of them, and so on.
        kept, table = len(rows), self._table(plan, len(rows) * choices)
        while table is None and kept > most:
            kept //= 2
            table = self._table(plan, kept * choices)
        if table is None or (kept <= most and kept * choices * plan.bits <= 8 * table.ring.nbytes):
            return rows[:most], None
        return rows[:kept], table

    def _table(self, plan: TrieHhPlan, cells: int) -> Shape | None:
        return shape_of(plan.question, plan.terms, plan.release, plan.rounds, cells)

    def ring(self, plan: TrieHhPlan) -> Ring:
        """Return the ring of the table, or of the cells: wide enough for all votes and noise."""
        if plan.table is not None:
            return plan.table.ring
        return Ring((Lane(2**plan.bits, plan.cells),))

    def encode_sum(
        self, plan: TrieHhPlan, histograms: Iterable[Histogram], chance: Chance
    ) -> Vector:
        """Return the sum of the devices' votes, bit for bit, a coin for each; noise is apart."""
        device, item, names = held_by(histograms, plan.question.contribution)
        return vector_of(plan, plan.question.rows_of(names), item, chance, device)

    def fault(self, plan: TrieHhPlan, total: Vector, participants: int) -> str | None:
        """Return which law `total` breaks: votes are of devices, and each has its items' number.

        Noise is given the room that it takes with odds of 2^-64. What stays within the laws, as
        votes for what nobody holds, is not seen; nor, with noise, a vote more or less. What is
        said of a fault has no counts in it: it is published.
        """
        table = plan.votes_in
        if table is not None:
            return table.fault(total, participants * plan.question.contribution)
        votes = plan.votes(total[0])
        noise = plan.most_noise
        if int(votes.min()) < -noise or int(votes.max()) > participants + noise:
            return "a cell has more votes than there are devices, or fewer than none"
        most = participants * plan.question.contribution + noise * plan.cells
        if int(votes.sum()) > most:
            return "there are more votes than devices have items"
        return None

    def decode(self, plan: TrieHhPlan, total: Vector, participants: int, tally: Tally) -> Answer:
        """Return the cells of theta or more: what is below is forgotten here.

        A table that is not read whole says no more than one that is.
        """
        table = plan.votes_in
        if table is not None:
            cells, sums = table.read(total)
        else:
            sums = plan.votes(total[0])
            cells = np.arange(len(sums))
        theta = plan.release.threshold
        shown, sums = cells[sums >= theta], sums[sums >= theta]
        counts, variances = plan.release.counts(sums, plan.variance(participants))
        depths = np.full(len(shown), plan.end)
        grown = Tree(plan.nodes_at(shown), depths, counts, variances)
        found = _ended(plan.question, grown)
        before = Tree.of(tally)  # if this level was asked before, this answer counts
        tree = before.where(before.depths != plan.end).grow(grown)
        asked = devices_of(tally)[: plan.level - 1]
        tally = tree.keep(tally).keep(DEVICES, np.append(asked, float(participants)))
        return Answer(True, float(len(shown)), tuple(ranked(found)), tally)

    def conclude(self, question: TrieHhQuestion, tally: Tally) -> list[Estimate]:
        """Return the shown nodes that have ended and are heavy, highest estimate first."""
        found = _ended(question, Tree.of(tally))
        counts = np.array([one.count for one in found])
        variances = np.array([one.variance for one in found])
        heavy = reaches(counts, variances, question.threshold, question.confidence)
        return ranked(one for one, is_heavy in zip(found, heavy, strict=True) if is_heavy)

    def loss(self, plan: TrieHhPlan, rounds: int) -> Loss:
        """Return what so many rounds cost."""
        return loss_of(plan.question, plan.release, rounds if plan.question.repeat else 1)


def _ended(question: TrieHhQuestion, tree: Tree) -> list[Estimate]:
    """Return the items among the nodes: those that have ended, or are as long as items get."""
    digits = question.digits
    ended = tree.depths == digits.width
    if digits.terminator is not None and len(tree):
        ended |= tree.rows[np.arange(len(tree)), tree.depths - 1] == digits.terminator
    found = []
    for place in np.flatnonzero(ended).tolist():
        row = tree.rows[place].copy()
        if digits.terminator is not None:
            row[tree.depths[place] :] = digits.terminator
        item = digits.item_of(row)
        if item is not None and question.admit(item) == item:  # else it is nobody's: made up
            found.append(Estimate(item, float(tree.counts[place]), float(tree.variances[place])))
    return found

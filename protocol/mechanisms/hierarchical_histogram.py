"""A hierarchical histogram: all prefixes of all lengths counted in one round, in central noise.

    device   adds one to the cell of its item on each of the levels 1 .. L: L cells of
             b + b^2 + .. + b^L, where a prefix of l digits to the base b is a cell of level l
    sum      noisy counts of all cells; rounds over different devices add up
    heavy    the leaves of the consistent counts that stand out of noise (`complete_tree.py`)

Ranks, quantiles and ranges are sums of few cells, so that their noise grows with the logarithm of
the number of leaves, where that of a flat histogram grows with its root; see `queries.py`. One
round answers what a trie asks in L, and nothing is pruned; what is paid is a vector of all cells.
The root is not counted: that devices take part is no secret, but how many have nothing to say is.

An item changes L cells, so a device's part is charged as L releases of one count. Without noise
(mode "sample-threshold") each of the L has a coin of its own, counts below theta are forgotten
in each round, and what is left is read as a trie.

Source: [Hay10]; noise in shares and secure sums as in `releasing.py`.
"""

from collections.abc import Iterable
from random import Random
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from scipy.special import ndtri

from protocol.chance import Chance
from protocol.complete_tree import CompleteTree, leaf_variance
from protocol.confidence import reaches
from protocol.digits import Digits
from protocol.mechanism import (
    WORD_BITS,
    Answer,
    Estimate,
    Histogram,
    Terms,
    first_fields,
    ranked,
)
from protocol.mechanisms.holdings import values_of
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
from protocol.privacy.entries import Mechanism as Loss
from protocol.privacy.noise import reach
from protocol.privacy.release import Mode
from protocol.reporting import SHOWN
from protocol.tally import Tally
from protocol.tree import Floats, Places
from secagg.ring import Lane, Ring, Vector

COUNTS, NOISE, COINS = "level counts", "noise", "coins"  # arrays of a tally
MOST_CELLS = 2**22
_GHOSTS = 0.3  # leaves that noise alone lifts into what is concluded, on average
_SEEN = 2.0**-64


class HierarchicalHistogramQuestion(ReleaseQuestion):
    """How the devices' values are distributed, on each level of their digits."""

    mechanism: Literal["hierarchical-histogram"] = "hierarchical-histogram"
    contribution: int = Field(default=1, ge=1, le=1)
    mode: Mode = "noise"
    repeat: bool = False

    @model_validator(mode="after")
    def _has_levels(self) -> Self:
        if not isinstance(self.domain, Digits) or self.domain.base > 256:
            raise ValueError("a hierarchy takes a domain of digits below 256, as an interval")
        if self.digits.base**self.digits.width > MOST_CELLS:
            raise ValueError(f"a hierarchical histogram has at most {MOST_CELLS:,} leaves")
        return self

    @property
    def digits(self) -> Digits:
        """Return the domain as digits."""
        assert isinstance(self.domain, Digits)  # `_has_levels`
        return self.domain

    @property
    def votes(self) -> int:
        """Return how many cells an item is counted in: one a level."""
        return self.digits.width

    @property
    def cells(self) -> int:
        """Return the cells of all levels."""
        return sum(self.digits.base**level for level in range(1, self.digits.width + 1))


class HierarchicalHistogramPlan(ReleasePlan):
    """Add one to the cell of your item on every level."""

    mechanism: Literal["hierarchical-histogram"] = "hierarchical-histogram"
    question: HierarchicalHistogramQuestion

    @model_validator(mode="after")
    def _fits_the_words(self) -> Self:
        _check_words(self.question, self.bits)
        self.check_noise(self.cells)
        return self

    @property
    def cells(self) -> int:
        """Return the cells of all levels, one level after the other."""
        return self.question.cells

    def cells_of(self, values: Places) -> Places:
        """Return the cells of items that are integers, one a level, `(len(values), levels)`."""
        base, width = self.question.digits.base, self.question.digits.width
        levels = range(1, width + 1)
        first = np.cumsum([0, *(base**level for level in levels)])[:-1]
        nodes = np.stack([values // base ** (width - level) for level in levels], axis=1)
        return np.asarray(nodes + first, np.int64)


class HierarchicalHistogram(Releasing[HierarchicalHistogramQuestion, HierarchicalHistogramPlan]):
    """See the module's docstring."""

    name = "hierarchical-histogram"

    def first_plan(
        self,
        question: HierarchicalHistogramQuestion,
        terms: Terms,
        study: str,
        rounds: int,
        rng: Random,
    ) -> HierarchicalHistogramPlan:
        """Return the plan of all rounds, but for their seeds.

        Raises:
            ValueError: if the budget cannot be met, or the words do not hold all levels; says
                how many would.
        """
        release = design(question, terms, _releases(question, rounds), rounds)
        _check_words(question, cell_bits(release, terms))
        return HierarchicalHistogramPlan(
            **first_fields(question, terms, study, rounds, rng), release=release
        )

    def ring(self, plan: HierarchicalHistogramPlan) -> Ring:
        """Return the ring of the cells: one lane, wide enough for all votes and noise."""
        return Ring((Lane(2**plan.bits, plan.question.cells),))

    def encode_sum(
        self, plan: HierarchicalHistogramPlan, histograms: Iterable[Histogram], chance: Chance
    ) -> Vector:
        """Return the sum of the devices' votes, bit for bit, a coin for each; noise is apart."""
        values = values_of(plan.question.domain, histograms)
        told = values[values < plan.question.digits.values]
        cells = plan.cells_of(told.astype(np.int64)).ravel()  # device by device, as are coins
        cells = cells[plan.coins(chance, len(cells))]
        votes = np.bincount(cells, minlength=plan.question.cells)
        return (votes.astype(self.ring(plan).lanes[0].dtype),)

    def fault(
        self, plan: HierarchicalHistogramPlan, total: Vector, participants: int
    ) -> str | None:
        """Return which law `total` breaks: a device adds 0 or 1 to a cell, and 1 to a level.

        Noise is given the room that it takes with odds of 2^-64. What stays within the laws is
        not seen, nor, with noise, a vote more or less. What is said has no counts in it.
        """
        votes, noise = plan.votes(total[0]), plan.most_noise
        if int(votes.min()) < -noise or int(votes.max()) > participants + noise:
            return "a cell has more votes than there are devices, or fewer than none"
        terms, base = plan.terms, plan.question.digits.base
        most = plan.release.most_variance(terms.cohorts, terms.dropout, plan.honest)
        for level in _levels(base, votes):
            spread = reach(most * len(level), _SEEN) if noise else 0
            if not -spread <= int(level.sum()) <= participants + spread:
                return "a level has more votes than there are devices, or fewer than none"
        return None

    def decode(
        self,
        plan: HierarchicalHistogramPlan,
        total: Vector,
        participants: int,
        tally: Tally,
    ) -> Answer:
        """Return the leaves of this round that noise hardly reaches, the highest of them.

        All counts go to the tally: as they are with noise, without it from theta on.
        """
        sums = plan.votes(total[0])
        noise = plan.variance(participants)
        shown = sums >= plan.release.threshold
        told, variances = plan.release.counts(sums, noise)
        p = plan.release.probability
        counts = sums / p if plan.release.variance else np.where(shown, told, 0.0)
        found = _leaves(plan.question, shown, told, variances)
        before = tally.arrays.get(COUNTS, np.zeros(len(counts)))
        spent = tally.arrays.get(NOISE, np.zeros(1))
        devices = np.append(devices_of(tally), float(participants))
        tally = tally.keep(COUNTS, before + counts).keep(NOISE, spent + noise / p**2)
        tally = tally.keep(COINS, np.array([(1 - p) / p])).keep(DEVICES, devices)
        return Answer(True, float(shown.sum()), tuple(found[:SHOWN]), tally)

    def conclude(self, question: HierarchicalHistogramQuestion, tally: Tally) -> list[Estimate]:
        """Return the leaves that are heavy once all levels agree, highest estimate first."""
        if COUNTS not in tally.arrays:
            return []
        counts, noise = tally.arrays[COUNTS], float(tally.arrays[NOISE][0])
        tree = CompleteTree.of(question.digits.base, counts)
        if noise:
            tree = tree.consistent()
        leaves = tree.levels[-1]
        alone = noise * leaf_variance(tree.base, tree.depth)
        variances = alone + np.maximum(leaves, 0) * float(tally.arrays[COINS][0])
        found = reaches(leaves, variances, question.threshold, question.confidence)
        found &= leaves > -ndtri(_GHOSTS / (_GHOSTS + len(leaves))) * np.sqrt(alone)
        return _named(question, np.flatnonzero(found), leaves, variances)

    def loss(self, plan: HierarchicalHistogramPlan, rounds: int) -> Loss:
        """Return what so many rounds cost: as many releases as levels, of each device's rounds."""
        return loss_of(plan.question, plan.release, _releases(plan.question, rounds))


def _releases(question: HierarchicalHistogramQuestion, rounds: int) -> int:
    """Return how many counts of a device's value are released in so many rounds."""
    return question.votes * (rounds if question.repeat else 1)


def _check_words(question: HierarchicalHistogramQuestion, bits: int) -> None:
    if question.cells * bits > 8 * question.nbytes:
        raise ValueError(
            f"{question.words} words are too few: {question.cells:,} cells of all "
            f"{question.digits.width} levels, {bits} bits each, take "
            f"{-(-question.cells * bits // WORD_BITS):,} words; or tell fewer digits"
        )


def _levels(base: int, votes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the cells of each level."""
    sizes = [base]
    while sum(sizes) < len(votes):
        sizes.append(sizes[-1] * base)
    return np.split(votes, np.cumsum(sizes)[:-1])


def _leaves(
    question: HierarchicalHistogramQuestion,
    shown: NDArray[np.bool_],
    counts: Floats,
    variances: Floats,
) -> list[Estimate]:
    """Return the shown leaves, highest first; the last cells are the leaves."""
    size = question.digits.base**question.digits.width
    return _named(question, np.flatnonzero(shown[-size:]), counts[-size:], variances[-size:])


def _named(
    question: HierarchicalHistogramQuestion, leaves: Places, counts: Floats, variances: Floats
) -> list[Estimate]:
    names = question.digits.names_of(leaves.astype(np.uint64))
    return ranked(
        Estimate(name, float(counts[leaf]), float(variances[leaf]))
        for name, leaf in zip(names, leaves.tolist(), strict=True)
        if name is not None
    )

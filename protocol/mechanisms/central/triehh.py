"""TrieHH: heavy strings of a population, found symbol by symbol with central privacy.

    level l   each device whose item begins with a prefix of the frontier votes for that prefix
              and the next digits; votes are sampled, hidden in noise, or both (`release.py`)
    shown     the cells with theta votes or more: nodes of the tree, with their counts
    frontier  the shown nodes of level l that are not complete items; if the message does not hold
              all of them, those with most votes
    heavy     the shown nodes that are complete items, or have the largest length

Each level is a round: one secure sum over all combinations of a frontier prefix with the next
`stride` digits of an item (`protocol/domains/base.py`). A device without a vote, because its
prefix was pruned or its coin fell tails, sends a vector of zeros, with noise like the others. A
device votes once per cell, so several items with one prefix give one vote. Each vote has its own
coin, which is fresh on each level: votes of one sample on two levels would reveal a device that
is alone in the difference. A failed round is repeated, if there are rounds left.

Items longer than the domain may be cut (`truncate`). A result is then a prefix of items, or an
item of exactly that length. If a pad ends items, no item may contain it inside: such an item
would count for the part before its pad.

Source: [Cormode21, sections 2 and 3], with counts. We compute theta and p from the exact loss,
where the note has lemma 3. A secure sum needs no votes for "nothing", since it hides zeros too.
Noise in shares, several items and several symbols per level are ours.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np

from protocol.description import (
    CONTRIBUTION,
    DELTA,
    EPSILON,
    MESSAGE_BYTES,
    RELEASE_GUARANTEE,
    RELEASE_MODE,
    AnswerKind,
    Description,
    FormField,
    PlanFact,
    QuestionForm,
)
from protocol.domains import Domain
from protocol.domains.known_items import KnownItems
from protocol.domains.strings import Alphabet, Utf8
from protocol.estimation.estimates import Estimate, ranked, reaches_threshold
from protocol.histograms import Histogram
from protocol.mechanism import Answer
from protocol.mechanisms.central.compared_releases import best_designs
from protocol.mechanisms.central.release_design import cell_modulus, design_release, release_loss
from protocol.mechanisms.central.release_mechanism import (
    DEVICES_ARRAY,
    ReleaseMechanism,
    devices_per_level,
)
from protocol.mechanisms.central.trie_plan import (
    MAX_PREFIXES,
    MAX_TRIE_CELLS,
    TrieHhPlan,
    TrieHhQuestion,
)
from protocol.mechanisms.central.trie_votes import device_items, encode_votes, vote_table_shape
from protocol.mechanisms.central.value_distribution import pruned_distribution
from protocol.numerics.array_types import DigitRows, Floats
from protocol.privacy.events import DpEvent
from protocol.privacy.release import ReleaseDesign
from protocol.quantiles.cdf import Estimator
from protocol.quantiles.distribution import Distribution
from protocol.quantiles.prefix_tree import PrefixTree
from protocol.question_and_plan import Terms
from protocol.randomness import RandomWords
from protocol.round_sizes import message_bytes
from protocol.sketches.vote_table import VoteTableShape
from protocol.study_state import StudyState
from secagg.ring import Lane, Ring, Vector

_SIMULATED_LEVELS, _SIMULATED_ALPHA = 10, 4
_MAX_SYMBOLS = 256


class TrieHh(ReleaseMechanism[TrieHhQuestion, TrieHhPlan]):
    """Mechanism of the strings found level by level."""

    name = "triehh"
    is_in_javascript = True
    question_type = TrieHhQuestion
    presets = MappingProxyType({**ReleaseMechanism.presets, "truncate": True})
    plan_type = TrieHhPlan
    description = Description(
        purpose="heavy strings, found symbol by symbol in noise or samples",
        cost="`message_bytes` in every round",
        guarantee=RELEASE_GUARANTEE,
        form=QuestionForm(
            "Common strings, differentially private",
            "Strings without a known list, found symbol by symbol. Devices take part in each "
            "round.",
            {"threshold": 1, "domain.kind": "alphabet", "domain.pad": "$"},
            (
                FormField(
                    "question.domain.characters",
                    "Characters",
                    "abcdefghijklmnopqrstuvwxyz$",
                    "text",
                    "Includes $, which pads short strings.",
                ),
                FormField(
                    "question.domain.length",
                    "Longest string",
                    "8",
                    hint="In characters: each takes one round.",
                ),
                replace(CONTRIBUTION, default="1"),
                *(EPSILON, DELTA, RELEASE_MODE, MESSAGE_BYTES),
            ),
            # A round for each character of the longest string, of devices that outweigh the noise.
            {"rounds": "8", "terms.cohorts": "50"},
        ),
    )

    def aim(self, question: TrieHhQuestion, items: str) -> str:
        if self.answer_kind(question) is AnswerKind.DISTRIBUTION:
            return f"Finds the distribution of {items}"
        return f"Finds the common ones among {items}"

    def domain_about(self, known: KnownItems, fields: Mapping[str, Any]) -> Domain:
        """Return an interval if numbers are wished, else texts of a symbol for each level."""
        levels, stride = known.levels or _SIMULATED_LEVELS, fields.get("stride", 1)
        length = levels * (stride if isinstance(stride, int) and stride > 0 else 1)
        if known.are_numbers:
            return known.interval(_SIMULATED_ALPHA, length)
        symbols = "".join(sorted(set(known.alphabet or "".join(known.items)) - {"\0"}))
        if not symbols or len(symbols) >= _MAX_SYMBOLS:
            return Utf8(max_bytes=length)
        return Alphabet(characters="\0" + symbols, length=length, pad="\0")

    def measures(
        self, plan: TrieHhPlan, state: StudyState, truth: Mapping[str, int], devices: int
    ) -> dict[str, Any]:
        return super().measures(plan, state, truth, devices) | {"levels": plan.level}

    def release_designs(
        self, devices: int, epsilon: float, delta: float, levels: int, contribution: int
    ) -> list[ReleaseDesign]:
        return best_designs(devices, epsilon, delta, levels, contribution)

    def rounds_needed(self, question: TrieHhQuestion) -> int:
        return question.levels

    def levels_shown_together(self, plan: TrieHhPlan) -> int:
        return min(plan.question.levels, plan.rounds)

    def asked_share(self, plan: TrieHhPlan) -> float:
        return 1.0 if plan.question.every_round else 1 / plan.level

    def plan_facts(self, plan: TrieHhPlan) -> Iterator[PlanFact]:
        yield from super().plan_facts(plan)
        if plan.rounds < plan.question.levels:
            note = f"for the longest strings: with {plan.rounds:,}, only shorter ones are found"
            yield PlanFact("Rounds needed", plan.question.levels, note)

    def distribution(
        self,
        plan: TrieHhPlan,
        state: StudyState,
        *,
        estimator: Estimator = "ratio",
        beta: float = 0.05,
    ) -> Distribution:
        self._check_shares(plan)
        tree, devices = PrefixTree.from_state(state), devices_per_level(state)
        return pruned_distribution(plan, tree, devices, 1, estimator=estimator, beta=beta)

    def _first_fields(self, question: TrieHhQuestion, terms: Terms, rounds: int) -> dict[str, Any]:
        releases = rounds if question.every_round else 1
        release = design_release(question, terms, releases, question.levels)
        cells = question.digits.base ** min(question.stride, question.digits.width)
        lane = Lane(cell_modulus(release, terms), cells)
        needed = message_bytes(terms, Ring((lane,)))
        table = vote_table_shape(question, terms, release, rounds, cells)
        holds = cells <= MAX_TRIE_CELLS and needed <= question.message_bytes
        if table is None and not holds:
            raise ValueError(
                f"message_bytes {question.message_bytes:,} are too few: the continuations of a "
                f"prefix take {cells:,} cells, or {needed:,} bytes; a smaller stride takes less"
            )
        if (
            table is not None
            and holds
            and terms.moduli.lane_bytes(lane) <= table.nbytes(terms.moduli)
        ):
            table = None
        return {"release": release, "level": 1, "frontier": ("",), "table_shape": table}

    def next_plan(
        self, plan: TrieHhPlan, answer: Answer | None, state: StudyState, rng: Random
    ) -> TrieHhPlan:
        rows, table = self._frontier(plan, PrefixTree.from_state(state))
        if answer is None or not answer.decoded or not len(rows):
            return plan.next_round(rng)
        prefixes = tuple(row.tobytes().hex() for row in rows)
        return plan.next_round(rng, level=plan.level + 1, frontier=prefixes, table_shape=table)

    def is_over(self, plan: TrieHhPlan, answer: Answer | None, state: StudyState) -> bool:
        if answer is None or not answer.decoded:
            return False
        return not len(self._frontier(plan, PrefixTree.from_state(state))[0])

    def _frontier(
        self, plan: TrieHhPlan, tree: PrefixTree
    ) -> tuple[DigitRows, VoteTableShape | None]:
        """Return the prefixes of the next level, those with most votes first, and its vote table.

        The table is None unless it is smaller than a lane of all cells, or holds more prefixes.
        """
        digits, level = plan.question.digits, tree.level(plan.node_length)
        if plan.level == plan.question.levels:
            return np.zeros((0, plan.node_length), np.uint8), None
        if digits.terminator is not None:
            level = level.select(
                (level.rows[:, : plan.node_length] != digits.terminator).all(axis=1)
            )
        following = min(plan.question.stride, digits.width - plan.node_length)
        choices = digits.base**following
        order = np.argsort(-level.counts, kind="stable")[:MAX_PREFIXES]
        rows, most = level.rows[order, : plan.node_length], MAX_TRIE_CELLS // choices
        most = min(most, plan.max_fitting_cells // choices)
        most = min(most, plan.max_noisy_cells // choices)
        # Try a table for all rows, then for half of them, and so on.
        kept, table = len(rows), self._table(plan, len(rows) * choices)
        while table is None and kept > most:
            kept //= 2
            table = self._table(plan, kept * choices)
        moduli, lane = plan.terms.moduli, Lane(plan.cell_modulus, max(1, kept * choices))
        if table is None or (kept <= most and moduli.lane_bytes(lane) <= table.nbytes(moduli)):
            return rows[:most], None
        return rows[:kept], table

    def _table(self, plan: TrieHhPlan, cells: int) -> VoteTableShape | None:
        return vote_table_shape(plan.question, plan.terms, plan.release, plan.rounds, cells)

    def ring(self, plan: TrieHhPlan) -> Ring:
        if plan.table_shape is not None:
            return plan.table_shape.ring(plan.terms.moduli)
        return Ring((Lane(plan.cell_modulus, plan.cells),))

    def encode_sum(
        self, plan: TrieHhPlan, histograms: Iterable[Histogram], chance: RandomWords
    ) -> Vector:
        device, item, names = device_items(histograms, plan.question.contribution)
        return encode_votes(plan, plan.question.digits_of(names), item, chance, device)

    def fault(self, plan: TrieHhPlan, total: Vector, participants: int) -> str | None:
        """Return the law that `total` breaks.

        A cell has at most one vote per device, and all cells together at most one per item. Noise,
        and coins for votes, exceed their margins with probability 2^-64. Votes within these laws
        for items that no device holds are not detected, nor is one vote more or less under noise.
        The text has no counts, since it is published.
        """
        table = plan.vote_table
        if table is not None:
            return table.fault(total, plan.max_votes(participants * plan.question.contribution))
        votes = plan.signed_votes(total[0])
        noise = plan.max_noise
        if int(votes.min()) < -noise or int(votes.max()) > plan.max_votes(participants) + noise:
            return "a cell has more votes than there are devices, or a negative number"
        most = plan.max_votes(participants * plan.question.contribution) + noise * plan.cells
        if int(votes.sum()) > most:
            return "there are more votes than devices have items"
        return None

    def decode(
        self, plan: TrieHhPlan, total: Vector, participants: int, state: StudyState
    ) -> Answer:
        """Return the cells with theta votes or more; smaller counts are discarded here.

        The answer does not reveal whether a table was read whole.
        """
        table = plan.vote_table
        if table is not None:
            cells, sums = table.decode(total)
        else:
            sums = plan.signed_votes(total[0])
            cells = np.arange(len(sums))
        theta = plan.release.threshold
        shown, sums = cells[sums >= theta], sums[sums >= theta]
        counts, variances = plan.release.estimate_counts(
            sums, plan.max_noise_variance(participants)
        )
        counts = np.minimum(counts, plan.question.largest_count(participants))
        depths = np.full(len(shown), plan.node_length)
        grown = PrefixTree(plan.nodes_at(shown), depths, counts, variances)
        items = _complete_items(plan.question, grown)
        before = PrefixTree.from_state(state)  # this answer replaces an earlier one of its level
        tree = before.select(before.depths != plan.node_length).extended(grown)
        asked = devices_per_level(state)[: plan.level - 1]
        state = tree.store_in(state).with_array(
            DEVICES_ARRAY, np.append(asked, float(participants))
        )
        return Answer(True, float(len(shown)), tuple(ranked(items)), state)

    def final_estimates(self, question: TrieHhQuestion, state: StudyState) -> list[Estimate]:
        tree = PrefixTree.from_state(state)
        if not question.every_round:
            tree = _of_all_devices(tree, devices_per_level(state), question.stride)
        items = _complete_items(question, tree)
        counts = np.array([item.count for item in items])
        variances = np.array([item.variance for item in items])
        heavy = reaches_threshold(counts, variances, question.threshold, question.confidence)
        return ranked(item for item, is_heavy in zip(items, heavy, strict=True) if is_heavy)

    def dp_event(self, plan: TrieHhPlan, rounds: int) -> DpEvent:
        return release_loss(plan.question, plan.release, rounds if plan.question.every_round else 1)


def _of_all_devices(tree: PrefixTree, devices: Floats, stride: int) -> PrefixTree:
    """Return `tree` with counts among the `devices` of all levels, of which each level is a sample.

    Of n devices out of N, c hold the item: N c / n in all, with a variance of c (1 - c / n)
    (1 - n / N) N^2 / n^2 as of a hypergeometric c.
    """
    asked = devices[(tree.depths - 1) // stride]
    scale = devices.sum() / asked
    chance = tree.counts * np.maximum(1 - tree.counts / asked, 0) * (1 - 1 / scale)
    variances = (tree.variances + chance) * scale**2
    return PrefixTree(tree.rows, tree.depths, tree.counts * scale, variances)


def _complete_items(question: TrieHhQuestion, tree: PrefixTree) -> list[Estimate]:
    """Return the nodes that are complete items: ended by a pad, or of the largest length."""
    digits = question.digits
    ended = tree.depths == digits.width
    if digits.terminator is not None and len(tree):
        ended |= tree.rows[np.arange(len(tree)), tree.depths - 1] == digits.terminator
    items = []
    for place in np.flatnonzero(ended).tolist():
        row = tree.rows[place].copy()
        if digits.terminator is not None:
            row[tree.depths[place] :] = digits.terminator
        item = digits.item_of(row)
        if item is not None and question.canonical(item) == item:  # others are false votes
            items.append(Estimate(item, float(tree.counts[place]), float(tree.variances[place])))
    return items

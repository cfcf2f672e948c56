"""A hierarchical histogram: all prefixes of all lengths, counted in one round with central noise.

    device   adds one to the cell of its item on each of the levels 1 .. L: L cells of
             b + b^2 + .. + b^L, where a prefix of l digits to the base b is a cell of level l
    sum      noisy counts of all cells; counts of different devices add up over rounds, and those
             of the same devices (`every_round`) are averaged. A round whose coins hid a cell
             is left out of its count, and the others stand for it
    heavy    the leaves of the consistent counts that exceed the noise (`complete_tree.py`)

Ranks, quantiles and ranges are sums of few cells. Their noise grows with the logarithm of the
number of leaves, where the noise of a flat histogram grows with its square root; see
`value_distribution.py`. One round answers what a trie needs L rounds for, and nothing is pruned.
The price is a vector of all cells. The root is not counted: the number of devices in a round is not
secret, but the number of devices without an item is.

An item changes L cells, so a device is charged for L releases of one count. Without noise (mode
"sample-threshold") each of the L votes has its own coin, counts below theta are discarded in each
round, and the remaining counts are read as a trie.

Source: [Hay10]; noise in shares and secure sums as in `release.py`.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from protocol.description import (
    DELTA,
    EPSILON,
    HIGHEST_VALUE,
    LOWEST_VALUE,
    MESSAGE_BYTES,
    RELEASE_GUARANTEE,
    RELEASE_MODE,
    AnswerKind,
    Description,
    FormField,
    QuestionForm,
)
from protocol.domains import Domain
from protocol.domains.base import Digits
from protocol.domains.known_items import KnownItems
from protocol.estimation.empirical_bayes import decision_threshold, normal_posterior
from protocol.estimation.estimates import MAX_SHOWN_ESTIMATES, Estimate, estimates_of_values
from protocol.histograms import Histogram, device_values
from protocol.mechanism import Answer
from protocol.mechanisms.central.release_design import (
    cell_modulus,
    design_release,
    max_noise_variance,
    release_loss,
)
from protocol.mechanisms.central.release_mechanism import (
    DEVICES_ARRAY,
    ReleaseMechanism,
    ReleasePlan,
    devices_per_level,
)
from protocol.mechanisms.central.release_question import ReleaseQuestion
from protocol.mechanisms.central.value_distribution import (
    complete_distribution,
    pruned_distribution,
    shown_nodes,
)
from protocol.numerics import special
from protocol.numerics.array_types import Indices
from protocol.privacy.events import DpEvent
from protocol.privacy.noise_shares import tail_bound
from protocol.privacy.release import ReleaseMode
from protocol.quantiles.cdf import EmptyTreeError, Estimator
from protocol.quantiles.complete_tree import CompleteTree, leaf_variance
from protocol.quantiles.distribution import Distribution
from protocol.question_and_plan import Terms
from protocol.randomness import RandomWords
from protocol.round_sizes import message_bytes
from protocol.study_state import StudyState
from secagg.ring import Lane, Ring, Vector

# Arrays of the study state.
COUNTS_ARRAY, NOISE_ARRAY, SAMPLING_VARIANCE_ARRAY = "level counts", "noise", "sampling variance"
# For each cell, the devices in the rounds that showed it.
SHOWN_ARRAY = "devices that showed"
EXCESS_ARRAY = "excess variance"  # by cell: beyond that of noise and coins
MAX_LEAVES = 2**22
_SIMULATED_ALPHA, _SIMULATED_LEVELS = 4, 8
_EXPECTED_FALSE_POSITIVES = 0.3  # mean number of reported leaves that only noise makes heavy
_FAULT_FALSE_ALARM_PROBABILITY = 2.0**-64


class HierarchicalHistogramQuestion(ReleaseQuestion):
    """Question for the distribution of the devices' values, on each level of their digits."""

    mechanism: Literal["hierarchical-histogram"] = "hierarchical-histogram"
    contribution: int = Field(default=1, ge=1, le=1)
    mode: ReleaseMode = "noise"
    every_round: bool = False

    @model_validator(mode="after")
    def _has_levels(self) -> Self:
        if not isinstance(self.domain, Digits) or self.domain.base > 256:
            raise ValueError(
                "a hierarchical histogram needs a domain of digits below 256, such as an interval"
            )
        if self.digits.base**self.digits.width > MAX_LEAVES:
            raise ValueError(f"a hierarchical histogram has at most {MAX_LEAVES:,} leaves")
        return self

    @property
    def max_votes(self) -> int:
        return self.digits.width

    @property
    def cells(self) -> int:
        return sum(self.digits.base**level for level in range(1, self.digits.width + 1))


class HierarchicalHistogramPlan(ReleasePlan):
    """Plan of a round: each device adds one to the cell of its item on every level."""

    mechanism: Literal["hierarchical-histogram"] = "hierarchical-histogram"
    question: HierarchicalHistogramQuestion

    @model_validator(mode="after")
    def _fits_the_message(self) -> Self:
        _check_message(self.question, self.terms, self.cell_modulus)
        self.check_noise(self.cells)
        return self

    @property
    def cells(self) -> int:
        return self.question.cells

    def cells_of(self, values: Indices) -> Indices:
        """Return the cells of items as integers, one per level: `(len(values), levels)`."""
        base, width = self.question.digits.base, self.question.digits.width
        levels = range(1, width + 1)
        first = np.cumsum([0, *(base**level for level in levels)])[:-1]
        nodes = np.stack([values // base ** (width - level) for level in levels], axis=1)
        return np.asarray(nodes + first, np.int64)


class HierarchicalHistogram(
    ReleaseMechanism[HierarchicalHistogramQuestion, HierarchicalHistogramPlan]
):
    """Mechanism of the counts of all prefixes in one round."""

    name = "hierarchical-histogram"
    is_in_javascript = True
    question_type = HierarchicalHistogramQuestion
    presets = MappingProxyType({"delta": 1e-6})
    simulated_words = 2**18
    simulated_rounds = 1
    plan_type = HierarchicalHistogramPlan
    description = Description(
        purpose="quantiles, ranges and ranks of numbers, in one round",
        cost="`message_bytes` per round: a number for every prefix",
        guarantee=RELEASE_GUARANTEE,
        form=QuestionForm(
            "Distribution of numbers",
            "Quantiles, ranks and ranges of one number per device, with differential privacy.",
            {"threshold": 1, "contribution": 1, "domain.kind": "interval"},
            (
                LOWEST_VALUE,
                HIGHEST_VALUE,
                FormField(
                    "question.domain.alpha", "Branches per level", "4", hint="Parts of each part."
                ),
                FormField(
                    "question.domain.length", "Levels", "4", hint="There are branches^levels bins."
                ),
                *(EPSILON, DELTA, RELEASE_MODE, MESSAGE_BYTES),
            ),
        ),
    )

    def domain_about(self, known: KnownItems, fields: Mapping[str, Any]) -> Domain:
        del fields
        return known.interval(_SIMULATED_ALPHA, _SIMULATED_LEVELS)

    def aim(self, question: HierarchicalHistogramQuestion, items: str) -> str:
        if self.answer_kind(question) is AnswerKind.DISTRIBUTION:
            return f"Finds the distribution of {items}"
        return super().aim(question, items)

    def distribution(
        self,
        plan: HierarchicalHistogramPlan,
        state: StudyState,
        *,
        estimator: Estimator = "ratio",
        beta: float = 0.05,
    ) -> Distribution:
        """Return the distribution of all counts, or of the shown ones if there is no noise."""
        self._check_shares(plan)
        if COUNTS_ARRAY not in state.arrays:
            raise EmptyTreeError("no round has been counted yet")
        counts, digits = state.arrays[COUNTS_ARRAY], plan.question.digits
        if plan.release.variance:
            noise = float(state.arrays[NOISE_ARRAY][0])
            return complete_distribution(digits, counts, noise, plan.release.probability, beta)
        tree = shown_nodes(digits, counts, float(state.arrays[SAMPLING_VARIANCE_ARRAY][0]))
        devices = devices_per_level(state)
        # Each round hides counts below theta.
        return pruned_distribution(
            plan, tree, devices.sum(keepdims=True), len(devices), estimator=estimator, beta=beta
        )

    def _first_fields(
        self, question: HierarchicalHistogramQuestion, terms: Terms, rounds: int
    ) -> dict[str, Any]:
        release = design_release(question, terms, _release_count(question, rounds), rounds)
        _check_message(question, terms, cell_modulus(release, terms))
        return {"release": release}

    def ring(self, plan: HierarchicalHistogramPlan) -> Ring:
        return Ring((Lane(plan.cell_modulus, plan.question.cells),))

    def encode_sum(
        self, plan: HierarchicalHistogramPlan, histograms: Iterable[Histogram], chance: RandomWords
    ) -> Vector:
        values = device_values(plan.question.domain, histograms)
        values = values[values < plan.question.digits.value_count]
        cells = plan.cells_of(values.astype(np.int64)).ravel()  # device by device, like the coins
        cells = cells[plan.vote_coins(chance, len(cells))]
        votes = np.bincount(cells, minlength=plan.question.cells)
        return (votes.astype(self.ring(plan).lanes[0].dtype),)

    def fault(
        self, plan: HierarchicalHistogramPlan, total: Vector, participants: int
    ) -> str | None:
        """Return the law that `total` breaks: a device adds 0 or 1 to a cell, and 1 to a level.

        Noise, and coins for votes, exceed their margins with probability 2^-64. Sums within the
        laws are not detected, nor is one vote more or less under noise. The text has no counts,
        since it is published.
        """
        votes, noise = plan.signed_votes(total[0]), plan.max_noise
        most = plan.max_votes(participants)
        if int(votes.min()) < -noise or int(votes.max()) > most + noise:
            return "a cell has more votes than there are devices, or a negative number"
        base = plan.question.digits.base
        variance = max_noise_variance(plan.release, plan.terms, plan.terms.cohorts)
        for level in CompleteTree.from_counts(base, votes.astype(np.float64)).levels:
            spread = (
                tail_bound(variance * len(level), _FAULT_FALSE_ALARM_PROBABILITY) if noise else 0
            )
            if not -spread <= int(level.sum()) <= most + spread:
                return "a level has more votes than there are devices, or a negative number"
        return None

    def decode(
        self, plan: HierarchicalHistogramPlan, total: Vector, participants: int, state: StudyState
    ) -> Answer:
        """Return the highest leaves of this round that noise rarely reaches.

        The study state keeps all counts; without noise, only those of theta or more.
        """
        sums = plan.signed_votes(total[0])
        noise = plan.max_noise_variance(participants)
        shown = sums >= plan.release.threshold
        estimates, variances = plan.release.estimate_counts(sums, noise)
        estimates = np.minimum(estimates, plan.question.largest_count(participants))
        p = plan.release.probability
        counts = sums / p if plan.release.variance else np.where(shown, estimates, 0.0)
        size = plan.question.digits.base**plan.question.digits.width  # the last cells are leaves
        rows, ends = np.flatnonzero(shown[-size:]), (estimates[-size:], variances[-size:])
        leaves = estimates_of_values(plan.question.domain, rows, *ends)
        excess = np.where(shown, variances - noise / p**2 - (1 - p) / p * estimates, 0.0)
        is_known = shown | (plan.release.variance > 0)
        added = {
            COUNTS_ARRAY: counts,
            NOISE_ARRAY: np.array([noise / p**2]),
            SHOWN_ARRAY: is_known * float(participants),
            EXCESS_ARRAY: excess,
        }
        for name, more in added.items():
            state = state.with_array(name, state.arrays.get(name, np.zeros(len(more))) + more)
        devices = np.append(devices_per_level(state), float(participants))
        state = state.with_array(SAMPLING_VARIANCE_ARRAY, np.array([(1 - p) / p]))
        state = state.with_array(DEVICES_ARRAY, devices)
        return Answer(True, float(shown.sum()), tuple(leaves[:MAX_SHOWN_ESTIMATES]), state)

    def final_estimates(
        self, question: HierarchicalHistogramQuestion, state: StudyState
    ) -> list[Estimate]:
        if COUNTS_ARRAY not in state.arrays:
            return []
        counts, noise = state.arrays[COUNTS_ARRAY], float(state.arrays[NOISE_ARRAY][0])
        devices = devices_per_level(state)
        # The same devices count once: the mean of their rounds, whose noise and coins are new.
        rounds = len(devices) if question.every_round else 1
        tree = CompleteTree.from_counts(question.digits.base, counts / rounds)
        noise /= rounds**2
        if noise:
            tree = tree.consistent()
        leaves = tree.levels[-1]
        alone = noise * leaf_variance(tree.base, tree.depth)
        scale = devices.sum() / np.maximum(state.arrays[SHOWN_ARRAY][-len(leaves) :], 1)
        leaves = leaves * scale
        spread = scale * float(state.arrays[SAMPLING_VARIANCE_ARRAY][0]) / rounds
        spread += 0 if question.every_round else scale - 1
        excess = state.arrays[EXCESS_ARRAY][-len(leaves) :] * (scale / rounds) ** 2
        variances = alone + excess + np.maximum(leaves, 0) * spread
        result = normal_posterior(leaves, variances, decision_threshold(question.threshold))
        is_heavy = result.heavy >= question.confidence
        tail = _EXPECTED_FALSE_POSITIVES / (_EXPECTED_FALSE_POSITIVES + len(leaves))
        is_heavy &= leaves > -special.ndtri(tail) * np.sqrt(alone)
        means = np.minimum(result.means, question.largest_count(int(devices.sum() / rounds)))
        rows = np.flatnonzero(is_heavy)
        return estimates_of_values(question.domain, rows, means, result.variances, result.heavy)

    def asked_share(self, plan: HierarchicalHistogramPlan) -> float:
        adds_up = plan.question.every_round or plan.release.variance > 0
        return 1.0 if adds_up else 1 / plan.round

    def dp_event(self, plan: HierarchicalHistogramPlan, rounds: int) -> DpEvent:
        return release_loss(plan.question, plan.release, _release_count(plan.question, rounds))


def _release_count(question: HierarchicalHistogramQuestion, rounds: int) -> int:
    """Return the number of counts of a device's value that are released in `rounds` rounds."""
    return question.max_votes * (rounds if question.every_round else 1)


def _check_message(question: HierarchicalHistogramQuestion, terms: Terms, q: int) -> None:
    needed = message_bytes(terms, Ring((Lane(q, question.cells),)))
    if needed > question.message_bytes:
        raise ValueError(
            f"message_bytes {question.message_bytes:,} are too few: {question.cells:,} cells of "
            f"all {question.digits.width} levels, {terms.moduli.element_bits(q):.3g} bits each, "
            f"take {needed:,} bytes; use more, or fewer digits"
        )

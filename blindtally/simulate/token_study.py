"""Studies over simulated rounds of tokens, from which `plan` and the figures predict accuracy.

The tokens of a round are distributed to devices at random, m to each device.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindtally.simulate.populations import ItemPopulation, RoundCounts
from protocol.domains import Domain
from protocol.histograms import Histograms, ItemIndex, clip_histograms
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyQuestion, parse_question
from protocol.numerics.array_types import Integers
from protocol.question_and_plan import Terms
from protocol.round_sizes import WORD_BYTES, message_bytes_of
from protocol.simulation.study import run_study
from protocol.study_state import EMPTY_STATE, StudyState

_COHORT_SIZE = 1000
DEFAULT_MECHANISM = "tracked"  # for whose keys a population is kept

ItemMask = NDArray[np.bool_]


class TooFewWordsError(ValueError):
    """No table fits into the words of a question."""


def terms_for_tokens(tokens: int) -> Terms:
    """Return terms for rounds of `tokens` devices on average, and a third more at most."""
    cohorts = -(-4 * tokens // (3 * _COHORT_SIZE))
    return Terms(cohort_size=_COHORT_SIZE, minimum=_COHORT_SIZE // 2, cohorts=cohorts)


@dataclass(frozen=True)
class KeyedPopulation:
    """A population and the domain of its study's question."""

    population: ItemPopulation
    domain: Domain

    @classmethod
    def of(
        cls, population: ItemPopulation, tokens: int, words: int | None = None
    ) -> "KeyedPopulation":
        """Return the population with its own domain, or hashed if its keys are long.

        Hashed keys are as short as rounds of `tokens` on average allow. Without `words` there are
        many.
        """
        max_tokens = terms_for_tokens(tokens).max_devices
        mechanism = SUM_MECHANISMS[DEFAULT_MECHANISM]
        domain = mechanism.cheaper_domain(population.domain, population.items, max_tokens, words)
        return cls(population, domain)

    @cached_property
    def index(self) -> ItemIndex:
        return ItemIndex(self.population.items)

    @cached_property
    def places(self) -> Integers:
        """Return the place of each of the population's items in `index`."""
        return np.array([self.index.positions[item] for item in self.population.items], np.int64)

    @cached_property
    def is_admitted(self) -> ItemMask:
        """Return a mask of the items of `index` in the domain; devices do not send the others."""
        return np.array([item in self.domain for item in self.index])

    def with_items(self, places: Integers) -> "KeyedPopulation":
        """Return the population of only the items at `places` in the population."""
        names, shares = self.population.items, self.population.shares
        items = tuple(names[place] for place in places.tolist())
        population = ItemPopulation(items, shares[places], self.population.domain)
        return KeyedPopulation(population, self.domain)

    def distribute(
        self, rounds: Iterable[RoundCounts], contribution: int, rng: np.random.Generator
    ) -> "TokenRounds":
        """Return the devices of each round, with its tokens distributed at random."""
        histograms = [self._distribute_round(counts, contribution, rng) for counts in rounds]
        return TokenRounds(self, histograms, contribution)

    def _distribute_round(
        self, counts: RoundCounts, contribution: int, rng: np.random.Generator
    ) -> Histograms:
        tokens, kinds = np.repeat(self.places, counts), len(self.index)
        rng.shuffle(tokens)
        devices = np.arange(len(tokens)) // contribution
        holdings, held = np.unique(devices * kinds + tokens, return_counts=True)
        ends = np.searchsorted(holdings, np.arange(1, devices[-1] + 2) * kinds)
        return self._admitted(Histograms(self.index, holdings % kinds, held, ends))

    def clip(self, held: Histograms, contribution: int, rng: np.random.Generator) -> Histograms:
        """Return the sent items: those of the domain, at most `contribution` of each device.

        The items of `held` are those of the population.
        """
        same = Histograms(self.index, held.item_indices, held.counts, held.ends)
        return clip_histograms(self._admitted(same), contribution, rng)

    def _admitted(self, histograms: Histograms) -> Histograms:
        sent = np.where(self.is_admitted[histograms.item_indices], histograms.counts, 0)
        return histograms if sent.all() else histograms.with_counts(sent)


@dataclass(frozen=True)
class TokenRounds:
    """Devices of each round, with at most `contribution` tokens each."""

    known: KeyedPopulation
    rounds: Sequence[Histograms]
    contribution: int


@dataclass(frozen=True, slots=True)
class TokenStudy:
    """Items that a study found, rounds that were decoded, and sizes in the last round.

    The mask has an entry for each item of the population, and one more for each found name that is
    not an item. A device sends `vector_bytes` and receives `plan_bytes`.
    """

    question: AnyQuestion
    found_items: ItemMask
    rounds_decoded: int
    vector_bytes: int
    plan_bytes: int
    state: StudyState


def run_tokens(
    mechanism_name: str,
    tokens: TokenRounds,
    words: int,
    tau: float,
    rng: np.random.Generator,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> TokenStudy:
    """Run a study of secure sums, with the mechanism's own `settings` in its question.

    Raises:
        TooFewWordsError: if no table fits into the words.
    """
    known, mechanism = tokens.known, SUM_MECHANISMS[mechanism_name]
    terms, seed = terms_for_tokens(max(map(len, tokens.rounds))), Random(int(rng.integers(2**62)))
    size = message_bytes_of(terms, WORD_BYTES * words)
    fields: dict[str, Any] = {"mechanism": mechanism_name, "threshold": tau, "message_bytes": size}
    fields |= {"contribution": tokens.contribution, "domain": known.domain, **settings}
    try:
        question = parse_question(fields)
        last_plan = mechanism.first_plan(question, terms, "plan", len(tokens.rounds), Random(0))
    except ValueError as error:
        raise TooFewWordsError(str(error)) from None
    state, decoded = EMPTY_STATE, 0
    rounds, planned = ([histograms] for histograms in tokens.rounds), len(tokens.rounds)
    # Without a policy, because the tokens are what devices count.
    study = run_study(mechanism, question, terms, rounds, seed, planned=planned, policy=None)
    for outcome in study:
        state, last_plan = outcome.study_state, outcome.plan
        decoded += outcome.is_decoded
    names = [estimate.item for estimate in mechanism.final_estimates(question, state)]
    wrong = len(names) - sum(name in known.index.positions for name in names)
    found_items = np.isin(np.array(known.population.items), names)
    return TokenStudy(
        question,
        np.append(found_items, np.ones(wrong, np.bool_)),
        decoded,
        mechanism.ring(last_plan).nbytes,
        len(last_plan.model_dump_json()),
        state,
    )

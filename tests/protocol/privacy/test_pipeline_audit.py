"""The whole pipeline, audited: design, coins, sum, suppression and answer of a trie of ten levels.

A run is one device's path through the levels, with `OTHER_DEVICES` more in each of its cells, and
once without the device. 300,000 runs of either neighbour are drawn by the law of the pipeline,
that of binomials; 16,384 go through the code itself, each as a subtree of one large population.
The loss of a run is the sum of its levels' log ratios, so

    delta-hat(epsilon)  =  mean of max(0, 1 - e^(epsilon - loss))         of runs with the device,
                           P(loss > epsilon) - e^epsilon P(the same without)  of both, for events

is delta on average, and may not exceed the ledger's by three standard errors: an honest
claim that is tight fails with probability 1e-3 under another seed. The ledger takes the worst of
all others in each level. That is tight for one level and nearly for two, so there a theta that is
off by one shows, or a level that is forgotten; over ten it is above any path with the same number
of others in each.
"""

import math
import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from protocol.domains.strings import Alphabet
from protocol.mechanisms.central.trie_plan import TrieHhPlan, TrieHhQuestion
from protocol.mechanisms.central.trie_votes import encode_votes
from protocol.mechanisms.central.triehh import TrieHh
from protocol.numerics.array_types import Floats
from protocol.privacy.events import SampleThresholdEvent
from protocol.privacy.loss_distributions import compose, delta_of
from protocol.quantiles.prefix_tree import PrefixTree, digits_to_integers, integers_to_digits
from protocol.question_and_plan import Terms
from protocol.study_state import EMPTY_STATE, StudyState
from tests.protocol.chance import fit, seeded

LEVELS, OTHER_DEVICES = 10, 70
RUNS, SUBTREES = 300_000, 2**14
BITS = 14  # of a subtree's number
TRIE = TrieHh()
TERMS = Terms(cohort_size=10_000, minimum=5_000, cohorts=1_000)
QUESTION = TrieHhQuestion(
    threshold=1,
    contribution=1,
    domain=Alphabet(characters="01", length=BITS + LEVELS),
    message_bytes=525_682,
    epsilon=1.0,
    delta=1e-6,
)

Counts = NDArray[np.int64]


@cache
def first() -> TrieHhPlan:
    return TRIE.first_plan(QUESTION, TERMS, "audit", LEVELS, random.Random(1))


P, THETA = 0.146074, 12  # what the product makes of epsilon 1 at delta 1e-6 over ten levels


def claimed(epsilon: float, levels: int = LEVELS, theta: int = THETA) -> float:
    """Return the delta that the ledger has for this many levels."""
    loss = SampleThresholdEvent(probability=P, threshold=theta, releases=levels)
    known = loss.loss_to("public", "add-remove")
    assert known is not None
    return delta_of(compose([(known, 1)]), epsilon)


def losses_of(others: int, theta: int = THETA) -> Floats:
    """Return the loss of each published count, at 0 that of none, by the definition."""
    x = np.arange(others + 2)
    mine, theirs = binom.pmf(x, others + 1, P), binom.pmf(x, others, P)
    for probabilities in (mine, theirs):
        probabilities[0], probabilities[1:theta] = probabilities[:theta].sum(), 0
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(mine) - np.log(theirs)


def drawn(others: int, levels: int, theta: int = THETA, runs: int = RUNS) -> list[Floats]:
    """Return the losses of runs with the device, and of those without, by the law."""
    rng, losses = np.random.default_rng([others, levels, theta]), losses_of(others, theta)
    sums = []
    for trials in (others + 1, others):
        total = np.zeros(runs)
        for _ in range(levels):
            counts = rng.binomial(trials, P, runs)
            counts[counts < theta] = 0
            total += losses[counts]
        sums.append(total)
    return sums


def estimate(runs: Sequence[NDArray[np.bool_]], epsilon: float) -> tuple[float, float]:
    """Return delta-hat of an event in runs with and without the device, and its error."""
    (mine, theirs), factor = (run.mean() for run in runs), math.exp(epsilon)
    variance = mine * (1 - mine) / len(runs[0]) + factor**2 * theirs * (1 - theirs) / len(runs[1])
    return float(mine - factor * theirs), float(variance**0.5)


def delta_hat(losses: Floats, epsilon: float) -> tuple[float, float]:
    over = np.maximum(0.0, -np.expm1(epsilon - losses))
    return float(over.mean()), float(over.std() / len(over) ** 0.5)


def test_the_design_is_that_of_the_audit() -> None:
    release = first().release
    assert (release.probability, release.threshold) == (P, THETA)
    event = TRIE.dp_event(first(), LEVELS)
    assert isinstance(event, SampleThresholdEvent)
    assert event == SampleThresholdEvent(probability=P, threshold=THETA, releases=LEVELS)


@cache
def ten_levels(others: int) -> list[Floats]:
    return drawn(others, LEVELS)


@pytest.mark.parametrize(
    ("others", "epsilon", "known"),
    [
        (50, 0.2, 4.402e-3),
        (50, 0.4, 2.646e-4),
        (70, 0.2, 6.598e-3),
        (70, 0.4, 3.175e-4),
        (100, 0.2, 4.299e-3),
        (100, 0.4, 8.36e-5),
    ],
)
def test_runs_of_ten_levels_reveal_no_more_than_the_ledger(
    others: int, epsilon: float, known: float
) -> None:
    """Check against `known`, the composition of pairs, and against the ledger's bound."""
    mine, theirs = ten_levels(others)
    events = estimate([mine > epsilon, theirs > epsilon], epsilon)
    for delta, error in (delta_hat(mine, epsilon), events):
        assert abs(delta - known) < 3 * error + 0.003 * known
        assert delta <= claimed(epsilon) + 3 * error
    reverse, error = delta_hat(-theirs, epsilon)
    assert reverse <= claimed(epsilon) + 3 * error


def worst(epsilon: float, theta: int = THETA) -> int:
    """Return the number of others with which one level reveals most."""
    return math.ceil((theta - 1) / (1 - (1 - P) * math.exp(-epsilon))) - 1


@pytest.mark.parametrize(("others", "epsilon"), [(58, 0.05), (36, 0.2), (25, 0.4)])
def test_the_ledger_is_tight_for_one_level(others: int, epsilon: float) -> None:
    assert worst(epsilon) == others
    delta, error = delta_hat(drawn(others, 1, runs=6 * RUNS)[0], epsilon)
    assert abs(delta - claimed(epsilon, 1)) < 3 * error + 1e-3 * delta
    assert error < 0.1 * delta


def test_a_theta_that_is_off_by_one_is_caught() -> None:
    """Counts of at least 11 are shown, as by X + 1 > theta, and the ledger has 12."""
    others = worst(0.2, THETA - 1)
    delta, error = delta_hat(drawn(others, 1, theta=THETA - 1)[0], 0.2)
    assert delta > claimed(0.2, 1) + 3 * error
    assert delta <= claimed(0.2, 1, theta=THETA - 1) + 3 * error


def test_a_level_that_was_forgotten_is_caught() -> None:
    delta, error = delta_hat(drawn(45, 2)[0], 0.1)
    assert delta > claimed(0.1, 1) + 3 * error
    assert delta <= claimed(0.1, 2) + 3 * error


# The code itself: subtree s has the items that begin with the bits of s.


def subtrees(tail: Sequence[int]) -> NDArray[np.uint8]:
    """Return the rows of all subtrees' items that go on with `tail`."""
    rows = np.zeros((SUBTREES, BITS + LEVELS), np.uint8)
    rows[:, :BITS] = integers_to_digits(np.arange(SUBTREES), 2, BITS)
    rows[:, BITS : BITS + len(tail)] = tail
    return rows


def plan_of(level: int) -> TrieHhPlan:
    """Return the plan of a level below the subtrees, each with one path of zeros."""
    rows, start = subtrees(()), BITS + level - 1
    frontier = tuple(row[:start].tobytes().hex() for row in rows)
    fields = dict(first()) | {"level": start + 1, "round": level, "frontier": frontier}
    return TrieHhPlan.model_validate(fields)


def published(state: StudyState, plan: TrieHhPlan, last: int) -> Counts:
    """Return each subtree's published count of the cell that ends in `last`, 0 if none."""
    level = PrefixTree.from_state(state).level(plan.node_length)
    counts = np.where(level.counts == THETA, THETA, np.round(level.counts * P)).astype(np.int64)
    here = level.rows[:, plan.node_length - 1] == last
    shown = np.zeros(SUBTREES, np.int64)
    shown[digits_to_integers(level.rows[here, :BITS], 2)] = counts[here]
    return shown


def answered(plan: TrieHhPlan, rows: NDArray[np.uint8], held: Counts, seed: int) -> StudyState:
    total = encode_votes(plan, rows, held, seeded(seed))
    assert TRIE.fault(plan, total, len(held)) is None
    return TRIE.decode(plan, total, len(held), EMPTY_STATE).state


def test_runs_of_the_code_have_the_law_and_reveal_no_more_than_the_ledger() -> None:
    rows, losses, sums = subtrees(()), losses_of(OTHER_DEVICES), []
    for trials in (OTHER_DEVICES + 1, OTHER_DEVICES):
        points = np.arange(trials + 1)
        probabilities = binom.pmf(points, trials, P)
        probabilities[0], probabilities[1:THETA] = probabilities[:THETA].sum(), 0
        held, total = np.tile(np.arange(SUBTREES), trials), np.zeros(SUBTREES)
        for level in range(1, LEVELS + 1):
            plan = plan_of(level)
            state = answered(plan, rows, held, 100 * trials + level)
            counts = published(state, plan, last=0)
            assert fit(counts, points, probabilities) > 1e-5  # of twenty tests: probability 2e-4
            total += losses[counts]
        sums.append(total)
    for epsilon in (0.2, 0.4):
        delta, error = delta_hat(sums[0], epsilon)
        assert 0 < delta <= claimed(epsilon) + 3 * error


def lonely(joined: bool, *, reused: bool) -> NDArray[np.bool_]:
    """Return the subtrees where a prefix's count is one above that of its only shown extension.

    99 devices hold the extension, and one more holds another of the prefix if it `joined`.
    """
    rows = np.concatenate((subtrees((0, 0)), subtrees((0, 1))))
    held = np.tile(np.arange(SUBTREES), 99)
    held = np.concatenate((held, np.arange(SUBTREES, 2 * SUBTREES))) if joined else held
    shown = []
    for level in (1, 2):
        seed = 7 if reused else 7 + level + 2 * joined
        plan = plan_of(level)
        shown.append(published(answered(plan, rows, held, seed), plan, last=0))
    prefix, extension = shown
    return (prefix >= THETA) & (extension >= THETA) & (prefix - extension == 1)


def test_a_coin_that_is_reused_is_caught() -> None:
    """One sample for two levels reveals a device that is alone in the difference by its coin."""
    fresh = estimate([lonely(joined, reused=False) for joined in (True, False)], 1.0)
    assert fresh[0] <= claimed(1.0, 2) + 3 * fresh[1]
    delta, error = estimate([lonely(joined, reused=True) for joined in (True, False)], 1.0)
    assert delta > claimed(1.0, 2) + 3 * error
    assert delta > 0.7 * P  # the rest of the time, the extension or the prefix is not shown

"""Votes in a table equal votes in cells, in fewer bytes, and their failures are charged."""

import math
import random
from typing import Any

import numpy as np
import pytest

from protocol.domains.strings import Alphabet, Utf8
from protocol.mechanisms.central.trie_plan import TrieHhPlan, TrieHhQuestion
from protocol.mechanisms.central.trie_votes import table_failure_probability, vote_table_shape
from protocol.mechanisms.central.triehh import TrieHh
from protocol.privacy.events import LedgerEntry, SampleThresholdEvent
from protocol.privacy.ledger import Ledger
from protocol.privacy.loss_distributions import compose, delta_of
from protocol.question_and_plan import Terms
from protocol.round_sizes import message_bytes
from protocol.simulation.study import run_study
from protocol.sketches.vote_table import VoteTableShape, failure_probability_bound
from protocol.study_state import EMPTY_STATE
from secagg.oneshot.moduli import PAIRWISE
from tests.protocol.chance import seeded

TRIE = TrieHh()
TERMS = Terms(cohort_size=60, minimum=40)
DOMAIN = Alphabet(characters="_abcdefghijklmnopqrstuvwxyz", length=6, pad="_")


def asked(**own: Any) -> TrieHhQuestion:
    common = {"threshold": 1, "contribution": 1, "domain": DOMAIN, "message_bytes": 134_156}
    return TrieHhQuestion.model_validate(
        common | {"epsilon": 4, "delta": 1e-3, "vote_tables": True} | own
    )


def first(terms: Terms = TERMS, rounds: int = 6, **own: Any) -> TrieHhPlan:
    return TRIE.first_plan(asked(**own), terms, "study", rounds, random.Random(1))


def without(plan: TrieHhPlan) -> TrieHhPlan:
    return TrieHhPlan.model_validate(dict(plan) | {"table_shape": None})


def test_votes_in_a_table_equal_votes_in_cells() -> None:
    plan = first(stride=3)
    assert plan.table_shape is not None
    rng = np.random.default_rng(1)
    words = ["abc", "abd", "b", "", "zyxwvu", "abcdef"]
    for run in range(20):
        held = [{"heavy": 1}] * 45 + [{str(word): 1} for word in rng.choice(words, 15)]
        answers = []
        for each in (plan, without(plan)):
            total = TRIE.encode_sum(each, held, seeded(run))
            assert TRIE.fault(each, total, 60) is None
            answers.append(TRIE.decode(each, total, 60, EMPTY_STATE))
        assert answers[0] == answers[1]
        assert answers[0].state.pack() == answers[1].state.pack()
        assert answers[0].distinct > 0


def test_a_table_finds_whole_strings_in_a_round() -> None:
    """Four bytes have 2^32 values, too many for a lane."""
    question = asked(domain=Utf8(max_bytes=4), stride=4, threshold=10)
    held = [{"word": 1}] * 40 + [{"rare": 1}] * 2 + [{}] * 18
    (outcome,) = run_study(TRIE, question, TERMS, [[held]], random.Random(5), planned=1)
    assert outcome.plan.table_shape is not None
    assert outcome.answer is not None
    assert TRIE.is_over(outcome.plan, outcome.answer, outcome.study_state)
    assert [each.item for each in TRIE.final_estimates(question, outcome.study_state)] == ["word"]


def test_a_table_is_taken_where_it_is_smaller() -> None:
    for stride in (1, 2, 3):
        plan = first(stride=stride)
        cells = without(plan) if plan.table_shape else plan
        shape = vote_table_shape(plan.question, TERMS, plan.release, 6, plan.cells)
        smaller = shape is not None and shape.nbytes(PAIRWISE) < TRIE.ring(cells).nbytes
        assert plan.table_shape == (shape if smaller else None)
    assert first(stride=1).table_shape is None
    assert first(stride=3).table_shape is not None
    assert first(stride=3, vote_tables=False).table_shape is None


def test_a_table_holds_longer_frontiers() -> None:
    """2,000 words hold 7 prefixes of 27^2 cells of 6 bits, or a table for all 60 that are shown."""
    shown = [a + b for a in "abcdefghij" for b in "klmnop"]
    later = []
    for tables in (True, False):
        plan = without(first(stride=2, message_bytes=7084, vote_tables=tables))
        votes = np.zeros(plan.cells, np.uint32)
        votes[plan.cells_of(plan.question.digits_of(shown))] = plan.release.threshold + 1
        answer = TRIE.decode(plan, (votes,), 60, EMPTY_STATE)
        later.append(TRIE.next_plan(plan, answer, answer.state, random.Random(1)))
    table, cells = later
    assert table.table_shape is not None
    assert len(table.frontier) == 60
    assert cells.table_shape is None
    assert len(cells.frontier) == 7
    assert TRIE.ring(table).nbytes <= 4000


def test_a_frontier_is_cut_down_to_what_a_table_holds() -> None:
    """No lane holds a prefix with four bytes per level; a table in the same message does."""
    own = {"domain": Utf8(max_bytes=8), "stride": 4, "rounds": 2}
    roomy = first(**own)
    size = message_bytes(roomy.terms, TRIE.ring(roomy))  # no more than these
    shown = roomy.question.digits_of([chr(97 + k) + "bcdefgh" for k in range(26)])
    lengths = []
    for plan in (first(**own, message_bytes=size), roomy):
        table = plan.vote_table
        assert table is not None
        votes = np.full(26, plan.release.threshold, np.int64)
        total = table.insert(np.sort(plan.cells_of(shown)), votes)
        answer = TRIE.decode(plan, total, 60, EMPTY_STATE)
        assert not TRIE.is_over(plan, answer, answer.state)
        later = TRIE.next_plan(plan, answer, answer.state, random.Random(1))
        assert later.table_shape is not None
        assert message_bytes(plan.terms, TRIE.ring(later)) <= plan.question.message_bytes
        lengths.append(len(later.frontier))
    assert 1 <= lengths[0] < lengths[1] == 26


def test_below_a_tenth_of_the_cells_in_use_a_table_is_smaller() -> None:
    """One in seven of 10,000 devices votes at epsilon 1. Cells take 14 bits, votes some 200."""
    terms = Terms(cohort_size=10_000, minimum=5_000)
    plan = first(terms, 10, epsilon=1, delta=1e-6, message_bytes=2_100_236, vote_tables=False)
    votes = 10_000 * plan.release.probability
    question = asked(epsilon=1, delta=1e-6, message_bytes=2_100_236)

    def ratio(cells: int) -> float:
        shape = vote_table_shape(question, terms, plan.release, 10, cells)
        assert shape is not None
        return (
            shape.nbytes(PAIRWISE) * 8 / (cells * plan.terms.moduli.element_bits(plan.cell_modulus))
        )

    assert ratio(int(votes / 0.10)) > 1
    assert ratio(int(votes / 0.06)) < 1
    assert ratio(int(votes / 0.006)) < 0.13


# The cost of a failure.


def test_an_answer_does_not_reveal_that_a_table_was_not_read() -> None:
    plan = first(stride=3)
    table = plan.vote_table
    assert table is not None
    theta = plan.release.threshold
    numbers = np.arange(0, plan.cells, 7)  # forty times as many as there is room for
    heavy = table.insert(np.array([3]), np.array([theta]))
    total = table.insert(numbers, np.ones(len(numbers), np.int64))
    plan_ring = TRIE.ring(plan)
    plan_ring.add(total, heavy)
    answer = TRIE.decode(plan, total, 60, EMPTY_STATE)
    assert answer.decoded
    assert answer.distinct in (0, 1)  # the heavy one, or not even that


def test_the_failure_probability_is_charged() -> None:
    plan = first(stride=3)
    question, table = plan.question, plan.table_shape
    assert table is not None
    assert question.table_failure_delta == 1e-5
    failure = table_failure_probability(question, 6)
    assert 6 * (1 + math.exp(question.epsilon)) * failure == pytest.approx(
        question.table_failure_delta / 2
    )
    assert failure_probability_bound(min(table.votes, table.bound), table.width) <= failure
    assert table_failure_probability(asked(every_round=False), 6) == pytest.approx(6 * failure)
    assert table_failure_probability(asked(vote_tables=False), 6) == 0


def test_the_ledger_charges_tables_within_the_budget() -> None:
    plan = first(stride=3, epsilon=1, delta=1e-6)
    loss = TRIE.dp_event(plan, 6)
    assert isinstance(loss, SampleThresholdEvent)
    assert loss.table_failure_delta == pytest.approx(1e-8)
    epsilon = Ledger(entries=(LedgerEntry(name="trie", event=loss),)).epsilon(1e-6)
    assert epsilon is not None
    assert 0.98 < epsilon <= 1.0
    exact, charged = (
        delta_of(compose([(known, 1)]), 1.0)
        for known in (
            loss.model_copy(update={"table_failure_delta": 0.0}).loss_to("public", "add-remove"),
            loss.loss_to("public", "add-remove"),
        )
        if known is not None
    )
    assert charged == pytest.approx(exact + 1e-8, rel=1e-4)


# What is refused.


@pytest.mark.parametrize("mode", ["noise", "both"])
def test_a_table_under_noise_is_refused(mode: str) -> None:
    with pytest.raises(ValueError, match="vote_tables need mode sample-threshold"):
        asked(mode=mode)


def test_a_table_that_is_not_the_plans_is_refused() -> None:
    plan = first(stride=3)
    fields = plan.model_dump()
    assert TrieHhPlan.model_validate(fields) == plan
    other = VoteTableShape.fitting(plan.cells + 1, 60, 1e-6)
    assert other is not None
    with pytest.raises(ValueError, match="the vote table is not for 19683 cells without noise"):
        TrieHhPlan.model_validate(fields | {"table_shape": other.model_dump()})
    noisy = first(mode="noise", vote_tables=False, stride=2).model_dump()
    table = VoteTableShape(bound=27**2, votes=60, width=20, evidence=2**40)
    with pytest.raises(ValueError, match="not for 729 cells without noise"):
        TrieHhPlan.model_validate(noisy | {"table_shape": table.model_dump()})


def test_words_that_hold_neither_are_too_few() -> None:
    with pytest.raises(ValueError, match=r"are too few: .* 19,683 cells"):
        first(stride=3, message_bytes=3104)

"""Tries in memory find what a dictionary counts, and what is hidden leaves no trace."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.domains.strings import Alphabet, Utf8
from protocol.estimation.estimates import Estimate
from protocol.histograms import Histogram
from protocol.mechanism import Answer, add_noise
from protocol.mechanisms.central import triehh
from protocol.mechanisms.central.release_design import min_honest_share
from protocol.mechanisms.central.trie_plan import TrieHhPlan
from protocol.mechanisms.central.trie_votes import encode_votes
from protocol.privacy.noise_shares import tail_bound
from protocol.privacy.release import Release
from protocol.quantiles.prefix_tree import PrefixTree
from protocol.question_and_plan import Terms
from protocol.round_sizes import message_bytes_of
from protocol.simulation.rounds import RandomDropout
from protocol.simulation.study import run_round, run_study
from protocol.study_state import EMPTY_STATE, StudyState
from secagg.keys import Identity
from tests.examples import fewer
from tests.protocol.chance import only, seeded
from tests.protocol.mechanisms.central.tries import (
    LETTERS,
    PAD_DOMAIN,
    SURE_COINS,
    TERMS,
    TEXT,
    TRIE,
    asked,
    at,
    first,
)

LEVEL_TERMS = Terms(cohort_size=1000, minimum=500)
heads, tails = only(0), only(2**64 - 1)


def grow(plan: TrieHhPlan, histograms: Sequence[Histogram]) -> tuple[list[TrieHhPlan], StudyState]:
    """Return the plans of a study until it is over, and its state."""
    rng, plans, state = random.Random(2), [plan], EMPTY_STATE
    while True:
        outcome = run_round(TRIE, plans[-1], [histograms], rng, state)
        state = outcome.study_state
        if TRIE.is_over(plans[-1], outcome.answer, state):
            return plans, state
        plans.append(TRIE.next_plan(plans[-1], outcome.answer, state, rng))


def read(estimates: Sequence[Estimate]) -> dict[str, int]:
    return {estimate.item: round(estimate.count) for estimate in estimates}


def common(histograms: Sequence[Histogram], theta: int = 3) -> dict[str, int]:
    """Return the items that `theta` devices or more hold, with their counts."""
    counts = Counter(item for histogram in histograms for item in histogram)
    return {item: count for item, count in counts.items() if count >= theta}


# What is found.

words = {
    "letters": (LETTERS, st.text("abcd", min_size=4, max_size=4)),
    "padded": (PAD_DOMAIN, st.text("abc", max_size=4)),
    "text": (TEXT, st.text("aé€😀", max_size=4).filter(lambda item: item in TEXT)),
}


@pytest.mark.parametrize("kind", words)
@pytest.mark.parametrize("stride", [1, 2])
@fewer(0.25)
@given(data=st.data())
def test_a_trie_finds_what_a_dictionary_counts(kind: str, stride: int, data: st.DataObject) -> None:
    domain, items = words[kind]
    pool = data.draw(st.lists(items, min_size=1, max_size=6))
    held = st.lists(st.sampled_from(pool), max_size=3).map(Counter)
    histograms = data.draw(st.lists(held, min_size=1, max_size=30))
    plan = first(domain=domain, stride=stride, contribution=3, message_bytes=4_204_668)
    plans, state = grow(plan, histograms)
    assert read(TRIE.final_estimates(plan.question, state)) == common(histograms)
    assert len(plans) <= plan.question.levels


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_the_last_level_takes_the_digits_that_are_left(stride: int) -> None:
    histograms = [{"abcd": 1}] * 5 + [{"abca": 1}] * 4 + [{"dcba": 1}] * 3 + [{"bbbb": 1}] * 2
    plans, state = grow(first(stride=stride), histograms)
    assert [plan.node_length for plan in plans] == [*range(stride, 4, stride), 4]
    heavy = TRIE.final_estimates(plans[0].question, state)
    assert read(heavy) == {"abcd": 5, "abca": 4, "dcba": 3}
    assert [estimate.item for estimate in heavy] == ["abcd", "abca", "dcba"]


def test_a_character_that_two_levels_share_is_found_whole() -> None:
    histograms = [{"€a": 1}] * 5 + [{"é": 1}] * 3 + [{"": 1}] * 4
    plans, state = grow(first(domain=TEXT), histograms)
    assert "e282" in plans[2].frontier  # of the three bytes of the euro sign
    assert read(TRIE.final_estimates(plans[0].question, state)) == {"€a": 5, "": 4, "é": 3}


def test_bytes_that_are_not_text_are_not_counted() -> None:
    plan = first(domain=Utf8(max_bytes=2), stride=2, message_bytes=2_107_516)
    votes = plan.question.digits.digits_of(["é", "ab"])
    votes[1] = (0xFF, 0xFE)
    total = np.zeros(plan.cells, np.uint32)
    total[plan.cells_of(votes)] = 9
    answer = TRIE.decode(plan, (total,), 20, EMPTY_STATE)
    assert [each.item for each in answer.estimates] == ["é"]


def test_a_made_up_pad_neither_grows_nor_is_found() -> None:
    plan = first(domain=PAD_DOMAIN, stride=2)
    total = np.zeros(plan.cells, np.uint32)
    total[1] = 9  # "_a", which is nobody's
    answer = TRIE.decode(plan, (total,), 20, EMPTY_STATE)
    assert answer.estimates == ()
    assert TRIE.is_over(plan, answer, answer.state)


def test_a_device_votes_once_for_each_cell() -> None:
    plan = first(contribution=6)
    held = {"abcd": 2, "abca": 1, "bbbb": 3}
    (votes,) = TRIE.encode(plan, held, heads)
    assert votes.tolist() == [1, 1, 0, 0]
    (votes,) = TRIE.encode(at(plan, 4, "abc", "bbb"), held, heads)
    assert votes.tolist() == [1, 0, 0, 1, 0, 1, 0, 0]


def test_a_vote_of_several_items_has_one_coin() -> None:
    """A device has eight items of one cell; half of these votes arrive, not 255 of 256."""
    plan = first(Release(probability=0.5, threshold=3, variance=0.0), contribution=8)
    items = ["a" + x + y + "a" for x in "ab" for y in "abcd"]
    (votes,) = TRIE.encode_sum(plan, [dict.fromkeys(items, 1)] * 4000, seeded(1))
    assert abs(int(votes[0]) - 2000) < 4.5 * 1000**0.5  # fails with probability 1e-5


@pytest.mark.parametrize(
    ("mode", "secure"),
    [("sample-threshold", False), ("noise", False), ("both", False), ("both", True)],
)
def test_a_study_of_each_mode_finds_the_common_and_not_the_rare(mode: str, secure: bool) -> None:
    domain = Alphabet(characters="abcd", length=2)
    question = asked(domain=domain, mode=mode, threshold=20, confidence=0.5)
    histograms = [{"ab": 1}] * 50 + [{"cd": 1}] * 8 + [{}] * 2
    rounds, seed = [[histograms]] * 2, random.Random(4)
    outcomes = list(
        run_study(TRIE, question, TERMS, rounds, seed, planned=2, dropout=0.05, secure=secure)
    )
    assert [outcome.plan.level for outcome in outcomes] == [1, 2]
    assert all(outcome.answer is not None for outcome in outcomes)
    (heavy,) = TRIE.final_estimates(question, outcomes[-1].study_state)
    assert heavy.item == "ab"
    held = outcomes[-1].truth["ab"]
    assert abs(heavy.count - held) < 4.5 * heavy.variance**0.5


@pytest.mark.parametrize("mode", ["sample-threshold", "noise", "both"])
def test_levels_that_ask_different_devices_count_for_all_of_them(mode: str) -> None:
    """Intervals at 95% cover: 104 or fewer of 120 with a probability of 4e-4."""
    domain, shares = Alphabet(characters="abcdefgh", length=2), 1 / np.arange(1, 65)
    items = [x + y for x in domain.characters for y in domain.characters]
    question = asked(domain=domain, mode=mode, threshold=40, every_round=False, epsilon=4)
    rng, covers = np.random.default_rng(7), list[bool]()
    for seed in range(12):
        drawn = rng.multinomial(1000, shares / shares.sum(), 2)
        rounds = [[[{item: 1} for item in np.repeat(items, each).tolist()]] for each in drawn]
        *_, last = run_study(TRIE, question, LEVEL_TERMS, rounds, random.Random(seed), planned=2)
        held = dict(zip(items, drawn.sum(axis=0).tolist(), strict=True))
        for each in TRIE.final_estimates(question, last.study_state):
            covers.append(abs(each.count - held[each.item]) < 1.96 * each.variance**0.5)
    assert len(covers) >= 120
    assert np.mean(covers) > 104 / 120


def test_devices_that_hold_too_much_give_the_same_in_each_round() -> None:
    held = dict.fromkeys(("aaaa", "bbbb", "cccc", "dddd"), 1)
    question = asked(epsilon=40, delta=0.95, theta=1, probability=0.5)
    study = run_study(TRIE, question, TERMS, [[[held] * 60]] * 4, random.Random(3), planned=4)
    truths = [outcome.truth for outcome in study]
    assert len(truths) == 4
    assert truths == truths[:1] * 4
    assert sum(truths[0].values()) == 60


# The frontier.


def test_a_frontier_limited_by_words_keeps_the_heaviest() -> None:
    plan = first(message_bytes=message_bytes_of(TERMS, 6))  # 6 bits per cell: 8 cells, 2 prefixes
    histograms = [{"aaaa": 1}] * 5 + [{"bbbb": 1}] * 9 + [{"cccc": 1}] * 3 + [{"dddd": 1}] * 7
    answer = run_round(TRIE, plan, [histograms], random.Random(1)).answer
    assert answer is not None
    later = TRIE.next_plan(plan, answer, answer.state, random.Random(1))
    assert later.frontier == ("01", "03")
    assert TRIE.ring(later).nbytes <= 3 * 2
    plans, state = grow(plan, histograms)
    assert read(TRIE.final_estimates(plan.question, state)) == {"bbbb": 9, "dddd": 7}
    assert all(TRIE.ring(plan).nbytes <= 3 * 2 for plan in plans)


def test_a_frontier_has_no_more_prefixes_than_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triehh, "MAX_PREFIXES", 1)
    plans, _ = grow(first(), [{"aaaa": 1}] * 5 + [{"bbbb": 1}] * 9)
    assert plans[1].frontier == ("01",)


def test_a_round_that_failed_is_asked_again() -> None:
    plan = at(first(), 2, "a", "b")
    for answer in (None, Answer(False, 0.0)):
        again = TRIE.next_plan(plan, answer, EMPTY_STATE, random.Random(9))
        assert (again.round, again.level, again.frontier) == (2, 2, plan.frontier)
        assert again.seed != plan.seed
        assert not TRIE.is_over(plan, answer, EMPTY_STATE)


def test_of_a_level_that_was_answered_twice_the_later_answer_counts() -> None:
    plan = first(domain=Alphabet(characters="abcd", length=1))
    once = run_round(TRIE, plan, [[{"a": 1}] * 9], random.Random(1)).study_state
    twice = run_round(TRIE, plan, [[{"b": 1}] * 5], random.Random(1), once).study_state
    assert read(TRIE.final_estimates(plan.question, twice)) == {"b": 5}
    never = run_round(TRIE, plan, [[{}] * 5], random.Random(1), twice).study_state
    assert TRIE.final_estimates(plan.question, never) == []


@pytest.mark.parametrize(
    ("histograms", "rounds"),
    [
        ([{"aaaa": 1}] * 2, 1),  # nothing is shown
        ([{f"aaa{x}": 1} for x in "abcd"], 4),  # all prefixes, and no item
        ([{"aaaa": 1}] * 3, 4),  # found on the last level
        ([{}] * 4, 1),
    ],
)
def test_a_study_is_over_when_nothing_grows(
    histograms: Sequence[Mapping[str, int]], rounds: int
) -> None:
    plans, _ = grow(first(), histograms)
    assert len(plans) == rounds


def test_a_study_is_over_when_all_that_is_shown_has_ended() -> None:
    plans, state = grow(first(domain=PAD_DOMAIN), [{"a": 1}] * 4 + [{"": 1}] * 3)
    assert len(plans) == 2
    assert read(TRIE.final_estimates(plans[0].question, state)) == {"a": 4, "": 3}


def test_nothing_is_concluded_from_nothing() -> None:
    assert TRIE.final_estimates(asked(), EMPTY_STATE) == []
    assert len(PrefixTree.from_state(EMPTY_STATE)) == 0


# Coins.


def test_coins_are_fresh_in_each_level_and_of_each_device() -> None:
    """Correlations of two devices on two levels: within 4.5 standard errors in 800 runs."""
    release, runs = Release(probability=0.5, threshold=1, variance=0.0), 800
    plan = first(release)
    levels = (at(plan, 1, ""), at(plan, 2, "a", "b"))
    drawn, votes = seeded(5), np.zeros((runs, 4))
    for run in range(runs):
        each, two = (TRIE.encode_sum(p, [{"aaaa": 1}, {"bbbb": 1}], drawn)[0] for p in levels)
        votes[run] = each[0], each[1], two[0], two[5]
    assert np.abs(votes.mean(axis=0) - 0.5).max() < 4.5 / 2 / runs**0.5
    correlations = np.corrcoef(votes.T) - np.eye(4)
    assert np.abs(correlations).max() < 4.5 / runs**0.5


@pytest.mark.parametrize("contribution", [1, 4])
def test_many_votes_at_once_are_those_of_devices_one_by_one(contribution: int) -> None:
    rng = np.random.default_rng(2)
    release = Release(probability=0.3, threshold=2, variance=0.0)
    plan = at(first(release, contribution=contribution), 3, "aa", "ab", "bd")
    names = ["".join(row) for row in rng.choice(list("abcd"), (40, 4))]
    rows = plan.question.digits_of(names)
    held = rng.integers(0, 40, 600)
    histograms = [{names[place]: 1} for place in held]
    (at_once,) = encode_votes(plan, rows, held, seeded(3))
    (devices,) = encode_votes(plan, rows, held, seeded(3), np.arange(600))
    assert at_once.sum() > 20
    assert at_once.tolist() == TRIE.encode_sum(plan, histograms, seeded(3))[0].tolist()
    assert at_once.tolist() == devices.tolist()


def test_who_has_no_vote_sends_zeros() -> None:
    plan = at(first(), 2, "a", "b")
    abstaining = TRIE.encode(plan, {}, heads)
    pruned = TRIE.encode(plan, {"cccc": 1}, heads)
    unlucky = TRIE.encode(plan, {"aaaa": 1}, tails)
    voting = TRIE.encode(plan, {"aaaa": 1}, heads)
    zero = TRIE.ring(plan).pack(TRIE.ring(plan).zero())
    for vector in (abstaining, pruned, unlucky):
        assert TRIE.ring(plan).pack(vector) == zero
    assert TRIE.ring(plan).pack(voting) != zero


def test_the_number_of_random_words_does_not_depend_on_the_frontier() -> None:
    asked_for: list[int] = []

    def counted(count: int) -> Any:
        asked_for.append(count)
        return seeded(1)(count)

    for frontier in (("a",), ("b", "c")):
        TRIE.encode(at(first(), 2, *frontier), {"aaaa": 1}, counted)
    assert asked_for == [1, 1]


# Noise.


@pytest.mark.parametrize(
    ("corrupt", "dropout"), [(0.0, 0.0), (0.1, 0.2), (0.05, 0.4), (0.3, 0.25), (0.2, 0.3)]
)
def test_honest_survivors_of_any_quorum_have_all_of_the_noise(
    corrupt: float, dropout: float
) -> None:
    """All dropouts may be honest: the honest survivors are the quorum without the corrupt."""
    terms = Terms(cohort_size=200, minimum=100, corrupt=corrupt, dropout=dropout)
    plan = first(Release(probability=1.0, threshold=9, variance=7.0), terms, mode="noise")
    for n in range(100, 201):
        shares = TRIE.noise_shares(plan, n)
        assert shares is not None
        honest = terms.assumptions.quorum(n) - terms.assumptions.max_corrupt(n)
        assert float(shares.share * honest) >= 7.0 * (1 - 1e-12)
        assert float(shares.share * n) <= plan.max_noise_variance(n) * (1 + 1e-12)


OPERATORS = tuple(Identity.of(bytes([n]) * 32).public.hex() for n in range(1, 8))


def test_a_one_shot_sum_of_the_fewest_devices_has_all_of_the_noise() -> None:
    """The server may open any sum of `minimum` devices or more."""
    terms = Terms(
        cohort_size=400, minimum=50, corrupt=0.1, sum="one-shot", committee={"members": OPERATORS}
    )
    plan = first(Release(probability=1.0, threshold=9, variance=7.0), terms, mode="noise")
    for contacted, n in ((400, 50), (50, 50), (400, 51), (400, 400)):
        shares = TRIE.noise_shares(plan, contacted)
        assert shares is not None
        honest = n - terms.max_colluders
        assert float(shares.share * honest) >= 7.0 * (1 - 1e-12)
        assert float(shares.share * n) == pytest.approx(plan.max_noise_variance(n))
    room = (plan.cell_modulus - 1) / 2 - 400
    assert tail_bound(plan.max_noise_variance(400), 2.0**-64) == plan.max_noise <= room


@pytest.mark.parametrize("survivors", [48, 60])
def test_sums_have_the_reported_noise(survivors: int) -> None:
    release = Release(probability=1.0, threshold=9, variance=20.0)
    plan = at(
        first(release, mode="noise", domain=LETTERS, message_bytes=2_107_516), 4, *_prefixes()
    )
    ring, drawn = TRIE.ring(plan), seeded(survivors)
    total = ring.zero()
    for _ in range(survivors):
        vector = TRIE.encode(plan, {}, drawn)
        add_noise(ring, vector, TRIE.noise_shares(plan, 60), drawn)
        ring.add(total, vector)
    sums = plan.signed_votes(total[0])
    reported = plan.max_noise_variance(survivors) * survivors / 60
    error = reported * ((2 + 1 / reported) / plan.cells) ** 0.5
    assert reported >= 20 / min_honest_share(TERMS) * (1 - 1e-9)  # nobody is corrupt here
    assert abs(sums.var() - reported) < 4.5 * error  # fails with 1e-5 under another seed
    assert sums.min() < 0


def _prefixes() -> list[str]:
    return [a + b + c for a in "abcd" for b in "abcd" for c in "abcd"]


def test_noise_alone_shows_almost_no_cell() -> None:
    """Noise alone shows at most 0.3 cells of a study of the most words; here 0.001 or less."""
    plan = TRIE.first_plan(
        asked(mode="noise", message_bytes=11_364), TERMS, "study", 2, random.Random(1)
    )
    outcome = run_round(TRIE, plan, [[{}] * 60], random.Random(3))
    assert outcome.answer is not None
    assert outcome.answer.distinct == 0


def test_cohorts_bring_their_noise() -> None:
    release = Release(probability=1.0, threshold=9, variance=20.0)
    each = first(release, mode="noise")
    terms = TERMS.model_copy(update={"cohorts": 3})
    three = first(release, terms, mode="noise")
    assert three.max_noise_variance(180) == pytest.approx(3 * each.max_noise_variance(60))
    assert three.max_noise_variance(60) == pytest.approx(
        each.max_noise_variance(60)
    )  # of one cohort, as received
    assert three.cell_modulus >= each.cell_modulus
    sums = np.array([30])
    counts = [
        plan.release.estimate_counts(sums, plan.max_noise_variance(180))[1][0]
        for plan in (each, three)
    ]
    assert counts[1] == pytest.approx(3 * counts[0])


@pytest.mark.parametrize("block", [1, 7, 30])
def test_noise_does_not_depend_on_the_size_of_batches(block: int) -> None:
    terms = Terms(cohort_size=20, minimum=10, cohorts=4)
    plan = first(Release(probability=1.0, threshold=1, variance=9.0), terms, mode="noise")
    held = [{"abcd": 1}, {}] * 30

    def votes(size: int) -> StudyState:
        blocks = [held[start : start + size] for start in range(0, 60, size)]
        losing = RandomDropout(0.3, 1)
        outcome = run_round(TRIE, plan, blocks, random.Random(1), dropouts=losing)
        assert outcome.devices < 60
        return outcome.study_state

    assert votes(block).arrays.keys() == votes(60).arrays.keys()
    for name, array in votes(60).arrays.items():
        assert votes(block).arrays[name].tolist() == array.tolist()


# What is hidden.


def test_suppressed_counts_leave_no_trace() -> None:
    plan = at(first(), 4, "aaa", "bbb", "ccc")
    votes = np.array([9, 2, 0, 0, 3, 1, 1, 1, 0, 0, 0, 0])
    without = np.where(votes >= 3, votes, 0)
    ring = TRIE.ring(plan)
    answers = [
        TRIE.decode(plan, (sums.astype(ring.lanes[0].dtype),), 40, EMPTY_STATE)
        for sums in (votes, without)
    ]
    assert answers[0] == answers[1]
    assert answers[0].state.pack() == answers[1].state.pack()
    assert answers[0].distinct == 2
    assert read(answers[0].estimates) == {"aaaa": 9, "bbba": 3}
    later = [TRIE.next_plan(first(), each, each.state, random.Random(1)) for each in answers]
    assert later[0] == later[1]


@pytest.mark.parametrize(
    ("release", "cell", "value"),
    [
        (SURE_COINS, 1, 41),  # more than 40 devices
        (SURE_COINS, 0, -1),  # of 2^6: 63
        (Release(probability=1.0, threshold=9, variance=1.0), 0, 80),
        (Release(probability=1.0, threshold=9, variance=1.0), 3, -40),
    ],
)
def test_a_poisoned_cell_is_a_fault_that_reveals_no_count(
    release: Release, cell: int, value: int
) -> None:
    plan = first(release, mode="noise" if release.variance else "sample-threshold")
    total = TRIE.encode_sum(plan, [{"aaaa": 1}] * 39, seeded(1))
    assert TRIE.fault(plan, total, 40) is None
    total[0][cell] = value % plan.cell_modulus
    fault = TRIE.fault(plan, total, 40)
    assert fault is not None
    assert not any(letter.isdigit() for letter in fault)


def test_more_votes_than_devices_have_items_are_a_fault() -> None:
    plan = first(contribution=2)
    total = np.array([30, 30, 20, 0], np.uint32)
    assert TRIE.fault(plan, (total,), 40) is None
    total[3] += 1
    fault = TRIE.fault(plan, (total,), 40)
    assert fault == "there are more votes than devices have items"

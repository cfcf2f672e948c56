"""The baselines score every candidate, over all rounds, and refuse domains without end."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from protocol.domains.strings import Alphabet, Utf8
from protocol.mechanism import MAX_SHOWN_ESTIMATES
from protocol.mechanisms.frequency_sketches import candidate_count
from protocol.mechanisms.registry import MECHANISMS, parse_question
from protocol.simulation.study import run_study
from protocol.study import EMPTY_STATE, WORD_BITS, Terms
from tests.protocol.chance import seeded

TERMS = Terms(cohort_size=100, minimum=50, cohorts=4)
LETTERS = Alphabet(characters="abcdefghijklmnop", length=3)
NAMES = pytest.mark.parametrize("name", ["count-median", "count-sketch"])


def question(name: str, **changes: Any) -> Any:
    asked = {"threshold": 50, "contribution": 1, "domain": LETTERS, "words": 2000}
    return parse_question({"mechanism": name} | asked | changes)


@NAMES
def test_what_is_heavy_is_found_over_rounds(name: str) -> None:
    """Ten items of 80 and 100 of 12, in seven rows of some 400 cells."""
    rng = np.random.default_rng(5)
    items = LETTERS.decode(np.arange(110, dtype=np.uint64).reshape(-1, 1))
    tokens = [str(items[x]) for x in [*np.repeat(range(10), 80), *np.repeat(range(10, 110), 12)]]
    rng.shuffle(tokens)
    rounds = [[[{item: 1} for item in tokens[start:][:400]]] for start in range(0, 2000, 400)]
    asked = question(name)
    outcomes = list(run_study(MECHANISMS[name], asked, TERMS, rounds, random.Random(1), planned=5))
    by_item = {
        estimate.item: estimate
        for estimate in MECHANISMS[name].final_estimates(asked, outcomes[-1].study_state)
    }
    assert set(by_item) == set(items[:10])
    assert all(abs(each.count - 80) < 4.5 * each.variance**0.5 for each in by_item.values())


@NAMES
def test_the_words_are_used(name: str) -> None:
    for hashes in (5, 11):
        asked = question(name, rows=hashes)
        plan = MECHANISMS[name].first_plan(asked, TERMS, "study", 3, random.Random(1))
        used = MECHANISMS[name].ring(plan).nbytes * 8 / WORD_BITS
        assert 0.98 * asked.words < used <= asked.words
        wider = plan.model_dump() | {"width": plan.width + 1}
        with pytest.raises(ValidationError, match="do not fit in 2000 words"):
            type(plan).model_validate(wider)


@NAMES
def test_too_few_words_are_refused_with_the_number_needed(name: str) -> None:
    with pytest.raises(ValueError, match=r"(\d+) words are needed"):
        MECHANISMS[name].first_plan(question(name, words=1), TERMS, "s", 1, random.Random(1))
    MECHANISMS[name].first_plan(question(name, words=9), TERMS, "s", 1, random.Random(1))


@NAMES
@pytest.mark.parametrize(
    "domain", [Utf8(max_bytes=3), Alphabet(characters="abcdefgh", length=7), Utf8(max_bytes=99)]
)
def test_a_domain_that_cannot_be_enumerated_is_refused(name: str, domain: Any) -> None:
    with pytest.raises(ValidationError, match="scores every item: the domain has"):
        question(name, domain=domain)
    assert candidate_count(Alphabet(characters="abcdefgh", length=6)) == 8**6


@NAMES
def test_an_answer_shows_the_highest_and_the_study_state_has_all(name: str) -> None:
    asked = question(name, domain=LETTERS, words=40_000)
    mechanism = MECHANISMS[name]
    plan = mechanism.first_plan(asked, TERMS, "study", 1, random.Random(1))
    items = LETTERS.decode(np.arange(1300, dtype=np.uint64).reshape(-1, 1))
    total = mechanism.encode_sum(plan, [{str(x): 1} for x in items], seeded(1))
    answer = mechanism.decode(plan, total, 400, EMPTY_STATE)
    assert len(answer.estimates) == MAX_SHOWN_ESTIMATES
    assert len(answer.state.arrays["scores"]) == 16**3
    counts = [each.count for each in answer.estimates]
    assert counts == sorted(counts, reverse=True)


def test_keys_that_no_item_has_are_left_out() -> None:
    padded = Alphabet(characters=".ab", length=2, pad=".")
    asked = question("count-median", domain=padded, threshold=1)
    mechanism = MECHANISMS["count-median"]
    plan = mechanism.first_plan(asked, TERMS, "study", 1, random.Random(1))
    held = [{"a": 1}, {"ab": 1}, {"b": 1}]
    total = mechanism.encode_sum(plan, held, seeded(1))
    answer = mechanism.decode(plan, total, 3, EMPTY_STATE)
    counts = Counter({each.item: round(each.count) for each in answer.estimates})
    assert counts == {"a": 1, "ab": 1, "b": 1}

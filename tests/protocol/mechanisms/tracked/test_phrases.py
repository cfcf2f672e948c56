"""Strings in the code of phrases are read again, and no plan has a phrase of few items."""

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.domains.hashed import Hashed
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.phrases import StringCode, learn_phrases
from protocol.mechanisms.tracked.plan import TrackedQuestion
from protocol.question_and_plan import Terms
from protocol.simulation.study import run_study

LETTERS = "abcdefgh\u00e9\U0001f600-./"
words = st.text(LETTERS + "xyz", min_size=1, max_size=8)
codes = st.lists(words, min_size=14, max_size=40, unique=True).map(lambda x: StringCode(tuple(x)))
ROUNDS, DEVICES, THRESHOLD = 16, 200, 30


@given(codes | st.just(StringCode()), words, st.data())
def test_a_cut_code_is_a_first_part_and_the_rest_completes_it(
    code: StringCode, word: str, data: st.DataObject
) -> None:
    raw = word.encode()
    digits = code.encode(raw)
    assert max(digits) < code.base
    assert code.decode([*digits, 0, 0]) == raw + b"\0"
    first = code.decode(digits[: data.draw(st.integers(0, len(digits)))])
    assert first + code.decode(code.encode(raw[len(first) :])) == raw


def test_phrases_make_strings_with_common_parts_short() -> None:
    rng = Random(1)
    made = ["https://www.example.org/" + "".join(rng.choices(LETTERS, k=5)) for _ in range(200)]
    code = learn_phrases(made[:100])
    assert 4 * code.size(made[100:]) < StringCode().size(made[100:])
    assert learn_phrases(made[:100]) == code
    assert learn_phrases([]) == learn_phrases([*"abc", "\u4e00" * 40]) == StringCode()


def test_a_part_of_fewer_items_than_the_least_is_in_no_phrase() -> None:
    rng = Random(2)
    made = ["common/" + "".join(rng.choices("abcdefghijklmnop", k=6)) for _ in range(100)]
    for few in range(1, tuning.MIN_PHRASE_ITEMS + 1):
        rare = [f"ROOM ROOM ROOM {number}" for number in range(few)]
        phrases = learn_phrases([*rare, *made]).phrases
        assert "common/" in "".join(phrases)
        assert ("OO" in "".join(phrases)) == (few == tuning.MIN_PHRASE_ITEMS)


@pytest.mark.parametrize("seed", [1, 2])
def test_each_phrase_of_a_plan_is_part_of_several_items_that_are_heavy_already(seed: int) -> None:
    """All items are expected to be heavy from the start, and are so after half of the rounds.

    A count so far is below its bound of three standard errors once in 700 times.
    """
    question = TrackedQuestion(
        threshold=THRESHOLD, contribution=3, domain=Hashed(max_bytes=60), message_bytes=9000
    )
    items = [f"https://www.example.org/{number % 7}/{number:03}" for number in range(100)]
    drawn = np.random.default_rng(seed).choice(100, (ROUNDS, DEVICES, 2))
    held = [[[{items[i]: 1 for i in row}] for row in each] for each in drawn.tolist()]
    for each in held:
        each[0] = [{f"secret of one device {number}": 1 for number in range(3)}]
    terms = Terms(cohort_size=DEVICES, minimum=50)
    outcomes = run_study(
        SUM_MECHANISMS["tracked"], question, terms, held, Random(seed), planned=ROUNDS
    )
    plans = [outcome.plan for outcome in outcomes]
    assert sum(bool(plan.phrases) for plan in plans) > ROUNDS // 3
    so_far = Counter[str]()
    for plan, each in zip(plans, held, strict=True):
        heavy = [item for item, count in so_far.items() if count >= THRESHOLD]
        for phrase in plan.phrases:
            assert sum(phrase in item for item in heavy) >= tuning.MIN_PHRASE_ITEMS
        so_far.update(item for device in each for item in device[0])

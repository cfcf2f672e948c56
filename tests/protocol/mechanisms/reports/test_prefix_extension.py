"""Prefix extension as a mechanism: strings of any length, over rounds of different devices."""

import random
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from protocol.histograms import Histogram
from protocol.mechanisms.registry import REPORT_MECHANISMS, parse_question
from protocol.mechanisms.reports.prefix_extension import PrefixPlan, PrefixQuestion
from protocol.question_and_plan import Terms
from protocol.randomness import seeded_words
from protocol.study_state import EMPTY_STATE

TERMS = Terms(cohort_size=1000, minimum=5)
MECHANISM = REPORT_MECHANISMS["prefix-extension"]


def question(**own: Any) -> PrefixQuestion:
    asked = {"mechanism": "prefix-extension", "threshold": 20, "epsilon": 4.0}
    domain = {"kind": "utf8", "max_bytes": own.pop("max_bytes", 20)}
    made = parse_question(asked | {"domain": domain} | own)
    assert isinstance(made, PrefixQuestion)
    return made


def plan(**own: Any) -> PrefixPlan:
    made: PrefixPlan = MECHANISM.first_plan(question(**own), TERMS, "test", 3, random.Random(1))
    return made


def devices(n: int) -> list[Histogram]:
    """Return devices of which a quarter holds one long string, a quarter another like it."""
    half: list[Histogram] = [{"exam.org/\u00fc1": 1}, {"exam.org/u2": 1}]
    return half * (n // 4) + [{}] * (n // 4) + [{f"rare {k}": 1} for k in range(n // 4)]


def test_strings_of_96_bits_are_found_by_all_rounds_together() -> None:
    """The strings are 10 deviations above the listing level after two rounds, of 11 lengths."""
    own = {"max_bytes": 12, "start": 16, "candidates_per_length": 16, "hashed_bits": 18}
    made, state, rng = plan(**own), EMPTY_STATE, np.random.default_rng(3)
    for number in (1, 2):
        reports = MECHANISM.encode(made, devices(20_000), seeded_words(rng))
        answer = MECHANISM.decode(made, MECHANISM.aggregate(made, reports), state)
        state = answer.state
        items_found = MECHANISM.final_estimates(made.question, state)
        assert {estimate.item for estimate in items_found} == {"exam.org/\u00fc1", "exam.org/u2"}
        for each in items_found:
            assert abs(each.count - 5000 * number) < 4.5 * each.variance**0.5
        made = MECHANISM.next_plan(made, answer, state, random.Random(5))


def test_a_round_in_which_a_length_is_not_drawn_is_read_with_the_next() -> None:
    made, rng = plan(max_bytes=4, start=16, hashed_bits=16), np.random.default_rng(1)
    first = MECHANISM.encode(made, [{"okay": 1}] * 3, seeded_words(rng))
    first[:, 0] = 0  # all three drew the shortest
    answer = MECHANISM.decode(made, MECHANISM.aggregate(made, first), EMPTY_STATE)
    assert (answer.decoded, answer.estimates) == (False, ())
    assert MECHANISM.final_estimates(made.question, answer.state) == []
    rest = MECHANISM.encode(made, [{"okay": 1}] * 300, seeded_words(rng))
    later = MECHANISM.decode(made, MECHANISM.aggregate(made, rest), answer.state)
    assert later.decoded
    (items_found,) = MECHANISM.final_estimates(made.question, later.state)
    assert items_found.item == "okay"
    assert len(later.state.arrays["reports"]) == 303


def test_a_report_is_a_byte_and_the_oracles() -> None:
    assert MECHANISM.nbytes(plan(hashed_bits=20)) == 1 + 3
    assert MECHANISM.nbytes(plan(oracle="ocms-gf", hashed_bits=20, epsilon=1.0)) == 1 + 3


def test_the_parameters_must_be_those_of_the_oracle_that_is_asked_for() -> None:
    plain = plan().model_dump()
    for change in ({"epsilon": 5.0}, {"domain": 2**20}, {"oracle": "olh"}):
        with pytest.raises(ValidationError):
            PrefixPlan.model_validate(plain | {"parameters": plain["parameters"] | change})


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"max_bytes": 513}, "size must be from 1 to 512"),
        ({"max_bytes": 1}, "start must be from 1 to 20, at most 8"),
        ({"step": 16, "candidates_per_length": 65}, "keep must be from 1 to 64"),
        ({"max_bytes": 400, "step": 2}, "step must be larger"),
        ({"epsilon": float("inf")}, "finite"),
        ({"oracle": "ocms-gf", "hashed_bits": 8, "epsilon": 10.0}, "domain must be more than m"),
        ({"oracle": "rappor"}, "'hadamard' or 'ocms-gf'"),
    ],
)
def test_an_impossible_question_is_refused(own: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        question(**own)

"""Costs of the prime of one-shot sums, in the cases of `tests/support/one_shot_lanes.py`."""

from random import Random
from typing import Any

import pytest

from protocol.device_policy.sizes_and_losses import upload_bytes
from protocol.mechanisms.registry import SUM_MECHANISMS, parse_question
from secagg.oneshot.field import suitable_prime
from tests.support.one_shot_lanes import (
    CASES,
    COMMITTEES,
    LETTERS,
    WORDS,
    largest_ratio,
    plans_of,
    terms_of,
)

WIDE_BOUND, DIGITS_BOUND = 1.01, 1.2  # of tables and counts, and of sums of numbers in digits
SMALL_CASES = [case for case, (devices, _) in CASES.items() if devices <= 1000]


@pytest.mark.parametrize("case", [case for case in SMALL_CASES if "tracked" not in case])
def test_one_prime_takes_few_more_bytes_than_lanes_modulo_powers_of_two(case: str) -> None:
    bound = DIGITS_BOUND if case == "number-sums" else WIDE_BOUND
    for committee in COMMITTEES:
        prime, usual = largest_ratio(plans_of(case, None), committee)
        assert prime <= usual * bound + 1


@pytest.mark.parametrize("case", SMALL_CASES)
def test_all_lanes_have_one_prime(case: str) -> None:
    for committee in ("7 operators", "300 of 1,000 volunteers"):
        for plan in plans_of(case, committee):
            (p,) = {lane.q for lane in SUM_MECHANISMS[plan.mechanism].ring(plan).lanes}
            assert plan.terms.moduli.min_prime <= p == suitable_prime(p)


@pytest.mark.parametrize(
    ("mechanism", "domain", "contribution"),
    [
        ("adaptive-iblt", WORDS, 30),  # 100,000 devices times 30^2, at a threshold of 29.5
        ("subsampled-iblt", WORDS, 700),
        ("approximate-histogram", WORDS, 350),  # counts in its sketch have a sign
        ("count-median", LETTERS, 700),
        ("count-sketch", LETTERS, 350),
    ],
)
def test_sums_that_need_a_prime_above_2_26_are_refused_with_advice(
    mechanism: str, domain: dict[str, Any], contribution: int
) -> None:
    fields = {"mechanism": mechanism, "domain": domain, "contribution": contribution}
    question = parse_question({"threshold": 10**6, "message_bytes": 121_784} | fields)
    terms = terms_of(100_000, "7 operators")
    with pytest.raises(ValueError, match="use fewer devices, a smaller contribution"):
        SUM_MECHANISMS[mechanism].first_plan(question, terms, "lanes", 6, Random(1))


@pytest.mark.parametrize("committee", COMMITTEES)
def test_the_plans_of_a_one_shot_study_fill_its_message(committee: str) -> None:
    plans: list[Any] = plans_of("tracked, 1,000 devices", committee)
    assert len({len(SUM_MECHANISMS["tracked"].ring(plan).lanes) for plan in plans}) > 1
    for plan in plans:
        sent = upload_bytes(plan)
        assert 0.96 * plan.question.message_bytes < sent <= plan.question.message_bytes


@pytest.mark.parametrize("case", SMALL_CASES)
def test_a_message_has_shares_of_the_vector_and_some_bytes_of_proof(case: str) -> None:
    """Check m / rho times the vector, and 48 bits in m shares and t nodes."""
    parameters = COMMITTEES["7 operators"].parameters
    for plan in plans_of(case, "7 operators"):
        vector = SUM_MECHANISMS[plan.mechanism].vector_bytes(plan)
        bits = SUM_MECHANISMS[plan.mechanism].ring(plan).lanes[0].bits
        shares = parameters.members / parameters.packed_secrets * vector
        proof = 12 * (7 + bits / 8) + 7 * bits / 8 + parameters.members
        assert upload_bytes(plan) <= 128 + shares + proof


@pytest.mark.parametrize("case", SMALL_CASES)
def test_the_largest_committee_can_share_all_lanes(case: str) -> None:
    for plan in plans_of(case, "300 of 1,000 volunteers"):
        smallest = plan.terms.moduli.min_prime
        assert SUM_MECHANISMS[plan.mechanism].ring(plan).lanes[0].q >= smallest
        assert upload_bytes(plan) > 0  # which refuses lanes that are not shared

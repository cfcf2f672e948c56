"""What a device refuses, and which limit it names."""

from dataclasses import replace
from random import Random

import pytest

from client.policy import Policy, PolicyError
from protocol.domain import Utf8
from protocol.mechanism import Terms
from protocol.mechanisms import MECHANISMS, AnyPlan, AnyQuestion
from protocol.messages import Neighbour, Roster, Seat
from secagg.errors import RefusedError
from secagg.graph import parameters

STUDY = "study-1"
TERMS = Terms(cohort_size=100, minimum=80, corrupt=0.1, dropout=0.2)
QUESTION = AnyQuestion(threshold=10, contribution=20, domain=Utf8(max_bytes=12), words=2000)
PLAN: AnyPlan = MECHANISMS["adaptive-iblt"].first_plan(QUESTION, TERMS, STUDY, Random(1))
POLICY = Policy(max_contribution=20, min_cohort=64)  # 64 of 80 are the quorum
SEAT = Seat.model_validate(
    {"participant": "p", "cohort": 0, "slot": 3, "deadline": "2030-01-01T00:00:00Z"}
)


def roster(n: int = 90, slot: int = 3) -> Roster:
    needed = parameters(n, TERMS.assumptions)
    return Roster(
        slot=slot,
        n=n,
        degree=needed.degree,
        threshold=needed.threshold,
        seed="00" * 32,
        digest="00" * 32,
        neighbours=(Neighbour(slot=0, mask_key="11" * 32, seal_key="22" * 32),),
    )


def test_a_plan_within_the_policy_is_taken() -> None:
    POLICY.check_plan(PLAN, STUDY, 1)
    POLICY.check_roster(PLAN, SEAT, roster())


@pytest.mark.parametrize(
    ("policy", "limit"),
    [
        (replace(POLICY, max_contribution=19), "max_contribution"),
        (replace(POLICY, min_cohort=65), "min_cohort"),
        (replace(POLICY, min_corrupt=0.11), "min_corrupt"),
        (replace(POLICY, max_dropout=0.19), "max_dropout"),
        (replace(POLICY, min_sigma=41), "min_sigma"),
        (replace(POLICY, modes=frozenset({"active"})), "modes"),
        (replace(POLICY, max_upload_bytes=3000), "max_upload_bytes"),
    ],
)
def test_a_plan_beyond_a_limit_is_refused_by_the_name_of_the_limit(
    policy: Policy, limit: str
) -> None:
    with pytest.raises(PolicyError, match=limit) as refused:
        policy.check_plan(PLAN, STUDY, 1)
    assert refused.value.limit == limit
    assert isinstance(refused.value, RefusedError)


@pytest.mark.parametrize(("study", "number"), [("study-2", 1), (STUDY, 2)])
def test_the_plan_of_another_round_or_study_is_refused(study: str, number: int) -> None:
    with pytest.raises(PolicyError) as refused:
        POLICY.check_plan(PLAN, study, number)
    assert refused.value.limit == "plan"


def test_a_device_gives_once_per_study() -> None:
    POLICY.check_plan(PLAN, STUDY, 1, counted={"another study"})
    with pytest.raises(PolicyError, match="second time"):
        POLICY.check_plan(PLAN, STUDY, 1, counted={STUDY})


@pytest.mark.parametrize(
    ("shown", "limit"),
    [
        (roster(slot=4), "seat"),  # another seat than the one given
        (roster(n=79), "terms"),  # fewer than the plan's minimum
        (roster(n=101), "terms"),  # more than the plan's ring was made for
    ],
)
def test_a_roster_weaker_than_the_plan_promised_is_refused(shown: Roster, limit: str) -> None:
    with pytest.raises(PolicyError) as refused:
        POLICY.check_roster(PLAN, SEAT, shown)
    assert refused.value.limit == limit

"""Terms that cannot be kept are refused, and a plan's digest stands for all of it."""

from random import Random

import pytest
from pydantic import ValidationError

from protocol.domains.strings import Utf8
from protocol.mechanisms.iblt.adaptive import AdaptiveIblt, AdaptiveIbltPlan, AdaptiveIbltQuestion
from protocol.question_and_plan import Terms
from protocol.report_mechanism import REPORTS_SCOPE
from secagg.keys import Identity

QUESTION = AdaptiveIbltQuestion(
    threshold=5, contribution=3, domain=Utf8(max_bytes=12), message_bytes=8384
)
TERMS = Terms(cohort_size=100, minimum=50)


@pytest.fixture
def plan() -> AdaptiveIbltPlan:
    return AdaptiveIblt().first_plan(QUESTION, TERMS, "study", 3, Random(1))


@pytest.mark.parametrize(
    "fault",
    [
        {"cohort_size": 2},
        {"minimum": 2},
        {"minimum": 101},
        {"cohorts": 0},
        {"corrupt": 1.0},
        {"corrupt": -0.1},
        {"dropout": float("nan")},
        {"corrupt": 0.5, "dropout": 0.5},  # nothing would be left to recover from
        {"sigma": 0},
        {"mode": "semi-honest"},  # there is one
        {"corrupt": 0.3, "dropout": 0.35},  # the server may lose devices twice
        {"corrupt": 0.6, "dropout": 0.35},
        {"registrar": "00" * 31},
        {"registrar": "AB" * 32},
        {"registrar": "01" + "00" * 31},  # a point of low order
        {"unknown": 1},
    ],
)
def test_terms_that_cannot_be_kept_are_refused(fault: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Terms.model_validate({"cohort_size": 100, "minimum": 50, **fault})


def test_a_round_counts_the_devices_of_all_cohorts() -> None:
    assert Terms(cohort_size=100, minimum=50, cohorts=7).max_devices == 700


def test_each_part_of_a_plan_changes_its_digest(plan: AdaptiveIbltPlan) -> None:
    others = [
        plan.model_copy(update=change)
        for change in (
            {"study": "other"},
            {"round": 2},
            {"seed": "00" * 32},
            {"t": plan.t + 1},
            {"cells": plan.cells - 1},
            {"terms": TERMS.model_copy(update={"dropout": 0.1})},
            {"terms": TERMS.model_copy(update={"registrar": "ab" * 32})},
            {"question": QUESTION.model_copy(update={"contribution": 2})},
        )
    ]
    assert len({other.digest() for other in [plan, *others]}) == len(others) + 1


REGISTRAR = Identity.of(bytes(range(32)))
SEATED_TERMS = TERMS.model_copy(update={"registrar": REGISTRAR.public.hex()})


@pytest.mark.parametrize(
    "changes",
    [
        {"study": "other"},
        {"rounds": 4},
        {"question": QUESTION.model_copy(update={"contribution": 2})},
        {"terms": SEATED_TERMS.model_copy(update={"cohorts": 2})},
        {"terms": SEATED_TERMS.model_copy(update={"minimum": TERMS.minimum - 1})},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_registrar_enrols_for_one_study_as_it_was_created(
    plan: AdaptiveIbltPlan, changes: dict[str, object]
) -> None:
    assert plan.registry is None  # the server alone decides who takes part
    device = Identity.of(bytes(32)).public
    seated = plan.model_copy(update={"terms": SEATED_TERMS})
    here, there = seated.registry, seated.model_copy(update=changes).registry
    assert here is not None
    assert there is not None
    enrolment = REGISTRAR.sign(here.enrolment_statement(device))
    assert here.admits(device, enrolment)
    assert not there.admits(device, enrolment)
    assert not here.admits(Identity.of(bytes(31) + b"x").public, enrolment)
    later = seated.model_copy(update={"round": 2, "seed": "ab" * 32}).registry
    assert later == here


def test_no_study_has_the_scope_of_all_reports() -> None:
    names = ("every study that asks for reports", "reports v1", "", "None")
    assert REPORTS_SCOPE not in {QUESTION.enrolment_scope(name, TERMS, 3) for name in names}


def test_a_plan_cannot_be_changed(plan: AdaptiveIbltPlan) -> None:
    with pytest.raises(ValidationError):
        plan.round = 2

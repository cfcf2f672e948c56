"""Terms that cannot be kept are refused, and a plan's digest stands for all of it."""

from random import Random

import pytest
from pydantic import ValidationError

from protocol.domains.strings import Utf8
from protocol.mechanisms.iblt.adaptive import AdaptiveIblt, AdaptiveIbltQuestion
from protocol.mechanisms.registry import MECHANISMS, AnyPlan
from protocol.study import Terms, enrolment_scope
from secagg.keys import Identity

TERMS = Terms(cohort_size=100, minimum=50)
QUESTION = AdaptiveIbltQuestion(threshold=20, contribution=3, domain=Utf8(max_bytes=12), words=2000)


@pytest.fixture
def plan() -> AnyPlan:
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
        {"mode": "honest"},
        {"corrupt": 0.3, "dropout": 0.35},  # an active server counts losses twice
        {"corrupt": 0.6, "dropout": 0.35, "mode": "semi-honest"},
        {"registrar": "00" * 31},
        {"registrar": "AB" * 32},
        {"unknown": 1},
    ],
)
def test_terms_that_cannot_be_kept_are_refused(fault: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Terms.model_validate({"cohort_size": 100, "minimum": 50, **fault})


def test_a_server_is_not_trusted_by_default() -> None:
    assert TERMS.mode == "active"
    assert TERMS.assumptions.is_active
    lax = Terms(cohort_size=100, minimum=50, corrupt=0.3, dropout=0.35, mode="semi-honest")
    assert not lax.assumptions.is_active


def test_a_round_counts_the_devices_of_all_cohorts() -> None:
    assert Terms(cohort_size=100, minimum=50, cohorts=7).max_devices == 700


def test_each_part_of_a_plan_changes_its_digest(plan: AnyPlan) -> None:
    others = [
        plan.model_copy(update=change)
        for change in (
            {"study": "other"},
            {"round": 2},
            {"seed": "00" * 32},
            {"t": plan.t + 1},
            {"cells": plan.cells - 1},
            {"terms": TERMS.model_copy(update={"dropout": 0.1})},
            {"terms": TERMS.model_copy(update={"mode": "semi-honest"})},
            {"terms": TERMS.model_copy(update={"registrar": "ab" * 32})},
            {"question": QUESTION.model_copy(update={"contribution": 2})},
        )
    ]
    assert len({other.digest() for other in [plan, *others]}) == len(others) + 1


def test_a_registrar_enrols_for_one_study(plan: AnyPlan) -> None:
    assert plan.registry is None  # the server alone decides who takes part
    registrar, device = Identity.of(bytes(range(32))), Identity.of(bytes(32)).public
    terms = TERMS.model_copy(update={"registrar": registrar.public.hex()})
    here = plan.model_copy(update={"terms": terms}).registry
    there = plan.model_copy(update={"terms": terms, "study": "other"}).registry
    assert here is not None
    assert there is not None
    assert here.scope == enrolment_scope("study")
    enrolment = registrar.sign(here.enrolment_statement(device))
    assert here.admits(device, enrolment)
    assert not there.admits(device, enrolment)
    assert not here.admits(Identity.of(bytes(31) + b"x").public, enrolment)


def test_a_plan_cannot_be_changed(plan: AnyPlan) -> None:
    with pytest.raises(ValidationError):
        plan.round = 2


def test_the_registry_names_each_mechanism_as_it_names_itself() -> None:
    assert MECHANISMS
    assert all(name == mechanism.name for name, mechanism in MECHANISMS.items())


def test_a_registrar_with_a_key_of_low_order_is_refused() -> None:
    weak = (1).to_bytes(32, "little").hex()
    with pytest.raises(ValueError, match="low order"):
        Terms(cohort_size=10, minimum=8, registrar=weak)

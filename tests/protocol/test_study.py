"""Terms that cannot be kept are refused, a plan's digest stands for all of it, and states add."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from protocol.domains.strings import Utf8
from protocol.mechanism import Estimate, Mechanism, add_estimates
from protocol.mechanisms.iblt.adaptive import AdaptiveIblt, AdaptiveIbltPlan, AdaptiveIbltQuestion
from protocol.report_mechanism import REPORTS_SCOPE
from protocol.study import EMPTY_STATE, StudyState, Terms
from secagg.keys import Identity

QUESTION = AdaptiveIbltQuestion(threshold=5, contribution=3, domain=Utf8(max_bytes=12), words=2000)
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
        {"mode": "honest"},
        {"corrupt": 0.3, "dropout": 0.35},  # an active server counts losses twice
        {"corrupt": 0.6, "dropout": 0.35, "mode": "semi-honest"},
        {"registrar": "00" * 31},
        {"registrar": "AB" * 32},
        {"registrar": "01" + "00" * 31},  # a point of low order
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
            {"terms": TERMS.model_copy(update={"mode": "semi-honest"})},
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


counts = st.dictionaries(st.text(max_size=5), st.integers(-(2**40), 2**40).map(float))


def state_of(held: dict[str, float], name: str = "count") -> StudyState:
    return EMPTY_STATE.add(list(held), {name: np.array(list(held.values()), np.float64)})


@given(counts, counts)
def test_numbers_add_up_item_by_item(first: dict[str, float], second: dict[str, float]) -> None:
    summed = state_of(first).add(
        list(second), {"count": np.array(list(second.values()), np.float64)}
    )
    expected = {item: first.get(item, 0) + second.get(item, 0) for item in first | second}
    assert dict(zip(summed.items, summed.column("count"), strict=True)) == expected


@given(counts, counts)
def test_a_study_state_comes_back_from_its_bytes(
    first: dict[str, float], second: dict[str, float]
) -> None:
    state = state_of(first).add(list(second), {"more": np.array(list(second.values()), np.float64)})
    state = state.with_array("table", np.arange(6, dtype=np.int64).reshape(2, 3))
    again = StudyState.unpack(state.pack())
    assert again == state
    assert again.arrays["table"].dtype == np.int64
    assert again.pack() == state.pack()


def test_what_differs_is_not_the_same() -> None:
    state = state_of({"a": 1.0})
    assert state not in (state_of({"b": 1.0}), state_of({"a": 2.0}), state_of({"a": 1.0}, "more"))
    assert state != state.with_array("x", np.zeros(1))
    assert state != "state"


def test_a_column_that_nobody_wrote_is_zero() -> None:
    assert state_of({"a": 1.0, "b": 2.0}).column("other").tolist() == [0, 0]
    mixed = state_of({"a": 1.0}).add(["b"], {"other": np.ones(1)})
    assert (mixed.column("count").tolist(), mixed.column("other").tolist()) == ([1, 0], [0, 1])


def test_rows_are_selected_and_columns_replaced() -> None:
    state = state_of({"a": 1, "b": 2, "c": 3}).with_array("rounds", np.arange(2))
    some = state.select_rows(np.array([True, False, True]))
    assert some == state_of({"a": 1, "c": 3}).with_array("rounds", np.arange(2))
    assert some.with_column("count", np.array([5.0, 6.0])) == state_of({"a": 5, "c": 6}).with_array(
        "rounds", np.arange(2)
    )
    with pytest.raises(ValueError, match="columns of 2 numbers"):
        some.with_column("count", np.zeros(3))


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="is repeated"):
        StudyState(("a", "a"))
    with pytest.raises(ValueError, match="columns of 1 numbers"):
        StudyState(("a",), {"count": np.zeros(2)})
    for items, column in ((["a", "a"], np.zeros(2)), (["a"], np.zeros(2))):
        with pytest.raises(ValueError, match="one number for each of different items"):
            EMPTY_STATE.add(items, {"count": column})


def test_estimates_and_variances_add_up_over_rounds_and_the_heavy_are_ranked() -> None:
    first = add_estimates(
        EMPTY_STATE, [Estimate("a", 5, 1), Estimate("b", 3, 2), Estimate("c", 4, 9)]
    )
    state = add_estimates(first, [Estimate("b", 4, 3)])
    assert Mechanism.final_estimates(AdaptiveIblt(), QUESTION, state) == [
        Estimate("b", 7, 5),
        Estimate("a", 5, 1),
    ]

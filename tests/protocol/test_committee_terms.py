"""Committees in the terms of a study: who is in them, and the numbers that follow."""

from typing import Any

import pytest
from pydantic import ValidationError

from protocol.committee_terms import CommitteeTerms
from protocol.mechanisms.registry import parse_question
from protocol.question_and_plan import Terms
from secagg.keys import Identity
from secagg.oneshot.parameters import CommitteeParameters

MEMBERS = tuple(Identity.of(bytes([n]) * 32).public.hex() for n in range(1, 8))
QUESTION: dict[str, Any] = {
    "mechanism": "adaptive-iblt",
    "threshold": 10,
    "contribution": 1,
    "domain": {"kind": "utf8", "max_bytes": 2},
    "message_bytes": 1984,
}
SIZES: dict[str, Any] = {"cohort_size": 100, "minimum": 60}


def test_seven_operators_tolerate_one_that_lies_and_one_that_is_absent() -> None:
    committee = CommitteeTerms(members=MEMBERS)
    assert committee.parameters == CommitteeParameters(7, 1, 1, 5)
    assert committee.parameters_of(7) == committee.parameters
    # An operator without a key is the one that drops out: threshold and A stay the same.
    assert committee.parameters_of(6) == CommitteeParameters(6, 1, 0, 5)
    with pytest.raises(ValueError, match="0 or more"):
        committee.parameters_of(5)


@pytest.mark.parametrize(("size", "rate"), [(5, 0.2), (6, 0.2), (7, 0.2), (9, 0.25), (100, 0.2)])
def test_two_committees_of_one_sum_share_an_honest_signer(size: int, rate: float) -> None:
    """A server may show committees of different operators, where some are absent."""
    members = tuple(Identity.of(bytes([n]) * 32).public.hex() for n in range(size))
    whole = CommitteeTerms(members=members, corrupt=rate, dropout=rate)
    a, d = whole.parameters.corrupt, whole.parameters.dropouts
    needed = [whole.parameters_of(size - absent).needed_signatures for absent in range(d + 1)]
    assert all(first + second - size > a for first in needed for second in needed)


def test_a_committee_has_the_first_operators_that_are_present_and_others_in_reserve() -> None:
    names = tuple(Identity.of(bytes([n]) * 32).public.hex() for n in range(1, 10))
    terms = CommitteeTerms(members=names, dropout=0.34, size=7)
    whole = CommitteeTerms(members=names, dropout=0.34)
    assert terms.parameters == whole.parameters == CommitteeParameters(9, 1, 3, 5)
    assert terms.present(names) == names[:7]
    assert terms.present({*names[4:], names[0]}) == (names[0], *names[4:])
    # With reserves, fewer members receive shares; all other numbers are those of all operators.
    assert terms.parameters_of(7) == whole.parameters_of(7) == CommitteeParameters(7, 1, 1, 5)
    with pytest.raises(ValueError, match="at most 7 members, got 8"):
        terms.parameters_of(8)


def test_a_digest_names_the_size_of_the_committee() -> None:
    """A committee of some operators only is another promise to the devices."""
    question = parse_question(QUESTION)

    def scope(**changes: Any) -> str:
        committee = CommitteeTerms(members=MEMBERS, **changes)
        terms = Terms(**SIZES, sum="one-shot", committee=committee)
        return question.enrolment_scope("s", terms, 1).hex()

    assert scope() == scope(size=None)
    assert len({scope(), scope(size=6), scope(size=7)}) == 3


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"members": MEMBERS[:2]}, "must have 3 to 100 items"),
        ({"members": (*MEMBERS, MEMBERS[0])}, "the same member twice"),
        ({"members": (*MEMBERS[1:], "00" * 32)}, "low order"),
        ({"corrupt": 0.1}, "lets none of 7 members collude"),
        ({"corrupt": 0.5}, "cannot agree|no room"),
        ({"dropout": 0.5}, "cannot agree"),
        ({"size": 5}, "a committee of 5 of 7 operators is not possible"),
        ({"size": 8}, "a committee of 8 of 7 operators is not possible"),
    ],
)
def test_a_committee_that_protects_nobody_is_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        CommitteeTerms(**{"members": MEMBERS} | changes)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"sum": "one-shot"}, "needs a committee"),
        ({"committee": {"members": MEMBERS}}, "a committee is for one-shot sums"),
        ({"sum": "one-shot", "committee": {"members": MEMBERS}, "cohorts": 2}, "has one cohort"),
    ],
)
def test_terms_name_the_sum_and_its_committee_together(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        Terms.model_validate(SIZES | changes)


def test_a_one_shot_sum_has_at_least_the_minimum_of_devices() -> None:
    terms = Terms.model_validate(SIZES | {"sum": "one-shot", "committee": {"members": MEMBERS}})
    assert terms.min_summed == 60
    assert Terms.model_validate(SIZES).min_summed == 48  # a fifth of 60 may drop out

"""Requests with a fault are refused, and the types of problems are stable."""

from random import Random

import pytest
from pydantic import ValidationError

from protocol.api.messages import JoinRequest, Problem, ProblemType, Timeouts
from protocol.domains.strings import Utf8
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.mechanisms.registry import MECHANISMS, AnyPlan
from protocol.study import Terms
from secagg.keys import PublicKeys
from secagg.roster import Roster, RosterEntry, roster_bytes
from secagg.session import advertisement_statement


def entry(number: int) -> RosterEntry:
    def key(which: int) -> bytes:
        return bytes([9, number, which, *[0] * 29])

    return RosterEntry(key(1), PublicKeys(key(2), key(3)), bytes(64))


def test_a_roster_is_read_with_enrolments_or_without_but_never_otherwise() -> None:
    body = roster_bytes([entry(1)])
    with pytest.raises(ValueError, match="224 bytes each"):
        Roster.unpack(body, has_registrar=True)
    for broken in (body[:-1], body + b"x"):
        with pytest.raises(ValueError, match="160 bytes each"):
            Roster.unpack(broken, has_registrar=False)


KEY = "ab" * 32
JOIN = {"identity": KEY, "mask_key": KEY, "encryption_key": KEY, "signature": KEY * 2}


@pytest.mark.parametrize(
    "fault",
    [
        {"identity": KEY[:-1]},
        {"identity": "device-1"},
        {"mask_key": KEY[:-1]},
        {"mask_key": KEY.upper()},
        {"mask_key": "zz" * 32},
        {"encryption_key": KEY + "00"},
        {"signature": KEY},
        {"signature": None},
        {"registrar_signature": KEY},
        {"surprise": 1},
    ],
)
def test_a_join_with_any_fault_is_refused(fault: dict[str, object]) -> None:
    JoinRequest.model_validate(JOIN)
    JoinRequest.model_validate({**JOIN, "registrar_signature": KEY * 2})
    with pytest.raises(ValidationError):
        JoinRequest.model_validate({**JOIN, **fault})


def test_who_joins_signs_for_one_plan_and_one_pair_of_keys() -> None:
    keys = entry(1).keys
    mine = advertisement_statement(PLAN.digest(), keys)
    others = [
        advertisement_statement(PLAN.model_copy(update={"round": 2}).digest(), keys),
        advertisement_statement(PLAN.digest(), entry(2).keys),
        advertisement_statement(PLAN.digest(), PublicKeys(keys.encryption, keys.mask)),
    ]
    assert len({mine, *others}) == len(others) + 1


PLAN: AnyPlan = MECHANISMS["adaptive-iblt"].first_plan(
    AdaptiveIbltQuestion(threshold=5, contribution=4, domain=Utf8(max_bytes=6), words=1500),
    Terms(cohort_size=10, minimum=8),
    "study",
    1,
    Random(1),
)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 8 * 24 * 3600])
def test_a_phase_lasts_a_positive_finite_time(seconds: float) -> None:
    for phase in Timeouts.model_fields:
        with pytest.raises(ValidationError):
            Timeouts.model_validate({phase: seconds})


def test_problem_types_are_stable() -> None:
    # Programs act on these: renaming one breaks them.
    assert " ".join(sorted(ProblemType)) == (
        "already-counted barred budget-spent cohort-failed conflict dropped-out forbidden "
        "headers-too-large idempotency-key-reused internal-error malformed method-not-allowed "
        "no-round not-authorised not-enrolled not-found plan-mismatch poisoned-cohort too-large "
        "too-many-requests too-slow unavailable wrong-media-type wrong-phase wrong-state"
    )
    assert Problem(type="t", title="t", status=400, detail="d").errors is None

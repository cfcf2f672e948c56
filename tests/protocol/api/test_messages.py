"""Faulty requests are refused, types of problems are stable, and CSV files have no formulas."""

import pytest
from pydantic import ValidationError

from protocol.api.messages import Problem, ProblemType, Timeouts, csv_text
from protocol.api.messages_outside_sums import JoinRequest

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


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 8 * 24 * 3600])
def test_a_phase_lasts_a_positive_finite_time(seconds: float) -> None:
    for phase in Timeouts.model_fields:
        with pytest.raises(ValidationError):
            Timeouts.model_validate({phase: seconds})


def test_problem_types_are_stable() -> None:
    # Programs act on these: renaming one breaks them.
    assert " ".join(sorted(ProblemType)) == (
        "already-counted barred budget-spent cohort-failed conflict dropped-out forbidden "
        "idempotency-key-reused internal-error malformed method-not-allowed "
        "no-round not-authorised not-enrolled not-found plan-mismatch poisoned-cohort too-large "
        "too-many-requests too-slow unavailable wrong-media-type wrong-phase wrong-state"
    )
    assert Problem(type="t", title="t", status=400, detail="d").errors is None


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+1", "-1", "@x", "\tx", "\rx", " =1", "\xa0=1", "\u200b@x", "\uff1d1", " \uff0b1"],
)
def test_a_spreadsheet_executes_no_item(text: str) -> None:
    assert csv_text(text) == f"'{text}"
    assert csv_text(f"'{text}") == f"''{text}"  # another item stays another one
    for plain in ("plain", " a=1", "", " "):
        assert csv_text(plain) == plain

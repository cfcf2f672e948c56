"""Limits of a policy, and refusals."""

import pickle
from typing import Any

import pytest

from protocol.device_policy.policy import (
    EXACT_PERIOD_DAYS,
    MAX_SHARINGS,
    MIN_SIGMA,
    Policy,
    PolicyError,
)


@pytest.mark.parametrize("key", ["aa" * 32, b"short"])
def test_keys_of_another_form_are_refused_at_once(key: Any) -> None:
    with pytest.raises(ValueError, match="public keys of 32 bytes"):
        Policy(registrar=key)
    with pytest.raises(ValueError, match="public keys of 32 bytes"):
        Policy(committee=frozenset([key]))


@pytest.mark.parametrize(
    "limit",
    [{"min_cohort": "5"}, {"min_cohort": -1}, {"max_epsilon": float("nan")}, {"max_rounds": True}],
)
def test_a_limit_is_a_number_from_0_up(limit: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(limit))} is a number from 0 up, got"):
        Policy(**limit)


def test_the_default_limits_are_those_of_the_documents() -> None:
    """A change of one is a change of what blindtally promises."""
    assert Policy() == Policy(
        max_contribution=100,
        min_cohort=50,
        min_threshold=5.0,
        min_corrupt=0.1,
        max_upload_bytes=4_194_304,
        registrar=None,
        trust_server_identities=False,
        max_epsilon=4.0,
        max_delta=1e-5,
        max_rounds=32,
        max_round_seconds=604_800,
        repeat_exact=False,
        max_exact_studies=1,
        accept_exact_estimates=False,
    )
    assert (MIN_SIGMA, MAX_SHARINGS, EXACT_PERIOD_DAYS) == (40, 3, 30)


def test_a_refusal_passes_from_process_to_process() -> None:
    error = PolicyError("min_cohort", "takes 20 others at least", 12)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (again.limit, again.needed, str(again)) == ("min_cohort", 12, str(error))

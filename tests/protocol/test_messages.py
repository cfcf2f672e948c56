"""Bodies come back as they were, and what nobody may say cannot be said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from protocol.messages import (
    Join,
    Problem,
    ProblemType,
    Timeouts,
    pack_envelopes,
    pack_reveal,
    unpack_envelopes,
    unpack_reveal,
)
from secagg.participant import ENVELOPE_BYTES, Reveal
from secagg.shamir import SHARE_BYTES

SLOTS = st.integers(0, 2**32 - 1)
ENVELOPE = bytes(range(ENVELOPE_BYTES))
SHARE = bytes(range(SHARE_BYTES))


@given(st.dictionaries(SLOTS, st.binary(min_size=ENVELOPE_BYTES, max_size=ENVELOPE_BYTES)))
def test_envelopes_come_back(envelopes: dict[int, bytes]) -> None:
    body = pack_envelopes(envelopes)
    assert len(body) == 98 * len(envelopes)  # as docs/protocol.md says
    assert unpack_envelopes(body) == envelopes


@given(st.dictionaries(SLOTS, st.tuples(st.booleans(), st.binary(min_size=33, max_size=33))))
def test_a_reveal_comes_back(given_: dict[int, tuple[bool, bytes]]) -> None:
    seeds = {owner: share for owner, (lost, share) in given_.items() if not lost}
    keys = {owner: share for owner, (lost, share) in given_.items() if lost}
    body = pack_reveal(Reveal(seeds, keys))
    assert len(body) == 38 * len(given_)
    assert unpack_reveal(body) == Reveal(seeds, keys)


def test_a_body_of_half_a_record_is_refused() -> None:
    for size in (1, 97, 99):
        with pytest.raises(ValueError, match="no multiple"):
            unpack_envelopes(bytes(size))
    with pytest.raises(ValueError, match="no multiple"):
        unpack_reveal(bytes(37))


def test_slots_must_strictly_rise() -> None:
    one, two = pack_envelopes({1: ENVELOPE}), pack_envelopes({2: ENVELOPE})
    for body in (one + one, two + one):
        with pytest.raises(ValueError, match="strictly rise"):
            unpack_envelopes(body)


def test_both_secrets_of_one_owner_cannot_be_said() -> None:
    seed, key = pack_reveal(Reveal({7: SHARE}, {})), pack_reveal(Reveal({}, {7: SHARE}))
    with pytest.raises(ValueError, match="strictly rise"):
        unpack_reveal(seed + key)


def test_an_unknown_kind_of_share_is_refused() -> None:
    body = bytearray(pack_reveal(Reveal({7: SHARE}, {})))
    body[4] = 2
    with pytest.raises(ValueError, match="kind 0 or 1 expected, got 2"):
        unpack_reveal(bytes(body))


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for unpack in (unpack_envelopes, unpack_reveal):
        try:
            unpack(body)
        except ValueError:
            continue


KEY = "ab" * 32


@pytest.mark.parametrize(
    "fault",
    [
        {"device": "short"},
        {"device": "x" * 65},
        {"device": "../../etc"},
        {"mask_key": KEY[:-1]},
        {"mask_key": KEY.upper()},
        {"mask_key": "zz" * 32},
        {"seal_key": KEY + "00"},
        {"commitment": KEY[:-2]},
        {"surprise": 1},
    ],
)
def test_a_join_with_any_fault_is_refused(fault: dict[str, object]) -> None:
    good = {"device": "device-1", "mask_key": KEY, "seal_key": KEY, "commitment": KEY}
    Join.model_validate(good)
    with pytest.raises(ValidationError):
        Join.model_validate({**good, **fault})


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 8 * 24 * 3600])
def test_a_phase_lasts_a_positive_finite_time(seconds: float) -> None:
    with pytest.raises(ValidationError):
        Timeouts(masking=seconds)


def test_problem_types_are_stable() -> None:
    # Programs act on these: renaming one breaks them.
    assert sorted(ProblemType) == [
        "already-counted",
        "cohort-failed",
        "conflict",
        "internal-error",
        "left-out",
        "malformed",
        "method-not-allowed",
        "no-round",
        "not-authorised",
        "not-found",
        "too-large",
        "unavailable",
        "wrong-media-type",
        "wrong-phase",
        "wrong-state",
    ]
    assert Problem(type="t", title="t", status=400, detail="d").errors is None

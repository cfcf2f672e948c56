"""Size of a message that a study of `tracked` needs, found by simulation."""

from random import Random
from typing import Any

import pytest

from blindtally.planning import recommended_size
from blindtally.planning.f1_by_words import F1Curve, F1Point, f1_over_sizes
from blindtally.planning.recommended_size import choose_size, recommend_message_bytes
from protocol.domains import Domain
from protocol.domains.hashed import Hashed, HashedProduct
from protocol.domains.strings import Listed, Utf8
from protocol.mechanisms.registry import MECHANISMS
from protocol.mechanisms.tracked.plan import TrackedQuestion
from protocol.question_and_plan import Terms
from protocol.round_sizes import message_bytes_of

SHARES = message_bytes_of(Terms(cohort_size=200, minimum=100), 0)


def test_a_higher_goal_needs_a_larger_message(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated: list[F1Curve] = []

    def once(*args: Any, **options: Any) -> F1Curve:
        """Simulate the first time only: both goals are on one curve."""
        if not simulated:
            simulated.append(f1_over_sizes(*args, **options))
        return simulated[0]

    monkeypatch.setattr(recommended_size, "f1_over_sizes", once)
    size = recommend_message_bytes(20, 200, 5, contribution=3)
    assert 1000 < size - SHARES < 4000  # a table of all 600 tokens would take 200 kB
    assert recommend_message_bytes(20, 200, 5, contribution=3, f1=0.8) < size


def test_a_study_without_heavy_items_is_refused() -> None:
    with pytest.raises(ValueError, match="no assumed item is held 20 times"):
        recommend_message_bytes(20, 5, 1)


def question(domain: Domain) -> TrackedQuestion:
    return TrackedQuestion(threshold=20, contribution=3, domain=domain, message_bytes="auto")


def of(devices: int) -> Terms:
    return Terms(cohort_size=devices, minimum=3)


def test_a_study_can_begin_with_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards: a small study was refused for the size that was chosen for it."""
    curve = F1Curve("tracked", (F1Point(60, (0.0,)), F1Point(100, (1.0,))))
    monkeypatch.setattr(recommended_size, "f1_over_sizes", lambda *_args, **_options: curve)
    asked = question(Utf8(max_bytes=20)).model_copy(update={"threshold": 10.0})
    size, _ = choose_size(asked, of(60), 5)
    MECHANISMS["tracked"].first_plan(
        asked.model_copy(update={"message_bytes": size}), of(60), "study", 5, Random(1)
    )


def test_the_choice_is_that_of_the_question_and_has_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulations: list[str] = []

    def recorded(*args: Any, **options: Any) -> F1Curve:
        simulations.append(repr((args, options)))  # arrays have no truth value
        return F1Curve("tracked", (F1Point(60, (0.0,)), F1Point(800, (1.0,))))

    monkeypatch.setattr(recommended_size, "f1_over_sizes", recorded)
    size, reason = choose_size(question(Hashed(max_bytes=64)), of(200), 5)
    assert size == recommend_message_bytes(20.0, 200, 5, contribution=3)
    assert simulations[0] == simulations[1]
    assert reason.startswith(f"{size:,} message_bytes: ")
    assert "5 rounds of 200 devices with the threshold 20 reach an F1 of 0.95" in reason


def test_short_strings_need_fewer_bytes() -> None:
    four_bytes, _ = choose_size(question(Utf8(max_bytes=4)), of(200), 5)
    by_segment, _ = choose_size(
        question(HashedProduct(segments=("a", "b"), max_bytes=60)), of(200), 5
    )
    assert 200 < four_bytes - SHARES < 0.75 * (by_segment - SHARES)


@pytest.mark.parametrize(
    ("domain", "devices", "error"),
    [
        (Listed(items=("a", "b")), 200, "not for the domain 'listed': pass a number"),
        (Hashed(max_bytes=9), 5, "only studies of 10 to 1,000,000 devices"),
        (Hashed(max_bytes=9), 20, "no assumed item is held 20 times: .*; or pass a number"),
    ],
)
def test_sizes_that_cannot_be_chosen_have_a_reason(
    domain: Domain, devices: int, error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        choose_size(question(domain), of(devices), 1)

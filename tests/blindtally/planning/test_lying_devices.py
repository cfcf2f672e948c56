"""The planner states what lying devices can do: attacks reach that, and no more."""

import pytest

from blindtally.planning.lying_devices import LyingDevices, effects_of_liars, equal_cohorts
from protocol.mechanism import CohortSum
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.question_and_plan import Terms
from protocol.round_sizes import message_bytes_of
from tests.protocol.mechanisms.liars import DEVICES, DIGITS, NOBODYS_ITEM, attacked_round, count_of

QUESTION = AdaptiveIbltQuestion(threshold=50, contribution=1, message_bytes=1400, domain=DIGITS)


def asked(terms: Terms) -> AdaptiveIbltQuestion:
    """Return the question with shares of keys beside its vector."""
    return QUESTION.model_copy(
        update={"message_bytes": message_bytes_of(terms, QUESTION.message_bytes)}
    )


def effects(cohorts: int) -> list[LyingDevices]:
    terms = equal_cohorts(DEVICES, cohorts)
    return effects_of_liars(asked(terms), terms, 2)


@pytest.mark.parametrize(
    ("cohorts", "lifts"), [(1, (1000, 1000)), (10, (44, 1000)), (40, (27, 1000)), (100, (22, 448))]
)
def test_cohorts_limit_the_count_of_an_item_that_nobody_holds(
    cohorts: int, lifts: tuple[int, int]
) -> None:
    single, ten = effects(cohorts)
    assert (single.liars, ten.liars) == (1, 10)
    assert (round(single.lift), round(ten.lift)) == lifts
    assert single.lost_share == single.unreadable_share == 1 / cohorts
    assert ten.lost_share == ten.unreadable_share == min(10, cohorts) / cohorts


@pytest.mark.parametrize("cohorts", [10, 40])
def test_an_attack_reaches_the_lift_that_is_stated_and_no_more(cohorts: int) -> None:
    attacked, lifts = attacked_round(QUESTION, 1, cohorts), list[float]()
    ring, unit = attacked.mechanism.ring(attacked.plan), attacked.table.sampler.unit
    stated = effects(cohorts)[0].lift
    for tokens in (int(stated / unit), int(stated / unit) + 1):
        lie = attacked.with_keys({NOBODYS_ITEM: tokens})
        assert attacked.fault(lie) is None
        sums = [CohortSum(ring.pack(each), DEVICES // cohorts) for each in attacked.sums]
        sums[0] = CohortSum(ring.pack(lie), DEVICES // cohorts)
        answer = attacked.mechanism.decode_cohorts(attacked.plan, sums, attacked.state)
        lifts.append(count_of(answer, NOBODYS_ITEM))
    assert 0.85 * stated < lifts[0] <= stated
    assert lifts[1] == 0


def test_what_devices_may_add_limits_it_where_no_cohorts_can_be_compared() -> None:
    """Two cohorts of 500 devices that sample 111 of their items; 207 are too many."""
    single, ten = effects(2)
    assert single.lift == pytest.approx(4.484 * 207, rel=0.01)
    assert ten.lift == DEVICES


def test_cohorts_that_are_too_small_are_refused() -> None:
    with pytest.raises(ValueError, match="40 cohorts of 100 devices have 2 each"):
        equal_cohorts(100, 40)
    assert equal_cohorts(250_000).cohorts == 3

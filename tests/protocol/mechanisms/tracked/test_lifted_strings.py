"""Liars that lift the counter of a listed key, so that an honest server fetches its string.

With one cohort a liar succeeds, which the documents state. With several, cohorts are compared.
"""

from random import Random

import numpy as np
import pytest

from protocol.domains.hashed import Hashed
from protocol.mechanism import CohortSum
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.mechanisms.tracked.plan import TrackedQuestion
from protocol.question_and_plan import Terms
from protocol.study_state import EMPTY_STATE
from tests.protocol.chance import seeded

MECHANISM = SUM_MECHANISMS["tracked"]
QUESTION = TrackedQuestion(
    threshold=20.0,
    contribution=1,
    message_bytes=13_784,
    domain=Hashed(max_bytes=24, key_bits=40, salt="s"),
)
RARE_ITEM, DEVICES, ROUNDS = "al@x.io", 200, 8
KEY = QUESTION.domain.name(RARE_ITEM)


def held(number: int) -> list[dict[str, int]]:
    """Return the devices of a round; one of round 1 and one of round 6 hold the rare item."""
    rng = Random(number)
    items = ["common.org"] * 60 + ["other.org"] * 30
    items += [f"{rng.choice('abcdefgh')}-{rng.randrange(12)}.net" for _ in range(40)]
    items += [RARE_ITEM] * (number in (1, 6))
    devices = [{item: 1} for item in items] + [{}] * (DEVICES - len(items))
    rng.shuffle(devices)
    return devices


@pytest.mark.parametrize(("liars", "cohorts", "fetched"), [(0, 1, 0), (1, 1, 4), (2, 4, 0)])
def test_liars_have_a_rare_string_fetched_only_where_no_cohorts_can_be_compared(
    liars: int, cohorts: int, fetched: int
) -> None:
    size = DEVICES // cohorts
    terms = Terms(cohort_size=size, minimum=size // 2, cohorts=cohorts)
    plan, state = MECHANISM.first_plan(QUESTION, terms, "s", ROUNDS, Random(1)), EMPTY_STATE
    chance, fetching = seeded(1), 0
    for number in range(1, ROUNDS + 1):
        fetching += KEY in [piece.name for piece in plan.pieces.pieces]
        devices, ring = held(number), MECHANISM.ring(plan)
        sums = [
            MECHANISM.encode_sum(plan, devices[start:][:size], chance)
            for start in range(0, DEVICES, size)
        ]
        if liars and number > 1 and KEY in plan.counters.rows:
            counts = np.zeros(len(plan.counters.rows), np.int64)
            counts[plan.counters.rows[KEY]] = 30
            lies = plan.counters.encode(counts)  # of the first lanes
            for lane, total, lie in zip(ring.lanes, sums[0], lies, strict=False):
                lane.add(total, lie)
            liars -= 1
        packed = [CohortSum(ring.pack(each), size) for each in sums]
        answer = MECHANISM.decode_cohorts(plan, packed, state)
        state = answer.state
        plan = MECHANISM.next_plan(plan, answer, state, Random(number))
    assert fetching == fetched
    listed = {each.item for each in MECHANISM.final_estimates(QUESTION, state)}
    assert (RARE_ITEM in listed) == bool(fetched)
    assert {"common.org", "other.org"} <= listed

"""A round is decoded from the sums of its cohorts, of which liars spoil their own only."""

from protocol.mechanism import CohortSum
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from secagg.ring import Vector
from server.rounds.decoding import decode_cohorts
from tests.protocol.mechanisms.liars import DIGITS, NOBODYS_ITEM, attacked_round, count_of

QUESTION = AdaptiveIbltQuestion(threshold=5, contribution=1, message_bytes=1400, domain=DIGITS)
ATTACKED = attacked_round(QUESTION, 1, cohorts=10)


def sums(lies: dict[int, Vector]) -> dict[int, CohortSum]:
    ring = ATTACKED.mechanism.ring(ATTACKED.plan)
    return {
        number: CohortSum(ring.pack(lies.get(number, honest)), ATTACKED.cohort_size)
        for number, honest in enumerate(ATTACKED.sums)
    }


def test_a_flag_reaches_the_heavy_hitters_of_the_study() -> None:
    """An item nobody holds is not heavy. The common one is, by the counts of the other cohorts."""
    lies = {2: ATTACKED.with_keys({NOBODYS_ITEM: 16}, 2), 3: ATTACKED.with_keys({"2": 32}, 3)}
    outcome = decode_cohorts(ATTACKED.plan, ATTACKED.state, sums(lies))
    assert outcome.state == "decoded"
    flagged = [row for row in outcome.heavy_hitters if row.cohort_p_value is not None]
    assert [row.item for row in flagged] == ["2"]
    assert abs(flagged[0].count - ATTACKED.truth["2"]) < 4.5 * flagged[0].variance ** 0.5


def test_junk_in_every_cohort_leaves_the_round_readable() -> None:
    lies = {
        cohort: ATTACKED.with_keys({str(900_000 - n - 99 * cohort): 1 for n in range(26)}, cohort)
        for cohort in range(10)
    }
    outcome = decode_cohorts(ATTACKED.plan, ATTACKED.state, sums(lies))
    assert (outcome.state, outcome.excluded) == ("decoded", frozenset())


def test_a_cohort_with_less_than_nothing_of_an_item_is_excluded() -> None:
    """The sum of all cohorts could be read: a liar moves 40 samples of an item to another."""
    ring, lie = ATTACKED.mechanism.ring(ATTACKED.plan), ATTACKED.with_keys({NOBODYS_ITEM: 40}, 6)
    ring.add(lie, ATTACKED.sums[6])
    ring.subtract(lie, ATTACKED.with_keys({"1": 40}, 6))
    outcome = decode_cohorts(ATTACKED.plan, ATTACKED.state, sums({6: lie}))
    assert (outcome.state, outcome.excluded) == ("decoded", frozenset({6}))
    assert outcome.answer is not None
    assert count_of(outcome.answer, NOBODYS_ITEM) == 0
    assert count_of(outcome.answer, "1") > 200


def test_a_cohort_that_cannot_be_read_is_excluded_and_no_other() -> None:
    total = tuple(part.copy() for part in ATTACKED.sums[4])
    total[0][:] ^= 1
    outcome = decode_cohorts(ATTACKED.plan, ATTACKED.state, sums({4: total}))
    assert (outcome.state, outcome.excluded) == ("decoded", frozenset({4}))
    assert outcome.participants == 900

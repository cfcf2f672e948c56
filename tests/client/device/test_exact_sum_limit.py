"""Ledger of exact sums: what a device gave in a period limits what it gives next."""

import math
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from client.device.clock import MIN_TIME, DeviceClock
from client.device.journal import FileJournal, JournalEntry, noisy_counts_of
from client.device.vector_participation import spends_exact_study
from protocol.api.phases import MessageKind
from protocol.clock_readings import ClockReadings
from protocol.device_policy.policy import Policy, PolicyError
from protocol.domains.product import Product
from protocol.domains.strings import Utf8
from protocol.mechanisms.central.trie_plan import TrieHhQuestion
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan
from protocol.privacy.noise_loss import CountNoise, noise_epsilon
from protocol.privacy.release import Release
from protocol.question_and_plan import Terms
from tests.support.policies import refused_for

DAY = 24 * 3600
NOW = 20_000 * DAY
SERVICE_URL, OTHER_URL = "https://here", "https://there"
POLICY = Policy()
TERMS = Terms(cohort_size=100, minimum=80, corrupt=0.1, dropout=0.2)
EXACT_QUESTION = AdaptiveIbltQuestion(
    threshold=10, contribution=2, domain=Utf8(max_bytes=6), message_bytes=8384
)


def clock_at(now: float) -> DeviceClock:
    """Return a clock that two readings have confirmed."""
    return DeviceClock(now, ClockReadings(now, now))


@cache
def exact_plan(study: str = "next") -> AnyPlan:
    """Return a plan without noise."""
    mechanism = SUM_MECHANISMS["adaptive-iblt"]
    plan: AnyPlan = mechanism.first_plan(EXACT_QUESTION, TERMS, study, 1, Random(1))
    return plan


@cache
def trie_plan(variance: float) -> AnyPlan:
    """Return a plan of counts by coins, or of all votes with noise of a `variance` above 0."""
    asked = {
        "threshold": 10,
        "contribution": 1,
        "domain": Utf8(max_bytes=2),
        "message_bytes": 135_456,
    }
    coins = {"epsilon": 8, "delta": 0.5, "mode": "sample-threshold", "theta": 4, "probability": 0.5}
    question = TrieHhQuestion.model_validate(asked | coins | {"every_round": False})
    plan: AnyPlan = SUM_MECHANISMS["triehh"].first_plan(question, TERMS, "next", 2, Random(1))
    release = Release(probability=1 if variance else 0.5, threshold=4, variance=variance)
    return plan.model_copy(update={"release": release})


def given_to(
    study: str = "earlier",
    service: str = SERVICE_URL,
    time: int = NOW,
    variance: float | None = None,
    exact: bool | None = True,
) -> JournalEntry:
    """Return the entry of a vector that was given to `study`."""
    kind = MessageKind.MASKED_INPUT
    entry = JournalEntry.of(study, 1, 0, kind, study.encode(), time)
    return replace(entry, service=service, variance=variance, exact=exact)


def refusal(plan: AnyPlan, *vectors: JournalEntry, policy: Policy = POLICY) -> PolicyError:
    with pytest.raises(PolicyError) as refused:
        spends_exact_study(policy, plan, SERVICE_URL, vectors, clock_at(NOW))
    assert refused.value.limit == "max_exact_studies"
    return refused.value


def test_the_first_exact_sum_spends_the_study_of_the_period() -> None:
    assert spends_exact_study(POLICY, exact_plan(), SERVICE_URL, [], clock_at(NOW))
    error = refusal(exact_plan(), given_to(time=NOW - 20 * DAY))
    assert str(error) == (
        "the study asks for an exact sum of the items that study earlier of https://here had; "
        "the next is possible in 11.0 days, if the device runs a day before as well, because two "
        "readings must agree (max_exact_studies)"
    )
    assert error.needed == 2
    two = replace(POLICY, max_exact_studies=2)
    assert spends_exact_study(two, exact_plan(), SERVICE_URL, [given_to()], clock_at(NOW))


def test_noise_that_keeps_the_limit_to_the_last_digit_hides_the_device() -> None:
    plan, noise = trie_plan(11.0), CountNoise(11.0)
    earlier = given_to(variance=11.0, exact=False)
    for vectors in ([], [earlier], [earlier, earlier]):
        epsilon = noise_epsilon({noise: 1 + len(vectors)}, POLICY.max_delta)
        exactly = replace(POLICY, max_epsilon=epsilon)
        assert not spends_exact_study(exactly, plan, SERVICE_URL, vectors, clock_at(NOW))
        below = replace(POLICY, max_epsilon=epsilon * 0.9999)
        assert spends_exact_study(below, plan, SERVICE_URL, vectors, clock_at(NOW))


def test_the_earliest_clock_is_that_of_2024() -> None:
    assert datetime.fromtimestamp(MIN_TIME, UTC) == datetime(2024, 1, 1, tzinfo=UTC)


def test_a_second_url_of_a_service_gives_nothing_more() -> None:
    """The same study id at another service is another study, and one is spent."""
    refusal(exact_plan(), given_to("next", OTHER_URL))


def test_later_rounds_of_a_study_spend_no_other() -> None:
    rounds = [given_to("next"), replace(given_to("next"), round=2)]
    assert spends_exact_study(POLICY, exact_plan(), SERVICE_URL, rounds, clock_at(NOW))


def test_a_period_ends_to_the_second() -> None:
    period = 30 * DAY
    refusal(exact_plan(), given_to(time=NOW - period + 1))
    assert spends_exact_study(
        POLICY, exact_plan(), SERVICE_URL, [given_to(time=NOW - period)], clock_at(NOW)
    )
    rounds = [given_to(time=NOW - 2 * DAY), given_to(time=NOW - DAY), given_to(time=NOW - 9 * DAY)]
    assert "possible in 30.0 days, if the device runs a day before as well" in str(
        refusal(exact_plan(), *rounds)
    )  # the last one counts


@pytest.mark.parametrize("now", [0.0, 60.0, MIN_TIME - 1, math.nan])
@pytest.mark.parametrize("variance", [None, 11.0])
def test_no_vector_is_given_while_the_clock_is_before_this_program(
    now: float, variance: float | None
) -> None:
    plan = exact_plan() if variance is None else trie_plan(variance)
    with refused_for("clock", "clock of this device is before 2024"):
        spends_exact_study(POLICY, plan, SERVICE_URL, [], clock_at(now))
    spends_exact_study(POLICY, plan, SERVICE_URL, [], clock_at(MIN_TIME))


@pytest.mark.parametrize("time", [NOW + 1, NOW + 1000 * DAY])
def test_no_clock_frees_what_was_spent(time: int) -> None:
    refusal(exact_plan(), given_to(time=time))


@pytest.mark.parametrize(
    "runs",
    [
        "0 gives, 30 refuses, 31 gives",  # daily
        "0 gives, 31 refuses, 32 gives",
        "0 gives, 31 refuses, 62 gives",  # monthly
        "0 gives, 400 refuses, 1 waits, 1.9 waits, 2 refuses, 31 refuses, 32 gives",  # ahead once
        "50 reads, 10 waits, 51 gives, 52 refuses, 81 refuses, 82 gives",  # behind once
        "50 reads, 10 waits, 10.9 waits, 11 gives",  # set back permanently
        "0 gives, 1 reads, 0.5 refuses, 30 refuses, 31 gives",  # by less than a day
    ],
)
def test_a_vector_is_old_once_two_readings_of_the_clock_agree(runs: str, tmp_path: Path) -> None:
    """The device is restarted in each run; each run has another study."""
    seen = list[str]()
    for number, run in enumerate(runs.split(", ")):
        journal, now = FileJournal(tmp_path / "journal"), NOW + float(run.split()[0]) * DAY
        clock = journal.read_clock(now)
        plan = exact_plan().model_copy(update={"study": f"study-{number}"})
        result = "reads"
        if "reads" not in run:
            check = partial(spends_exact_study, POLICY, plan, SERVICE_URL, clock=clock)
            try:
                journal.record(given_to(plan.study, time=int(now)), check_exact=check)
                result = "gives"
            except PolicyError as error:
                result = "waits" if error.limit == "clock" else "refuses"
        seen.append(f"{run.split()[0]} {result}")
    assert ", ".join(seen) == runs


@pytest.mark.parametrize("now", [0.0, MIN_TIME - 1, math.nan, 2.0**41])
def test_an_impossible_time_is_not_stored(now: float, tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "journal")
    before = journal.read_clock(NOW)
    with refused_for("clock", "clock"):
        journal.read_clock(now).check()
    assert journal.read_clock(NOW) == before


def test_the_refusal_names_the_study_that_is_waited_for() -> None:
    vectors = [given_to("c", time=NOW - DAY), given_to("a", time=NOW - 3 * DAY)]
    vectors.append(given_to("b", time=NOW - 2 * DAY))
    two = replace(POLICY, max_exact_studies=2)
    assert "study b of" in str(refusal(exact_plan(), *vectors, policy=two))
    assert "possible in 29.0 days" in str(refusal(exact_plan(), *vectors, policy=two))
    later = [replace(each, time=(each.time or 0) - 28 * DAY) for each in vectors]
    assert spends_exact_study(two, exact_plan(), SERVICE_URL, later, clock_at(NOW))


def test_a_device_may_refuse_all_exact_sums() -> None:
    none = replace(POLICY, max_exact_studies=0)
    assert (
        str(refusal(exact_plan(), policy=none))
        == "the study asks for an exact sum (max_exact_studies)"
    )
    assert not spends_exact_study(none, trie_plan(11), SERVICE_URL, [], clock_at(NOW))
    careless = replace(none, max_epsilon=math.inf)  # even then a sum without noise is exact
    refusal(exact_plan(), policy=careless)


def test_coins_hide_nothing_from_the_server() -> None:
    refusal(trie_plan(0), given_to())


def test_noise_too_small_to_hide_anything_makes_an_exact_sum() -> None:
    """A server that asks for noise of a tiny variance could otherwise ask any number of times."""
    assert spends_exact_study(POLICY, trie_plan(2**-20), SERVICE_URL, [], clock_at(NOW))
    error = refusal(trie_plan(2**-20), given_to())
    assert "a sum with too little noise (epsilon 14.6 in all) of the items" in str(error)


def test_the_noise_of_many_studies_averages_out() -> None:
    plan, noise = trie_plan(11), CountNoise(11.0)
    hidden = [given_to(f"study-{n}", variance=11.0, exact=False) for n in range(99)]
    free = next(n for n in range(99) if _is_exact(plan, hidden[:n]))
    assert noise_epsilon({noise: free}, POLICY.max_delta) <= POLICY.max_epsilon
    assert noise_epsilon({noise: free + 1}, POLICY.max_delta) > POLICY.max_epsilon
    refusal(plan, *hidden[:free], given_to())
    old = [replace(each, time=NOW - 30 * DAY) for each in hidden]
    assert not _is_exact(plan, [*old, *hidden[: free - 1]])


def _is_exact(plan: AnyPlan, vectors: list[JournalEntry]) -> bool:
    return spends_exact_study(POLICY, plan, SERVICE_URL, vectors, clock_at(NOW))


@example([(0, "exact", 0), (1, "exact", 30), (0, "exact", -1)])
@example([(0, "noise", 0), (0, "noise", 0), (0, "noise", 30), (0, "exact", -1)])
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["exact", "noise"]), st.integers(-5, 40)))
)
def test_no_period_has_more_than_the_policy_allows(asked: list[tuple[int, str, int]]) -> None:
    """Studies ask in any order while the clock jumps: each vector keeps the limits."""
    plans = {"exact": exact_plan(), "noise": trie_plan(4)}
    vectors: list[JournalEntry] = []
    now = NOW
    for study, kind, days in asked:
        now += days * DAY
        plan = plans[kind].model_copy(update={"study": str(study)})
        try:
            exact = spends_exact_study(POLICY, plan, SERVICE_URL, vectors, clock_at(now))
        except PolicyError:
            continue
        variance = 4.0 if kind == "noise" else None
        vectors.append(given_to(str(study), time=now, variance=variance, exact=exact))
        for start in {each.time or 0 for each in vectors}:
            _check_period([each for each in vectors if 0 <= (each.time or 0) - start < 30 * DAY])


def _check_period(vectors: list[JournalEntry]) -> None:
    """Check that vectors of one period have no more exact studies or noise than allowed."""
    assert len({each.study for each in vectors if each.is_exact}) <= POLICY.max_exact_studies
    counts = noisy_counts_of(each for each in vectors if not each.is_exact)
    assert noise_epsilon(counts, POLICY.max_delta) <= POLICY.max_epsilon


@pytest.mark.parametrize("first_has_segments", [True, False])
def test_pairs_with_segments_are_items_of_the_same_collection(first_has_segments: bool) -> None:
    """Otherwise the sums of items and of the same items by segment could be subtracted."""
    domain = Product(segments=("a", "b"), inner=Utf8(max_bytes=6))
    question = EXACT_QUESTION.model_copy(update={"domain": domain})
    mechanism = SUM_MECHANISMS["adaptive-iblt"]
    by_segment = mechanism.first_plan(question, TERMS, "by segment", 1, Random(1))
    plans = [by_segment, exact_plan()] if first_has_segments else [exact_plan(), by_segment]
    assert spends_exact_study(POLICY, plans[0], SERVICE_URL, [], clock_at(NOW))
    assert "had; the next is possible" in str(refusal(plans[1], given_to(plans[0].study)))

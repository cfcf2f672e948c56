"""What a device refuses, and which limit it names."""

import math
import pickle
from dataclasses import replace
from random import Random

import pytest

from client.policy import Policy, PolicyError, rho_of, upload_bytes
from protocol.domain import Alphabet, Utf8
from protocol.mechanism import Terms
from protocol.mechanisms import MECHANISMS, AnyPlan, parse_question
from protocol.mechanisms.adaptive_iblt import AdaptiveIbltQuestion
from protocol.messages import Seat
from secagg.deals import KeyDeal, SeedDeal, Upload
from secagg.errors import RefusedError
from secagg.keys import Identity
from secagg.parameters import parameters
from secagg.parcels import Parcel

STUDY = "study-1"
TERMS = Terms(cohort_size=100, minimum=80, corrupt=0.1, dropout=0.2)
QUESTION = AdaptiveIbltQuestion(
    threshold=10, contribution=20, domain=Utf8(max_bytes=12), words=2000
)
PLAN: AnyPlan = MECHANISMS["adaptive-iblt"].first_plan(QUESTION, TERMS, STUDY, 9, Random(1))
POLICY = Policy(max_contribution=20, min_cohort=64)  # 64 of 80 are the quorum
SEAT = Seat.model_validate(
    {"participant": "p", "cohort": 0, "slot": 3, "deadline": "2030-01-01T00:00:00Z"}
)


def plan(**terms: object) -> AnyPlan:
    """Return the plan with other terms."""
    changed = Terms.model_validate(TERMS.model_dump() | terms)
    return PLAN.model_copy(update={"terms": changed})


def test_a_plan_within_the_policy_is_taken() -> None:
    POLICY.check_plan(PLAN, STUDY, 1)
    for n in (80, 100):
        POLICY.check_cohort(PLAN, SEAT, n)


@pytest.mark.parametrize(
    ("policy", "limit"),
    [
        (replace(POLICY, max_contribution=19), "max_contribution"),
        (replace(POLICY, min_cohort=65), "min_cohort"),
        (replace(POLICY, min_corrupt=0.11), "min_corrupt"),
        (replace(POLICY, max_dropout=0.19), "max_dropout"),
        (replace(POLICY, min_sigma=41), "min_sigma"),
        (replace(POLICY, modes=frozenset({"semi-honest"})), "modes"),
        (replace(POLICY, max_upload_bytes=3000), "max_upload_bytes"),
        (replace(POLICY, registrar=bytes(32)), "registrar"),
    ],
)
def test_a_plan_beyond_a_limit_is_refused_by_the_name_of_the_limit(
    policy: Policy, limit: str
) -> None:
    with pytest.raises(PolicyError, match=limit) as refused:
        policy.check_plan(PLAN, STUDY, 1)
    assert refused.value.limit == limit
    assert isinstance(refused.value, RefusedError)


def test_every_limit_that_a_plan_is_beyond_is_told_with_what_would_be_enough() -> None:
    wary = replace(POLICY, max_contribution=19, min_cohort=65, max_dropout=0.1)
    refusals = list(wary.refusals(PLAN, STUDY, 1))
    offered = {one.limit: one.offered for one in refusals}
    assert offered == {"min_cohort": 64, "max_dropout": 0.2, "max_contribution": 20}
    replace(wary, **offered).check_plan(PLAN, STUDY, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("study", "number"), [("study-2", 1), (STUDY, 2)])
def test_the_plan_of_another_round_or_study_is_refused(study: str, number: int) -> None:
    with pytest.raises(PolicyError) as refused:
        POLICY.check_plan(PLAN, study, number)
    assert refused.value.limit == "plan"


def test_a_device_gives_once_per_study() -> None:
    POLICY.check_plan(PLAN, STUDY, 1, given={"another study": {1}})
    with pytest.raises(PolicyError, match="second contribution") as refused:
        POLICY.check_plan(PLAN, STUDY, 1, given={STUDY: {2}})
    assert refused.value.limit == "once per study"


def test_a_server_is_trusted_to_keep_to_the_protocol_by_those_alone_who_say_so() -> None:
    asked = plan(mode="semi-honest")
    with pytest.raises(PolicyError, match="semi-honest mode where active is wanted"):
        POLICY.check_plan(asked, STUDY, 1)
    replace(POLICY, modes=frozenset({"semi-honest", "active"})).check_plan(asked, STUDY, 1)


REGISTRAR, OTHER = Identity.of(bytes(range(32))), Identity.of(bytes(range(1, 33)))


@pytest.mark.parametrize("named", [None, OTHER.public.hex()])
def test_a_pinned_registrar_and_no_other_is_taken(named: str | None) -> None:
    pinned = replace(POLICY, registrar=REGISTRAR.public)
    pinned.check_plan(plan(registrar=REGISTRAR.public.hex()), STUDY, 1)
    with pytest.raises(PolicyError) as refused:
        pinned.check_plan(plan(registrar=named), STUDY, 1)
    assert refused.value.limit == "registrar"


def test_the_registrar_of_a_plan_must_have_enrolled_the_device_itself_for_this_study() -> None:
    me, asked = Identity.of(bytes(32)), plan(registrar=REGISTRAR.public.hex())
    assert asked.registry is not None
    mine = asked.registry.enrolment(me.public)
    POLICY.check_enrolment(asked, me, REGISTRAR.sign(mine))
    POLICY.check_enrolment(PLAN, me, b"")  # nobody is enrolled here
    elsewhere = asked.model_copy(update={"study": "study-2"}).registry
    assert elsewhere is not None
    for wrong in (b"", OTHER.sign(mine), REGISTRAR.sign(elsewhere.enrolment(me.public))):
        with pytest.raises(PolicyError, match="did not enrol me"):
            POLICY.check_enrolment(asked, me, wrong)


LEVELS = 10
SEVERAL = Policy(min_cohort=64)


def trie(levels: int = LEVELS, **own: object) -> AnyPlan:
    """Return the first plan of a trie whose devices take part in each of its rounds."""
    domain = Alphabet(characters="abcd", length=LEVELS)
    asked = {"mechanism": "triehh", "threshold": 9, "contribution": 1, "domain": domain}
    question = parse_question(
        asked | {"words": 2000, "epsilon": 1.0, "delta": 1e-6, "mode": "noise"} | own
    )
    return MECHANISMS["triehh"].first_plan(question, TERMS, STUDY, levels, Random(1))


def test_a_device_that_is_asked_again_gives_once_a_round_of_some() -> None:
    asked = trie().model_copy(update={"round": 4})
    SEVERAL.check_plan(asked, STUDY, 4, given={STUDY: {1, 2, 3}, "another": {4}})
    with pytest.raises(PolicyError, match="second contribution to round 4") as refused:
        SEVERAL.check_plan(asked, STUDY, 4, given={STUDY: {1, 4}})
    assert refused.value.limit == "once per round"
    three = replace(SEVERAL, max_rounds=3)
    three.check_plan(asked, STUDY, 4, given={STUDY: {1, 2}})
    with pytest.raises(PolicyError, match="3 of a study are the most") as refused:
        three.check_plan(asked, STUDY, 4, given={STUDY: {1, 2, 3}})
    assert refused.value.limit == "max_rounds"


def test_a_device_gives_once_if_a_trie_asks_each_once() -> None:
    asked = trie(repeat=False)
    SEVERAL.check_plan(asked, STUDY, 1)
    with pytest.raises(PolicyError) as refused:
        SEVERAL.check_plan(asked, STUDY, 1, given={STUDY: {7}})
    assert refused.value.limit == "once per study"


def test_sums_without_noise_have_a_device_again_only_if_it_says_so() -> None:
    asked = trie(mode="sample-threshold")
    with pytest.raises(PolicyError, match="adds no noise that hides me") as refused:
        SEVERAL.check_plan(asked, STUDY, 1)
    assert refused.value.limit == "repeat_exact"
    replace(SEVERAL, repeat_exact=True).check_plan(asked, STUDY, 1)


def with_noise(variance: float, rounds: int = LEVELS, **own: object) -> AnyPlan:
    plan = trie(**own)
    release = plan.release.model_copy(update={"variance": variance})
    return plan.model_copy(update={"release": release, "rounds": rounds})


@pytest.mark.parametrize(("contribution", "rounds"), [(1, 10), (1, 20), (3, 10)])
def test_noise_must_hide_a_device_in_all_rounds_at_once(contribution: int, rounds: int) -> None:
    """Of rho = m L / 2 s: epsilon 4 at delta 1e-5 is a rho of 0.2977, [BunSteinke16]."""
    least = contribution * rounds / 2 / 0.2977
    enough = with_noise(least * 1.01, rounds, contribution=contribution)
    SEVERAL.check_plan(enough, STUDY, 1)
    short = with_noise(least * 0.99, rounds, contribution=contribution)
    with pytest.raises(PolicyError, match=r"adds noise for epsilon 4\.0\d where 4 is") as refused:
        SEVERAL.check_plan(short, STUDY, 1)
    assert refused.value.limit == "max_epsilon"
    assert isinstance(refused.value.offered, float)
    assert 4 < refused.value.offered <= 4.1
    replace(SEVERAL, max_epsilon=refused.value.offered).check_plan(short, STUDY, 1)
    with pytest.raises(PolicyError, match="max_epsilon"):
        replace(SEVERAL, max_delta=1e-6).check_plan(enough, STUDY, 1)


def test_a_server_that_announces_fewer_rounds_than_it_asks_for_gets_no_more() -> None:
    """Noise for one round is not enough in the fourth, whatever the plan says of their number."""
    noise = 1.5 / 2 / 0.2977
    asked = with_noise(noise, rounds=1)
    SEVERAL.check_plan(asked, STUDY, 1)
    fourth = asked.model_copy(update={"round": 4})
    with pytest.raises(PolicyError) as refused:
        SEVERAL.check_plan(fourth, STUDY, 4, given={STUDY: {1, 2, 3}})
    assert refused.value.limit == "max_epsilon"


RHO = 0.2977  # epsilon 4 at delta 1e-5


def test_noise_that_each_round_promises_of_itself_is_added_up() -> None:
    """As much noise as j rounds need in the j-th, and each is called the last: 1 + 1/2 + 1/3 .."""
    told, given = 0.0, set[int]()
    for number in (1, 2):
        asked = with_noise(1.01 * number / 2 / RHO, rounds=number)
        asked = asked.model_copy(update={"round": number})
        SEVERAL.check_plan(asked, STUDY, number, given={STUDY: given})
        if number == 1:
            SEVERAL.check_told(asked, told)
        else:
            with pytest.raises(PolicyError, match=r"adds noise for epsilon 4\.95 where 4 is"):
                SEVERAL.check_told(asked, told)
        told += rho_of(asked) or 0.0
        given.add(number)


def test_a_study_that_had_a_vector_without_noise_has_no_second() -> None:
    SEVERAL.check_told(PLAN, 0.0)
    assert rho_of(PLAN) is None
    with pytest.raises(PolicyError, match="max_epsilon"):
        SEVERAL.check_told(trie(), math.inf)
    replace(SEVERAL, repeat_exact=True).check_told(trie(), math.inf)


def test_rounds_that_keep_what_the_first_announced_are_all_taken() -> None:
    asked, told = with_noise(LEVELS * 1.01 / 2 / RHO), 0.0
    for _ in range(LEVELS):
        SEVERAL.check_told(asked, told)
        told += rho_of(asked) or 0.0


@pytest.mark.parametrize(("policy", "delta"), [(Policy(), 1e-5), (Policy(max_delta=1e-6), 1e-6)])
def test_reports_that_may_tell_more_than_their_epsilon_too_often_are_refused(
    policy: Policy, delta: float
) -> None:
    def asked(odds: float) -> AnyPlan:
        question = parse_question(
            {"mechanism": "jl-hh", "threshold": 9, "epsilon": 1.0, "rows": 9}
            | {"domain": Utf8(max_bytes=2), "noise": "laplace", "delta": odds}
        )
        return MECHANISMS["jl-hh"].first_plan(question, TERMS, STUDY, 1, Random(1))

    policy.check_plan(asked(delta), STUDY, 1)
    with pytest.raises(PolicyError, match="asks for delta") as refused:
        policy.check_plan(asked(1.01 * delta), STUDY, 1)
    assert refused.value.limit == "max_delta"


def test_the_deals_count_as_upload() -> None:
    holders = parameters(100, TERMS.assumptions).holders
    parcel = Parcel(bytes(32), bytes(33))
    shares = KeyDeal(bytes(32), (parcel,) * holders, bytes(64)).pack()
    vector = bytes(MECHANISMS["adaptive-iblt"].ring(PLAN).nbytes)
    upload = Upload(SeedDeal(bytes(32), bytes(32), (parcel,) * holders), vector, bytes(64)).pack()
    exactly = len(shares) + len(upload)
    assert upload_bytes(PLAN) == exactly
    replace(POLICY, max_upload_bytes=exactly).check_plan(PLAN, STUDY, 1)
    with pytest.raises(PolicyError, match=f"{exactly} bytes"):
        replace(POLICY, max_upload_bytes=exactly - 1).check_plan(PLAN, STUDY, 1)


@pytest.mark.parametrize(
    ("n", "slot", "cohort", "limit"),
    [
        (79, 3, 0, "terms"),  # fewer than the plan's minimum
        (101, 3, 0, "terms"),  # more than the plan's ring was made for
        (90, 90, 0, "seat"),  # no slot of this cohort
        (90, -1, 0, "seat"),
        (90, 3, 1, "seat"),  # no cohort of this round
        (90, 3, -1, "seat"),
    ],
)
def test_a_cohort_that_the_plan_did_not_promise_is_refused(
    n: int, slot: int, cohort: int, limit: str
) -> None:
    seat = SEAT.model_copy(update={"slot": slot, "cohort": cohort})
    with pytest.raises(PolicyError) as refused:
        POLICY.check_cohort(PLAN, seat, n)
    assert refused.value.limit == limit


def test_a_cohort_that_may_keep_too_few_is_refused() -> None:
    # A minimum of 80 may keep 64; this device wants 70, which 88 of 100 keep.
    wary = replace(POLICY, min_cohort=70)
    wary.check_cohort(PLAN, SEAT, 88)
    with pytest.raises(PolicyError, match="as few as 69"):
        wary.check_cohort(PLAN, SEAT, 86)


def test_a_refusal_passes_from_process_to_process() -> None:
    told = PolicyError("min_cohort", "takes 20 others at least", 12)
    again = pickle.loads(pickle.dumps(told))  # noqa: S301
    assert (again.limit, again.offered, str(again)) == ("min_cohort", 12, str(told))

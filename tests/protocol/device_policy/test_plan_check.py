"""Plans and cohorts that a policy refuses, each by the name of a limit."""

import math
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from protocol.api.messages import SlotAssignment
from protocol.device_policy.cohort_check import check_cohort, check_enrolment
from protocol.device_policy.plan_check import (
    MAX_NOISE_EVENTS,
    check_plan,
    check_spent_epsilon,
    check_spent_noise,
    default_refusals,
    max_copies,
    plan_violations,
)
from protocol.device_policy.policy import Policy, PolicyError
from protocol.device_policy.sizes_and_losses import noise_events, noisy_counts, upload_bytes
from protocol.domains.hashed import Hashed
from protocol.domains.strings import Alphabet, Utf8
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.mechanisms.registry import MECHANISMS, AnyPlan, parse_plan, parse_question
from protocol.mechanisms.tracked.plan import TrackedQuestion
from protocol.privacy.noise_loss import CountNoise, noise_epsilon
from protocol.privacy.parameters_for_budget import min_variance
from protocol.question_and_plan import Terms
from secagg.errors import UnsafeRequestError
from secagg.keys import Identity
from secagg.messages import KeyShares, MaskedInput
from secagg.parameters import choose_parameters
from secagg.shares import SHARE_PAIR_BYTES, unpack_share_pairs
from tests.support.policies import refused_for, trusting_policy

STUDY = "study-1"
TERMS = Terms(cohort_size=100, minimum=80, corrupt=0.1, dropout=0.2)
QUESTION = AdaptiveIbltQuestion(
    threshold=10, contribution=20, domain=Utf8(max_bytes=12), message_bytes=8384
)
PLAN: AnyPlan = MECHANISMS["adaptive-iblt"].first_plan(QUESTION, TERMS, STUDY, 9, Random(1))
POLICY = trusting_policy(max_contribution=20, min_cohort=64)  # 64 of 80 are the quorum
ASSIGNMENT = SlotAssignment.model_validate(
    {"participant": "p", "cohort": 0, "slot": 3, "deadline": "2030-01-01T00:00:00Z"}
)


def plan(**terms: object) -> AnyPlan:
    changed = Terms.model_validate(TERMS.model_dump() | terms)
    return PLAN.model_copy(update={"terms": changed})


def test_epsilon_may_be_spent_to_the_last_digit() -> None:
    check_spent_epsilon(Policy(), spent=3.0, epsilon=1.0)
    with pytest.raises(PolicyError, match=r"asks for epsilon 1\.5, and 1 is left") as refused:
        check_spent_epsilon(Policy(), spent=3.0, epsilon=1.5)
    assert refused.value.needed == 4.5
    with pytest.raises(PolicyError, match="asks for epsilon 1, and 0 is left"):
        check_spent_epsilon(Policy(), spent=5.0, epsilon=1.0)


def test_a_plan_within_the_policy_is_taken() -> None:
    check_plan(POLICY, PLAN, STUDY, 1)
    for n in (80, 100):
        check_cohort(POLICY, PLAN, ASSIGNMENT, n)


@pytest.mark.parametrize(
    ("policy", "limit"),
    [
        (replace(POLICY, max_contribution=19), "max_contribution"),
        (replace(POLICY, min_cohort=65), "min_cohort"),
        (replace(POLICY, min_corrupt=0.11), "min_corrupt"),
        (replace(POLICY, max_upload_bytes=3000), "max_upload_bytes"),
        (replace(POLICY, registrar=bytes(32)), "registrar"),
    ],
)
def test_a_plan_beyond_a_limit_is_refused_by_the_limits_name(policy: Policy, limit: str) -> None:
    with pytest.raises(PolicyError, match=limit) as refused:
        check_plan(policy, PLAN, STUDY, 1)
    assert refused.value.limit == limit
    assert isinstance(refused.value, UnsafeRequestError)


def test_every_exceeded_limit_is_reported_with_a_sufficient_value() -> None:
    wary = replace(POLICY, max_contribution=19, min_cohort=65, min_corrupt=0.11)
    violations = list(plan_violations(wary, PLAN, STUDY, 1))
    needed = {error.limit: error.needed for error in violations}
    assert needed == {"min_cohort": 64, "min_corrupt": 0.1, "max_contribution": 20}
    check_plan(replace(wary, **needed), PLAN, STUDY, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("study", "number"), [("study-2", 1), (STUDY, 2)])
def test_the_plan_of_another_round_or_study_is_refused(study: str, number: int) -> None:
    with refused_for("plan"):
        check_plan(POLICY, PLAN, study, number)


def test_a_device_gives_once_per_study() -> None:
    check_plan(POLICY, PLAN, STUDY, 1, rounds_by_study={"another study": {1}})
    with refused_for("once per study", "second contribution"):
        check_plan(POLICY, PLAN, STUDY, 1, rounds_by_study={STUDY: {2}})


REGISTRAR, SECOND_REGISTRAR = Identity.of(bytes(range(32))), Identity.of(bytes(range(1, 33)))


@pytest.mark.parametrize("named", [None, SECOND_REGISTRAR.public.hex()])
def test_a_pinned_registrar_and_no_other_is_taken(named: str | None) -> None:
    pinned = replace(POLICY, registrar=REGISTRAR.public)
    check_plan(pinned, plan(registrar=REGISTRAR.public.hex()), STUDY, 1)
    with refused_for("registrar"):
        check_plan(pinned, plan(registrar=named), STUDY, 1)


@pytest.mark.parametrize("named", [None, REGISTRAR.public.hex()])
def test_by_default_a_registrar_that_only_the_server_names_is_refused(named: str | None) -> None:
    strict = Policy(min_cohort=64)
    with refused_for("trust_server_identities", "or trust the server"):
        check_plan(strict, plan(registrar=named), STUDY, 1)
    check_plan(replace(strict, trust_server_identities=True), plan(registrar=named), STUDY, 1)
    pinned = replace(strict, registrar=REGISTRAR.public)
    check_plan(pinned, plan(registrar=REGISTRAR.public.hex()), STUDY, 1)


def test_by_default_a_device_accepts_the_default_terms_and_no_less_corruption() -> None:
    terms = Terms(cohort_size=100, minimum=80)
    strict = Policy(registrar=REGISTRAR.public)
    check_plan(strict, plan(registrar=REGISTRAR.public.hex(), corrupt=terms.corrupt), STUDY, 1)
    assert strict.min_corrupt == terms.corrupt


def test_the_registrar_of_a_plan_must_have_enrolled_the_device_itself_for_this_study() -> None:
    me, asked = Identity.of(bytes(32)), plan(registrar=REGISTRAR.public.hex())
    assert asked.registry is not None
    mine = asked.registry.enrolment_statement(me.public)
    check_enrolment(asked, me, REGISTRAR.sign(mine))
    check_enrolment(PLAN, me, b"")  # nobody is enrolled here
    elsewhere = asked.model_copy(update={"study": "study-2"}).registry
    assert elsewhere is not None
    other = REGISTRAR.sign(elsewhere.enrolment_statement(me.public))
    for wrong in (b"", SECOND_REGISTRAR.sign(mine), other):
        with pytest.raises(PolicyError, match="did not enrol this device"):
            check_enrolment(asked, me, wrong)


LEVELS = 10
SEVERAL_ROUNDS = trusting_policy(min_cohort=64)


def trie(levels: int = LEVELS, **own: object) -> AnyPlan:
    """Return the first plan of a trie whose devices take part in each of its rounds."""
    domain = Alphabet(characters="abcd", length=LEVELS)
    asked = {"mechanism": "triehh", "threshold": 9, "contribution": 1, "domain": domain}
    question = parse_question(
        asked | {"message_bytes": 8384, "epsilon": 1.0, "delta": 1e-6, "mode": "noise"} | own
    )
    return MECHANISMS["triehh"].first_plan(question, TERMS, STUDY, levels, Random(1))


def test_a_device_that_is_asked_again_contributes_once_per_round_in_some_rounds() -> None:
    asked = trie().model_copy(update={"round": 4})
    check_plan(SEVERAL_ROUNDS, asked, STUDY, 4, rounds_by_study={STUDY: {1, 2, 3}, "another": {4}})
    with refused_for("once per round", "second contribution to round 4"):
        check_plan(SEVERAL_ROUNDS, asked, STUDY, 4, rounds_by_study={STUDY: {1, 4}})
    three = replace(SEVERAL_ROUNDS, max_rounds=3)
    check_plan(three, asked, STUDY, 4, rounds_by_study={STUDY: {1, 2}})
    with refused_for("max_rounds", "more than 3 rounds"):
        check_plan(three, asked, STUDY, 4, rounds_by_study={STUDY: {1, 2, 3}})


def test_a_device_joins_repeated_sums_without_noise_only_if_its_policy_allows_it() -> None:
    asked = trie(mode="sample-threshold")
    with refused_for("repeat_exact", "adds no noise"):
        check_plan(SEVERAL_ROUNDS, asked, STUDY, 1)
    check_plan(replace(SEVERAL_ROUNDS, repeat_exact=True), asked, STUDY, 1)


def with_noise(variance: float, rounds: int = LEVELS, **own: object) -> AnyPlan:
    plan = trie(**own)
    release = plan.release.model_copy(update={"variance": variance})
    return plan.model_copy(update={"release": release, "rounds": rounds})


def variance_for(counts: int) -> float:
    """Return the smallest variance with which this number of counts keeps epsilon 4."""
    return min_variance(SEVERAL_ROUNDS.max_epsilon, SEVERAL_ROUNDS.max_delta, counts)


@pytest.mark.parametrize(("contribution", "rounds"), [(1, 10), (1, 20), (3, 10)])
def test_noise_must_hide_a_device_in_all_rounds_at_once(contribution: int, rounds: int) -> None:
    minimum = variance_for(contribution * rounds)
    check_plan(SEVERAL_ROUNDS, with_noise(minimum, rounds, contribution=contribution), STUDY, 1)
    short = with_noise(minimum * 0.999, rounds, contribution=contribution)
    reason = r"adds noise for epsilon 4[.0-9]* at delta 1e-05, above 4 "
    with pytest.raises(PolicyError, match=reason) as refused:
        check_plan(SEVERAL_ROUNDS, short, STUDY, 1)
    assert refused.value.limit == "max_epsilon"
    assert isinstance(refused.value.needed, float)
    assert 4 < refused.value.needed <= 4.1
    check_plan(replace(SEVERAL_ROUNDS, max_epsilon=refused.value.needed), short, STUDY, 1)
    with pytest.raises(PolicyError, match="max_epsilon"):
        check_plan(replace(SEVERAL_ROUNDS, max_delta=1e-6), short, STUDY, 1)


def test_a_secret_coin_for_a_vote_hides_the_device_as_the_ledger_counts_it() -> None:
    asked = trie(mode="both", epsilon=4.0, delta=1e-5)
    check_plan(SEVERAL_ROUNDS, asked, STUDY, 1)
    without = asked.release.model_copy(update={"probability": 1.0})
    with refused_for("max_epsilon"):
        check_plan(SEVERAL_ROUNDS, asked.model_copy(update={"release": without}), STUDY, 1)


def test_a_coin_that_the_server_sees_hides_nothing() -> None:
    asked = trie(mode="both", epsilon=4.0, delta=1e-5, probability=0.25)
    joined = asked.question.model_copy(update={"join_probability": 0.3})
    with refused_for("max_epsilon"):
        check_plan(SEVERAL_ROUNDS, asked.model_copy(update={"question": joined}), STUDY, 1)


def test_a_server_that_announces_fewer_rounds_than_it_asks_for_gets_no_more() -> None:
    noise = variance_for(1)
    asked = with_noise(noise, rounds=1)
    check_plan(SEVERAL_ROUNDS, asked, STUDY, 1)
    fourth = asked.model_copy(update={"round": 4})
    with refused_for("plan", "asks in round 4 of 1"):
        check_plan(SEVERAL_ROUNDS, fourth, STUDY, 4)
    last = with_noise(noise, rounds=4).model_copy(update={"round": 4})
    with refused_for("max_epsilon"):
        check_plan(SEVERAL_ROUNDS, last, STUDY, 4, rounds_by_study={STUDY: {1, 2, 3}})


@pytest.mark.parametrize(("enough_for", "limits"), [(3, ["max_epsilon"]), (4, [])])
def test_the_rounds_that_a_device_gave_count_if_the_plan_announces_fewer(
    enough_for: int, limits: list[str]
) -> None:
    """Round 2 of 2 follows three rounds in which the device has given."""
    asked = with_noise(variance_for(enough_for), rounds=2).model_copy(update={"round": 2})
    violations = plan_violations(SEVERAL_ROUNDS, asked, STUDY, 2, {STUDY: {1, 3, 4}})
    assert [error.limit for error in violations] == limits


def test_noise_that_each_round_promises_of_itself_is_added_up() -> None:
    """Add the noise of j rounds in round j, and call each round the last."""
    spent, rounds = Counter[CountNoise](), set[int]()
    for number in (1, 2):
        asked = with_noise(variance_for(number), rounds=number)
        asked = asked.model_copy(update={"round": number})
        check_plan(SEVERAL_ROUNDS, asked, STUDY, number, rounds_by_study={STUDY: rounds})
        if number == 1:
            check_spent_noise(SEVERAL_ROUNDS, asked, spent)
        else:
            with pytest.raises(PolicyError, match=r"adds noise for epsilon 5\.\d+ at delta 1e-05"):
                check_spent_noise(SEVERAL_ROUNDS, asked, spent)
        spent += noisy_counts(asked)
        rounds.add(number)


def test_a_study_that_had_a_vector_without_noise_has_no_second() -> None:
    check_spent_noise(SEVERAL_ROUNDS, PLAN, {})
    without = noisy_counts(PLAN)
    assert noise_epsilon(without, 1e-5) == math.inf
    with pytest.raises(PolicyError, match="max_epsilon"):
        check_spent_noise(SEVERAL_ROUNDS, trie(), without)
    check_spent_noise(replace(SEVERAL_ROUNDS, repeat_exact=True), trie(), without)


def test_rounds_that_keep_what_the_first_announced_are_all_taken() -> None:
    asked, spent = with_noise(variance_for(LEVELS)), Counter[CountNoise]()
    for _ in range(LEVELS):
        check_spent_noise(SEVERAL_ROUNDS, asked, spent)
        spent += noisy_counts(asked)
    with refused_for("max_epsilon"):
        check_spent_noise(SEVERAL_ROUNDS, asked, spent)


@pytest.mark.parametrize(("policy", "delta"), [(Policy(), 1e-5), (Policy(max_delta=1e-6), 1e-6)])
def test_reports_whose_delta_is_too_large_are_refused(policy: Policy, delta: float) -> None:
    def asked(delta: float) -> AnyPlan:
        question = parse_question(
            {"mechanism": "jl-hh", "threshold": 9, "epsilon": 1.0, "rows": 9}
            | {"domain": Utf8(max_bytes=2), "noise": "laplace", "delta": delta}
        )
        return MECHANISMS["jl-hh"].first_plan(question, TERMS, STUDY, 1, Random(1))

    check_plan(policy, asked(delta), STUDY, 1)
    with refused_for("max_delta", "asks for delta"):
        check_plan(policy, asked(1.01 * delta), STUDY, 1)


def test_a_threshold_of_exact_sums_is_not_below_the_policys() -> None:
    def asked(threshold: float, **more: Any) -> AnyPlan:
        fields = {"mechanism": "adaptive-iblt", "contribution": 1, "message_bytes": 135_456}
        document = fields | {"threshold": threshold, "domain": Utf8(max_bytes=2)} | more
        question = parse_question(document)
        return MECHANISMS[question.mechanism].first_plan(question, TERMS, STUDY, 1, Random(1))

    check_plan(POLICY, asked(5), STUDY, 1)
    with pytest.raises(PolicyError, match=r"held 4\.9 times, below 5") as refused:
        check_plan(POLICY, asked(4.9), STUDY, 1)
    assert (refused.value.limit, refused.value.needed) == ("min_threshold", 4.9)
    noisy = {"mechanism": "triehh", "epsilon": 1.0, "delta": 1e-6, "every_round": False}
    check_plan(POLICY, asked(1, **noisy), STUDY, 1)  # noise or theta hides rare items


@pytest.mark.parametrize(
    ("own", "limit"),
    [
        ({"mode": "noise", "epsilon": 9.0, "delta": 0.5}, "max_epsilon"),
        ({"mode": "sample-threshold", "delta": 1e-4}, "max_delta"),
        ({"mode": "sample-threshold"}, ""),
        ({"mode": "noise", "epsilon": 1.0}, ""),
    ],
)
def test_a_release_is_taken_only_if_its_noise_or_its_theta_hides_rare_items(
    own: dict[str, Any], limit: str
) -> None:
    release = {"epsilon": 4.0, "delta": 1e-6, "every_round": False, "threshold": 1.0} | own
    asked = trie(**release)
    refusals = plan_violations(POLICY, asked, STUDY, 1)
    assert [error.limit for error in refusals] == [limit][: bool(limit)]


def test_a_release_by_coins_needs_a_theta_that_is_not_below_the_policys_threshold() -> None:
    asked = trie(mode="sample-threshold", every_round=False)
    for theta, expected in ((5, []), (4, ["min_threshold"])):
        release = asked.release.model_copy(update={"threshold": theta})
        changed = asked.model_copy(update={"release": release})
        assert [error.limit for error in plan_violations(POLICY, changed, STUDY, 1)] == expected


@pytest.mark.parametrize("confidence", [0.499, 1e-15])
def test_a_plan_that_reports_estimates_below_its_threshold_is_refused(confidence: float) -> None:
    question = QUESTION.model_copy(update={"confidence": confidence})
    with refused_for("confidence"):
        check_plan(POLICY, PLAN.model_copy(update={"question": question}), STUDY, 1)


@pytest.mark.parametrize("mechanism", ["subsampled-iblt", "approximate-histogram"])
def test_a_rule_that_reports_items_of_any_count_is_refused(mechanism: str) -> None:
    """The proof's rule reports what half of the tables list, so two tables show single devices."""

    def asked(**own: object) -> AnyPlan:
        fields = {"mechanism": mechanism, "threshold": 5, "contribution": 1}
        fields |= {"message_bytes": 135_456}
        question = parse_question(fields | {"domain": Utf8(max_bytes=2)} | own)
        return MECHANISMS[mechanism].first_plan(question, TERMS, STUDY, 1, Random(1))

    check_plan(POLICY, asked(), STUDY, 1)
    with refused_for("min_threshold", "items held 1 times"):
        check_plan(POLICY, asked(rule="theorem", repetitions=2), STUDY, 1)


def test_a_device_counts_an_item_once_unless_its_policy_is_for_trials() -> None:
    question = QUESTION.model_copy(update={"threshold": 1000})
    for plan in (PLAN.model_copy(update={"question": question}), trie(contribution=3)):
        assert [max_copies(replace(POLICY, min_threshold=n), plan) for n in (5, 1)] == [1, 1]
        assert max_copies(replace(POLICY, min_threshold=0), plan) == plan.question.contribution


def test_a_plan_that_no_honest_study_has_is_refused() -> None:
    domain = Hashed(max_bytes=60)
    question = TrackedQuestion(threshold=50, contribution=3, domain=domain, message_bytes=12_384)
    first = MECHANISMS["tracked"].first_plan(question, TERMS, STUDY, 9, Random(1))
    check_plan(POLICY, first, STUDY, 1)
    name = domain.name("an item that one device holds")
    groups = [{"bits": 8, "items": [name]}]
    fetch = {"counter_groups": groups, "string_pieces": [(0, 0, 9)], "cells": 60}
    with pytest.raises(PolicyError, match="no honest study has: it tracks items in the first"):
        check_plan(POLICY, parse_plan(first.model_dump() | fetch), STUDY, 1)
    # The counts that justify a fetch are the server's word.
    check_plan(POLICY, parse_plan(first.model_dump() | fetch | {"round": 2}), STUDY, 2)


def test_a_vector_of_many_small_elements_is_refused() -> None:
    question = TrackedQuestion(
        threshold=50, contribution=3, domain=Utf8(max_bytes=3), message_bytes=69_920
    )
    first = MECHANISMS["tracked"].first_plan(question, TERMS, STUDY, 9, Random(1))
    items = [f"{number:03x}" for number in range(16**3)]
    counters = {"counter_groups": [{"bits": 1, "items": items}], "cells": 60, "round": 2}
    plan = parse_plan(first.model_dump() | counters)
    policy = replace(POLICY, max_upload_bytes=upload_bytes(plan))
    with pytest.raises(PolicyError, match="elements of few bits") as refused:
        check_plan(policy, plan, STUDY, 2)
    elements = sum(lane.length for lane in MECHANISMS["tracked"].ring(plan).lanes)
    assert refused.value.needed == 2 * elements
    check_plan(replace(POLICY, max_upload_bytes=2 * elements), plan, STUDY, 2)


def test_noise_that_takes_long_to_draw_is_refused() -> None:
    variance = MAX_NOISE_EVENTS / noise_events(with_noise(1.0))
    check_plan(SEVERAL_ROUNDS, with_noise(0.99 * variance), STUDY, 1)
    with refused_for("noise", "random events, above 4,194,304"):
        check_plan(SEVERAL_ROUNDS, with_noise(1.01 * variance), STUDY, 1)


def test_key_shares_and_vector_count_as_upload() -> None:
    holders = choose_parameters(100, TERMS.assumptions).holders
    pairs = unpack_share_pairs(bytes(SHARE_PAIR_BYTES * holders))
    shares = KeyShares(bytes(32), bytes(32), bytes(32), pairs, bytes(64)).pack()
    vector = bytes(MECHANISMS["adaptive-iblt"].ring(PLAN).nbytes)
    exactly = len(shares) + len(MaskedInput(vector, bytes(64)).pack())
    assert upload_bytes(PLAN) == exactly
    check_plan(replace(POLICY, max_upload_bytes=exactly), PLAN, STUDY, 1)
    with pytest.raises(PolicyError, match=f"{exactly} bytes"):
        check_plan(replace(POLICY, max_upload_bytes=exactly - 1), PLAN, STUDY, 1)


@pytest.mark.parametrize(
    ("n", "slot", "cohort", "limit"),
    [
        (79, 3, 0, "terms"),  # fewer than the plan's minimum
        (101, 3, 0, "terms"),  # more than the plan's ring was made for
        (90, 90, 0, "slot"),  # no slot of this cohort
        (90, -1, 0, "slot"),
        (90, 3, 1, "slot"),  # no cohort of this round
        (90, 3, -1, "slot"),
        (90, None, 0, "slot"),  # half an assignment
        (90, 3, None, "slot"),
    ],
)
def test_a_cohort_against_the_plan_is_refused(
    n: int, slot: int | None, cohort: int | None, limit: str
) -> None:
    assignment = ASSIGNMENT.model_copy(update={"slot": slot, "cohort": cohort})
    with refused_for(limit):
        check_cohort(POLICY, PLAN, assignment, n)


def test_a_cohort_that_may_keep_too_few_is_refused() -> None:
    # A minimum of 80 may keep 64; this device wants 70, which 88 of 100 keep.
    wary = replace(POLICY, min_cohort=70)
    check_cohort(wary, PLAN, ASSIGNMENT, 88)
    with pytest.raises(PolicyError, match="as few as 69"):
        check_cohort(wary, PLAN, ASSIGNMENT, 86)


SUM: dict[str, Any] = {
    "mechanism": "adaptive-iblt", "threshold": 200, "contribution": 1, "message_bytes": 8384,
    "domain": {"kind": "utf8", "max_bytes": 12},
}  # fmt: skip
REPORT: dict[str, Any] = {
    "mechanism": "krr", "threshold": 20, "contribution": 1,
    "domain": {"kind": "listed", "items": ["a", "b"]},
}  # fmt: skip
SKETCH: dict[str, Any] = {
    "mechanism": "count-sketch", "threshold": 100, "contribution": 1, "message_bytes": 44_384,
    "domain": {"kind": "utf8", "max_bytes": 2},
}  # fmt: skip
INTERVAL = {"kind": "interval", "low": 0, "high": 100, "alpha": 10, "length": 2}
TRIE = SKETCH | {"mechanism": "triehh", "epsilon": 1, "delta": 1e-6}
OPERATORS = [Identity.of(bytes([number]) * 32).public.hex() for number in range(1, 11)]
FOUR_OPERATORS = {"members": OPERATORS[:4], "corrupt": 0.25}
TEN_OPERATORS = {"members": OPERATORS, "corrupt": 0.1}


@pytest.mark.parametrize(
    ("question", "terms", "limit"),
    [
        (SUM, {}, None),
        (SUM, {"registrar": None}, "trust_server_identities"),
        (SUM | {"threshold": 4}, {}, "min_threshold"),
        (SUM | {"contribution": 101}, {}, "max_contribution"),
        (SUM, {"minimum": 61}, "min_cohort"),
        (SUM, {"minimum": 62}, None),
        (SUM, {"corrupt": 0.05}, "min_corrupt"),
        (SUM, {"sigma": 39}, "min_sigma"),
        (SUM | {"message_bytes": 4_204_384}, {}, "max_upload_bytes"),
        (SKETCH, {}, "accept_exact_estimates"),
        (SKETCH | {"mechanism": "count-median"}, {}, "accept_exact_estimates"),
        (SKETCH | {"mechanism": "approximate-histogram"}, {}, "accept_exact_estimates"),
        (SKETCH | {"mechanism": "number-sums", "domain": INTERVAL}, {}, "accept_exact_estimates"),
        (SKETCH | {"epsilon": 30, "delta": 1e-6}, {}, "max_epsilon"),
        (SKETCH | {"epsilon": 2, "delta": 1e-6}, {}, None),
        (TRIE | {"mode": "sample-threshold"}, {}, "repeat_exact"),  # in every round
        (TRIE | {"mode": "noise"}, {}, None),
        (TRIE | {"mode": "noise", "epsilon": 30}, {}, "max_epsilon"),
        (SUM, {"sum": "one-shot", "committee": {"members": OPERATORS[:7]}}, None),
        (SUM, {"sum": "one-shot", "committee": FOUR_OPERATORS}, "min_committee"),
        (SUM, {"sum": "one-shot", "committee": TEN_OPERATORS}, "min_committee_corrupt"),
        (REPORT | {"epsilon": 4}, {"minimum": 3, "sigma": 30}, None),
        (REPORT | {"epsilon": 4.5}, {}, "max_epsilon"),
    ],
)
def test_studies_that_devices_refuse_by_default_are_known_when_they_are_created(
    question: dict[str, Any], terms: dict[str, Any], limit: str | None
) -> None:
    registrar = Identity.of(bytes(32)).public.hex()
    made_terms = Terms.model_validate(TERMS.model_dump() | {"registrar": registrar} | terms)
    asked = parse_question(question)
    made = MECHANISMS[asked.mechanism].first_plan(asked, made_terms, STUDY, 1, Random(1))
    assert [each.limit for each in default_refusals(made)] == ([limit] if limit else [])
    if limit == "accept_exact_estimates":
        accepting = trusting_policy(accept_exact_estimates=True)
        assert limit not in [each.limit for each in plan_violations(accepting, made, STUDY, 1)]

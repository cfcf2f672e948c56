"""The laws that every mechanism of reports keeps. A new one adds an example here, and is done.

shape       a report has the plan's bytes, also that of a device without an item
chance      comes from the argument, and from nothing else
order       of devices and of batches is irrelevant
plan        comes back from JSON, with the same digest; each round's seed is fresh
refusals    what cannot be a report of this plan, and more than one item, or a foreign one
claims      estimates from the sent bytes are unbiased, with the reported variance
intervals   hold the truth with their level, for frequent and for rare items
nothing     devices without an item add to no item
privacy     the bytes distinguish an item from another, and from none, by no more than is charged
rounds      a study's estimates are of the devices of all its rounds
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from protocol.histograms import Histogram
from protocol.mechanism import Answer
from protocol.mechanisms.registry import REPORT_MECHANISMS, AnyPlan, AnyQuestion, parse_question
from protocol.mechanisms.reports.dictionary import DictionaryMechanismName
from protocol.numerics.array_types import PackedReports
from protocol.question_and_plan import Terms
from protocol.randomness import seeded_words, system_words
from protocol.reference_mechanisms.dictionary import ReferenceOracleName
from protocol.report_mechanism import ReportMechanism, ReportPlan, ReportQuestion
from protocol.study_state import EMPTY_STATE
from tests.protocol.chance import seeded
from tests.support.report_audit import compare_reports

TERMS = Terms(cohort_size=1000, minimum=5)
ITEMS = [f"{number:02}" for number in range(50)]
LIST = {"kind": "listed", "items": ITEMS}
TEXT = {"kind": "utf8", "max_bytes": 2}
HISTOGRAMS: list[Histogram] = [{"07": 1}] * 75 + [{"11": 1}] * 8 + [{}] * 17  # by a round's devices


@dataclass(frozen=True)
class Example:
    """A question whose answer surely has the item that most of `size` times `HISTOGRAMS` hold.

    `runs` is the number of rounds that estimate bias and variance.
    """

    own: dict[str, Any]
    size: int = 1
    runs: int = 200

    @property
    def held(self) -> list[Histogram]:
        return HISTOGRAMS * self.size

    @property
    def question(self) -> ReportQuestion:
        question = parse_question({"threshold": 20, "domain": LIST} | self.own)
        assert isinstance(question, ReportQuestion)
        return question

    @property
    def mechanism(self) -> ReportMechanism[Any, Any, Any]:
        return REPORT_MECHANISMS[self.question.mechanism]

    def plan(self, seed: int = 0) -> Any:
        return self.mechanism.first_plan(self.question, TERMS, "laws", 3, random.Random(seed))

    def encode(self, plan: ReportPlan, held: Iterable[Histogram], seed: int = 0) -> PackedReports:
        return self.mechanism.encode(plan, held, seeded(seed))

    def read(self, plan: ReportPlan, *batches: PackedReports) -> Answer:
        aggregate = None
        for batch in batches:
            some = self.mechanism.aggregate(plan, batch)
            aggregate = some if aggregate is None else aggregate + some
        return self.mechanism.decode(plan, aggregate, EMPTY_STATE)


def oracle(name: str, *, runs: int = 200, **own: Any) -> Example:
    return Example({"mechanism": name, "epsilon": 3.0} | own, 1, runs)


def linear(name: str, noise: str, *, size: int = 1, runs: int = 100, **own: Any) -> Example:
    delta = 0 if noise in ("sampled", "pure") else 1e-6
    asked = {"mechanism": name, "noise": noise, "delta": delta, "epsilon": 32.0}
    return Example(asked | own, size, runs)


def prefixes(max_bytes: int, size: int, **own: Any) -> Example:
    asked = {"mechanism": "prefix-extension", "start": 8, "candidates_per_length": 4}
    return Example(asked | {"domain": TEXT | {"max_bytes": max_bytes}} | own, size, 100)


EXAMPLES = {
    "krr": oracle("krr"),
    "ocms": oracle("ocms", goal="worst-mse"),
    "ocms-gf": oracle("ocms-gf"),
    "ocms-mixture": oracle("ocms-mixture", epsilon=2.0),
    "hadamard": oracle("hadamard", epsilon=1.0),
    "recursive-hadamard": oracle("recursive-hadamard"),
    "olh": oracle("olh"),
    "apple-cms": oracle("apple-cms", runs=40),
    "subset-selection": oracle("subset-selection"),
    "rappor": oracle("rappor", epsilon=1.0),
    "jl-hh, sampled": linear("jl-hh", "sampled", rows=64),
    "jl-hh, paper": linear("jl-hh", "paper", rows=64),
    "glps-hh, laplace": linear("glps-hh", "laplace", size=4, repetitions=1, buckets=3, domain=TEXT),
    "bucket-hh, pure": linear("bucket-hh", "pure", beta=0.9),
    "bucket-hh, gaussian": linear(
        "bucket-hh", "gaussian", size=12, runs=60, beta=0.9, epsilon=9.0, relation="add-remove"
    ),
    "prefix-extension": prefixes(3, 12, epsilon=4.0, hashed_bits=20),
    "prefix-extension over ocms-gf": prefixes(2, 4, epsilon=3.0, oracle="ocms-gf", hashed_bits=16),
}
LOCAL_NAMES = get_args(DictionaryMechanismName) + get_args(ReferenceOracleName)
every = pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)


def test_every_mechanism_has_an_example() -> None:
    assert {example.question.mechanism for example in EXAMPLES.values()} == set(REPORT_MECHANISMS)


@every
def test_a_report_has_the_plans_bytes_for_every_item(example: Example) -> None:
    plan = example.plan()
    reports = example.encode(plan, [{}, {"07": 1}, {}, {"49": 1}])
    assert (reports.dtype, reports.shape) == (np.uint8, (4, example.mechanism.nbytes(plan)))
    example.mechanism.check(plan, reports)
    for each in reports:
        example.mechanism.check(plan, each.reshape(1, -1))


@every
def test_chance_comes_from_the_argument_only(example: Example) -> None:
    plan, outside = example.plan(), (random.getstate(), np.random.get_state()[1].tolist())
    each, other = (example.encode(plan, HISTOGRAMS, seed=7) for _ in range(2))
    assert (each == other).all()
    assert outside == (random.getstate(), np.random.get_state()[1].tolist())
    assert (each != example.encode(plan, HISTOGRAMS, seed=8)).any()


@every
def test_the_order_of_devices_and_batches_is_irrelevant(example: Example) -> None:
    plan = example.plan()
    reports = example.encode(plan, example.held)
    answer = example.read(plan, reports)
    assert answer.decoded
    shuffled = reports[np.random.default_rng(1).permutation(len(reports))]
    parts = shuffled[:1], shuffled[1:99], shuffled[99:]
    again = example.read(plan, *parts)
    assert (again.estimates, again.distinct) == (answer.estimates, answer.distinct)
    conclude, question = example.mechanism.final_estimates, example.question
    assert conclude(question, again.state) == conclude(question, answer.state)


@every
def test_a_question_and_its_plans_come_back_from_json(example: Example) -> None:
    questions: TypeAdapter[Any] = TypeAdapter(AnyQuestion)
    plans: TypeAdapter[Any] = TypeAdapter(AnyPlan)
    assert questions.validate_json(example.question.model_dump_json()) == example.question
    plan, seeds = example.plan(), set()
    reports = example.encode(plan, HISTOGRAMS)
    for number in range(1, 4):
        again = plans.validate_json(plan.model_dump_json())
        assert again == plan
        assert again.digest() == plan.digest()
        assert again.round == number
        assert (example.encode(again, HISTOGRAMS) == reports).all()  # the seed is not what hashes
        seeds.add(plan.seed)
        plan = example.mechanism.next_plan(plan, None, EMPTY_STATE, random.Random(number))
    assert len(seeds) == 3


@every
def test_a_plan_has_no_field_that_nobody_knows_and_none_of_another(example: Example) -> None:
    plans: TypeAdapter[Any] = TypeAdapter(AnyPlan)
    plain = example.plan().model_dump()
    with pytest.raises(ValidationError):
        plans.validate_python({**plain, "more": 1})
    for other in sorted(set(REPORT_MECHANISMS) - {example.question.mechanism}):
        with pytest.raises(ValidationError):
            plans.validate_python({**plain, "mechanism": other})


@every
def test_an_impossible_report_is_refused(example: Example) -> None:
    plan, mechanism = example.plan(), example.mechanism
    width = mechanism.nbytes(plan)
    wrong = [np.zeros((1, n), np.uint8) for n in (0, width - 1, width + 1)]
    for reports in (*wrong, np.zeros((1, width)), np.full((1, width), 255, np.uint8)):
        for refuse in (mechanism.check, mechanism.aggregate):
            with pytest.raises(ValueError):
                refuse(plan, reports)


@every
@pytest.mark.parametrize(
    ("held", "why"),
    [
        ({"07": 2}, "at most 1 items"),
        ({"07": 1, "11": 1}, "at most 1 items"),
        ({"07": 0}, "1 or more"),
        ({"seven": 1}, "'seven'"),
    ],
)
def test_more_than_one_item_or_a_foreign_one_is_refused(
    example: Example, held: Histogram, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        example.encode(example.plan(), [{}, held])


@every
def test_estimates_are_unbiased_with_the_reported_variance_and_intervals(example: Example) -> None:
    """Over many rounds; each bound is 4.5 standard errors wide: probability 2e-5 per example.

    Public hash functions are drawn again in each round, since the variance covers their
    randomness. The tests of the oracles show that their own variances are right within a few
    percent.
    """
    rng, held = np.random.default_rng(5), example.held
    true = sum("07" in each for each in held)
    counts, reported = np.zeros(example.runs), np.zeros(example.runs)
    plan = example.plan()
    for run in range(example.runs):
        if "hash_seed" in type(plan).model_fields:
            plan = type(plan).model_validate(plan.model_dump() | {"hash_seed": rng.bytes(32).hex()})
        reports = example.mechanism.encode(plan, held, seeded_words(rng))
        by_item = {each.item: each for each in example.read(plan, reports).estimates}
        counts[run], reported[run] = by_item["07"].count, by_item["07"].variance
    assert abs(counts.mean() - true) < 4.5 * (reported.mean() / example.runs) ** 0.5
    error = 4.5 * (2 / example.runs) ** 0.5
    ratio = counts.var(ddof=1) / reported.mean()
    assert 1 - error < ratio < 1 + error
    low, high = example.mechanism.confidence_interval(counts, reported)  # as the service has it
    covered = ((low <= true) & (true <= high)).mean()
    assert abs(covered - 0.95) < 4.5 * (0.95 * 0.05 / example.runs) ** 0.5


@pytest.mark.parametrize("name", sorted(LOCAL_NAMES))
def test_intervals_of_rare_items_reach_below_nothing_and_cover(name: str) -> None:
    """Fifty items, 48 of them without a holder, in 20 rounds (or 5) of 2,000 devices.

    The standard error of 1,000 intervals is 0.7%, except for the common part of one round.
    """
    example, held = EXAMPLES[name], HISTOGRAMS * 20
    runs = 20 if name != "apple-cms" else 5  # which transforms 2,000 rows per round
    plan, rng = example.plan(), np.random.default_rng(6)
    true = np.array([sum(item in each for each in held) for item in ITEMS])
    covered, below = np.zeros(len(ITEMS)), 0
    for _ in range(runs):
        reports = example.mechanism.encode(plan, held, seeded_words(rng))
        state = example.read(plan, reports).state
        low, high = example.mechanism.confidence_interval(
            state.arrays["scores"], state.arrays["variances"]
        )
        covered += (low <= true) & (true <= high)
        below += int((low < 0).sum())
    assert covered.mean() / runs == pytest.approx(0.95, abs=0.025)
    assert below > 30 * runs


@every
def test_devices_without_an_item_add_to_no_item(example: Example) -> None:
    """None of 50 items exceeds 5 standard deviations: probability 3e-5 that one does."""
    plan = example.plan()
    answer = example.read(plan, example.encode(plan, [{}] * 1000, seed=3))
    assert all(each.count < 5 * each.variance**0.5 for each in answer.estimates)
    assert all(each.item in example.question.domain for each in answer.estimates)


@every
def test_the_bytes_reveal_no_more_than_is_charged(example: Example) -> None:
    """Two items, and one and none; each bound is too high with probability 1e-7.

    The coins are those of devices, so that each run has others.
    """
    plan = example.plan()
    charged, delta = example.mechanism.epsilon(plan), example.mechanism.delta(plan)
    assert charged > 0
    assert 0 <= delta < 0.01
    for each, other in (({"07": 1}, {"11": 1}), ({"07": 1}, {})):
        reports = [
            example.mechanism.encode(plan, [held] * 4000, system_words) for held in (each, other)
        ]
        assert compare_reports(*reports, confidence=1 - 2e-7).epsilon_lower_bound <= charged


@every
def test_a_studys_estimates_are_of_all_its_rounds(example: Example) -> None:
    plan, state = example.plan(), EMPTY_STATE
    for number in range(3):
        aggregate = example.mechanism.aggregate(
            plan, example.encode(plan, example.held, seed=number)
        )
        state = example.mechanism.decode(plan, aggregate, state).state
        plan = example.mechanism.next_plan(plan, None, state, random.Random(number))
    state = type(state).unpack(state.pack())
    (first, *_) = example.mechanism.final_estimates(example.question, state)
    assert first.item == "07"
    true = 3 * sum("07" in each for each in example.held)
    assert abs(first.count - true) < 4.5 * first.variance**0.5


# The first halves of plans' digests: devices hash what they read, and reports carry the digest of
# the plan that they are for. A change here is one of the protocol.
DIGESTS = {
    "krr": "7817a8f557242686ceb64473c009cce7",
    "ocms": "6ba9a3c8353f529ba1c4899c701400cc",
    "ocms-gf": "0616c766284cc8997b177467dd7c43a9",
    "ocms-mixture": "b5b0a070965c2cb27ecb78125311289e",
    "hadamard": "7695cf9204c0a4756d965f2e70d64e66",
    "recursive-hadamard": "18d01ea537a836bf1f56e30289beefec",
    "olh": "10a2aa94d2485edd3aadf6b0ab339e3f",
    "apple-cms": "6d330869344c82a24926a57ec2666966",
    "subset-selection": "7aaaf2642671d132b6528b0913894f77",
    "rappor": "295ee782ef27e95063443af514d5f838",
    "jl-hh, sampled": "46141369a38959b83648c3e7dde3380b",
    "glps-hh, laplace": "8e250af5ada236aed784f52bdaa7283a",
    "bucket-hh, pure": "964263140785189c6c15c1a1f7e593fa",
    "prefix-extension": "dca38fbb80180339c0bfe43677862d72",
}


def test_the_digests_of_plans_change_only_with_the_protocol() -> None:
    assert {EXAMPLES[name].question.mechanism for name in DIGESTS} == set(REPORT_MECHANISMS)
    by_item = {name: EXAMPLES[name].plan().digest().hex()[:32] for name in DIGESTS}
    assert by_item == DIGESTS


def test_a_known_bound_on_shares_is_in_the_plan() -> None:
    asked = {"mechanism": "ocms", "goal": "worst-mse", "epsilon": 3.0}
    plain, bounded = Example(asked), Example(asked | {"max_frequency": 0.01})
    assert bounded.plan().question.max_frequency == 0.01
    assert bounded.plan().parameters["m"] > 2 * plain.plan().parameters["m"]
    read = TypeAdapter(AnyPlan).validate_json(bounded.plan().model_dump_json())
    assert read.digest() == bounded.plan().digest() != plain.plan().digest()
    for own in ({"goal": "l2"}, {"mechanism": "hadamard"}):
        with pytest.raises(
            ValueError, match="max_frequency must be 1 except for goal worst-mse of ocms"
        ):
            Example(asked | {"max_frequency": 0.01} | own).plan()
    for most in (0, -1, 1.5, float("nan")):
        with pytest.raises(ValidationError, match="max_frequency"):
            _ = Example(asked | {"max_frequency": most}).question


@pytest.mark.parametrize("epsilon", ["1", True, None, [1.0], 0, 33, float("inf")])
def test_an_epsilon_that_is_not_a_number_in_range_is_refused(epsilon: object) -> None:
    with pytest.raises(ValidationError, match="epsilon"):
        _ = Example({"mechanism": "ocms", "epsilon": epsilon}).question

"""The laws that every mechanism of reports keeps. A new one adds an example here, and is done.

shape       a report has the plan's bytes, also that of a device with nothing to say
chance      comes from the argument, and from nothing else
order       of devices and of batches is irrelevant
plan        comes back from JSON, with the same digest; each round's seed is fresh
refusals    what cannot be a report of this plan, and more than one item, or a foreign one
claims      estimates are unbiased with the variance that is told, through the bytes that travel
intervals   hold the truth as often as they say, of frequent items and of rare ones
nothing     devices with nothing to say add to no item
privacy     the bytes tell an item from another, and from nothing, by no more than is charged
rounds      a study's estimates are of the devices of all its rounds
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from protocol.chance import seeded, system
from protocol.mechanism import Answer, Histogram, Terms
from protocol.mechanisms import REPORTING, AnyPlan, AnyQuestion, parse_question
from protocol.mechanisms.local import Name
from protocol.oracles.audit import compare
from protocol.reporting import Reporting, ReportPlan, ReportQuestion, Reports
from protocol.tally import NOTHING

TERMS = Terms(cohort_size=1000, minimum=5, mode="semi-honest")
ITEMS = [f"{number:02}" for number in range(50)]
LISTED = {"kind": "listed", "items": ITEMS}
TEXT = {"kind": "utf8", "max_bytes": 2}
HELD: list[Histogram] = [{"07": 1}] * 75 + [{"11": 1}] * 8 + [{}] * 17  # by a round's devices


@dataclass(frozen=True)
class Example:
    """A question whose answer surely has the item that most of `size` times `HELD` hold.

    `runs` is how many rounds tell bias and variance.
    """

    own: dict[str, Any]
    size: int = 1
    runs: int = 600

    @property
    def held(self) -> list[Histogram]:
        """Return what a round's devices hold."""
        return HELD * self.size

    @property
    def question(self) -> ReportQuestion:
        """Return the question."""
        question = parse_question({"threshold": 20, "domain": LISTED} | self.own)
        assert isinstance(question, ReportQuestion)
        return question

    @property
    def mechanism(self) -> Reporting[Any, Any, Any]:
        """Return the mechanism that the question asks for."""
        return REPORTING[self.question.mechanism]

    def plan(self, seed: int = 0) -> Any:
        """Return a first plan."""
        return self.mechanism.first_plan(self.question, TERMS, "laws", 3, random.Random(seed))

    def encode(self, plan: ReportPlan, held: Iterable[Histogram], seed: int = 0) -> Reports:
        """Return the reports of what devices `held`, by seeded chance."""
        return self.mechanism.encode(plan, held, seeded(np.random.default_rng(seed)))

    def read(self, plan: ReportPlan, *batches: Reports) -> Answer:
        """Return what the reports say, after nothing."""
        heard = None
        for batch in batches:
            some = self.mechanism.gather(plan, batch)
            heard = some if heard is None else heard + some
        return self.mechanism.decode(plan, heard, NOTHING)


def oracle(name: str, *, runs: int = 600, **own: Any) -> Example:
    return Example({"mechanism": name, "epsilon": 3.0} | own, 1, runs)


def linear(name: str, noise: str, *, size: int = 1, runs: int = 200, **own: Any) -> Example:
    delta = 0 if noise in ("sampled", "pure") else 1e-6
    asked = {"mechanism": name, "noise": noise, "delta": delta, "epsilon": 32.0}
    return Example(asked | own, size, runs)


def prefixes(max_bytes: int, size: int, **own: Any) -> Example:
    domain = {"kind": "utf8", "max_bytes": max_bytes}
    asked = {"mechanism": "prefix-extension", "domain": domain, "start": 8, "keep": 4}
    return Example(asked | own, size, 200)


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
        "bucket-hh", "gaussian", size=12, runs=60, beta=0.9, epsilon=9.0, relation="deletion"
    ),
    "prefix-extension": prefixes(3, 12, epsilon=4.0, hashed_bits=20),
    "prefix-extension over ocms-gf": prefixes(2, 4, epsilon=3.0, oracle="ocms-gf", hashed_bits=16),
}
LOCAL_NAMES = get_args(Name)
every = pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)


def test_every_mechanism_has_an_example() -> None:
    assert {example.question.mechanism for example in EXAMPLES.values()} == set(REPORTING)


@every
def test_a_report_has_the_plans_bytes_whatever_it_is_of(example: Example) -> None:
    plan = example.plan()
    reports = example.encode(plan, [{}, {"07": 1}, {}, {"49": 1}])
    assert (reports.dtype, reports.shape) == (np.uint8, (4, example.mechanism.nbytes(plan)))
    example.mechanism.check(plan, reports)
    for one in reports:
        example.mechanism.check(plan, one.reshape(1, -1))


@every
def test_chance_comes_from_the_argument_only(example: Example) -> None:
    plan, outside = example.plan(), (random.getstate(), np.random.get_state()[1].tolist())
    one, other = (example.encode(plan, HELD, seed=7) for _ in range(2))
    assert (one == other).all()
    assert outside == (random.getstate(), np.random.get_state()[1].tolist())
    assert (one != example.encode(plan, HELD, seed=8)).any()


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
    conclude, question = example.mechanism.conclude, example.question
    assert conclude(question, again.tally) == conclude(question, answer.tally)


@every
def test_a_question_and_its_plans_come_back_from_json(example: Example) -> None:
    questions: TypeAdapter[Any] = TypeAdapter(AnyQuestion)
    plans: TypeAdapter[Any] = TypeAdapter(AnyPlan)
    assert questions.validate_json(example.question.model_dump_json()) == example.question
    plan, seeds = example.plan(), set()
    reports = example.encode(plan, HELD)
    for number in range(1, 4):
        again = plans.validate_json(plan.model_dump_json())
        assert again == plan
        assert again.digest() == plan.digest()
        assert again.round == number
        assert (example.encode(again, HELD) == reports).all()  # the seed is not what hashes
        seeds.add(plan.seed)
        plan = example.mechanism.next_plan(plan, None, NOTHING, random.Random(number))
    assert len(seeds) == 3


@every
def test_a_plan_has_no_field_that_nobody_knows_and_none_of_another(example: Example) -> None:
    plans: TypeAdapter[Any] = TypeAdapter(AnyPlan)
    plain = example.plan().model_dump()
    with pytest.raises(ValidationError):
        plans.validate_python({**plain, "more": 1})
    for other in sorted(set(REPORTING) - {example.question.mechanism}):
        with pytest.raises(ValidationError):
            plans.validate_python({**plain, "mechanism": other})


@every
def test_what_can_be_no_report_is_refused(example: Example) -> None:
    plan, mechanism = example.plan(), example.mechanism
    width = mechanism.nbytes(plan)
    wrong = [np.zeros((1, n), np.uint8) for n in (0, width - 1, width + 1)]
    for reports in (*wrong, np.zeros((1, width)), np.full((1, width), 255, np.uint8)):
        for refuse in (mechanism.check, mechanism.gather):
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
def test_estimates_are_unbiased_with_the_variance_and_intervals_told(example: Example) -> None:
    """Over many rounds; each bound is 4.5 standard errors wide: odds of 2e-5 an example.

    Public hash functions are drawn anew for each round, as their chance is in what is told. That
    the oracles' own variances are right within a few percent is shown by their own tests.
    """
    rng, held = np.random.default_rng(5), example.held
    true = sum("07" in one for one in held)
    counts, told = np.zeros(example.runs), np.zeros(example.runs)
    plan = example.plan()
    for run in range(example.runs):
        if "hashes" in type(plan).model_fields:
            plan = type(plan).model_validate(plan.model_dump() | {"hashes": rng.bytes(32).hex()})
        reports = example.mechanism.encode(plan, held, seeded(rng))
        found = {one.item: one for one in example.read(plan, reports).estimates}
        counts[run], told[run] = found["07"].count, found["07"].variance
    assert abs(counts.mean() - true) < 4.5 * (told.mean() / example.runs) ** 0.5
    error = 4.5 * (2 / example.runs) ** 0.5
    ratio = counts.var(ddof=1) / told.mean()
    assert 1 - error < ratio < 1 + error
    low, high = example.mechanism.interval(counts, told)  # as the service has it
    covered = ((low <= true) & (true <= high)).mean()
    assert abs(covered - 0.95) < 4.5 * (0.95 * 0.05 / example.runs) ** 0.5


@pytest.mark.parametrize("name", sorted(LOCAL_NAMES))
def test_intervals_of_rare_items_reach_below_nothing_and_cover(name: str) -> None:
    """Of 50 items, 48 of which nobody holds, in 40 rounds (or 10) of 2,000 devices.

    Of 2,000 intervals the standard error is 0.5%, but for what one round's have in common.
    """
    example, held = EXAMPLES[name], HELD * 20
    runs = 40 if name != "apple-cms" else 10  # which transforms 2,000 rows a round
    plan, rng = example.plan(), np.random.default_rng(6)
    true = np.array([sum(item in one for one in held) for item in ITEMS])
    covered, below = np.zeros(len(ITEMS)), 0
    for _ in range(runs):
        reports = example.mechanism.encode(plan, held, seeded(rng))
        tally = example.read(plan, reports).tally
        low, high = example.mechanism.interval(tally.arrays["scores"], tally.arrays["variances"])
        covered += (low <= true) & (true <= high)
        below += int((low < 0).sum())
    assert covered.mean() / runs == pytest.approx(0.95, abs=0.025)
    assert below > 30 * runs


@every
def test_devices_with_nothing_to_say_add_to_no_item(example: Example) -> None:
    """Of 50 items none stands out by 5 standard deviations: odds of 3e-5 that one does."""
    plan = example.plan()
    answer = example.read(plan, example.encode(plan, [{}] * 1000, seed=3))
    assert all(one.count < 5 * one.variance**0.5 for one in answer.estimates)
    assert all(one.item in example.question.domain for one in answer.estimates)


@every
def test_the_bytes_tell_no_more_than_is_charged(example: Example) -> None:
    """Of two items, and of one and nothing; each bound is too high with odds of 5e-4."""
    plan = example.plan()
    charged, delta = example.mechanism.epsilon(plan), example.mechanism.delta(plan)
    assert charged > 0
    assert 0 <= delta < 0.01
    for one, other in (({"07": 1}, {"11": 1}), ({"07": 1}, {})):
        reports = [example.mechanism.encode(plan, [held] * 4000, system) for held in (one, other)]
        assert compare(*reports).epsilon <= charged


@every
def test_a_studys_estimates_are_of_all_its_rounds(example: Example) -> None:
    plan, tally = example.plan(), NOTHING
    for number in range(3):
        heard = example.mechanism.gather(plan, example.encode(plan, example.held, seed=number))
        tally = example.mechanism.decode(plan, heard, tally).tally
        plan = example.mechanism.next_plan(plan, None, tally, random.Random(number))
    tally = type(tally).unpack(tally.pack())
    (first, *_) = example.mechanism.conclude(example.question, tally)
    assert first.item == "07"
    true = 3 * sum("07" in one for one in example.held)
    assert abs(first.count - true) < 4.5 * first.variance**0.5


# The first halves of plans' digests: devices hash what they read, and reports carry the digest of
# the plan that they are for. A change here is one of the protocol.
DIGESTS = {
    "krr": "c0460da1f671c20d695778bb310a22e6",
    "ocms": "652dcac935bf75e9880ee424093c3bc2",
    "ocms-gf": "c8ae8cb5264b7a499931ab0b0fbf76a2",
    "ocms-mixture": "691f0e96219290f2d4f86ea210f2e8a7",
    "hadamard": "5cac6b96a994b3f2ef8085173f4a1fbf",
    "recursive-hadamard": "7bc5e347e3ea36635c996f761d289b87",
    "olh": "4caf717b85dfd99d989f48ebf863ba19",
    "apple-cms": "8e3b910f569186fb085c678a7d435356",
    "subset-selection": "33165fa6fb8ae2df57ed4dcd4cf3d3df",
    "rappor": "92681a377d8bc6ffb1a42a266379e973",
    "jl-hh, sampled": "faab75c0b66a1f8c563c85e685f4c3fa",
    "glps-hh, laplace": "3f84f3da082c5505b889eb36befe861e",
    "bucket-hh, pure": "986d57b20e729eaf79cb665750855a11",
    "prefix-extension": "3bafbb04540d10904e79ae7455b340fe",
}


def test_the_digests_of_plans_change_only_with_the_protocol() -> None:
    assert {EXAMPLES[name].question.mechanism for name in DIGESTS} == set(REPORTING)
    found = {name: EXAMPLES[name].plan().digest().hex()[:32] for name in DIGESTS}
    assert found == DIGESTS


def test_a_plan_of_before_with_more_functions_is_still_read() -> None:
    """Apple's sketch once had 2^16 functions in the service: 512 MB of cells, now 32 MB."""
    example = EXAMPLES["apple-cms"]
    plan = example.plan()
    assert 8 * plan.oracle.cells <= 2**25 + 8
    old = plan.model_dump() | {"parameters": plan.parameters | {"functions": 2**16}}
    read = type(plan).model_validate(old)
    assert read.digest().hex()[:32] == "10011ecf418cfeb23dca812fa51ffbef"
    assert example.encode(read, HELD).shape == (100, 4)


def test_a_known_bound_on_shares_is_in_the_plan_only_if_there_is_one() -> None:
    asked = {"mechanism": "ocms", "goal": "worst-mse", "epsilon": 3.0}
    plain, bounded = Example(asked), Example(asked | {"most": 0.01})
    assert "most" not in plain.question.model_dump()
    assert bounded.plan().question.most == 0.01
    assert bounded.plan().parameters["m"] > 2 * plain.plan().parameters["m"]
    read = TypeAdapter(AnyPlan).validate_json(bounded.plan().model_dump_json())
    assert read.digest() == bounded.plan().digest() != plain.plan().digest()
    for own in ({"goal": "l2"}, {"mechanism": "hadamard"}):
        with pytest.raises(ValueError, match="most must be 1 but for goal worst-mse of ocms"):
            Example(asked | {"most": 0.01} | own).plan()
    for most in (0, -1, 1.5, float("nan")):
        with pytest.raises(ValidationError, match="most"):
            _ = Example(asked | {"most": most}).question


@pytest.mark.parametrize("epsilon", ["1", True, None, [1.0], 0, 33, float("inf")])
def test_an_epsilon_that_is_no_number_in_range_is_refused(epsilon: object) -> None:
    for mechanism in ("ocms", "jl-hh", "prefix-extension"):
        own = {"mechanism": mechanism, "epsilon": epsilon}
        domain = TEXT if mechanism == "prefix-extension" else LISTED
        with pytest.raises(ValidationError, match="epsilon"):
            _ = Example(own | {"domain": domain}).question

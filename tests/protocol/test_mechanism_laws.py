"""The laws that every mechanism of sums keeps. A new one adds an example here, and is done.

shape       a vector is one of the plan's ring, also of a device without items
chance      comes from the generator that was passed, and from nothing else
order       of items is irrelevant
blocks      of devices add up to what their devices do, one by one
sum         decoding the secure sum is decoding the plain sum, pairwise or one-shot
fault       an honest sum has none, for any survivors (but with probability 2^-63 if it samples)
plan        comes back from JSON, with the same digest; each round's seed is fresh
influence   one device changes an answer by no more than its bound
width       no sum wraps, not even with full contributions of all devices
claims      estimates are unbiased, with the reported variance
bytes       too few are refused with the number that is needed, in a question and in a plan

Sketches, which know no items, keep two of these in another form. One device moves the estimates
of other items too, each within the same bound; and the reported variance is above the true one,
which depends on the items that share a cell. The medians of unsigned counts are biased by less than
their standard deviation, as documented.
"""

import random
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from protocol.api.phases import Phase
from protocol.histograms import Histogram, Histograms, clip_histograms
from protocol.mechanism import Answer
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan, AnyQuestion
from protocol.question_and_plan import Plan
from protocol.randomness import seeded_words
from protocol.round_sizes import message_bytes
from protocol.simulation.rounds import SecureCohort, sum_cohort
from protocol.simulation.study import run_round
from tests.examples import fewer
from tests.protocol.chance import seeded
from tests.protocol.mechanism_examples import (
    EXAMPLES,
    ONE_SHOT_EXAMPLES,
    ONE_SHOT_TERMS,
    TERMS,
    Example,
    one_shot_fields,
)

every = pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES.keys())
ALL_EXAMPLES = EXAMPLES | ONE_SHOT_EXAMPLES
every_sum = pytest.mark.parametrize("example", ALL_EXAMPLES.values(), ids=ALL_EXAMPLES.keys())
one_shot = pytest.mark.parametrize(
    "example", ONE_SHOT_EXAMPLES.values(), ids=ONE_SHOT_EXAMPLES.keys()
)
EXACT_EXAMPLES = {name: example for name, example in EXAMPLES.items() if not example.is_private}
exact_by_sum = pytest.mark.parametrize(
    "example",
    [
        pytest.param(example, id=name)
        for name, example in ALL_EXAMPLES.items()
        if not example.is_private
    ],
)
exact = pytest.mark.parametrize("example", EXACT_EXAMPLES.values(), ids=EXACT_EXAMPLES.keys())


def device(most: int) -> st.SearchStrategy[dict[str, int]]:
    tokens = st.lists(st.text("abcdefgh", min_size=2, max_size=2), max_size=most)
    return tokens.map(lambda held: dict(Counter(held)))


def encode(example: Example, plan: Plan, histogram: Histogram, seed: int = 0) -> Any:
    return example.mechanism.encode(plan, example.held(histogram), seeded(seed))


def same(first: Any, second: Any) -> bool:
    return all((a == b).all() for a, b in zip(first, second, strict=True))


def read(answer: Answer) -> dict[str, float]:
    return {estimate.item: estimate.count for estimate in answer.estimates if estimate.count}


def test_every_mechanism_has_an_example() -> None:
    assert {example.question.mechanism for example in EXAMPLES.values()} == set(SUM_MECHANISMS)


@every_sum
@fewer(0.3)
@given(data=st.data())
def test_a_vector_is_one_of_the_plans_ring(example: Example, data: st.DataObject) -> None:
    plan = example.plan()
    ring = example.mechanism.ring(plan)
    for histogram in ({}, data.draw(device(example.question.contribution))):
        ring.check(encode(example, plan, histogram))


@every
@fewer(0.3)
@given(data=st.data())
def test_chance_comes_from_the_generator_only(example: Example, data: st.DataObject) -> None:
    plan, histogram = example.plan(), data.draw(device(example.question.contribution))
    outside = random.getstate(), np.random.get_state()[1].tolist()
    first, second = (encode(example, plan, histogram, seed=7) for _ in range(2))
    assert same(first, second)
    assert outside == (random.getstate(), np.random.get_state()[1].tolist())


@every
@fewer(0.3)
@given(data=st.data())
def test_the_order_of_items_is_irrelevant(example: Example, data: st.DataObject) -> None:
    plan, histogram = example.plan(), data.draw(device(example.question.contribution))
    backwards = dict(reversed(histogram.items()))
    assert same(encode(example, plan, histogram), encode(example, plan, backwards))


@every
@fewer(0.5)
@given(data=st.data())
def test_blocks_of_a_fleet_add_up_as_its_devices_one_by_one(
    example: Example, data: st.DataObject
) -> None:
    """Clipping included, and with items in the table that are outside the domain, as in a file."""
    plan, mechanism, most = example.plan(), example.mechanism, example.question.contribution
    ring = mechanism.ring(plan)
    histograms = data.draw(st.lists(device(2 * most + 1), max_size=8))
    size = data.draw(st.integers(1, 8))
    histograms = [example.held(histogram) for histogram in histograms]
    fleet = Histograms.from_mappings([*histograms, {"a" * 99: 1}])
    by_blocks, one_by_one = ring.zero(), ring.zero()
    chance, rng = seeded(3), np.random.default_rng(4)
    for start in range(0, len(histograms), size):
        block = clip_histograms(fleet[start : min(start + size, len(histograms))], most, rng)
        ring.add(by_blocks, mechanism.encode_sum(plan, block, chance))
    chance, rng = seeded(3), np.random.default_rng(4)
    for histogram in histograms:
        kept = clip_histograms(Histograms.from_mappings([histogram]), most, rng)
        ring.add(one_by_one, mechanism.encode_sum(plan, kept, chance))
    assert same(by_blocks, one_by_one)
    with pytest.raises(ValueError, match="outside the domain"):
        mechanism.encode_sum(plan, fleet[-1:], chance)


@pytest.mark.parametrize(
    "name", ["tracked, some items", "approximate-histogram, theorem", "triehh, in noise"]
)
@fewer(0.1)
@given(data=st.data())
def test_the_secure_sum_decodes_as_the_plain_sum(name: str, data: st.DataObject) -> None:
    """Vectors of several lanes, of many tables and of one; `secagg` is tested for any ring."""
    example = EXAMPLES[name]
    plan, mechanism = example.plan(), example.mechanism
    held = data.draw(st.lists(device(example.question.contribution), min_size=10, max_size=12))
    phases = st.sampled_from([Phase.SHARING, Phase.MASKING, Phase.UNMASKING])
    vanishing = data.draw(st.dictionaries(st.integers(0, 9), phases, max_size=2))
    ring, vectors = mechanism.ring(plan), [encode(example, plan, h, i) for i, h in enumerate(held)]
    result = sum_cohort(SecureCohort(plan, 0, ring, range(len(vectors)), vectors, vanishing, 1))
    assert result is not None  # two of ten is a fifth, which the terms bear
    total, survivors = result
    plain = ring.zero()
    for slot in survivors:
        ring.add(plain, vectors[slot])
    assert same(total, plain)
    assert mechanism.decode(plan, total, len(survivors), example.state) == mechanism.decode(
        plan, plain, len(survivors), example.state
    )


@one_shot
def test_a_one_shot_sum_is_the_plain_sum(example: Example) -> None:
    plan, ring = example.plan(), example.mechanism.ring(example.plan())
    vectors = [encode(example, plan, {"ab": 1}, seed) for seed in range(plan.terms.minimum)]
    result = sum_cohort(SecureCohort(plan, 0, ring, range(len(vectors)), vectors, {}, 1))
    assert result is not None
    plain = ring.zero()
    for vector in vectors:
        ring.add(plain, vector)
    assert same(result[0], plain)


@every
def test_a_one_shot_sum_decodes_to_the_items_of_a_pairwise_sum(example: Example) -> None:
    """Compare the same sizes, seeds, items and samples, without noise, which depends on the sum."""
    histograms = [{"ab": 1}] * 20 + [{"cd": 1}] * 15 + [{"aa": 1}] * 10
    histograms = [example.held(histogram) for histogram in histograms]
    outcomes = []
    one_shot = {"terms": ONE_SHOT_TERMS} | one_shot_fields(example)
    for changes in ({"terms": TERMS}, one_shot):
        plan = example.plan().model_copy(update=changes)
        if "release" in type(plan).model_fields and plan.release is not None:
            release = plan.release.model_copy(update={"variance": 0.0, "threshold": 1})
            plan = plan.model_copy(update={"release": release})
        total = example.mechanism.encode_sum(plan, histograms, seeded(3))
        assert example.mechanism.fault(plan, total, len(histograms)) is None
        outcomes.append(example.mechanism.decode(plan, total, len(histograms), example.state))
    pairwise, other = outcomes
    assert pairwise.decoded
    assert other.decoded
    assert read(other) == read(pairwise)


@every_sum
@fewer(0.3)
@given(data=st.data())
def test_an_honest_sum_has_no_fault(example: Example, data: st.DataObject) -> None:
    plan, mechanism = example.plan(), example.mechanism
    ring, total = mechanism.ring(plan), mechanism.ring(example.plan()).zero()
    assert mechanism.fault(plan, total, 0) is None
    histograms = data.draw(st.lists(device(example.question.contribution), max_size=8))
    for received, histogram in enumerate(histograms, 1):
        ring.add(total, encode(example, plan, histogram, data.draw(st.integers(0, 99))))
        assert mechanism.fault(plan, total, received) is None


@every_sum
def test_an_honest_sum_of_full_contributions_has_no_fault(example: Example) -> None:
    most, devices = example.question.contribution, TERMS.max_devices
    items = [a + b for a in "abcdefgh" for b in "abcdefgh"]
    one_each = dict.fromkeys(items[:most], 1)
    for histograms in ([{"ab": most}] * devices, [one_each] * devices):
        plan = example.plan()
        held = [example.held(histogram) for histogram in histograms]
        total = example.mechanism.encode_sum(plan, held, seeded(2))
        assert example.mechanism.fault(plan, total, devices) is None


@every
def test_a_question_and_its_plans_come_back_from_json(example: Example) -> None:
    questions: TypeAdapter[Any] = TypeAdapter(AnyQuestion)
    plans: TypeAdapter[Any] = TypeAdapter(AnyPlan)
    assert questions.validate_json(example.question.model_dump_json()) == example.question
    plan = example.plan()
    for _ in range(3):
        again = plans.validate_json(plan.model_dump_json())
        assert again == plan
        assert again.digest() == plan.digest()
        plan = example.mechanism.next_plan(plan, Answer(True, 1e6), example.state, random.Random(5))


@every
def test_a_plan_has_no_field_that_nobody_knows(example: Example) -> None:
    plans: TypeAdapter[Any] = TypeAdapter(AnyPlan)
    with pytest.raises(ValidationError):
        plans.validate_python({**example.plan().model_dump(), "more": 1})


@every_sum
@pytest.mark.parametrize("answer", [None, Answer(False, 300.0), Answer(True, 20.0)])
def test_the_next_plan_asks_the_same_with_a_fresh_seed(
    example: Example, answer: Answer | None
) -> None:
    plan = example.plan()
    later = example.mechanism.next_plan(plan, answer, example.state, random.Random(1))
    assert later.round == plan.round + 1
    assert later.seed != plan.seed
    assert (later.question, later.terms, later.study) == (plan.question, plan.terms, plan.study)
    example.mechanism.ring(later).check(encode(example, later, {}))


@every
@fewer(0.3)
@given(data=st.data())
def test_one_devices_influence_is_bounded(example: Example, data: st.DataObject) -> None:
    plan, mechanism = example.plan(), example.mechanism
    ring = mechanism.ring(plan)
    others, first = (data.draw(device(example.question.contribution)) for _ in range(2))
    without = encode(example, plan, others, 1)
    total = encode(example, plan, first, 2)
    ring.add(total, without)
    vectors = (without, total)
    before, after = (mechanism.decode(plan, vector, 2, example.state) for vector in vectors)
    # Two of these few keys share all 4 cells for one pair in 6,765,201; search finds some.
    assume(before.decoded and after.decoded)
    old, new = read(before), read(after)
    # A biased estimate is corrected by the mean noise, which a device moves as well, but by little.
    bound = example.influence(plan) * (1.01 if example.is_biased else 1)
    assert all(abs(new.get(item, 0) - old.get(item, 0)) <= bound for item in old | new)
    changed = [item for item in old | new if new.get(item, 0) != old.get(item, 0)]
    assert example.is_sketch or len(changed) <= example.question.contribution


@every_sum
def test_too_few_bytes_are_refused_with_the_number_needed(example: Example) -> None:
    def first_plan(size: int) -> None:
        question = example.question.model_copy(update={"message_bytes": size})
        example.mechanism.first_plan(question, example.terms, "laws", 30, random.Random(1))

    with pytest.raises(ValueError, match="message_bytes 1 are too few") as refused:
        first_plan(1)
    needed = int(re.findall(r"(?:take|or|:) ([\d,]+)", str(refused.value))[-1].replace(",", ""))
    first_plan(needed)
    with pytest.raises(ValueError, match=f"message_bytes {needed - 1:,} are too few"):
        first_plan(needed - 1)


@every_sum
def test_a_plan_takes_the_bytes_of_its_message_and_no_fewer(example: Example) -> None:
    plan = example.plan()
    fields, needed = plan.model_dump(), message_bytes(plan.terms, example.mechanism.ring(plan))
    asked = fields.pop("question")
    type(plan).model_validate(fields | {"question": asked | {"message_bytes": needed}})
    with pytest.raises(ValidationError, match=r"bytes|message"):
        type(plan).model_validate(fields | {"question": asked | {"message_bytes": needed - 1}})


@every
@pytest.mark.parametrize("histogram", [{"ab": 7}, {"ab": 4, "cd": 3}, {"ab": 0}, {"ab": -1}])
def test_more_than_the_contribution_or_less_than_one_is_refused(
    example: Example, histogram: Histogram
) -> None:
    with pytest.raises(ValueError, match=r"contributes at most|counts must be 1 or more"):
        encode(example, example.plan(), histogram)


@exact_by_sum
def test_no_sum_of_full_contributions_wraps(example: Example) -> None:
    most, devices = example.question.contribution, TERMS.max_devices
    plan = example.plan().model_copy(update={"t": 1.0})
    histograms, rng = [example.held({"ab": most})] * devices, random.Random(1)
    outcome = run_round(example.mechanism, plan, [histograms], rng, example.state)
    assert outcome.answer is not None
    values = read(outcome.answer)
    assert values.pop("ab") == devices * (1 if example.is_sketch else most)
    assert not values or example.is_sketch  # of which there may be others in the same cells


@exact
def test_estimates_are_unbiased_with_the_reported_variance(example: Example) -> None:
    """Over 100 rounds, means stay within 4.5 standard errors: probability 1e-5 per item."""
    plan, most = example.plan(), 1 if example.is_sketch else example.question.contribution
    spread = {"aa": most - most // 2, "bb": most // 2} if most > 1 else {"aa": 1}
    histograms = [{"aa": 1}] * 20 + [{"bb": most}] * 5 + [spread] * 5
    truth: Counter[str] = Counter()
    for histogram in histograms:
        truth.update(histogram)
    held = [example.held(histogram) for histogram in histograms]
    rng, runs = np.random.default_rng(8), 100
    counts = {item: np.zeros(runs) for item in truth}
    estimates = {item: np.zeros(runs) for item in truth}
    for run in range(runs):
        plan = plan.model_copy(update={"seed": rng.bytes(32).hex()})  # chance is in it, too
        total = example.mechanism.encode_sum(plan, held, seeded_words(rng))
        answer = example.mechanism.decode(plan, total, len(histograms), example.state)
        assert answer.decoded
        for estimate in answer.estimates:
            if estimate.item not in truth:
                assert example.is_sketch or (estimate.count, estimate.variance) == (0, 0)
                continue
            counts[estimate.item][run] = estimate.count
            estimates[estimate.item][run] = estimate.variance
    for item, count in truth.items():
        error = counts[item].std() / runs**0.5
        bias = estimates[item].mean() ** 0.5 if example.is_biased else 0
        assert abs(counts[item].mean() - count) <= bias + 4.5 * error + 1e-9
        # The sample variance of 100 has a relative error of some 14%.
        assert counts[item].var() <= 1.5 * estimates[item].mean() + 1e-9
        if most == 1 and not example.is_sketch:
            assert counts[item].var() == pytest.approx(estimates[item].mean(), rel=0.5)


# The first halves of plans' digests. They are bound into the keys of rounds that are running, and
# devices hash what they read: a change here is one of the protocol, with a migration that fails
# what is running (`server/db/migrations`).
DIGESTS = {
    "adaptive-iblt, sampled": "b6c77d83bf706617526226fb73962996",
    "subsampled-iblt, two tables": "153c6aee14120f4cbdfb0a79eea49af8",
    "approximate-histogram, practical": "d3514de88395cbd86aeb74999a9c3bfc",
    "count-median": "5a083e729142288b614f6fad382dbb6a",
    "count-sketch, one item each": "707ccc36d5b35fb98fe7efa639c6dd9c",
    "hierarchical-histogram, in noise": "350fc9ec63040ad819897e23099aeca0",
    "number-sums": "4ea964898ae2f89920ac194a1a932e24",
    "triehh, sampled": "fafda20b47802ab33a8123d50129a772",
    "tracked, some items": "b52c7db8b4534455293a386fe3b04f44",
}


def test_the_digests_of_plans_change_only_with_the_protocol() -> None:
    assert {EXAMPLES[name].question.mechanism for name in DIGESTS} == set(SUM_MECHANISMS)
    result = {name: EXAMPLES[name].plan().digest().hex()[:32] for name in DIGESTS}
    assert result == DIGESTS

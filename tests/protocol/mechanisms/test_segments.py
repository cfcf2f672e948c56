"""Studies by segment: pairs in every kind of domain, and totals and shares of segments."""

import math
from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest

from protocol.api.segments import segment_totals, sum_variances
from protocol.domains import Domain
from protocol.domains.hashed import HashedProduct
from protocol.domains.product import Product
from protocol.domains.strings import Alphabet, Utf8
from protocol.estimation.estimates import HOLDERS_COLUMN
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyQuestion, parse_question
from protocol.question_and_plan import Terms
from protocol.simulation.study import run_study
from protocol.study_state import EMPTY_STATE, StudyState

SEGMENTS = ("north", "south", "west")
WORDS = ("aa", "ab", "ba", "bb", "ca", "cb")
LETTERS = Alphabet(characters="abc", length=2)
DOMAINS: dict[str, Domain] = {
    "letters": Product(segments=SEGMENTS, inner=LETTERS),
    "text": Product(segments=SEGMENTS, inner=Utf8(max_bytes=12)),
    "hashed": HashedProduct(segments=SEGMENTS, max_bytes=20),
}
DEVICES = [{f"{SEGMENTS[n % 5 // 2]}:{WORDS[n % (n % 7 + 1) % 6]}": 1} for n in range(300)]
TRUTH = Counter(item for histogram in DEVICES for item in histogram)


def run(question: AnyQuestion, held: list[dict[str, int]], rounds: int, seed: int) -> StudyState:
    """Return the state after each device took part in one of the rounds."""
    size, state = len(held) // rounds, EMPTY_STATE
    terms = Terms(cohort_size=size, minimum=3)
    parts = [[held[start::rounds]] for start in range(rounds)]
    mechanism, rng = SUM_MECHANISMS[question.mechanism], Random(seed)
    for outcome in run_study(mechanism, question, terms, parts, rng, planned=rounds):
        assert outcome.answer is not None
        state = outcome.study_state
    return state


def asked(mechanism: str, domain: Domain, **own: Any) -> AnyQuestion:
    fields = {"mechanism": mechanism, "threshold": 10, "contribution": 1, "message_bytes": 10_384}
    return parse_question(fields | {"domain": domain} | own)


@pytest.mark.parametrize(
    ("mechanism", "name"),
    [
        ("tracked", "letters"), ("tracked", "text"), ("tracked", "hashed"),
        ("adaptive-iblt", "letters"), ("adaptive-iblt", "text"),
        ("subsampled-iblt", "letters"), ("subsampled-iblt", "text"),
        ("approximate-histogram", "text"),
        ("count-sketch", "letters"),
    ],
)  # fmt: skip
def test_pairs_are_counted_in_every_domain(mechanism: str, name: str) -> None:
    question = asked(mechanism, DOMAINS[name], **({"t": 1} if mechanism[0] == "s" else {}))
    state = run(question, DEVICES, 6, seed=1)
    final = SUM_MECHANISMS[mechanism].final_estimates(question, state)
    estimates = {each.item: round(each.count) for each in final}
    slack = 2 if mechanism in ("count-sketch", "approximate-histogram") else 0
    for item, count in TRUTH.items():
        if count >= 12:
            assert abs(estimates.pop(item) - count) <= slack
    assert all(count < 12 for count in estimates.values())
    totals = segment_totals(question, state)
    if mechanism in ("count-sketch", "approximate-histogram"):
        assert not totals
        return
    shown = {item: count for item, count in TRUTH.items() if count >= 5}
    assert 0 < len(shown) < len(TRUTH)
    for segment in SEGMENTS:
        exact = sum(count for item, count in shown.items() if item.startswith(segment))
        assert totals[segment].total.value == pytest.approx(exact)
        assert totals[segment].share.value == pytest.approx(exact / sum(shown.values()))


@pytest.mark.parametrize(
    ("mechanism", "name"),
    [("adaptive-iblt", "letters"), ("subsampled-iblt", "letters"), ("tracked", "hashed")],
)
def test_totals_and_shares_of_sampled_items_are_within_their_intervals(
    mechanism: str, name: str
) -> None:
    """Long tails, of which few items are shown. The bounds are 4.5 standard errors: 1e-5.

    Totals are those of the items that were sampled from five devices or more.
    """
    inner = Alphabet(characters="abcdefghij", length=4)
    domain = Product(segments=SEGMENTS, inner=inner) if name == "letters" else DOMAINS["hashed"]
    size = 9364 if mechanism != "tracked" else 9504
    own = {"t": 16} if mechanism == "subsampled-iblt" else {}
    question = asked(mechanism, domain, message_bytes=size, threshold=20, **own)
    rng, hits, errors = np.random.default_rng(7), np.zeros(2), []
    studies = 0
    for seed in range(12):
        segments = rng.choice(3, 2000, p=[0.6, 0.3, 0.1])
        tail = rng.integers(0, 10**4, 2000)
        head = rng.integers(0, 3, 2000)
        items = np.where(rng.random(2000) < 0.2, head, tail)
        held = [
            {f"{SEGMENTS[s]}:{''.join(chr(97 + int(d)) for d in f'{i:04}')}": 1}
            for s, i in zip(segments.tolist(), items.tolist(), strict=True)
        ]
        state = run(question, held, 4, seed)
        totals, truths = segment_totals(question, state), dict.fromkeys(SEGMENTS, 0)
        studies += bool(totals)
        shown = SUM_MECHANISMS[mechanism].shown_totals(question, state)
        names = {each.item for each in shown}
        for item in (item for histogram in held for item in histogram):
            truths[item.partition(":")[0]] += domain.name(item) in names
        for segment in SEGMENTS:
            truth, row = float(truths[segment]), totals.get(segment)
            if row is None:  # of an unread round, or below the threshold
                continue
            spread = (row.total.high - row.total.low) / 3.92
            errors.append((row.total.value - truth) / spread)
            hits += (
                row.total.low <= truth <= row.total.high,
                row.share.low <= truth / sum(truths[name] for name in totals) <= row.share.high,
            )
    assert studies >= 7
    assert (hits / len(errors) >= 0.95 - 4.5 * math.sqrt(0.95 * 0.05 / len(errors))).all()
    assert abs(np.mean(errors)) < 5 / math.sqrt(len(errors))


@pytest.mark.parametrize("mechanism", ["adaptive-iblt", "subsampled-iblt", "tracked"])
def test_a_total_has_no_item_of_fewer_than_five_devices(mechanism: str) -> None:
    """One device with many different items in a segment reaches the threshold of its total."""
    question = asked(
        mechanism, DOMAINS["text"], threshold=5, contribution=13, message_bytes=124_384
    )
    crowd = [{f"{SEGMENTS[n % 2]}:{WORDS[n % 6]}": 1} for n in range(160)]
    alone = {f"west:{number}": 1 for number in range(13)}
    assert set(segment_totals(question, run(question, [*crowd, alone], 1, 1))) == {"north", "south"}
    five = [{"west:aa": 1, f"west:{n}": 1} for n in range(5)]
    totals = segment_totals(question, run(question, [*crowd, *five], 1, 1))
    assert totals["west"].total.value == 5


@pytest.mark.parametrize("mechanism", ["adaptive-iblt", "tracked"])
def test_a_total_has_all_listed_items(mechanism: str) -> None:
    """Few samples of an item list it, though fewer than five devices were counted with it."""
    question = asked(mechanism, DOMAINS["text"], threshold=5, message_bytes=5600)
    only_faint = 0
    for seed in range(5):
        rng = Random(seed)
        held = [{f"{rng.choice(SEGMENTS)}:{rng.choice(WORDS)}": 1} for _ in range(120)]
        state = run(question, held, 1, seed)
        totals, listed = segment_totals(question, state), Counter[str]()
        for each in SUM_MECHANISMS[mechanism].final_estimates(question, state):
            listed[each.item.partition(":")[0]] += each.count
            only_faint += state.column(HOLDERS_COLUMN)[state.rows[each.item]] < 5
        for segment, count in listed.items():
            assert totals[segment].total.value >= count - 0.01
    assert only_faint


def test_rounds_that_were_not_read_do_not_show_the_total_of_one_device() -> None:
    """Five of six rounds could not be read, so one device is estimated as six."""
    domain = Product(segments=SEGMENTS, inner=Alphabet(characters="abcdefgh", length=4))
    question = asked("subsampled-iblt", domain, threshold=5, message_bytes=4684, t=1)
    rng = Random(1)
    full = [f"north:{''.join(rng.choices('abcdefgh', k=4))}" for _ in range(500)]
    first = ["north:aaaa"] * 98 + ["west:aaaa", "south:aaaa"]
    held = [first, *(full[start::5] for start in range(5))]
    mechanism, state = SUM_MECHANISMS[question.mechanism], EMPTY_STATE
    parts = [[[{item: 1} for item in items]] for items in held]
    terms, decoded = Terms(cohort_size=100, minimum=3), 0
    for outcome in run_study(mechanism, question, terms, parts, rng, planned=6):
        assert outcome.answer is not None
        state, decoded = outcome.study_state, decoded + outcome.answer.decoded
    assert decoded == 1
    totals = segment_totals(question, state)
    assert set(totals) == {"north"}


def test_errors_of_the_items_of_a_segment_are_correlated() -> None:
    """Correlated errors of four equal items have 1.09 times the standard error of independent ones.

    Of the same total, 16 items have 1.39 times.
    """
    for number, ratio in ((4, 1.09), (16, 1.39)):
        variances, places = np.full(number, 400.0), np.zeros(number, np.int64)
        summed = sum_variances(variances, places, 1)
        assert summed[0] / (400 * number) == pytest.approx(ratio**2, rel=0.01)

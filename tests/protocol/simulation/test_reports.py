"""Simulated rounds of reports: the result does not depend on the process of each chunk."""

import random
from itertools import count
from typing import Any

import numpy as np
import pytest

from protocol.histograms import Histograms
from protocol.mechanisms.registry import REPORT_MECHANISMS, parse_question
from protocol.question_and_plan import Terms
from protocol.simulation.reports import ReportAccumulator
from protocol.simulation.rounds import (
    NO_DROPOUT,
    NO_DROPOUTS,
    Chunk,
    RandomDropout,
    RoundDevices,
    RoundSpec,
)
from protocol.simulation.study import run_round, run_study
from protocol.study_state import EMPTY_STATE

TERMS = Terms(cohort_size=100, minimum=5)
ITEMS = [f"{number:02}" for number in range(20)]
LISTED_DOMAIN = {"kind": "listed", "items": ITEMS}
EXAMPLES: dict[str, dict[str, Any]] = {
    "krr": {"domain": LISTED_DOMAIN},
    "hadamard": {"domain": LISTED_DOMAIN},
    "rappor": {"domain": LISTED_DOMAIN},
    "glps-hh": {"domain": LISTED_DOMAIN},
    "prefix-extension": {
        "domain": {"kind": "utf8", "max_bytes": 2},
        "start": 8,
        "candidates_per_length": 4,
    },
}
OUTSIDE_ITEM = "too long"
HISTOGRAMS = [
    {item: 1 + n % 3} | ({OUTSIDE_ITEM: 1} if n % 2 else {})
    for n, item in enumerate(ITEMS[:4] * 50)
]


def plan_of(name: str) -> Any:
    question = parse_question({"mechanism": name, "threshold": 5, "epsilon": 4.0} | EXAMPLES[name])
    return REPORT_MECHANISMS[name].first_plan(question, TERMS, "heard", 1, random.Random(1))


def people(chunks: int, block: int = 9) -> RoundDevices[Histograms]:
    """Return the devices of `HISTOGRAMS` in chunks, in blocks that share a table of items."""
    histograms, size = Histograms.from_mappings(HISTOGRAMS), len(HISTOGRAMS) // chunks
    parts = [
        [histograms[at : min(at + block, end + size)] for at in range(end, end + size, block)]
        for end in range(0, len(HISTOGRAMS), size)
    ]
    return RoundDevices(parts[0], [part.copy for part in parts[1:]])


def played(name: str, devices: RoundDevices[Histograms], **options: Any) -> Any:
    mechanism, rng = REPORT_MECHANISMS[name], random.Random(7)
    return run_round(mechanism, plan_of(name), devices, rng, clipping_seed=5, **options)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_answer_is_that_of_the_reports_of_all_devices(name: str) -> None:
    plan, held = plan_of(name), [dict.fromkeys(list(counts)[:1], 1) for counts in HISTOGRAMS]
    mechanism, spec = REPORT_MECHANISMS[name], RoundSpec(plan, NO_DROPOUTS, 3, 4)
    accumulator = ReportAccumulator(mechanism, spec)
    accumulator.add_chunk(0, [Histograms.from_mappings(held)])
    reports = mechanism.encode(plan, held, spec.chunk_randomness(0))
    expected = mechanism.decode(plan, mechanism.aggregate(plan, reports), EMPTY_STATE)
    assert mechanism.decode(plan, accumulator.aggregate, EMPTY_STATE) == expected
    assert accumulator.truth.counts() == dict.fromkeys(ITEMS[:4], 50)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_result_depends_neither_on_the_process_of_a_chunk_nor_on_blocks(name: str) -> None:
    alone = played(name, people(5))
    assert played(name, people(5, block=40)) == alone
    assert played(name, people(1)).answer != alone.answer

    class InPieces:
        def add(self, accumulator: Any, chunks: list[Chunk]) -> None:
            for cut in (chunks[:1], chunks[1:]):
                accumulator.merge(accumulator.remote_task(cut))

    assert played(name, people(5), executor=InPieces()) == alone


def test_items_outside_the_domain_are_in_no_report_and_not_in_the_truth() -> None:
    outcome = played("krr", people(5))
    assert outcome.devices == len(HISTOGRAMS)
    assert outcome.truth == dict.fromkeys(ITEMS[:4], 50)


def test_a_device_that_drops_out_sends_no_report() -> None:
    outcome = played("krr", people(5), dropouts=RandomDropout(0.5, 1))
    assert outcome.devices == sum(outcome.truth.values())
    assert 60 < outcome.devices < 140  # of 200: 5.6 standard deviations
    numbers = count()
    away = played("krr", people(1), dropouts=lambda _: lambda n: np.zeros(n, np.int8))
    assert (away.answer, away.devices, away.truth) == (None, 0, {})
    alone = played(
        "krr",
        people(1),
        dropouts=lambda _: (
            lambda n: np.array([0 if next(numbers) else NO_DROPOUT for _ in range(n)], np.int8)
        ),
    )
    assert alone.devices == 1


def test_rounds_of_a_study_add_up() -> None:
    mechanism, question = REPORT_MECHANISMS["krr"], plan_of("krr").question
    rounds = (people(2) for _ in range(3))
    outcomes = [*run_study(mechanism, question, TERMS, rounds, random.Random(1), planned=3)]
    assert [outcome.plan.round for outcome in outcomes] == [1, 2, 3]
    listed = mechanism.final_estimates(question, outcomes[-1].study_state)
    assert {each.item for each in listed} == set(ITEMS[:4])
    assert listed[0].count == pytest.approx(150, abs=40)  # 5 standard deviations

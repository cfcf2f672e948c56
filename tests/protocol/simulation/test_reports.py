"""Simulated rounds of reports: the result does not depend on the process of each chunk."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from protocol.histograms import Histograms
from protocol.mechanism import Answer
from protocol.mechanisms.registry import REPORT_MECHANISMS, parse_question
from protocol.question_and_plan import Terms
from protocol.randomness import seeded_words
from protocol.simulation.reports import (
    ReportAccumulator,
    ReportRoundResult,
    ReportRoundSpec,
    run_report_round,
)
from protocol.simulation.rounds import Chunk, RoundDevices
from protocol.study_state import EMPTY_STATE

TERMS = Terms(cohort_size=100, minimum=5, mode="semi-honest")
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


def turn_of(name: str) -> ReportRoundSpec[Any, Any]:
    question = parse_question({"mechanism": name, "threshold": 5, "epsilon": 4.0} | EXAMPLES[name])
    plan = REPORT_MECHANISMS[name].first_plan(question, TERMS, "heard", 1, random.Random(1))
    return ReportRoundSpec(REPORT_MECHANISMS[name], plan, 1)


def people(chunks: int, block: int = 9) -> RoundDevices[Histograms]:
    """Return the devices of `HISTOGRAMS` in chunks, in blocks that share a table of items."""
    histograms, size = Histograms.from_mappings(HISTOGRAMS), len(HISTOGRAMS) // chunks
    parts = [
        [histograms[at : min(at + block, end + size)] for at in range(end, end + size, block)]
        for end in range(0, len(HISTOGRAMS), size)
    ]
    return RoundDevices(parts[0], [part.copy for part in parts[1:]])


def read(
    turn: ReportRoundSpec[Any, Any], result: ReportRoundResult[Any]
) -> tuple[Answer, dict[str, int]]:
    return turn.mechanism.decode(turn.plan, result.aggregate, EMPTY_STATE), result.truth


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("name", EXAMPLES)
def test_one_chunk_has_the_reports_of_its_devices_with_that_generator(name: str) -> None:
    turn, held = turn_of(name), [dict.fromkeys(list(counts)[:1], 1) for counts in HISTOGRAMS]
    chance = seeded_words(rng())
    some = RoundDevices([Histograms.from_mappings(held)])
    expected = turn.mechanism.aggregate(turn.plan, turn.mechanism.encode(turn.plan, held, chance))
    plain = ReportRoundResult(expected, dict.fromkeys(ITEMS[:4], 50))
    assert read(turn, run_report_round(turn, some, rng())) == read(turn, plain)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_result_depends_neither_on_the_process_of_a_chunk_nor_on_blocks(name: str) -> None:
    turn = turn_of(name)
    alone = read(turn, run_report_round(turn, people(5), rng()))
    assert read(turn, run_report_round(turn, people(5, block=40), rng())) == alone
    assert read(turn, run_report_round(turn, people(1), rng())) != alone
    some = people(5)
    later = [Chunk(number, build) for number, build in enumerate(some.later_chunks, 1)]
    for cuts in ([later], [later[:1], later[1:]], [[chunk] for chunk in later]):
        accumulator = ReportAccumulator(
            turn, lambda chunk: turn.chunk_generator(chunk) if chunk else rng()
        )
        accumulator.add_chunk(0, some.first_batches)
        for cut in cuts:
            accumulator.merge(accumulator.remote_task(cut))
        assert read(turn, accumulator.result) == alone


def test_the_truth_is_of_what_is_left_after_clipping_also_outside_the_domain() -> None:
    turn = turn_of("krr")
    truth = run_report_round(turn, people(5), rng()).truth
    assert sum(truth.values()) == len(HISTOGRAMS)
    assert 20 < truth[OUTSIDE_ITEM] < 60  # of 100 with a share of 1/2, 1/3 or 1/4: 36, 5 deviations


def test_each_chunk_has_its_own_generator() -> None:
    turn = turn_of("krr")
    words = [turn.chunk_generator(chunk).integers(2**63, size=4).tolist() for chunk in (1, 2, 3)]
    assert len({word for row in words for word in row}) == 12
    assert turn.chunk_generator(2).integers(2**63, size=4).tolist() == words[1]
    assert "987654321" not in repr(replace(turn, seed=987654321))

"""What is heard of a round of reports: the same whoever plays which stretches of it."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from protocol.histograms import Histograms
from protocol.mechanism import Answer
from protocol.mechanisms.registry import REPORT_MECHANISMS, parse_question
from protocol.randomness import seeded_words
from protocol.simulation.chunks import Chunk, RoundDevices
from protocol.simulation.reports import (
    ReportAccumulator,
    ReportRoundResult,
    ReportRoundSpec,
    run_report_round,
)
from protocol.study import Terms
from protocol.study_state import EMPTY_STATE

TERMS = Terms(cohort_size=100, minimum=5, mode="semi-honest")
ITEMS = [f"{number:02}" for number in range(20)]
LISTED = {"kind": "listed", "items": ITEMS}
EXAMPLES: dict[str, dict[str, Any]] = {
    "krr": {"domain": LISTED},
    "hadamard": {"domain": LISTED},
    "rappor": {"domain": LISTED},
    "glps-hh": {"domain": LISTED},
    "prefix-extension": {
        "domain": {"kind": "utf8", "max_bytes": 2},
        "start": 8,
        "candidates_per_length": 4,
    },
}
OUTSIDE = "too long"
HELD = [{item: 1 + n % 3, OUTSIDE: n % 2} for n, item in enumerate(ITEMS[:4] * 50)]
HELD = [{item: count for item, count in one.items() if count} for one in HELD]


def turn_of(name: str) -> ReportRoundSpec[Any, Any]:
    question = parse_question({"mechanism": name, "threshold": 5, "epsilon": 4.0} | EXAMPLES[name])
    plan = REPORT_MECHANISMS[name].first_plan(question, TERMS, "heard", 1, random.Random(1))
    return ReportRoundSpec(REPORT_MECHANISMS[name], plan, 1)


def people(stretches: int, block: int = 9) -> RoundDevices[Histograms]:
    """Return the devices of `HELD` in so many stretches, in blocks that have one table of items."""
    everybody, size = Histograms.from_mappings(HELD), len(HELD) // stretches
    parts = [
        [everybody[at : min(at + block, end + size)] for at in range(end, end + size, block)]
        for end in range(0, len(HELD), size)
    ]
    return RoundDevices(parts[0], [part.copy for part in parts[1:]])


def read(
    turn: ReportRoundSpec[Any, Any], said: ReportRoundResult[Any]
) -> tuple[Answer, dict[str, int]]:
    return turn.mechanism.decode(turn.plan, said.aggregate, EMPTY_STATE), said.truth


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("name", EXAMPLES)
def test_one_stretch_says_what_its_devices_say_by_that_generator(name: str) -> None:
    turn, held = turn_of(name), [dict.fromkeys(list(one)[:1], 1) for one in HELD]
    chance = seeded_words(rng())
    some = RoundDevices([Histograms.from_mappings(held)])
    heard = turn.mechanism.aggregate(turn.plan, turn.mechanism.encode(turn.plan, held, chance))
    plain = ReportRoundResult(heard, dict.fromkeys(ITEMS[:4], 50))
    assert read(turn, run_report_round(turn, some, rng())) == read(turn, plain)


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_heard_does_not_hang_on_who_plays_a_stretch_nor_on_blocks(name: str) -> None:
    turn = turn_of(name)
    alone = read(turn, run_report_round(turn, people(5), rng()))
    assert read(turn, run_report_round(turn, people(5, block=40), rng())) == alone
    assert read(turn, run_report_round(turn, people(1), rng())) != alone
    some = people(5)
    later = [Chunk(number, one) for number, one in enumerate(some.later_chunks, 1)]
    for cuts in ([later], [later[:1], later[1:]], [[one] for one in later]):
        hearing = ReportAccumulator(
            turn, lambda stretch: turn.chunk_generator(stretch) if stretch else rng()
        )
        hearing.add_chunk(0, some.first_batches)
        for cut in cuts:
            hearing.merge(hearing.remote_task(cut))
        assert read(turn, hearing.result) == alone


def test_the_truth_is_of_what_is_left_after_clipping_also_outside_the_domain() -> None:
    turn = turn_of("krr")
    truth = run_report_round(turn, people(5), rng()).truth
    assert sum(truth.values()) == len(HELD)
    assert 20 < truth[OUTSIDE] < 60  # of 100 with a share of 1/2, 1/3 or 1/4: 36, 5 deviations


def test_stretches_have_chance_of_their_own() -> None:
    turn = turn_of("krr")
    words = [
        turn.chunk_generator(stretch).integers(2**63, size=4).tolist() for stretch in (1, 2, 3)
    ]
    assert len({word for row in words for word in row}) == 12
    assert turn.chunk_generator(2).integers(2**63, size=4).tolist() == words[1]
    assert "987654321" not in repr(replace(turn, seed=987654321))

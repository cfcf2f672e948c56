"""Every mechanism through the service: a study of two rounds over HTTP, with losses in both."""

from typing import Any

import pytest

from protocol.hashed import Hashed
from protocol.mechanisms import SUMMING
from protocol.messages import HeavyHitterPage
from tests.server.harness import Served, play, sum_of

LETTERS = {"kind": "alphabet", "characters": "abc.", "length": 3, "pad": "."}
QUESTIONS: dict[str, dict[str, Any]] = {
    "adaptive-iblt": {},
    "tracked": {},
    "approximate-histogram": {},
    "count-median": {"hashes": 5},
    "count-sketch": {"hashes": 5},
    "subsampled-iblt": {"rule": "theorem", "repetitions": 3, "threshold": 2},
}


RELEASING = {
    "hierarchical-histogram",
    "triehh",
}  # take more devices: tests/client/test_private_studies.py


def test_every_mechanism_is_there() -> None:
    assert set(QUESTIONS) | RELEASING == set(SUMMING)


@pytest.mark.parametrize("name", QUESTIONS)
async def test_a_study_with_losses_finds_what_is_heavy(served: Served, name: str) -> None:
    asked = {"mechanism": name, "threshold": 8, "contribution": 2, "domain": LETTERS}
    study = await served.create(question=asked | {"words": 4000} | QUESTIONS[name], rounds=2)
    for number, lost in ((1, ((0,), (), (), (3,))), (2, ((), (1,), (2,), ()))):
        devices = await play(served, study, lost=lost, after=number - 1)
        view = await served.until_closed(study, number)
        assert (view.state, view.participants) == ("decoded", 5)
        assert await served.read_sum(study, number) == sum_of(devices)
    # Each of the ten devices that are counted holds "ab", and some "a" or "abc" as well.
    answer = await served.client.get(f"/v1/studies/{study}/heavy-hitters")
    found = HeavyHitterPage.model_validate_json(answer.content).heavy_hitters
    counts = {one.item: one.estimate for one in found}
    assert max(counts, key=lambda item: counts[item]) == "ab"
    assert counts["ab"] == pytest.approx(10, abs=2)


async def test_strings_of_hashed_keys_are_fetched_through_the_service(served: Served) -> None:
    domain = {"kind": "hashed", "max_bytes": 20}
    asked = {"mechanism": "tracked", "threshold": 15, "contribution": 2, "domain": domain}
    study = await served.create(question=asked | {"words": 4000}, rounds=3)
    for number in (1, 2, 3):
        await play(served, study, lost=((), (number,), (), ()), after=number - 1)
        view = await served.until_closed(study, number)
        assert (view.state, view.participants) == ("decoded", 5)
    assert view.plan.mechanism == "tracked"
    assert view.plan.question.domain == Hashed(max_bytes=20, salt=study)
    answer = await served.client.get(f"/v1/studies/{study}/heavy-hitters")
    found = HeavyHitterPage.model_validate_json(answer.content).heavy_hitters
    assert [(one.item, one.estimate) for one in found] == [("ab", pytest.approx(15, abs=1))]

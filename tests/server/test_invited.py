"""Rounds that devices join at random: the service does not reveal how many joined."""

import asyncio
from collections import Counter
from typing import Any

from tests.server.cohort import refused
from tests.server.harness import Served, study_request

WORDS = {
    "mechanism": "triehh",
    "threshold": 1,
    "contribution": 1,
    "domain": {"kind": "alphabet", "characters": "-abc", "length": 2, "pad": "-"},
    "message_bytes": 2584,
    "epsilon": 30,
    "delta": 0.5,
    "theta": 4,
    "probability": 0.5,
}
THREE_COHORTS = study_request()["terms"] | {"cohorts": 3, "minimum": 5}


async def joined(served: Served, count: int, **own: Any) -> tuple[str, list[int]]:
    """Return a study that `count` devices joined, and the sizes of its three cohorts."""
    study = await served.create(question=WORDS | own, terms=THREE_COHORTS, rounds=2)
    devices = await served.join(study, count)
    sitting = Counter(device.seat.cohort for device in devices if device.seat is not None)
    return study, [sitting[cohort] for cohort in range(3)]


async def test_cohorts_fill_evenly_where_devices_join_by_coins(served: Served) -> None:
    """Otherwise they had 6, 3 and 0: one would continue at once, and an empty one would fail."""
    study, sitting = await joined(served, 9, join_probability=0.6)
    assert sitting == [3, 3, 3]
    assert {cohort.phase for cohort in (await served.show_round(study)).cohorts} == {"enrolling"}


async def test_cohorts_fill_one_by_one_where_all_join(served: Served) -> None:
    _, sitting = await joined(served, 9)
    assert sitting == [6, 3, 0]


async def test_seats_are_for_all_that_there_are_where_devices_join_by_coins(served: Served) -> None:
    study, sitting = await joined(served, 18, join_probability=0.6)
    assert sitting == [6, 6, 6]
    async with asyncio.timeout(20):  # the round is seated after the last device has its answer
        while (await served.client.get(f"/v1/studies/{study}/rounds/open")).status_code != 409:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_reason_that_reveals_how_many_joined_is_hidden(served: Served) -> None:
    study, _ = await joined(served, 9, join_probability=0.6)
    await served.pass_phase(study)
    await served.client.post(f"/v1/studies/{study}/stop")
    for what in ("rounds/1/cohorts/0/sum", "rounds/1", "rounds", "events"):
        answer = await served.client.get(f"/v1/studies/{study}/{what}")
        if what.endswith("sum"):
            refused(answer, 409, "wrong-state")
        for word in ("3 of", "too-few", "too few", "needed"):
            assert word not in answer.text


async def test_an_epsilon_that_nothing_meets_is_refused_before_it_is_computed_with(
    served: Served,
) -> None:
    question = {
        name: value for name, value in WORDS.items() if name not in ("theta", "probability")
    }
    for epsilon in (5e-324, 1e-300, 1e-9):
        for mode in ("sample-threshold", "noise", "both"):
            asked = question | {"mode": mode, "epsilon": epsilon}
            answer = await served.client.post("/v1/studies", json=study_request(question=asked))
            assert "1e-06" in refused(answer, 422, "malformed") + answer.text


async def test_the_loss_of_many_rounds_has_no_bound_if_joining_is_known(served: Served) -> None:
    """Nearly all that join vote: over forty rounds theta does not hide a device."""
    coins = {"theta": 12, "probability": 0.146, "join_probability": 0.15, "delta": 1e-6}
    study = await served.create(question=WORDS | coins, terms=THREE_COHORTS, rounds=40)
    answer = await served.client.get(f"/v1/studies/{study}/privacy")
    assert answer.status_code == 200
    epsilons = {loss["party"]: loss["epsilon"] for loss in answer.json()["parties"]}
    assert epsilons["devices"] is epsilons["server"] is None
    assert 1 < epsilons["public"] < 2
    assert (await served.client.get(f"/studies/{study}")).status_code == 200


async def test_coins_that_hide_nobody_over_many_rounds_are_refused(served: Served) -> None:
    question = WORDS | {"theta": 1, "probability": 0.9}
    asked = study_request(question=question, rounds=40)
    assert "costs epsilon inf" in str((await served.client.post("/v1/studies", json=asked)).json())

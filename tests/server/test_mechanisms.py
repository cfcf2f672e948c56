"""Sums of several mechanisms through the service: studies over HTTP, with losses."""

import pytest

from protocol.domains.hashed import Hashed
from tests.server.harness import STEPS, Served, play, sum_of, together


async def test_strings_of_hashed_keys_are_fetched_through_the_service(served: Served) -> None:
    domain = {"kind": "hashed", "max_bytes": 20}
    asked = {"mechanism": "tracked", "threshold": 15, "contribution": 2, "domain": domain}
    study = await served.create(question=asked | {"message_bytes": 8874}, rounds=3)
    for number in (1, 2, 3):
        await play(served, study, lost=((), (), (number,), (), ()), after=number - 1)
        view = await served.until_closed(study, number)
        assert (view.state, view.participants) == ("decoded", 5)
    assert view.plan.mechanism == "tracked"
    assert view.plan.question.domain == Hashed(max_bytes=20, salt=study)
    heavy_hitters = await served.heavy_hitters(study)
    assert [(row.item, row.estimate) for row in heavy_hitters] == [("ab", pytest.approx(15, abs=1))]


async def test_a_sketch_over_its_capacity_is_undecoded_and_invents_no_key(served: Served) -> None:
    """After a round in which little was held, the table is set for little; then much comes."""
    asked = {
        "mechanism": "adaptive-iblt",
        "threshold": 4,
        "contribution": 60,
        "message_bytes": 1474,
    }
    asked["domain"] = {"kind": "utf8", "max_bytes": 3}
    study = await served.create(question=asked, rounds=2)
    held: set[str] = {"ab"}
    states, counts = [], []
    for number in (1, 2):
        devices = await served.join(study, 6, number - 1)
        for place, device in enumerate(devices):
            device.histogram = {"ab": 1}
            if number > 1:
                device.histogram = {f"{chr(97 + i % 26)}{i // 26}{place}": 1 for i in range(60)}
            held |= device.histogram.keys()
        await together(devices, *STEPS)
        view = await served.until_closed(study, number)
        states.append(view.state)
        assert view.participants == 6
        assert await served.read_sum(study, number) == sum_of(devices)
        answer = await served.client.get(f"/v1/studies/{study}/heavy-hitters")
        assert answer.status_code == 200
        assert {row["item"] for row in answer.json()["heavy_hitters"]} <= held
        counts += [row["estimate"] for row in answer.json()["heavy_hitters"]]
        if view.state == "undecoded":
            assert view.distinct is None  # an estimate would depend on rare items
    assert states == ["decoded", "undecoded"]
    page = answer.json()
    assert (page["summed_rounds"], page["decoded_rounds"]) == (2, 1)
    # Both rounds have six devices. The second one was not read, so its half of the estimate is
    # uncertain, and the prior moves it.
    assert counts[1] == pytest.approx(2 * counts[0], rel=0.3)
    shown = await served.client.get(f"/studies/{study}")
    assert "The estimates rest on the 1 of 2 rounds" in shown.text
    assert (await served.client.get(f"/v1/studies/{study}")).json()["state"] == "finished"


async def test_a_round_does_not_show_that_one_device_holds_an_item(served: Served) -> None:
    domain = {"kind": "listed", "items": ["rare", "nobody has it"]}
    asked = {"mechanism": "adaptive-iblt", "threshold": 5, "contribution": 1, "message_bytes": 2074}
    study = await served.create(question=asked | {"domain": domain}, rounds=2)
    for number, holders, distinct in ((1, 1, 0.0), (2, 5, 1.0)):
        devices = await served.join(study, 6, number - 1)
        for place, device in enumerate(devices):
            device.histogram = {"rare": 1} if place < holders else {}
        await together(devices, *STEPS)
        view = await served.until_closed(study, number)
        assert (view.state, view.distinct) == ("decoded", distinct)
        page = (await served.client.get(f"/v1/studies/{study}/heavy-hitters")).json()
        assert (page["quality"] is None) == (number == 1)

"""What a device may get wrong: each is refused with a reason, and costs nobody the round."""

import asyncio
import sqlite3
from pathlib import Path

import httpx
import pytest

from protocol.messages import (
    PROBLEM,
    Roster,
    Survivors,
    pack_envelopes,
    pack_reveal,
    unpack_envelopes,
    unpack_reveal,
)
from secagg.participant import Reveal
from tests.server.conftest import Serve
from tests.server.harness import Device, Served, sum_of

STRANGER = "0" * 32


def refused(response: httpx.Response, status: int, kind: str) -> str:
    """Check that `response` is a problem of this status and type; return its detail."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (problem["type"], problem["status"]) == (PROBLEM + kind, status)
    assert problem["title"]
    return str(problem["detail"])


class Party:
    """A study with six devices that have joined it."""

    def __init__(self, served: Served, study: str, devices: list[Device]) -> None:
        self.served = served
        self.study = study
        self.devices = devices

    async def go(self, *steps: str, but: int | None = None) -> Device:
        """Take steps, all of them together; return the last device, `but` for the last step."""
        for number, step in enumerate(steps, start=1):
            last = number == len(steps) and but is not None
            devices = self.devices[:-1] if last else self.devices
            await asyncio.gather(*(getattr(device, step)() for device in devices))
        return self.devices[-1]

    async def end(self) -> None:
        """Check that the round ends with the exact sum of all."""
        view = await self.served.until_closed(self.study)
        assert (view.state, view.participants) == ("decoded", 6)
        assert await self.served.read_sum(self.study) == sum_of(self.devices)


@pytest.fixture
async def party(served: Served) -> Party:
    study = await served.create()
    return Party(served, study, await served.join(study, 6))


async def test_a_device_that_joins_twice_gets_the_same_seat(served: Served) -> None:
    study = await served.create()
    (device,) = await served.join(study, 1)
    again = await device.apply(study, 1)
    assert again.status_code == 200
    assert device.seat is not None
    assert again.json() == device.seat.model_dump(mode="json")
    assert (await served.show_round(study)).cohorts[0].enrolled == 1


async def test_a_device_that_joins_again_with_other_keys_or_ticket_is_refused(
    served: Served,
) -> None:
    study = await served.create()
    (device,) = await served.join(study, 1)
    impostor = Device(served.client, device.name, {})
    refused(await impostor.apply(study, 1), 409, "conflict")
    impostor.joined = device.joined
    impostor.headers = {"Authorization": "Bearer " + "A" * 43}
    refused(await impostor.apply(study, 1), 409, "conflict")


async def test_a_device_with_another_ones_keys_is_refused(served: Served) -> None:
    study = await served.create()
    (device,) = await served.join(study, 1)
    thief = Device(served.client, "somebody-else", {})
    thief.joined = device.joined
    refused(await thief.apply(study, 1), 409, "conflict")
    thief.joined.mask, thief.joined.seal = device.joined.seal, device.joined.mask
    refused(await thief.apply(study, 1), 409, "conflict")


@pytest.mark.parametrize("key", ["00" * 32, "01" + "00" * 31, "ff" * 31, "zz" * 32])
async def test_a_key_that_is_none_is_malformed(served: Served, key: str) -> None:
    study = await served.create()
    wish = {"device": "device-1", "mask_key": key, "seal_key": "05" * 32, "commitment": "07" * 32}
    path = f"/v1/studies/{study}/rounds/1/participants"
    headers = {"Authorization": "Bearer " + "A" * 43}
    response = await served.client.post(path, json=wish, headers=headers)
    refused(response, 422, "malformed")
    assert response.json()["errors"]


async def test_a_full_round_takes_no_more_devices(party: Party) -> None:
    late = Device(party.served.client, "late-device", {})
    response = await late.apply(party.study, 1)
    refused(response, 409, "no-round")
    assert response.headers["retry-after"] == "1"
    await party.go("share", "mask", "reveal")
    await party.end()


@pytest.mark.parametrize("path", ["studies/nope/rounds/1", "studies/{study}/rounds/9"])
async def test_joining_an_unknown_study_or_round_is_not_found(served: Served, path: str) -> None:
    study = await served.create()
    device = Device(served.client, "device-1", {})
    keys = device.joined.public
    wish = {
        "device": "device-1",
        "mask_key": keys.mask.hex(),
        "seal_key": keys.seal.hex(),
        "commitment": "07" * 32,
    }
    url = f"/v1/{path.format(study=study)}/participants"
    response = await served.client.post(url, json=wish, headers=device.headers)
    refused(response, 404, "not-found")


@pytest.mark.parametrize(
    "ticket", [None, "", "Bearer", "Bearer short", "Basic " + "A" * 43, "Bearer " + "ä" * 43]
)
async def test_a_request_without_a_ticket_is_not_authorised(
    party: Party, ticket: str | None
) -> None:
    path = f"{party.devices[0].path}/roster"
    headers = {} if ticket is None else {"Authorization": ticket.encode()}
    response = await party.served.client.get(path, headers=headers)
    refused(response, 401, "not-authorised")
    assert response.headers["www-authenticate"] == "Bearer"


async def test_another_participants_ticket_is_not_authorised(party: Party) -> None:
    one, other = party.devices[:2]
    one.headers, mine = other.headers, one.headers
    refused(await one.get("roster"), 401, "not-authorised")
    refused(await one.put("envelopes", b""), 401, "not-authorised")
    one.headers = mine
    await party.go("share", "mask", "reveal")
    await party.end()


@pytest.mark.parametrize("participant", [STRANGER, "x" * 100, "a.b", "%00"])
async def test_an_unknown_participant_is_not_found(party: Party, participant: str) -> None:
    headers = party.devices[0].headers
    response = await party.served.client.get(
        f"/v1/participants/{participant}/roster", headers=headers
    )
    refused(response, 404, "not-found")


async def test_a_message_that_is_repeated_with_the_same_content_is_accepted(
    party: Party,
) -> None:
    device = party.devices[0]
    await party.go("share")
    assert (await device.put("envelopes", device.envelopes)).status_code == 204
    await party.go("mask")
    assert (await device.put("envelopes", device.envelopes)).status_code == 204
    assert (await device.put("vector", device.body)).status_code == 204
    await party.go("reveal")
    await party.end()
    for what, body in (("vector", device.body), ("reveal", device.shares)):
        assert (await device.put(what, body)).status_code == 204


async def test_a_message_that_is_repeated_with_other_content_is_refused_and_the_first_stays(
    party: Party,
) -> None:
    device = await party.go("share", "mask", but=-1)
    body = await device.compute_vector()
    assert (await device.put("vector", body)).status_code == 204
    other = bytes(len(body))
    assert "other content" in refused(await device.put("vector", other), 409, "conflict")
    party.devices[-1].body = body
    await party.go("reveal")
    await party.end()


async def test_a_message_before_its_phase_is_refused_and_told_the_phase(party: Party) -> None:
    device = await party.go("share", but=-1)
    body = bytes(device.ring.nbytes)
    response = await device.put("vector", body)
    refused(response, 409, "wrong-phase")
    assert response.json()["phase"] == "sharing"
    refused(await device.put("reveal", b""), 409, "wrong-phase")
    refused(await device.get("survivors"), 409, "wrong-phase")
    await device.share()
    await party.go("mask", "reveal")
    await party.end()


async def test_anything_but_the_roster_is_too_early_while_enrolling(served: Served) -> None:
    study = await served.create()
    (device,) = await served.join(study, 1)
    pending = await device.get("roster", wait=0)
    assert pending.status_code == 202
    assert pending.json()["phase"] == "enrolling"
    for what in ("envelopes", "vector", "reveal"):
        response = await device.put(what, b"")
        refused(response, 409, "wrong-phase")
        assert response.json()["phase"] == "enrolling"
    refused(await device.get("envelopes"), 409, "wrong-phase")


async def test_who_comes_too_late_is_refused_and_told_that_it_was_left_out(
    party: Party,
) -> None:
    device = await party.go("share", but=-1)
    body = await device.compute_envelopes()
    await party.served.pass_phase(party.study)
    response = await device.put("envelopes", body)
    refused(response, 409, "wrong-phase")
    assert response.json()["phase"] == "masking"
    for what in ("roster", "envelopes"):
        refused(await device.get(what), 410, "left-out")
    refused(await device.put("vector", bytes(device.ring.nbytes)), 410, "left-out")
    party.devices.pop()
    await party.go("mask", "reveal")
    view = await party.served.until_closed(party.study)
    assert view.participants == 5
    assert await party.served.read_sum(party.study) == sum_of(party.devices)


async def test_a_message_after_its_deadline_is_refused_before_anybody_closed_the_phase(
    serve: Serve, sqlite_url: str
) -> None:
    """The service looks once a minute, so nothing but the deadline itself can refuse."""
    async with serve(sqlite_url, poll_seconds=60, pace_seconds=0) as served:
        terms = {"cohort_size": 6, "minimum": 6, "corrupt": 0, "dropout": 0}
        study = await served.create(terms=terms)
        devices = await served.join(study, 6)
        bodies = [await device.compute_envelopes() for device in devices]
        served.clock.advance(61)
        detail = refused(await devices[0].put("envelopes", bodies[0]), 409, "wrong-phase")
        assert "deadline" in detail


@pytest.mark.parametrize("change", [-1, 1, 10**6])
async def test_a_vector_of_the_wrong_length_is_malformed(party: Party, change: int) -> None:
    device = await party.go("share", "mask", but=-1)
    size = device.ring.nbytes
    response = await device.put("vector", bytes(size + change))
    detail = refused(response, 422, "malformed")
    assert detail == f"{size} bytes expected, got {size + change}"
    assert response.json()["errors"] == [{"at": "body", "fault": detail}]
    await device.mask()
    await party.go("reveal")
    await party.end()


async def test_a_value_outside_its_lane_is_malformed(party: Party) -> None:
    device = await party.go("share", "mask", but=-1)
    vector = device.ring.zero()
    number, lane = next(
        (number, lane) for number, lane in enumerate(device.ring.lanes) if not lane.is_power_of_two
    )
    vector[number][0] = lane.q
    response = await device.put("vector", device.ring.pack(vector))
    assert "outside its lane" in refused(response, 422, "malformed")
    await device.mask()
    await party.go("reveal")
    await party.end()


async def test_a_body_that_is_no_envelopes_is_malformed(party: Party) -> None:
    device = await party.go("share", but=-1)
    body = await device.compute_envelopes()
    refused(await device.put("envelopes", body[:-1]), 422, "malformed")
    refused(await device.put("envelopes", b""), 422, "malformed")
    refused(await device.put("envelopes", bytes(len(body))), 422, "malformed")
    assert (await device.put("envelopes", body)).status_code == 204
    await party.go("mask", "reveal")
    await party.end()


@pytest.mark.parametrize("stranger", [17, 5])  # nobody, and the sender itself
async def test_an_envelope_for_a_stranger_is_malformed(party: Party, stranger: int) -> None:
    device = await party.go("share", but=-1)
    body = await device.compute_envelopes()
    envelopes = unpack_envelopes(body)
    envelopes[stranger] = envelopes.pop(min(envelopes))
    response = await device.put("envelopes", pack_envelopes(envelopes))
    assert "stranger" in refused(response, 422, "malformed")
    assert (await device.put("envelopes", body)).status_code == 204
    await party.go("mask", "reveal")
    await party.end()


async def test_a_share_of_a_stranger_or_of_the_other_secret_is_malformed(party: Party) -> None:
    device = await party.go("share", "mask", "reveal", but=-1)
    body = await device.compute_reveal()
    given = unpack_reveal(body)
    moved = dict(given.seed_shares)
    moved[40] = moved.pop(min(moved))
    response = await device.put("reveal", pack_reveal(Reveal(moved, {})))
    assert "stranger" in refused(response, 422, "malformed")
    other = dict(given.seed_shares)
    owner = min(other)
    swapped = Reveal(other, {owner: other.pop(owner)})
    response = await device.put("reveal", pack_reveal(swapped))
    assert "wrong secret" in refused(response, 422, "malformed")
    refused(await device.put("reveal", body[:-1]), 422, "malformed")
    assert (await device.put("reveal", body)).status_code == 204
    await party.end()


async def test_a_body_of_the_wrong_media_type_is_refused(party: Party) -> None:
    device = await party.go("share", but=-1)
    body = await device.compute_envelopes()
    response = await device.put("envelopes", body, **{"Content-Type": "application/json"})
    refused(response, 415, "wrong-media-type")
    assert (await device.put("envelopes", body)).status_code == 204


async def test_a_failed_cohort_tells_everybody_so(party: Party) -> None:
    await asyncio.gather(*(device.share() for device in party.devices[:3]))
    assert await party.served.pass_phase(party.study) == "failed"
    for device in party.devices:
        for what in ("roster", "envelopes", "survivors"):
            detail = refused(await device.get(what), 410, "cohort-failed")
            assert "3 of 6 shared their secrets" in detail
    late = party.devices[-1]
    response = await late.put("vector", bytes(late.ring.nbytes))
    refused(response, 410, "cohort-failed")
    path = f"/v1/studies/{party.study}/rounds/1/cohorts/0/sum"
    refused(await party.served.client.get(path), 410, "cohort-failed")


async def test_a_question_waits_until_the_phase_moves(party: Party) -> None:
    assert (await party.devices[0].get("roster")).status_code == 200
    waiting = asyncio.create_task(party.devices[0].get("envelopes", wait=30))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await party.go("share")
    response = await asyncio.wait_for(waiting, 5)
    assert response.status_code == 200
    assert unpack_envelopes(response.content)


async def test_the_lists_of_a_phase_that_is_over_stay_what_they_were(party: Party) -> None:
    device = party.devices[0]
    await party.go("share", "mask")
    first = await device.get("survivors")
    assert Survivors.model_validate_json(first.content).survivors == tuple(range(6))
    assert (await device.get("survivors")).content == first.content
    roster = Roster.model_validate_json((await device.get("roster")).content)
    assert len(roster.neighbours) == roster.degree


async def test_a_locked_database_is_unavailable_and_costs_nobody_the_round(
    serve: Serve, sqlite_url: str, tmp_path: Path
) -> None:
    async with serve(sqlite_url, busy_timeout=0.05) as served:
        study = await served.create()
        party = Party(served, study, await served.join(study, 6))
        device = await party.go("share", but=-1)
        body = await device.compute_envelopes()
        other = sqlite3.connect(tmp_path / "test.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        response = await device.put("envelopes", body)
        refused(response, 503, "unavailable")
        assert response.headers["retry-after"] == "1"
        assert (await served.client.get("/readyz")).status_code == 200  # reading still works
        served.clock.advance(61)  # the ticker cannot close the phase either
        await asyncio.sleep(0.2)
        other.execute("ROLLBACK")
        other.close()
        served.clock.advance(-61)
        assert (await device.put("envelopes", body)).status_code == 204
        await party.go("mask", "reveal")
        await party.end()

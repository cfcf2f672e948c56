"""Messages of devices are accepted once, in their phase, and only if they are valid."""

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.api.phases import Phase
from secagg.messages import EncryptedShare, KeyShares, UnmaskingShares
from tests.server.conftest import Serve
from tests.server.device import KINDS
from tests.server.harness import STEPS, Served, study_request, together
from tests.server.lies import altered, signed_reveal, with_vector
from tests.server.party import Party, refused

PHASES = ("sharing", "masking", "confirming", "unmasking")


async def test_a_message_is_accepted_again_in_each_later_phase_and_after_the_end(
    party: Party,
) -> None:
    device = party.devices[0]
    for step in STEPS:
        await party.go(step)
        for kind, body in device.bodies.items():
            assert (await device.put(kind, body)).status_code == 204
    await party.end()
    assert list(device.bodies) == list(KINDS)
    for kind, body in device.bodies.items():
        assert (await device.put(kind, body)).status_code == 204


async def test_a_message_is_accepted_again_after_the_cohort_failed(party: Party) -> None:
    await party.go("share", "mask")
    await together(party.devices[:3], "confirm")
    assert await party.served.pass_phase(party.study) == "failed"
    device, silent = party.devices[0], party.devices[-1]
    for kind, body in device.bodies.items():
        assert (await device.put(kind, body)).status_code == 204
    refused(await device.put("confirmation", bytes(64)), 409, "conflict")
    refused(await silent.put("confirmation", bytes(64)), 410, "cohort-failed")


async def test_other_content_after_the_phase_is_refused(party: Party) -> None:
    # The devices that sent other content are still in the round.
    for step, phase in zip(STEPS[1:], PHASES[1:], strict=True):
        await party.go(STEPS[STEPS.index(step) - 1])
        await party.served.until_phase(party.study, phase)
        device = party.devices[-1]
        for kind, body in device.bodies.items():
            other = body[:-1] + bytes([body[-1] ^ 1])
            response = await device.put(kind, other)
            assert "other content" in refused(response, 409, "conflict")
            assert response.json()["phase"] == phase
    await party.go("reveal")
    await party.end()


async def test_a_message_that_is_repeated_with_other_content_is_refused_and_the_first_stays(
    party: Party,
) -> None:
    device = await party.go_but_one("share", "mask")
    device.vector_body = await device.compute_vector()
    assert (await device.put("masked-input", device.vector_body)).status_code == 204
    other = with_vector(device, device.vector_body, device.ring.pack(device.ring.zero()))
    assert "other content" in refused(await device.put("masked-input", other), 409, "conflict")
    await party.go("confirm", "reveal")
    await party.end()


@pytest.mark.parametrize("step", [1, 2, 3])
async def test_a_message_before_its_phase_is_refused_with_the_phase(
    party: Party, step: int
) -> None:
    device = await party.go_but_one(*STEPS[:step])
    for kind in KINDS[step:]:
        response = await device.put(kind, bytes(party.sizes()[kind]))
        refused(response, 409, "wrong-phase")
        assert response.json()["phase"] == PHASES[step - 1]
    await together([device], STEPS[step - 1])
    await party.go(*STEPS[step:])
    await party.end()


async def test_all_messages_are_too_early_while_enrolling(served: Served) -> None:
    study = await served.create()
    (device,) = await served.join(study, 1)
    for what in KINDS:
        response = await device.put(what, b"")
        refused(response, 409, "wrong-phase")
        assert response.json()["phase"] == "enrolling"


@pytest.mark.parametrize("step", range(4))
async def test_a_late_message_is_refused_and_its_device_is_left_out(
    party: Party, step: int
) -> None:
    late = party.devices[-1]
    await party.go(*STEPS[:step])
    body = await late.compute(KINDS[step])
    await party.lose(STEPS[step], 5)
    response = await late.put(KINDS[step], body)
    refused(response, 409, "wrong-phase")
    assert response.json()["phase"] == (*PHASES, "summed")[step + 1]
    for kind in KINDS[step + 1 : step + 2]:
        refused(await late.put(kind, party.sizes()[kind] * b"x"), 410, "dropped-out")
    await party.go(*STEPS[step + 1 :])
    await party.end()


async def test_a_message_after_its_deadline_is_refused_before_the_phase_is_closed(
    serve: Serve, sqlite_url: str
) -> None:
    """The service checks deadlines once a minute, so only the deadline itself can refuse."""
    async with serve(sqlite_url, poll_seconds=60, min_poll_seconds=0) as served:
        terms = {"cohort_size": 6, "minimum": 6, "corrupt": 0, "dropout": 0}
        study = await served.create(terms=terms)
        devices = await served.join(study, 6)
        bodies = [await device.compute_shares() for device in devices]
        served.clock.advance(61)
        detail = refused(await devices[0].put("key-shares", bodies[0]), 409, "wrong-phase")
        assert "deadline" in detail


def unsigned(body: bytes) -> bytes:
    return body[:-64] + bytes(64)


@pytest.mark.parametrize("step", range(4))
async def test_a_malformed_body_is_refused_and_may_be_corrected(party: Party, step: int) -> None:
    device = await party.go_but_one(*STEPS[: step + 1])
    kind = KINDS[step]
    body = await device.compute(kind)
    zeros = bytes(len(body))
    for false in (b"", body[:-1], body + b"x", zeros, unsigned(body), bytes(10**6)):
        response = await device.put(kind, false)
        detail = refused(response, 422, "malformed")
        assert response.json()["errors"] == [{"location": "body", "detail": detail}]
    await device.upload(kind, body)
    await party.go(*STEPS[step + 1 :])
    await party.end()


async def test_a_late_body_is_refused_by_the_current_phase_and_not_by_the_last_known(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The same happens between the end of a phase and the next check of another server.
    device = await party.go_but_one("share", "mask")
    body = await device.compute_vector()
    await party.served.pass_phase(party.study)
    orchestrator = party.served.app.state.service.orchestrator
    monkeypatch.setattr(orchestrator, "last_phase", lambda _cohort: Phase.MASKING)
    bad = bytearray(body)
    bad[-1] ^= 1  # of the signature
    for late in (body, bytes(bad)):
        refused(await device.put("masked-input", late), 409, "wrong-phase")
    other = party.devices[0]
    assert (await other.put("masked-input", other.vector_body)).status_code == 204
    monkeypatch.undo()
    party.counted = party.devices = party.devices[:-1]
    await party.go("confirm", "reveal")
    await party.end()


async def test_a_value_outside_its_lane_is_malformed(party: Party) -> None:
    device = await party.go_but_one("share", "mask")
    body = await device.compute_vector()
    vector = device.ring.zero()
    number, lane = next(
        (number, lane) for number, lane in enumerate(device.ring.lanes) if not lane.is_power_of_two
    )
    vector[number][0] = lane.q
    response = await device.put("masked-input", with_vector(device, body, device.ring.pack(vector)))
    assert "outside its lane" in refused(response, 422, "malformed")
    assert (await device.put("masked-input", body)).status_code == 204
    await party.go("confirm", "reveal")
    await party.end()


async def test_a_message_that_another_signed_is_malformed(party: Party) -> None:
    # The signature of the identity counts: the ticket alone is not enough.
    device = await party.go_but_one("share")
    message = KeyShares.unpack(await device.compute_shares())
    shares = (EncryptedShare(bytes(32), bytes(33)), *message.encrypted_shares[1:])
    moved = replace(message, encrypted_shares=shares)
    detail = refused(await device.put("key-shares", moved.pack()), 422, "malformed")
    assert detail == "participant 5 did not sign this"
    other = party.devices[0]
    refused(await device.put("key-shares", other.shares_body), 422, "malformed")


async def test_a_confirmation_of_other_survivors_is_refused(party: Party) -> None:
    device = await party.go_but_one("share", "mask", "confirm")
    true = await device.compute_confirmation()
    view = device.masked.transcript
    for others in (frozenset(range(5)), frozenset(range(1, 6)), frozenset(range(7))):
        false = device.identity.sign(view.confirmation_statement(5, others))
        refused(await device.put("confirmation", false), 422, "malformed")
    borrowed = party.devices[0].confirmation_body
    refused(await device.put("confirmation", borrowed), 422, "malformed")
    assert (await device.put("confirmation", true)).status_code == 204
    await party.go("reveal")
    await party.end()


async def test_a_holder_that_reveals_false_shares_is_refused_and_may_correct_them(
    party: Party,
) -> None:
    # Slot 1 dropped out after it shared; slot 5 sends the false shares.
    await party.go("share")
    await party.lose("mask", 1)
    await party.go("confirm")
    device = await party.go_but_one("reveal")
    body = await device.compute_reveal()
    true = UnmaskingShares.unpack(body)
    outside = altered(true.seed_shares, 2, lambda share: b"\2" + share[1:])
    for false, fault in (
        (replace(true, seed_shares=outside), "participant 2 that is not a field element"),
        (replace(true, key_shares={}), "did not reveal the share of 1"),
    ):
        signed = signed_reveal(device, false)
        assert fault in refused(await device.put("unmasking-shares", signed), 422, "malformed")
    await device.upload("unmasking-shares", body)
    await party.end()


async def test_a_body_of_the_wrong_media_type_is_refused(party: Party) -> None:
    device = await party.go_but_one("share")
    body = await device.compute_shares()
    response = await device.put("key-shares", body, **{"Content-Type": "application/json"})
    refused(response, 415, "wrong-media-type")
    assert (await device.put("key-shares", body)).status_code == 204


async def test_a_semi_honest_study_has_no_confirming_phase(served: Served) -> None:
    terms = study_request()["terms"] | {"mode": "semi-honest"}
    study = await served.create(terms=terms)
    party = Party(served, study, await served.join(study, 6))
    device = party.devices[0]
    for step in ("share", "mask", "reveal"):
        await party.go_but_one(step)
        response = await device.put("confirmation", bytes(64))
        refused(response, 409, "wrong-phase")
        refused(await device.get("confirmations", wait=0), 409, "wrong-phase")
        await together(party.devices[-1:], step)
    await party.end()
    refused(await device.put("confirmation", bytes(64)), 409, "wrong-phase")


async def test_a_locked_database_is_unavailable_and_costs_nobody_the_round(
    serve: Serve, sqlite_url: str, tmp_path: Path
) -> None:
    async with serve(sqlite_url, database_timeout_seconds=0.05) as served:
        study = await served.create()
        party = Party(served, study, await served.join(study, 6))
        device = await party.go_but_one("share")
        body = await device.compute_shares()
        other = sqlite3.connect(tmp_path / "test.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        response = await device.put("key-shares", body)
        refused(response, 503, "unavailable")
        assert response.headers["retry-after"] == "1"
        assert (await served.client.get("/readyz")).status_code == 200  # reading still works
        served.clock.advance(61)  # the timer cannot close the phase either
        await asyncio.sleep(0.2)
        other.execute("ROLLBACK")
        other.close()
        served.clock.advance(-61)
        await device.upload("key-shares", body)
        await party.go("mask", "confirm", "reveal")
        await party.end()

"""Messages of devices are accepted once, in their phase, and only if they are valid."""

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from sqlalchemy.exc import IntegrityError

from protocol.api.phases import MessageKind, Phase
from secagg.aggregator import check_key_shares
from secagg.messages import KeyShares
from secagg.session import Session
from server.db.repositories.messages.participants import (
    CohortStatus,
    JoiningDevice,
    ParticipantRepository,
    ParticipantSlot,
    Upload,
)
from tests.server.cohort import Cohort, refused
from tests.server.conftest import Serve
from tests.server.device import KINDS
from tests.server.false_messages import with_vector
from tests.server.harness import STEPS, Served, together

PHASES = ("sharing", "checking", "masking", "confirming", "unmasking")
NEXT_MESSAGE_AND_DOCUMENT = tuple(
    zip(
        KINDS[1:],
        ("encrypted-shares", "share-commitments", "survivors", "signed-inputs"),
        strict=True,
    )
)


async def test_a_message_is_accepted_again_in_each_later_phase_and_after_the_end(
    cohort: Cohort,
) -> None:
    device = cohort.devices[0]
    for step in STEPS:
        await cohort.take_steps(step)
        for kind, body in device.bodies.items():
            assert (await device.put(kind, body)).status_code == 204
    await cohort.check_exact_sum()
    assert list(device.bodies) == list(KINDS)
    for kind, body in device.bodies.items():
        assert (await device.put(kind, body)).status_code == 204


async def test_a_message_is_late_by_its_arrival_and_not_by_its_commit(cohort: Cohort) -> None:
    device = await cohort.take_steps_but_last_device("share")
    body = await device.compute("key-shares")
    clock, service = cohort.served.clock, cohort.served.service
    groups = service.store.arrivals[Upload].groups
    commit = groups.commit

    async def commit_late(arrivals: Sequence[Any]) -> Sequence[Any]:
        clock.advance(3600)
        return await commit(arrivals)

    async with service.orchestrator.poll_lock:  # nobody closes the phase meanwhile
        clock.advance(3600)
        refused(await device.put("key-shares", body), 409, "wrong-phase")
        clock.advance(-3600)
        groups.commit = commit_late
        assert (await device.put("key-shares", body)).status_code == 204


async def test_a_repetition_and_a_new_message_share_a_commit(cohort: Cohort) -> None:
    repeated, *_, first, second = cohort.devices
    await together(cohort.devices[:-2], "share")
    bodies = [await device.compute("key-shares") for device in (first, second)]
    groups, gate = cohort.served.service.store.arrivals[Upload].groups, asyncio.Event()
    commit, sizes = groups.commit, list[int]()

    async def commit_at_gate(arrivals: Sequence[Any]) -> Sequence[Any]:
        sizes.append(len(arrivals))
        await gate.wait()
        return await commit(arrivals)

    groups.commit = commit_at_gate
    async with asyncio.TaskGroup() as tasks:
        puts = [
            tasks.create_task(device.put("key-shares", body))
            for device, body in zip(
                (first, repeated, second),
                (bodies[0], repeated.bodies["key-shares"], bodies[1]),
                strict=True,
            )
        ]
        for _ in range(1000):  # until all have arrived
            if sum(sizes) + len(groups.waiting) == len(puts):
                break
            await asyncio.sleep(0.01)
        gate.set()
    assert [put.result().status_code for put in puts] == [204] * 3
    assert sum(sizes) == 3
    assert max(sizes) > 1


async def test_a_message_is_accepted_again_after_the_cohort_failed(cohort: Cohort) -> None:
    await cohort.take_steps("share", "check", "mask")
    await together(cohort.devices[:3], "confirm")
    assert await cohort.served.pass_phase(cohort.study) == "failed"
    device, silent = cohort.devices[0], cohort.devices[-1]
    for kind, body in device.bodies.items():
        assert (await device.put(kind, body)).status_code == 204
    refused(await device.put("confirmation", bytes(64)), 409, "conflict")
    refused(await silent.put("confirmation", bytes(64)), 410, "cohort-failed")


async def test_other_content_after_the_phase_is_refused(cohort: Cohort) -> None:
    # The devices that sent other content are still in the round.
    for step, phase in zip(STEPS[1:], PHASES[1:], strict=True):
        await cohort.take_steps(STEPS[STEPS.index(step) - 1])
        await cohort.served.until_phase(cohort.study, phase)
        device = cohort.devices[-1]
        for kind, body in device.bodies.items():
            other = body[:-1] + bytes([body[-1] ^ 1])
            response = await device.put(kind, other)
            assert "other content" in refused(response, 409, "conflict")
            assert response.json()["phase"] == phase
    await cohort.take_steps("reveal")
    await cohort.check_exact_sum()


async def test_a_message_that_is_repeated_with_other_content_is_refused_and_the_first_stays(
    cohort: Cohort,
) -> None:
    device = await cohort.take_steps_but_last_device("share", "check", "mask")
    device.vector_body = await device.compute_vector()
    assert (await device.put("masked-input", device.vector_body)).status_code == 204
    other = with_vector(device, device.ring.pack(device.ring.zero()))
    assert "other content" in refused(await device.put("masked-input", other), 409, "conflict")
    await cohort.take_steps("confirm", "reveal")
    await cohort.check_exact_sum()


async def test_a_message_before_its_phase_is_refused_with_the_phase(served: Served) -> None:
    study = await served.create()
    cohort = Cohort(served, study, await served.join(study, 5))
    device = cohort.devices[-1]
    for kind in KINDS:
        response = await device.put(kind, bytes(64))
        refused(response, 409, "wrong-phase")
        assert response.json()["phase"] == "enrolling"
    cohort.devices[:0] = await served.join(study, 1, first=5)
    for step, phase in enumerate(PHASES[:-1]):
        await cohort.take_steps_but_last_device(STEPS[step])
        for kind in KINDS[step + 1 :]:
            response = await device.put(kind, bytes(cohort.sizes()[kind]))
            refused(response, 409, "wrong-phase")
            assert response.json()["phase"] == phase
        await together([device], STEPS[step])
    await cohort.take_steps("reveal")
    await cohort.check_exact_sum()


@pytest.mark.parametrize("steps", [(0, 1), (2,), (3, 4)])
async def test_late_messages_are_refused_and_their_devices_are_left_out(
    cohort: Cohort, steps: tuple[int, ...]
) -> None:
    await cohort.take_steps(*STEPS[: steps[0]])
    for step in steps:
        late = cohort.devices[-1]
        body = await late.compute(KINDS[step])
        await cohort.take_step_without(STEPS[step], late.seat.slot)
        response = await late.put(KINDS[step], body)
        refused(response, 409, "wrong-phase")
        assert response.json()["phase"] == (*PHASES, "summed")[step + 1]
        for kind, document in NEXT_MESSAGE_AND_DOCUMENT[step : step + 1]:
            refused(await late.put(kind, cohort.sizes()[kind] * b"x"), 410, "dropped-out")
            refused(await late.get(document), 410, "dropped-out")
        if step == 0:  # who did not share keys has no use for the roster any more
            refused(await late.get("roster"), 410, "dropped-out")
    await cohort.take_steps(*STEPS[steps[-1] + 1 :])
    await cohort.check_exact_sum()


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


async def test_a_malformed_body_is_refused_and_may_be_corrected(cohort: Cohort) -> None:
    for step, kind in zip(STEPS, KINDS, strict=True):
        device = await cohort.take_steps_but_last_device(step)
        body = await device.compute(kind)
        zeros = bytes(len(body))
        for false in (b"", body[:-1], body + b"x", zeros, unsigned(body), bytes(10**6)):
            response = await device.put(kind, false)
            detail = refused(response, 422, "malformed")
            assert response.json()["errors"] == [{"location": "body", "detail": detail}]
        document = {"Content-Type": "application/json"}
        refused(await device.put(kind, body, **document), 415, "wrong-media-type")
        await device.upload(kind, body)
    await cohort.check_exact_sum()


def cache_phase(cohort: Cohort, monkeypatch: pytest.MonkeyPatch, phase: Phase) -> None:
    """Let the service believe that every cohort is in `phase`, as before news of the next one."""
    status = CohortStatus(phase, cohort.devices[0].seat.deadline, None)
    monkeypatch.setattr(
        cohort.served.service.status_cache, "status", AsyncMock(return_value=status)
    )


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_body_is_checked_once_even_if_it_is_refused(
    cohort: Cohort, monkeypatch: pytest.MonkeyPatch, *, is_known: bool
) -> None:
    checked: list[int] = []

    def check(session: Session, slot: int, message: KeyShares) -> None:
        checked.append(slot)
        check_key_shares(session, slot, message)

    device = await cohort.take_steps_but_last_device("share")
    body = await device.compute_shares()
    monkeypatch.setattr("server.api.devices.uploads.check_key_shares", check)
    cache_phase(cohort, monkeypatch, Phase.SHARING if is_known else Phase.ENROLLING)
    refused(await device.put("key-shares", unsigned(body)), 422, "malformed")
    assert checked == [device.seat.slot]
    await device.upload("key-shares", body)
    assert checked == [device.seat.slot] * 2


async def test_a_late_body_is_refused_by_the_current_phase_and_not_by_the_last_known(
    cohort: Cohort, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The same happens between the end of a phase and the next check of another server.
    device = await cohort.take_steps_but_last_device("share", "check", "mask")
    body = await device.compute_vector()
    await cohort.served.pass_phase(cohort.study)
    cache_phase(cohort, monkeypatch, Phase.MASKING)
    bad = bytearray(body)
    bad[-1] ^= 1  # of the signature
    for late in (body, bytes(bad)):
        refused(await device.put("masked-input", late), 409, "wrong-phase")
    other = cohort.devices[0]
    assert (await other.put("masked-input", other.vector_body)).status_code == 204
    monkeypatch.undo()
    cohort.counted = cohort.devices = cohort.devices[:-1]
    await cohort.take_steps("confirm", "reveal")
    await cohort.check_exact_sum()


async def test_a_message_that_was_early_when_it_was_checked_is_not_stored(
    cohort: Cohort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The phase begins between the check and the transaction, which finds nothing wrong."""
    await cohort.take_steps("share")
    await cohort.served.until_phase(cohort.study, "checking")
    device = cohort.devices[0]
    before = CohortStatus(Phase.SHARING, device.seat.deadline, None)
    status = AsyncMock(return_value=before)
    with monkeypatch.context() as checked_early:
        cache_phase(cohort, checked_early, Phase.ENROLLING)
        checked_early.setattr(ParticipantRepository, "status", status)
        body = bytes(cohort.sizes()["complaints"])
        refused(await device.put("complaints", body), 409, "wrong-phase")
    await cohort.take_steps(*STEPS[1:])
    await cohort.check_exact_sum()


async def test_a_value_outside_its_lane_is_malformed(cohort: Cohort) -> None:
    device = await cohort.take_steps_but_last_device("share", "check", "mask")
    body = await device.compute_vector()
    vector = device.ring.zero()
    number, lane = next(
        (number, lane) for number, lane in enumerate(device.ring.lanes) if not lane.is_power_of_two
    )
    vector[number][0] = lane.q
    response = await device.put("masked-input", with_vector(device, device.ring.pack(vector)))
    assert "outside its lane" in refused(response, 422, "malformed")
    assert (await device.put("masked-input", body)).status_code == 204
    await cohort.take_steps("confirm", "reveal")
    await cohort.check_exact_sum()


async def test_a_locked_database_is_unavailable_and_costs_nobody_the_round(
    serve: Serve, sqlite_url: str, tmp_path: Path
) -> None:
    async with serve(sqlite_url, database_timeout_seconds=0.05) as served:
        study = await served.create()
        cohort = Cohort(served, study, await served.join(study, 6))
        device = await cohort.take_steps_but_last_device("share")
        body = await device.compute_shares()
        other = sqlite3.connect(tmp_path / "test.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        response = await device.put("key-shares", body)
        refused(response, 503, "unavailable")
        assert response.headers["retry-after"] == "1"
        refused(await served.client.get("/readyz"), 503, "unavailable")
        served.clock.advance(61)  # the timer cannot close the phase either
        await asyncio.sleep(0.2)
        other.execute("ROLLBACK")
        other.close()
        served.clock.advance(-61)
        await device.upload("key-shares", body)
        await cohort.take_steps(*STEPS[1:])
        await cohort.check_exact_sum()


async def test_a_message_that_meets_another_request_is_stored_once(cohort: Cohort) -> None:
    """Two requests with the same message may both find none, in PostgreSQL."""
    groups = cohort.served.service.store.arrivals[Upload].groups
    commit, calls = groups.commit, list[Any]()

    async def conflicting(*parts: Any) -> Any:
        calls.append(parts)
        if len(calls) == 1:
            raise IntegrityError("INSERT", None, Exception("unique"))
        return await commit(*parts)

    groups.commit = conflicting
    await cohort.take_steps(*STEPS)
    await cohort.check_exact_sum()
    (group,), later = calls[0], [arrivals for (arrivals,) in calls[1:]]
    assert group
    assert all(any(arrival in arrivals for arrivals in later) for arrival in group)


def test_an_upload_does_not_show_its_content() -> None:
    slot = ParticipantSlot("participant", 1, 2, b"secret")
    upload = Upload.of(slot, MessageKind.MASKED_INPUT, b"content")
    assert "content" not in repr(upload)


def test_the_digest_of_a_credential_is_not_shown() -> None:
    entry: Any = None
    for shown in (ParticipantSlot("participant", 1, 2, b"secret"), JoiningDevice(b"secret", entry)):
        assert "secret" not in repr(shown)


async def test_long_messages_are_checked_in_a_thread_by_the_same_rules(
    cohort: Cohort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bodies above 2^20 bytes are checked in a thread; here all bodies are."""
    monkeypatch.setattr("server.api.devices.uploads._MAX_INLINE_BYTES", 0)
    for before, step, kind in (
        (("share", "check"), "mask", "masked-input"),
        (("confirm",), "reveal", "unmasking-shares"),
    ):
        device = await cohort.take_steps_but_last_device(*before, step)
        body = await device.compute(kind)
        false = body[:-1] + bytes([body[-1] ^ 1])
        refused(await device.put(kind, false), 422, "malformed")
        await device.upload(kind, body)
        device.record(kind, body)
    await cohort.check_exact_sum()

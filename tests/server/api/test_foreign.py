"""Messages that are valid in an earlier round, in another study or for other holders."""

import pytest
from sqlalchemy import func, select

from server.db.schema import MessageRow
from tests.server.cohort import refused
from tests.server.device import KINDS, Device
from tests.server.harness import STEPS, Served, sum_of, together

PHASES = ("sharing", "checking", "masking", "confirming", "unmasking")


async def message_count(served: Served) -> int:
    """Return the number of stored messages."""
    count = select(func.count()).select_from(MessageRow)
    stored: int = await served.store.database.read(lambda s: s.scalar(count))
    return stored


async def refuse(served: Served, device: Device, kind: str, body: bytes) -> str:
    """Check that a body is malformed and not stored; return the detail of the problem."""
    before = await message_count(served)
    detail = refused(await device.put(kind, body), 422, "malformed")
    assert await message_count(served) == before
    return detail


async def failed_cohort(served: Served, study: str) -> list[Device]:
    """Return devices that computed all messages of a cohort, which then failed."""
    devices = await served.join(study, 6)
    await together(devices, *STEPS[:4])
    await together(devices[:3], "reveal")
    for device in devices[3:]:
        device.reveal_body = await device.compute_reveal()
    assert await served.pass_phase(study) == "failed"
    return devices


@pytest.mark.parametrize("where", ["an earlier round", "another study"])
async def test_a_replay_from_an_earlier_round_or_another_study_is_refused_and_changes_nothing(
    served: Served, where: str
) -> None:
    """The same devices have the same slots; all their earlier messages are valid and signed."""
    study = await served.create(rounds=2)
    before = await failed_cohort(served, study)
    number = 2 if where == "an earlier round" else 1
    study = study if number == 2 else await served.create()
    view = await served.open_round(study, number - 1)
    devices = [device.again() for device in before]
    path = f"/v1/studies/{study}/rounds/{number}/participants"
    for device, old in zip(devices, before, strict=True):
        stale = old.join_request().model_dump()
        replayed = await served.client.post(path, json=stale, headers=old.headers)
        assert "signature" in refused(replayed, 422, "malformed")
        await device.join(study, view)
        assert device.seat.slot == old.seat.slot
    for phase, step, kind in zip(PHASES, STEPS, KINDS, strict=True):
        await served.until_phase(study, phase, number)
        for device, old in zip(devices, before, strict=True):
            await refuse(served, device, kind, old.bodies[kind])
        stale = await devices[0].put(kind, before[0].bodies[kind], **before[0].headers)
        refused(stale, 401, "not-authorised")  # with the earlier ticket
        await together(devices, step)
    view = await served.until_closed(study, number)
    assert (view.state, view.participants) == ("decoded", 6)
    assert await served.read_sum(study, number) == sum_of(devices)

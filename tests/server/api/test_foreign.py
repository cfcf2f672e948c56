"""Messages that are valid in an earlier round, in another study or for other holders."""

from dataclasses import replace

import pytest
from sqlalchemy import func, select

from secagg.keys import statement
from secagg.messages import EncryptedShare, KeyShares, MaskedInput
from server.db.schema import MessageRow
from tests.server.device import KINDS, Device
from tests.server.harness import STEPS, Served, sum_of, together
from tests.server.lies import signed_upload
from tests.server.party import Party, refused

PHASES = ("sharing", "masking", "confirming", "unmasking")
ANY_SHARE = EncryptedShare(bytes(32), bytes(33))


async def message_count(served: Served) -> int:
    """Return the number of stored messages."""
    count = select(func.count()).select_from(MessageRow)
    stored: int = await served.app.state.service.store.database.read(lambda s: s.scalar(count))
    return stored


async def refuse(served: Served, device: Device, kind: str, body: bytes) -> str:
    """Check that a body is malformed and not stored; return the detail of the problem."""
    before = await message_count(served)
    detail = refused(await device.put(kind, body), 422, "malformed")
    assert await message_count(served) == before
    return detail


def signed_key_shares(device: Device, message: KeyShares) -> bytes:
    """Return the bytes of `message`, signed by the device."""
    assert device.seat is not None
    commitment = message.share_commitment.signed_bytes()
    signed = statement("key shares", device.cohort.label, device.seat.slot, commitment)
    return replace(message, signature=device.identity.sign(signed)).pack()


async def test_shares_with_a_holder_missing_extra_or_oneself_are_refused(
    served: Served,
) -> None:
    """All are correctly signed. Slot 0 does not share, so it receives no share of a seed."""
    study = await served.create()
    party = Party(served, study, await served.join(study, 6))
    device = party.devices[-1]
    body = await device.compute_shares()
    message = KeyShares.unpack(body)
    true = list(message.encrypted_shares)
    for bundle in (true[1:], [*true, ANY_SHARE], [ANY_SHARE, *true]):  # number 1 would be its own
        false = signed_key_shares(device, replace(message, encrypted_shares=tuple(bundle)))
        assert "bytes expected" in await refuse(served, device, "key-shares", false)
    assert (await device.put("key-shares", body)).status_code == 204
    await together(party.devices[1:5], "share")
    await served.pass_phase(study)
    party.devices = party.counted = party.devices[1:]
    body = await device.compute_vector()
    upload = MaskedInput.unpack(body, device.ring.nbytes)
    true = list(upload.seed_shares.encrypted_shares)
    for bundle in (true[1:], [*true, ANY_SHARE], [ANY_SHARE, *true], []):
        seed_shares = replace(upload.seed_shares, encrypted_shares=tuple(bundle))
        false = signed_upload(device, upload.vector, seed_shares)
        detail = await refuse(served, device, "masked-input", false)
        assert detail == f"participant 5 sent {len(bundle)} shares of its seed to 4 holders"
    assert (await device.put("masked-input", body)).status_code == 204
    await together(party.devices[:-1], "mask")
    await party.go("confirm", "reveal")
    await party.end()


async def failed_cohort(served: Served, study: str) -> list[Device]:
    """Return devices that computed all messages of a cohort, which then failed."""
    devices = await served.join(study, 6)
    await together(devices, *STEPS[:3])
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
        stale = old.wish().model_dump()
        replayed = await served.client.post(path, json=stale, headers=old.headers)
        assert "signature" in refused(replayed, 422, "malformed")
        await device.join(study, view)
        assert device.seat is not None
        assert old.seat is not None
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

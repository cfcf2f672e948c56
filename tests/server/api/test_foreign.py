"""What was true elsewhere: in an earlier round, in another study, for other holders."""

from dataclasses import replace

import pytest
from sqlalchemy import func, select

from secagg.keys import statement
from secagg.messages import KeyShares, MaskedInput, SeedShares
from secagg.shares import EncryptedShare
from server.db.schema import MessageRow
from tests.server.device import KINDS, Device
from tests.server.harness import STEPS, Served, sum_of, together
from tests.server.lies import signed_upload
from tests.server.party import Party, refused

PHASES = ("sharing", "masking", "confirming", "unmasking")
ANY = EncryptedShare(bytes(32), bytes(33))


async def said(served: Served) -> int:
    """Return how many messages are kept."""
    count = select(func.count()).select_from(MessageRow)
    found: int = await served.app.state.service.store.database.read(lambda s: s.scalar(count))
    return found


async def refuse(served: Served, device: Device, kind: str, body: bytes) -> str:
    """Check that a body is malformed and that nothing is kept of it; return what is said."""
    before = await said(served)
    detail = refused(await device.put(kind, body), 422, "malformed")
    assert await said(served) == before
    return detail


def signed_deal(device: Device, deal: KeyShares) -> bytes:
    """Return `deal`, signed by the device."""
    assert device.seat is not None
    label = statement(
        "key shares", device.cohort.label, device.seat.slot, deal.share_commitment.signed_bytes()
    )
    return replace(deal, signature=device.identity.sign(label)).pack()


async def test_bundles_of_shares_with_a_peer_missing_extra_or_oneself_are_refused(
    served: Served,
) -> None:
    """All are properly signed. Slot 0 never shares, so nobody deals it a share of a seed."""
    study = await served.create()
    party = Party(served, study, await served.join(study, 6))
    device = party.devices[-1]
    body = await device.compute_shares()
    deal = KeyShares.unpack(body)
    true = list(deal.encrypted_shares)
    for bundle in (true[1:], [*true, ANY], [ANY, *true]):  # number 1 would be its own
        false = signed_deal(device, replace(deal, encrypted_shares=tuple(bundle)))
        assert "bytes expected" in await refuse(served, device, "key-shares", false)
    assert (await device.put("key-shares", body)).status_code == 204
    await together(party.devices[1:5], "share")
    await served.pass_phase(study)
    party.devices = party.counted = party.devices[1:]
    body = await device.compute_vector()
    upload = MaskedInput.unpack(body, device.ring.nbytes)
    true = list(upload.seed_shares.encrypted_shares)
    for bundle in (true[1:], [*true, ANY], [ANY, *true], []):
        seeds = SeedShares(
            upload.seed_shares.seed_commitment,
            upload.seed_shares.own_share_commitment,
            tuple(bundle),
        )
        false = signed_upload(device, upload.vector, seeds)
        detail = await refuse(served, device, "masked-input", false)
        assert detail == f"participant 5 sent {len(bundle)} shares of its seed to 4 holders"
    assert (await device.put("masked-input", body)).status_code == 204
    await together(party.devices[:-1], "mask")
    await party.go("confirm", "reveal")
    await party.end()


async def old_words(served: Served, study: str) -> list[Device]:
    """Return devices that said all there is to say in a cohort, which failed all the same."""
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
    """The same devices in the same slots; all that they said before is sound, and signed."""
    study = await served.create(rounds=2)
    before = await old_words(served, study)
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
        refused(stale, 401, "not-authorised")  # by the ticket of then
        await together(devices, step)
    view = await served.until_closed(study, number)
    assert (view.state, view.participants) == ("decoded", 6)
    assert await served.read_sum(study, number) == sum_of(devices)

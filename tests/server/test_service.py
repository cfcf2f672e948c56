"""Whole rounds over HTTP: losses in every phase, restarts in every phase, exact sums."""

import asyncio

import pytest


async def play(served, study, *, lost=((), (), ()), after=0, count=6):
    """Play a round; device i leaves before it shares, masks or reveals if `lost` says so."""
    devices = await served.join(study, count, after)
    for step, gone in zip(("share", "mask", "reveal"), lost, strict=True):
        for device in [devices[i] for i in gone]:
            devices.remove(device)
        await asyncio.gather(*(getattr(device, step)() for device in devices))
        if gone:
            await served.tick()
    return devices


def sum_of(devices):
    total = devices[0].ring.zero()
    for device in devices:
        devices[0].ring.add(total, device.vector)
    return devices[0].ring.pack(total)


async def read_sum(served, study, number=1):
    path = f"/v1/studies/{study}/rounds/{number}/cohorts/0/sum"
    response = await served.client.get(path)
    assert response.status_code == 200, response.text
    return response.content


async def test_a_round_without_losses_sums_exactly_and_finishes_the_study(serve, database_url):
    async with serve(database_url) as served:
        study = await served.create()
        devices = await play(served, study)
        view = await served.until_closed(study)
        assert (view.state, view.participants) == ("decoded", 6)
        assert await read_sum(served, study) == sum_of(devices)
        assert (await served.client.get(f"/v1/studies/{study}")).json()["state"] == "finished"
        hitters = (await served.client.get(f"/v1/studies/{study}/heavy-hitters")).json()
        assert [(h["item"], h["estimate"]) for h in hitters["heavy_hitters"]] == [("ab", 6)]

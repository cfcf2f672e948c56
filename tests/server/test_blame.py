"""Devices that lie: what each can cost, who is named for it, and that others lose nothing."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import structlog

from secagg.keys import Identity
from secagg.messages import UnmaskingShares, unpack_signatures
from secagg.roster import ShareCommitments
from secagg.unmasking import FALSE_DEALER, FALSE_HOLDER
from server.db.repositories.leases import sum_job
from tests.server.cohort import Cohort, create_full_cohort, refused
from tests.server.device import Device
from tests.server.false_messages import altered, false_shares, signed_reveal, spoiled, with_vector
from tests.server.harness import STEPS, Served, study_request, sum_of, together, until_summed
from tests.server.pages.browsing import page_of

REGISTRAR = Identity.of(b"r" * 32)
TWO_COHORTS = {"cohort_size": 6, "minimum": 6, "cohorts": 2, "corrupt": 0.17, "dropout": 0.34}


async def bars(served: Served, study: str, liar: Device, what: str = FALSE_DEALER) -> None:
    """Check that the next round is open to all devices except `liar`."""
    liar = liar.again()
    liar.view = await served.open_round(study, 1)
    detail = refused(await liar.apply(study, 2), 403, "barred")
    assert detail == f"in round 1 this device {what}"
    await served.join(study, 1, after=1)


@pytest.mark.parametrize("survives", [False, True])
async def test_a_false_share_is_corrected_and_its_dealer_barred(
    served: Served, survives: bool
) -> None:
    """A share of the mask key is needed if its dealer drops out, a share of the seed otherwise."""
    cohort = await create_full_cohort(served, rounds=2)
    liar, *honest = cohort.devices
    with false_shares(2):
        await liar.share()
    await together(honest, "share")
    await cohort.take_steps("check")
    if survives:
        await cohort.take_steps("mask")
    else:
        await cohort.take_step_without("mask", 0)
    await cohort.take_steps("confirm", "reveal")
    await cohort.check_exact_sum()
    (shown,) = (await served.show_round(cohort.study)).cohorts
    assert shown.blamed == {0: FALSE_DEALER}
    await bars(served, cohort.study, liar)


async def test_many_false_shares_fail_their_cohort_and_no_other(served: Served) -> None:
    study = await served.create(terms=TWO_COHORTS, rounds=2)
    devices = await served.join(study, 12)
    liar = devices[2]
    with false_shares(2, 3, 4):
        await liar.share()
    await together([device for device in devices if device is not liar], "share")
    await together(devices, *STEPS[1:])
    view = await served.until_closed(study)
    failed, summed = view.cohorts
    assert (failed.phase, summed.phase) == ("failed", "summed")
    assert str(failed.failure).startswith("the secret of participant 2 cannot be recovered")
    assert (failed.blamed, summed.blamed) == ({2: FALSE_DEALER}, {})
    assert (view.state, view.participants) == ("decoded", 6)
    path = f"/v1/studies/{study}/rounds/1/cohorts"
    assert (await served.client.get(f"{path}/1/sum")).content == sum_of(devices[6:])
    refused(await served.client.get(f"{path}/0/sum"), 410, "cohort-failed")
    await bars(served, study, liar)
    view = await served.open_round(study, 1)
    again = devices[3].again()  # of the same cohort, but it did nothing wrong
    await again.join(study, view)


async def test_a_holder_that_reveals_a_false_share_is_named_and_barred(served: Served) -> None:
    cohort = await create_full_cohort(served, rounds=2)
    await cohort.take_steps("share", "check", "mask", "confirm")
    liar, *honest = cohort.devices
    unmasking_shares = UnmaskingShares.unpack(await liar.compute_reveal())
    false = replace(unmasking_shares, seed_shares=altered(unmasking_shares.seed_shares, 0, flipped))
    assert (await liar.put("unmasking-shares", signed_reveal(liar, false))).status_code == 204
    await together(honest, "reveal")
    await cohort.check_exact_sum()  # the sum is exact
    (shown,) = (await served.show_round(cohort.study)).cohorts
    assert shown.blamed == {0: FALSE_HOLDER}
    await bars(served, cohort.study, liar, FALSE_HOLDER)


def flipped(share: bytes) -> bytes:
    return share[:-1] + bytes([share[-1] ^ 1])


async def test_blame_is_shown_once_a_cohort_is_over_and_not_before(served: Served) -> None:
    study = await served.create()
    devices = await served.join(study, 6)
    await together(devices, *STEPS[:-1])
    await together(devices[:-1], STEPS[-1])
    store = served.store
    lease = await store.leases.claim(sum_job(1), "test", 60)
    await store.cohorts.blame(1, {4: FALSE_DEALER}, lease)
    assert (await served.show_round(study)).cohorts[0].blamed == {}
    await store.leases.release(lease)
    await together(devices[-1:], STEPS[-1])
    assert (await served.until_closed(study)).cohorts[0].blamed == {4: FALSE_DEALER}


async def spoil(cohort: Cohort, *, committed: bool) -> Device:
    """Let a device send garbage to two of its holders, and all check; return it."""
    liar, *honest = cohort.devices
    body = spoiled(liar, await liar.compute_shares(), 0, 3, committed=committed)  # holders 1 and 4
    assert (await liar.put("key-shares", body)).status_code == 204
    await together(honest, "share")
    await cohort.take_steps("check")
    return liar


async def test_a_dealer_of_shares_that_cannot_be_used_is_left_out(cohort: Cohort) -> None:
    with structlog.testing.capture_logs() as logs:
        liar = await spoil(cohort, committed=False)
        await cohort.served.until_phase(cohort.study, "answering")
        answers = liar.checked.answer(unpack_signatures(await liar.read("complaints"))).pack()
        detail = refused(await liar.put("answers", answers), 422, "malformed")
        assert "committed to another share for 1" in detail
        honest = cohort.devices[1]
        assert (await honest.get("share-commitments", wait=0)).status_code == 202
        assert await cohort.served.pass_phase(cohort.study) == "masking"
    (complaint,) = (entry for entry in logs if entry["event"] == "complaints about shares")
    assert (complaint["pairs"], complaint["dealers_holders"]) == (2, [(0, 1), (0, 4)])
    refused(await liar.get("share-commitments"), 410, "dropped-out")
    commitments = ShareCommitments.unpack(await honest.read("share-commitments"))
    assert list(commitments) == [1, 2, 3, 4, 5]
    refused(await liar.put("masked-input", bytes(cohort.sizes()["masked-input"])), 422, "malformed")
    cohort.counted = cohort.devices = cohort.devices[1:]
    await cohort.take_steps("mask")  # waits for nobody else
    await cohort.take_steps("confirm", "reveal")
    await cohort.check_exact_sum()
    (shown,) = (await cohort.served.show_round(cohort.study)).cohorts
    received = {record.phase: record.received for record in shown.history}
    assert (received["checking"], received["answering"], received["masking"]) == (6, 0, 5)
    page = await page_of(cohort.served, f"/studies/{cohort.study}/rounds/1")
    assert "answered complaints about their shares" in page
    assert "<strong>1</strong> checked and sent no table in time, or were left out" in page


async def test_a_dealer_that_answers_complaints_is_in_the_sum(cohort: Cohort) -> None:
    liar = await spoil(cohort, committed=True)
    await cohort.served.until_phase(cohort.study, "answering")
    stranger = cohort.devices[1]
    refused(await stranger.put("answers", bytes(134)), 422, "malformed")
    await liar.answer()
    await cohort.served.until_phase(cohort.study, "masking")
    refused(await stranger.put("answers", bytes(134)), 409, "wrong-phase")
    await cohort.take_steps("mask", "confirm", "reveal")
    await cohort.check_exact_sum()
    (shown,) = (await cohort.served.show_round(cohort.study)).cohorts
    assert [record.phase for record in shown.history][2:5] == ["checking", "answering", "masking"]


async def test_too_few_dealers_that_are_not_left_out_fail_the_cohort(cohort: Cohort) -> None:
    """Let three of six dealers not answer, where the quorum is 4."""
    liars, honest = cohort.devices[:3], cohort.devices[3:]
    for liar in liars:
        body = spoiled(liar, await liar.compute_shares(), 0)
        assert (await liar.put("key-shares", body)).status_code == 204
    await together(honest, "share")
    await cohort.take_steps("check")
    await cohort.served.until_phase(cohort.study, "answering")
    assert await cohort.served.pass_phase(cohort.study) == "failed"
    assert await cohort.check_failure() == "0 of 3 answered complaints in time, where 1 are needed"


async def poison(device: Device, *, lawful: bool = False) -> None:
    """Send a masked input that is not a table; `lawful` keeps all its laws."""
    body = await device.compute_vector()
    chance = np.random.default_rng(1)
    garbage = device.ring.zero()
    for number, (lane, array) in enumerate(zip(device.ring.lanes, garbage, strict=True)):
        if lawful and number == 0:
            continue  # no count is changed
        if lawful:  # what one cell of a sub-table has too much, the next one has too little
            array.reshape(3, -1)[:, :2] = [1, lane.q - 1]
        else:
            array[:] = chance.integers(0, lane.q, lane.length)
    device.ring.add(garbage, device.ring.unpack(body[:-64]))
    forged = with_vector(device, device.ring.pack(garbage))
    assert (await device.put("masked-input", forged)).status_code == 204


async def test_a_poisoned_cohort_fails_and_the_others_are_decoded(served: Served) -> None:
    study = await served.create(terms=TWO_COHORTS, rounds=2)
    devices = await served.join(study, 12)
    await together(devices, "share", "check")
    await asyncio.gather(poison(devices[7]), *(d.mask() for d in devices if d is not devices[7]))
    await together(devices, "confirm", "reveal")
    view = await served.until_closed(study)
    summed, failed = view.cohorts
    assert (summed.phase, failed.phase) == ("summed", "failed")
    assert str(failed.failure).startswith("the sum is not a sum of honest vectors: ")
    assert (view.state, view.participants) == ("decoded", 6)
    assert await served.read_sum(study) == sum_of(devices[:6])
    path = f"/v1/studies/{study}/rounds/1/cohorts/1/sum"
    refused(await served.client.get(path), 410, "cohort-failed")
    answer = (await served.client.get(f"/v1/studies/{study}/heavy-hitters")).json()
    assert [(row["item"], row["estimate"]) for row in answer["heavy_hitters"]] == [("ab", 6)]
    assert failed.blamed == {}  # the sum does not reveal its sender
    await served.open_round(study, 1)


async def test_a_device_that_sends_noise_spoils_one_round_of_its_study(served: Served) -> None:
    """Refuse all devices with a vector in that sum, since nothing shows which one lied."""
    terms = study_request()["terms"] | {"registrar": REGISTRAR.public.hex()}
    study = await served.create(terms=terms, rounds=2)
    devices = await served.join(study, 6, registrar=REGISTRAR)
    liar, honest, *others, dropped_out = devices
    await together(devices, "share", "check")
    await asyncio.gather(poison(liar), honest.mask(), *(device.mask() for device in others))
    await served.pass_phase(study)
    await together(devices[:-1], "confirm", "reveal")
    assert (await served.until_closed(study)).state == "failed"
    second = await served.open_round(study, 1)
    for device in (liar, honest):
        again = device.again()
        again.view = second
        detail = refused(await again.apply(study, 2), 409, "poisoned-cohort")
        assert detail.startswith("in round 1 the sum of this device's cohort could not be used")
    returned = dropped_out.again()  # no sum has its vector
    await returned.join(study, second)
    devices = [returned, *await served.join(study, 5, after=1, registrar=REGISTRAR)]
    await together(devices, *STEPS)
    await until_summed(served, study, devices, 2)


async def test_a_cohort_whose_lawful_sum_cannot_be_decoded_is_left_out(served: Served) -> None:
    study = await served.create(terms=TWO_COHORTS, rounds=2)
    devices = await served.join(study, 12)
    await together(devices, "share", "check")
    others = (device.mask() for device in devices if device is not devices[7])
    await asyncio.gather(poison(devices[7], lawful=True), *others)
    await together(devices, "confirm", "reveal")
    view = await served.until_closed(study)
    read, unread = view.cohorts
    assert (read.phase, unread.phase) == ("summed", "summed")  # it breaks no law
    assert read.failure is None
    assert "left out of the answer" in str(unread.failure)
    assert (view.state, view.participants) == ("decoded", 6)
    answer = (await served.client.get(f"/v1/studies/{study}/heavy-hitters")).json()
    assert [(row["item"], row["estimate"]) for row in answer["heavy_hitters"]] == [("ab", 6)]
    second = await served.open_round(study, 1)
    for device, problem in ((devices[7], "poisoned-cohort"), (devices[0], "already-counted")):
        again = device.again()
        again.view = second
        refused(await again.apply(study, 2), 409, problem)


async def test_a_poisoned_cohort_names_the_dealers_of_false_shares_in_it(cohort: Cohort) -> None:
    liar, poisoner, *honest = cohort.devices
    with false_shares(3):
        await liar.share()
    await together([poisoner, *honest], "share")
    await cohort.take_steps("check")
    await poison(poisoner)
    await together([liar, *honest], "mask")
    await cohort.take_steps("confirm", "reveal")
    assert "not a sum of honest vectors" in await cohort.check_failure()
    (shown,) = (await cohort.served.show_round(cohort.study)).cohorts
    assert shown.blamed == {0: FALSE_DEALER}

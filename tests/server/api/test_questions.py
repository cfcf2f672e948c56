"""A device receives its own lists once their phase is over, and no others."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from protocol.api.messages_outside_sums import Survivors
from secagg.messages import unpack_signatures, unpack_signed_inputs
from secagg.roster import Roster, ShareCommitments
from secagg.shares import ReceivedShares
from tests.server.cohort import Cohort, refused
from tests.server.device import KINDS, Device
from tests.server.harness import STEPS, together

STRANGER = "0" * 32
PHASE_OF_LIST = {
    "roster": "enrolling",
    "encrypted-shares": "sharing",
    "complaints": "checking",
    "share-commitments": "checking",
    "survivors": "masking",
    "confirmations": "confirming",
    "signed-inputs": "confirming",
}
LISTS = tuple(PHASE_OF_LIST)


@contextmanager
def ticket(device: Device, headers: dict[str, str]) -> Iterator[None]:
    """Replace the headers that the device sends."""
    device.headers, mine = headers, device.headers
    yield
    device.headers = mine


async def test_a_request_without_a_ticket_is_not_authorised(cohort: Cohort) -> None:
    for header in (None, "", "Bearer", "Bearer short", "Basic " + "A" * 43, "Bearer " + "ä" * 43):
        path = f"{cohort.devices[0].path}/roster"
        headers = {} if header is None else {"Authorization": header.encode()}
        response = await cohort.served.client.get(path, headers=headers)
        refused(response, 401, "not-authorised")
        assert response.headers["www-authenticate"] == "Bearer"


async def test_another_participants_ticket_is_not_authorised(cohort: Cohort) -> None:
    device, other = cohort.devices[:2]
    with ticket(device, other.headers):
        for what in LISTS:
            refused(await device.get(what), 401, "not-authorised")
        for what in ("answers", *KINDS):
            refused(await device.put(what, b""), 401, "not-authorised")
    await cohort.take_steps(*STEPS)
    await cohort.check_exact_sum()


async def test_an_unknown_participant_is_not_found(cohort: Cohort) -> None:
    for participant in (STRANGER, "x" * 100, "a.b", "%00"):
        headers = cohort.devices[0].headers
        response = await cohort.served.client.get(
            f"/v1/participants/{participant}/roster", headers=headers
        )
        refused(response, 404, "not-found")


async def test_each_list_is_pending_in_its_phase_and_refused_before(cohort: Cohort) -> None:
    device = cohort.devices[-1]
    order = ("enrolling", "sharing", "checking", "masking", "confirming", "unmasking")
    for step, phase in zip(STEPS, order[1:], strict=True):
        await cohort.served.until_phase(cohort.study, phase)
        for what, closing in PHASE_OF_LIST.items():
            response = await device.get(what, wait=0)
            ahead = order.index(closing) - order.index(phase)
            assert response.status_code == (200 if ahead < 0 else 202 if ahead == 0 else 409)
            if ahead >= 0:
                assert response.json()["phase"] == phase
        await cohort.take_steps(step)
    await cohort.check_exact_sum()
    for what in LISTS:
        refused(await device.get(what, wait=0), 409, "wrong-phase")


async def test_a_request_waits_until_the_phase_changes(cohort: Cohort) -> None:
    device = cohort.devices[0]
    lists = ("encrypted-shares", "complaints", "survivors", "confirmations")
    for what, step in zip(lists, STEPS[:4], strict=True):
        await cohort.served.until_phase(cohort.study, PHASE_OF_LIST[what])
        waiting = asyncio.create_task(device.get(what, wait=30))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await cohort.take_steps(step)
        response = await asyncio.wait_for(waiting, 5)
        assert response.status_code == 200
        assert response.content or what == "complaints"


async def test_the_lists_of_a_finished_phase_do_not_change(cohort: Cohort) -> None:
    await cohort.take_steps("share", "check")
    await cohort.take_step_without("mask", 5)
    await cohort.take_steps("confirm")
    device = cohort.devices[0]
    lists = {what: (await device.get(what)).content for what in LISTS}
    assert len(Roster.unpack(lists["roster"], has_registrar=False)) == 6
    assert list(ShareCommitments.unpack(lists["share-commitments"])) == [0, 1, 2, 3, 4, 5]
    assert Survivors.model_validate_json(lists["survivors"]).survivors == (0, 1, 2, 3, 4)
    assert list(unpack_signatures(lists["confirmations"])) == [0, 1, 2, 3, 4]
    senders = list(ReceivedShares.unpack(lists["encrypted-shares"]))
    assert senders == [1, 2, 3, 4, 5]  # all others
    assert lists["complaints"] == b""
    assert list(unpack_signed_inputs(lists["signed-inputs"])) == [1, 2, 3, 4]
    for what, content in lists.items():
        assert (await device.get(what)).content == content
    for other in cohort.devices[1:]:
        for what in set(LISTS) - {"encrypted-shares", "signed-inputs"}:
            assert (await other.get(what)).content == lists[what]  # equal for all
    await cohort.take_steps("reveal")
    await cohort.check_exact_sum()


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (0, "3 of 6 shared their secrets in time, where 4 are needed"),
        (4, "3 of 6 gave their shares in time, where 4 are needed"),
    ],
)
async def test_a_cohort_without_a_quorum_fails_in_any_phase_with_a_reason(
    cohort: Cohort, step: int, reason: str
) -> None:
    await cohort.take_steps(*STEPS[:step])
    await together(cohort.devices[:3], STEPS[step])
    assert await cohort.served.pass_phase(cohort.study) == "failed"
    for device in (cohort.devices[0], cohort.devices[-1]):
        for what in LISTS:
            assert reason in refused(await device.get(what), 410, "cohort-failed")
    late = cohort.devices[-1]
    for kind, size in list(cohort.sizes().items())[step:]:
        refused(await late.put(kind, bytes(size)), 410, "cohort-failed")
    assert await cohort.check_failure() == reason

"""Admission to a round: one slot per identity, with its own keys, for allowed devices only."""

from collections.abc import Callable
from random import Random

import httpx

from protocol.api.messages_outside_sums import JoinRequest
from protocol.question_and_plan import Plan
from secagg.keys import Identity, PublicKeys
from secagg.participant import join
from secagg.roster import Roster
from secagg.session import advertisement_statement
from tests.server.cohort import Cohort, refused
from tests.server.device import Device
from tests.server.harness import STEPS, Served, study_request, together
from tests.server.statements import statements

TERMS = study_request()["terms"]
REGISTRAR = Identity.of(b"r" * 32)
OTHER_IDENTITY = Identity.of(b"o" * 32)
LOW_ORDER = "01" + "00" * 31


async def stranger(
    served: Served, study: str, name: str = "stranger", registrar: Identity | None = None
) -> Device:
    """Return a device that has the study's first plan and has not joined."""
    device = Device(served.client, name, {}, Random(name), registrar)
    device.view = await served.show_round(study)
    return device


async def send(device: Device, request: JoinRequest) -> httpx.Response:
    study, number = device.view.plan.study, device.view.number
    path = f"/v1/studies/{study}/rounds/{number}/participants"
    return await device.client.post(path, json=request.model_dump(), headers=device.headers)


async def enrolled(served: Served, study: str) -> int:
    return (await served.show_round(study)).cohorts[0].enrolled


async def test_a_device_that_joins_twice_gets_the_same_seat(served: Served) -> None:
    study = await served.create()
    (device,) = await served.join(study, 1)
    again = await device.apply(study, 1)
    assert again.status_code == 200
    assert again.json() == device.seat.model_dump(mode="json")
    assert await enrolled(served, study) == 1


async def test_a_device_that_joins_again_with_other_keys_or_ticket_is_refused(
    served: Served,
) -> None:
    study = await served.create()
    (device,) = await served.join(study, 1)
    again = await stranger(served, study, device.name)
    refused(await again.apply(study, 1), 409, "conflict")
    again.joined = device.joined
    refused(await again.apply(study, 1), 409, "conflict")  # the ticket still differs
    again.secret_ticket, again.headers = device.secret_ticket, device.headers
    assert (await again.apply(study, 1)).status_code == 200


async def test_a_device_with_another_ones_keys_is_refused(served: Served) -> None:
    study = await served.create()
    (device,) = await served.join(study, 1)
    thief = await stranger(served, study)
    thief.joined.mask_pair, thief.joined.encryption_pair = (
        device.joined.mask_pair,
        device.joined.encryption_pair,
    )
    refused(await thief.apply(study, 1), 409, "conflict")
    thief.joined.mask_pair, thief.joined.encryption_pair = (
        device.joined.encryption_pair,
        device.joined.mask_pair,
    )
    refused(await thief.apply(study, 1), 409, "conflict")
    assert await enrolled(served, study) == 1


Signed = Callable[[Plan, PublicKeys], tuple[Plan, PublicKeys]]
WRONG_STATEMENTS: dict[str, Signed] = {
    "keys": lambda plan, _: (plan, join(OTHER_IDENTITY, Random(1)).public_keys),
    "keys in another order": lambda plan, keys: (plan, PublicKeys(keys.encryption, keys.mask)),
    "round": lambda plan, keys: (plan.model_copy(update={"round": 2}), keys),
    "study": lambda plan, keys: (plan.model_copy(update={"study": "b"}), keys),
}


async def test_a_signature_over_another_statement_is_refused(served: Served) -> None:
    for change in WRONG_STATEMENTS.values():
        study = await served.create()
        device = await stranger(served, study)
        request = device.join_request()
        plan, keys = change(device.view.plan, device.joined.public_keys)
        signed = advertisement_statement(plan.digest(), keys)
        for false in (
            {"signature": device.identity.sign(signed).hex()},
            {"signature": "00" * 64},
            {"identity": OTHER_IDENTITY.public.hex()},
        ):
            answer = await send(device, request.model_copy(update=false))
            assert "signature" in refused(answer, 422, "malformed")
        assert await enrolled(served, study) == 0
        assert (await send(device, request)).status_code == 201  # it may still join


async def test_malformed_keys_are_refused(served: Served) -> None:
    """Under an identity of low order all signatures are easy to forge."""
    study = await served.create()
    device = await stranger(served, study)
    request = device.join_request()
    for change, why in (
        ({"identity": LOW_ORDER}, "low order"),
        ({"identity": LOW_ORDER, "signature": "01" + "00" * 63}, "low order"),
        ({"mask_key": LOW_ORDER}, "low order"),
        ({"encryption_key": LOW_ORDER}, "low order"),
        ({"mask_key": "zz" * 32}, "64 hexadecimal digits"),
        ({"encryption_key": request.mask_key}, "differ"),
    ):
        answer = await send(device, request.model_copy(update=change))
        assert why in refused(answer, 422, "malformed")
        assert answer.json()["errors"]
    assert await enrolled(served, study) == 0


async def test_a_full_round_takes_no_more_devices(cohort: Cohort) -> None:
    late = await stranger(cohort.served, cohort.study)
    response = await late.apply(cohort.study, 1)
    refused(response, 409, "no-round")
    assert response.headers["retry-after"] == "1"
    await cohort.take_steps(*STEPS)
    await cohort.check_exact_sum()


async def test_joining_an_unknown_study_or_round_is_not_found(served: Served) -> None:
    study = await served.create()
    device = await stranger(served, study)
    for path in ("studies/nope/rounds/1", "studies/{study}/rounds/9"):
        url = f"/v1/{path.format(study=study)}/participants"
        body = device.join_request().model_dump()
        response = await served.client.post(url, json=body, headers=device.headers)
        refused(response, 404, "not-found")


async def test_a_device_can_join_a_round_once_it_is_open(served: Served) -> None:
    """A round that was missing at an earlier request is not cached as missing."""
    study = await served.create(start=False)
    device = await stranger(served, await served.create())
    refused(await device.apply(study, 1), 404, "not-found")
    await served.client.post(f"/v1/studies/{study}/start")
    device.view = await served.show_round(study)
    assert (await device.apply(study, 1)).status_code == 201


async def registered(served: Served) -> str:
    """Return a study for devices that its registrar enrolled only."""
    return await served.create(terms=TERMS | {"registrar": REGISTRAR.public.hex()})


async def test_a_study_with_a_registrar_shows_its_signatures_to_all(served: Served) -> None:
    study = await registered(served)
    devices = await served.join(study, 6, registrar=REGISTRAR)
    response = await devices[0].get("roster")
    roster = Roster.unpack(response.content, has_registrar=True)
    registry = devices[0].view.plan.registry
    assert registry is not None
    assert [entry.identity for entry in roster] == [d.identity.public for d in devices]
    assert all(registry.admits(entry.identity, entry.registrar_signature) for entry in roster)
    await together(devices, *STEPS)
    assert (await served.until_closed(study)).participants == 6


async def test_a_device_that_the_registrar_did_not_enrol_for_this_study_is_refused(
    served: Served,
) -> None:
    study, elsewhere = await registered(served), await registered(served)
    device = await stranger(served, study, registrar=REGISTRAR)
    other = await stranger(served, elsewhere, registrar=REGISTRAR)
    lent = await stranger(served, study, "another device", registrar=REGISTRAR)
    unknown = await stranger(served, study, registrar=OTHER_IDENTITY)
    for false in (None, "00" * 64, other.enrolment, lent.enrolment, unknown.enrolment):
        request = device.join_request().model_copy(update={"registrar_signature": false})
        refused(await send(device, request), 403, "not-enrolled")
    assert await enrolled(served, study) == 0
    assert (await device.apply(study, 1)).status_code == 201


async def test_one_program_takes_no_more_slots_than_the_registrar_signed_identities_for_it(
    served: Served,
) -> None:
    study = await registered(served)
    (signed,) = await served.join(study, 1, registrar=REGISTRAR)
    for number in range(20):
        invented = await stranger(served, study, f"invented {number}")
        for signature in (None, signed.enrolment, "00" * 64):
            request = invented.join_request().model_copy(update={"registrar_signature": signature})
            refused(await send(invented, request), 403, "not-enrolled")
    again = signed.again()  # with other keys and another credential
    again.view = signed.view
    refused(await again.apply(study, 1), 409, "conflict")
    assert await enrolled(served, study) == 1
    devices = [signed, *await served.join(study, 5, first=1, registrar=REGISTRAR)]
    await together(devices, *STEPS)
    assert (await served.until_closed(study)).participants == 6


async def test_an_enrolment_for_a_study_without_a_registrar_is_not_stored(served: Served) -> None:
    study = await served.create()
    devices = await served.join(study, 6, registrar=REGISTRAR)
    response = await devices[0].get("roster")
    assert len(Roster.unpack(response.content, has_registrar=False)) == 6


async def test_a_join_reads_no_question_while_others_wait_for_its_lock(served: Served) -> None:
    """Guards: the time of the lock, which grew with each round in which the device was before."""
    study = await served.create(rounds=4)
    device = await stranger(served, study)
    for number in range(1, 5):
        view, device = await served.open_round(study, number - 1), device.again()
        with statements(served.store.database, "studies.question") as executed:
            await device.join(study, view)
        assert executed == []
        if number < 4:
            await served.pass_phase(study, number)  # fails: one device is too few

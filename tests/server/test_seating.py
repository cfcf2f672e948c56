"""Rounds that a registrar seats: from joining over the seats to the sum of each cohort."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

import httpx
import numpy as np
import pytest

from client.committee.registrar import DrawRecord, Registrar
from client.http.transport import Transport
from protocol.api.messages import RoundView
from protocol.api.phases import Phase
from secagg.keys import Identity
from server.db.repositories.access.seatings import SeatingRepository, Seats
from server.errors import INTERNAL_FAULT
from server.principals import Permission
from tests.server.cohort import refused
from tests.server.conftest import Serve
from tests.server.credentials import keyed
from tests.server.device import Device
from tests.server.harness import STEPS, Served, together
from tests.server.test_invited import WORDS

REGISTRAR = Identity.of(bytes(range(32)))
TERMS = {"cohort_size": 5, "minimum": 4, "cohorts": 2, "corrupt": 0, "dropout": 0}
TIMEOUTS = {"enrolling": 6, "seating": 6}
SEATED = TERMS | {"registrar": REGISTRAR.public.hex()}


async def seat(served: Served, registrar: Registrar | None = None, **headers: str) -> list[str]:
    """Let the registrar seat the rounds that wait; return the refusals, "" for a seated round."""
    reports: list[str] = []
    transport = httpx.ASGITransport(served.app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://test/v1", headers=headers
    ) as http:
        registrar = registrar or Registrar(REGISTRAR, DrawRecord())
        await registrar.act(
            Transport(http, 5), report=lambda _round, refusal: reports.append(refusal)
        )
    await until_moved(served)
    return reports


async def until_moved(served: Served) -> None:
    """Wait until no round has seats that its joiners have not taken."""
    while any(
        cohort.phase_status.phase is Phase.SEATING and cohort.phase_status.received
        for cohort in await served.store.cohorts.pending()
    ):
        await served.tick()


async def joined(served: Served, count: int = 9, **changes: object) -> tuple[str, list[Device]]:
    """Let devices join a seated study until its enrolling is over."""
    study = await served.create(terms=SEATED, timeouts=TIMEOUTS, **changes)
    devices = await served.join(study, count, registrar=REGISTRAR)
    await served.pass_phase(study)
    return study, devices


async def check_sums(served: Served, study: str, devices: Sequence[Device]) -> RoundView:
    """Let the devices finish the round, and check the sum of each cohort."""
    await together(devices, *STEPS)
    view = await served.until_closed(study)
    assert (view.state, view.participants) == ("decoded", len(devices))
    for cohort in view.cohorts:
        members = [device for device in devices if device.seat.cohort == cohort.number]
        assert {device.seat.slot for device in members} == set(range(cohort.enrolled))
        total = members[0].ring.zero()
        for member in members:
            member.ring.add(total, member.vector)
        path = f"/v1/studies/{study}/rounds/1/cohorts/{cohort.number}/sum"
        assert (await served.client.get(path)).content == members[0].ring.pack(total)
    return view


async def test_joiners_wait_for_the_registrar_and_take_its_seats(each_served: Served) -> None:
    study, devices = await joined(each_served)
    assert {(device.seat.cohort, device.seat.slot) for device in devices} == {(None, None)}
    (lobby,) = (await each_served.show_round(study)).cohorts
    assert (lobby.phase, lobby.enrolled) == ("seating", 9)
    (pending,) = (await each_served.store.cohorts.snapshot()).cohorts
    assert pending.sum_sizes == (5, 4)
    assert await seat(each_served, Registrar(Identity.of(bytes(32)), DrawRecord())) == []
    waiting = await devices[0].get("roster", wait=0)
    assert (waiting.status_code, waiting.json()["phase"]) == (202, "seating")
    again = await devices[0].apply(study, 1)
    assert (again.status_code, again.json()["slot"]) == (200, None)
    assert await seat(each_served) == [""]
    view = await each_served.show_round(study)
    assert [(each.phase, each.enrolled) for each in view.cohorts] == [
        ("sharing", 5),
        ("sharing", 4),
    ]
    view = await check_sums(each_served, study, devices)
    for cohort in view.cohorts:
        records = [(each.phase, each.received) for each in cohort.history[:3]]
        n = cohort.enrolled
        assert records == [("enrolling", n), ("seating", n), ("sharing", n)]
    assert await seat(each_served) == []


async def test_a_full_round_is_seated_at_once_and_takes_nobody_else(served: Served) -> None:
    study = await served.create(terms=SEATED)
    devices = await served.join(study, 6, registrar=REGISTRAR)
    devices += await served.join(study, 4, first=6, registrar=REGISTRAR)  # the round was open
    late = Device(served.client, "late", {"ab": 1}, registrar=REGISTRAR)
    late.view = devices[0].view
    assert (await late.apply(study, 1)).json()["type"].endswith("no-round")
    await served.until_phase(study, "seating")


async def test_a_server_that_restarts_while_it_waits_for_seats_goes_on(
    serve: Serve, sqlite_url: str
) -> None:
    async with serve(sqlite_url) as before:
        study, devices = await joined(before)
    async with serve(sqlite_url) as after:
        assert await seat(after) == [""]
    async with serve(sqlite_url) as last:
        for device in devices:
            device.client = last.client
        await together(devices, "share")
        await last.until_phase(study, "checking")


async def test_a_device_that_waits_for_the_roster_gets_the_one_of_its_seat(served: Served) -> None:
    _, devices = await joined(served)
    waiting = [asyncio.create_task(device.get("roster")) for device in devices]
    await asyncio.sleep(0.05)
    assert await seat(served) == [""]
    for device, answer in zip(devices, await asyncio.gather(*waiting), strict=True):
        assert device.identity.public in answer.content


async def test_a_roster_waits_at_one_replica_for_seats_that_another_receives(
    serve: Serve, postgres_url: str
) -> None:
    async with serve(postgres_url) as first, serve(postgres_url) as second:
        _, devices = await joined(first)
        for device in devices[::2]:
            device.client = second.client
        waiting = [asyncio.create_task(device.get("roster")) for device in devices]
        await asyncio.sleep(0.05)
        assert await seat(first) == [""]
        for device, answer in zip(devices, await asyncio.gather(*waiting), strict=True):
            assert device.identity.public in answer.content  # the roster of its cohort
        await together(devices, "share")


async def test_a_round_fails_if_nobody_seats_it_in_time(served: Served) -> None:
    study, devices = await joined(served)
    assert await served.pass_phase(study) == "failed"
    (lobby,) = (await served.until_closed(study)).cohorts
    assert "blindtally registrar serve" in str(lobby.failure)
    assert (await devices[0].get("roster")).status_code == 410


async def test_a_round_with_fewer_than_all_cohorts_need_is_not_run(served: Served) -> None:
    study = await served.create(terms=SEATED, timeouts=TIMEOUTS)
    await served.join(study, 7, registrar=REGISTRAR)
    assert await served.pass_phase(study) == "failed"
    (lobby,) = (await served.until_closed(study)).cohorts
    assert lobby.failure == "7 of 10 enrolled in time, where 8 are needed"


def seats(devices: Sequence[Device], signer: Identity = REGISTRAR) -> bytes:
    """Return seats in the order of joining."""
    seated_round = devices[0].view.plan.seated_round(len(devices))
    identities = [device.identity.public for device in devices]
    parts = (b"".join(identities[:5]), b"".join(identities[5:]))
    signatures = [seated_round.sign(signer, i, part).signature for i, part in enumerate(parts)]
    return b"".join(signatures) + np.arange(len(devices), dtype=">u4").tobytes()


async def put_seats(served: Served, study: str, body: bytes) -> httpx.Response:
    octets = {"Content-Type": "application/octet-stream"}
    path = f"/v1/studies/{study}/rounds/1/seating"
    return await served.client.put(path, content=body, headers=octets)


async def idle_rounds(served: Served) -> AsyncIterator[tuple[str, int]]:
    """Yield a study and each round, in which a device joins that does nothing else.

    In the fourth round it was seated as often as it may be, so its message is refused.
    """
    study = await served.create(terms=SEATED, timeouts=TIMEOUTS, rounds=4)
    idler = Device(served.client, "idler", {"ab": 1}, registrar=REGISTRAR)
    for number in range(1, 5):
        await served.join(study, 8, after=number - 1, registrar=REGISTRAR)
        idler = idler.again()
        idler.view = await served.open_round(study, number - 1)
        answer = await idler.apply(study, number)
        assert answer.status_code == (201 if number < 4 else 409)
        await served.pass_phase(study, number)
        yield study, number
        await served.until_closed(study, number)


async def test_a_device_that_was_seated_as_often_as_it_may_be_stops_no_later_round(
    served: Served,
) -> None:
    registrar = Registrar(REGISTRAR, DrawRecord())
    async for study, number in idle_rounds(served):
        assert await seat(served, registrar) == [""]
        await served.pass_phase(study, number)


async def test_a_device_that_was_seated_in_other_studies_stops_no_round(served: Served) -> None:
    registrar = Registrar(REGISTRAR, DrawRecord())
    common = Device(served.client, "common", {"ab": 1}, registrar=REGISTRAR)
    for number in range(4):
        study = await served.create(terms=SEATED, timeouts=TIMEOUTS, name=f"study {number}")
        devices = await served.join(study, 8, registrar=REGISTRAR, first=100 * number)
        common = common.again()
        await common.join(study, devices[0].view)
        await served.pass_phase(study)
        assert await seat(served, registrar) == [""]


class LateTransport(httpx.ASGITransport):
    """A transport that delivers the registrar's seats when `passing` is over."""

    passing: Callable[[], Awaitable[object]]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.method == "PUT":
            await self.passing()
        return await super().handle_async_request(request)


async def test_seats_that_come_too_late_count_as_a_draw(served: Served) -> None:
    """Otherwise the registrar would refuse each later round, which the device stops by joining."""
    registrar, transport = Registrar(REGISTRAR, DrawRecord()), LateTransport(served.app)
    refusals: list[str] = []
    async for study, number in idle_rounds(served):
        transport.passing = partial(served.pass_phase, study, number)
        async with httpx.AsyncClient(transport=transport, base_url="http://test/v1") as http:
            await registrar.act(
                Transport(http, 5), report=lambda _round, refusal: refusals.append(refusal)
            )
    assert ["the cohort is failed" in refusal for refusal in refusals] == [True] * 4


async def test_false_seats_that_come_too_late_count_for_nobody(served: Served) -> None:
    study, devices = await joined(served, rounds=2)
    await served.pass_phase(study)
    for body, status, kind in (
        (seats(devices, Identity.of(bytes(32))), 422, "malformed"),
        (seats(devices), 409, "wrong-phase"),
        (seats(devices), 409, "wrong-phase"),
    ):
        refused(await put_seats(served, study, body), status, kind)


async def test_seats_that_the_registrar_did_not_sign_change_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_move = asyncio.Event()
    Moves(monkeypatch, may_move.wait, at=1)
    study, devices = await joined(served)
    good = seats(devices)
    numbers = np.frombuffer(good, ">u4", offset=128).copy()
    swapped, repeated = numbers.copy(), numbers.copy()
    swapped[[0, 8]], repeated[0] = swapped[[8, 0]], 8
    for body, fault in (
        (good[:-1], "164 bytes expected"),
        (good + b"\0", "164 bytes expected"),
        (seats(devices, Identity.of(bytes(32))), "did not sign"),
        (good[64:128] + good[:64] + good[128:], "did not sign"),
        (good[:128] + swapped.tobytes(), "did not sign"),
        (good[:128] + repeated.tobytes(), "one seat"),
        (good[:128] + (numbers + 1).astype(">u4").tobytes(), "one seat"),
    ):
        answer = await put_seats(served, study, body)
        assert (answer.status_code, fault in answer.text) == (422, True), answer.text
    assert (await served.show_round(study)).cohorts[0].phase == "seating"
    assert (await put_seats(served, study, good)).status_code == 204
    assert (await put_seats(served, study, good)).status_code == 204  # changes nothing
    other = seats([devices[8], *devices[1:8], devices[0]])
    refused(await put_seats(served, study, other), 409, "conflict")
    may_move.set()
    await until_moved(served)
    assert (await put_seats(served, study, good)).status_code == 204
    refused(await put_seats(served, study, other), 409, "wrong-phase")
    for device in devices:
        await device.share()
    assert [device.seat.cohort for device in devices] == [0] * 5 + [1] * 4


class Moves:
    """Moves of two joiners each, of which number `at` waits for `outcome` first."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, outcome: Callable[[], Awaitable[object]], at: int = 3
    ) -> None:
        self.count = 0
        original = SeatingRepository.take_seats
        monkeypatch.setattr("server.rounds.jobs._SEATS_PER_TRANSACTION", 2)

        async def take_seats(repository: SeatingRepository, seats: Seats, limit: int) -> int:
            self.count += 1
            if self.count == at:
                await outcome()
            return await original(repository, seats, limit)

        monkeypatch.setattr(SeatingRepository, "take_seats", take_seats)


async def wait_forever() -> None:
    await asyncio.Event().wait()


async def test_a_server_that_ends_between_two_moves_of_joiners_goes_on(
    serve: Serve, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = Moves(monkeypatch, wait_forever)
    async with serve(sqlite_url) as before:
        study, devices = await joined(before)
        body = seats(devices[::-1])
        body = body[:128] + np.arange(8, -1, -1, dtype=">u4").tobytes()
        assert (await put_seats(before, study, body)).status_code == 204
        while moves.count < 3:
            await before.tick()
        assert (await put_seats(before, study, body)).status_code == 204
        refused(await put_seats(before, study, seats(devices)), 409, "conflict")
        path = f"/v1/studies/{study}/rounds/1/joiners"
        assert (await before.client.get(path)).content == b""
        assert await before.store.seatings.pending(REGISTRAR.public.hex()) == ()
        cohorts = (await before.show_round(study)).cohorts
        assert [(each.phase, each.enrolled) for each in cohorts] == [("seating", 5), ("seating", 4)]
        for device in devices:
            assert (await device.get("roster", wait=0)).status_code == 202
            again = await device.apply(study, 1)
            assert (again.status_code, again.json()["slot"]) == (200, None)
    async with serve(sqlite_url) as after:
        for device in devices:
            device.client = after.client
        await until_moved(after)
        await check_sums(after, study, devices)
    assert [device.seat.cohort for device in devices] == [1] * 4 + [0] * 5


async def test_a_study_that_stops_between_two_moves_of_joiners_fails_all_cohorts(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, devices = await joined(served)

    async def stop() -> None:
        await served.client.post(f"/v1/studies/{study}/stop")

    Moves(monkeypatch, stop)
    assert (await put_seats(served, study, seats(devices))).status_code == 204
    await until_moved(served)
    view = await served.until_closed(study)
    assert [str(cohort.failure) for cohort in view.cohorts] == ["the study was stopped"] * 2


async def test_a_fault_while_joiners_move_fails_the_round(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, devices = await joined(served)

    async def fail() -> None:
        raise ZeroDivisionError

    Moves(monkeypatch, fail)
    assert (await put_seats(served, study, seats(devices))).status_code == 204
    view = await served.until_closed(study)
    assert {str(cohort.failure) for cohort in view.cohorts} == {INTERNAL_FAULT}
    refused(await devices[0].get("roster"), 410, "cohort-failed")


async def test_only_rounds_that_wait_for_seats_show_their_joiners(served: Served) -> None:
    unseated = await served.create(terms=TERMS)
    early = await served.create(terms=SEATED)
    for study, status in ((unseated, 404), ("unknown", 404), (early, 409)):
        for name in ("seating", "joiners"):
            path = f"/v1/studies/{study}/rounds/1/{name}"
            assert (await served.client.get(path)).status_code == status
    assert await seat(served) == []
    malformed = await served.client.get("/v1/registrars/abc/seatings")
    assert malformed.status_code == 422


async def test_a_closed_service_shows_joiners_to_registrars_only(closed: Served) -> None:
    """No other scope, and no device, may read who joined a round."""
    others = await keyed(closed, Permission.READ, Permission.WRITE, Permission.OPERATE)
    study = "abc"
    paths = [f"/v1/registrars/{REGISTRAR.public.hex()}/seatings"]
    paths += [f"/v1/studies/{study}/rounds/1/{name}" for name in ("seating", "joiners")]
    for path in paths:
        assert (await closed.client.get(path)).status_code == 401
        assert (await closed.client.get(path, headers=others)).status_code == 403
    assert (await put_seats(closed, study, b"")).status_code == 401
    assert await seat(closed, **await keyed(closed, Permission.SEAT)) == []


async def test_devices_that_join_by_a_coin_are_seated_and_not_counted_in_public(
    served: Served,
) -> None:
    study, devices = await joined(served, question=WORDS | {"join_probability": 0.6})
    assert await seat(served) == [""]
    await together(devices, "share")
    for cohort in (await served.show_round(study)).cohorts:
        assert (cohort.enrolled, {each.received for each in cohort.history}) == (0, {0})


async def test_the_joiners_of_a_large_round_come_in_pages(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.api.devices.seatings.JOINERS_PER_PAGE", 4)
    _, devices = await joined(served)
    assert await seat(served) == [""]
    await together(devices, "share")

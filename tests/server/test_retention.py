"""Deleted studies leave no row but what they spent, and old rows go when their time is up."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Select, delete, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from protocol.api.phases import MessageKind
from server.db.columns import Base
from server.db.repositories.messages.participants import Upload
from server.db.repositories.rounds import retention
from server.db.repositories.rounds.retention import RetentionRepository
from server.db.repositories.studies.populations import EXACT_SUM_PERIOD
from server.db.schema import ClockReadingRow, CohortRow, ParticipantRow
from server.errors import ProblemError
from server.principals import Permission, Principal
from server.rounds.retention import RetentionWorker
from server.service import Service
from tests.server.cohort import refused
from tests.server.conftest import Serve
from tests.server.credentials import keyed, seated, showing, study_of
from tests.server.device import Device
from tests.server.harness import STEPS, Served, play, study_request, sum_of, together, until_summed
from tests.server.one_shot.volunteer_rounds import Volunteers, create_drawn
from tests.server.test_reports import create as create_reports
from tests.server.test_reports import put, report

DAY = 24 * 3600.0


def read_all(query: Select[Any], session: Session) -> list[Any]:
    return list(session.scalars(query))


async def finished(served: Served, **changes: Any) -> tuple[str, list[str]]:
    """Play a study of one round; return its id, and the identities of its devices."""
    study = await served.create(**changes)
    devices = await play(served, study)
    await until_summed(served, study, devices)
    return study, await identities_of(served, study)


async def stopped(served: Served) -> tuple[str, list[str]]:
    """Stop a study whose devices have joined; return its id, and their identities."""
    study = await served.create()
    await served.join(study, 6)
    await served.client.post(f"/v1/studies/{study}/stop")
    return study, await identities_of(served, study)


async def identities_of(served: Served, study: str) -> list[str]:
    query = select(ParticipantRow.identity).where(ParticipantRow.study == study)
    identities = await served.store.database.read(partial(read_all, query))
    assert len(identities) == 6
    return identities


async def tables_with(served: Served, texts: Sequence[str]) -> set[str]:
    """Return the names of the tables in which a row has one of `texts`."""

    def find(session: Session) -> set[str]:
        return {
            table.name
            for table in Base.metadata.sorted_tables
            for row in session.execute(select(table))
            if any(text in str(row) for text in texts)
        }

    return await served.store.database.read(find)


def worker_of(service: Service, **settings: Any) -> RetentionWorker:
    changed = service.settings.model_copy(update=settings)
    leases = service.orchestrator.lease_runner
    return RetentionWorker(service.store, leases, changed)


async def test_a_deleted_study_leaves_no_row_and_no_identity(each_served: Served) -> None:
    kept, _ = await finished(each_served)
    study, identities = await finished(each_served)
    before = await tables_with(each_served, [study, *identities])
    assert {"studies", "rounds", "cohorts", "participants", "events", "leases"} <= before
    path = f"/v1/studies/{study}"
    assert (await each_served.client.delete(path)).status_code == 204
    assert await tables_with(each_served, [study]) == {"audit_entries"}
    others = await tables_with(each_served, identities)
    assert others <= {"participants"}  # the same devices took part in the other study
    for what in ("", "/rounds", "/rounds/1", "/rounds/open", "/heavy-hitters", "/events"):
        refused(await each_served.client.get(path + what), 404, "not-found")
    refused(await each_served.client.delete(path), 404, "not-found")
    assert (await each_served.show_round(kept)).state == "decoded"
    assert await each_served.read_sum(kept)
    entries = (await each_served.client.get("/v1/audit")).json()["entries"]
    assert (entries[0]["action"], entries[0]["subject"]) == ("delete study", study)


async def test_a_slow_message_for_a_deleted_study_counts_in_no_other(each_served: Served) -> None:
    """Guards: ids of deleted cohorts, which no other cohort gets."""
    client, study = each_served.client, await each_served.create()
    late, *_ = await each_served.join(study, 6)
    body = await late.compute("key-shares")
    others, of_others = list[Device](), await each_served.create(start=False)

    async def slow_body() -> AsyncIterator[bytes]:
        yield body[:1]
        assert (await client.post(f"/v1/studies/{study}/stop")).status_code == 200
        assert (await client.delete(f"/v1/studies/{study}")).status_code == 204
        assert (await client.post(f"/v1/studies/{of_others}/start")).status_code == 200
        others.extend(await each_served.join(of_others, 6, first=10))
        yield body[1:]

    headers = late.headers | {"content-type": "application/octet-stream"}
    headers |= {"content-length": str(len(body))}
    answer = await client.put(f"{late.path}/key-shares", content=slow_body(), headers=headers)
    refused(answer, 404, "not-found")
    await together(others, *STEPS)
    assert (await each_served.until_closed(of_others)).state == "decoded"
    assert await each_served.read_sum(of_others) == sum_of(others)


async def test_a_running_study_is_not_deleted_but_a_draft_is(served: Served) -> None:
    running = await served.create()
    await served.join(running, 3)
    refusal = refused(await served.client.delete(f"/v1/studies/{running}"), 409, "wrong-state")
    assert "stop it" in refusal
    assert (await served.client.get(f"/v1/studies/{running}")).json()["state"] == "running"
    assert "participants" in await tables_with(served, [running])
    await served.client.post(f"/v1/studies/{running}/stop")
    draft = await served.create(start=False)
    for study in (running, draft):
        assert (await served.client.delete(f"/v1/studies/{study}")).status_code == 204
        refused(await served.client.get(f"/v1/studies/{study}"), 404, "not-found")
    assert await tables_with(served, [running, draft]) == {"audit_entries"}


async def test_a_deleted_study_leaves_no_response_to_its_creation(each_served: Served) -> None:
    """Otherwise a repetition describes a study that no longer exists."""
    client, asked = each_served.client, study_request(start=False)
    kept, study = [
        (await client.post("/v1/studies", json=asked, headers={"Idempotency-Key": key})).json()
        for key in ("kept", "deleted")
    ]
    assert (await client.delete(f"/v1/studies/{study['id']}")).status_code == 204
    assert await tables_with(each_served, [study["id"]]) == {"audit_entries"}
    again = [
        (await client.post("/v1/studies", json=asked, headers={"Idempotency-Key": key})).json()
        for key in ("kept", "deleted")
    ]
    assert again[0] == kept
    assert again[1]["id"] not in (study["id"], kept["id"])


async def test_what_a_study_has_spent_outlives_it(each_served: Served) -> None:
    client = each_served.client
    await client.put("/v1/populations/phones", json={})
    study, identities = await finished(each_served, population="phones")
    asked = study_request(population="phones")
    refused(await client.post("/v1/studies", json=asked), 409, "budget-spent")
    spent = (await client.get("/v1/populations/phones/privacy")).json()
    assert (await client.delete(f"/v1/studies/{study}")).status_code == 204
    assert (await client.get("/v1/populations/phones/privacy")).json() == spent
    assert study in refused(await client.post("/v1/studies", json=asked), 409, "budget-spent")
    assert await tables_with(each_served, identities) == set()
    await each_served.pass_days(EXACT_SUM_PERIOD.days)
    assert study in refused(await client.post("/v1/studies", json=asked), 409, "budget-spent")
    await each_served.pass_days(2)
    assert (await client.post("/v1/studies", json=asked)).status_code == 201


async def test_the_next_study_gets_nothing_of_a_deleted_one(served: Served) -> None:
    """Guards: ids of deleted cohorts, and what the server's caches keep of them."""
    ids = []
    for _ in range(2):
        study = await served.create()
        devices = await play(served, study)
        await until_summed(served, study, devices)
        query = select(CohortRow.id).where(CohortRow.study == study)
        ids += await served.store.database.read(partial(read_all, query))
        refused(await devices[0].get("roster"), 409, "wrong-phase")
        assert (await served.client.delete(f"/v1/studies/{study}")).status_code == 204
        refused(await devices[0].get("roster"), 404, "not-found")
    assert ids[0] != ids[1]


@pytest.mark.parametrize("steps", range(5))
async def test_a_device_of_a_study_that_was_deleted_in_a_round_hears_that_it_is_gone(
    served: Served, steps: int
) -> None:
    """Otherwise it would repeat each message for two minutes, as after an error of the server."""
    study = await served.create()
    devices = await served.join(study, 6)
    await together(devices, *STEPS[:steps])
    kinds = "key-shares", "complaints", "masked-input", "confirmation", "unmasking-shares"
    body = await devices[0].compute(kinds[steps])
    assert (await served.client.post(f"/v1/studies/{study}/stop")).status_code == 200
    assert (await served.client.delete(f"/v1/studies/{study}")).status_code == 204
    refused(await devices[0].put(kinds[steps], body), 404, "not-found")


async def test_a_replica_that_still_knows_a_deleted_study_refuses_its_devices(
    serve: Serve, postgres_url: str
) -> None:
    """An upload that shares a commit with others fails alone, though caches still have it."""
    async with serve(postgres_url) as served, serve(postgres_url) as replica:
        study = await served.create()
        devices = await play(served, study)
        await until_summed(served, study, devices)
        slot = await replica.service.status_cache.slot(devices[0].seat.participant)
        assert (await served.client.delete(f"/v1/studies/{study}")).status_code == 204
        with pytest.raises(ProblemError, match="no such participant"):
            await replica.service.status_cache.status(slot.cohort)
        running = await served.create()
        others = await served.join(running, 6)
        await served.until_phase(running, "sharing")
        body = await others[0].compute("key-shares")
        other = await replica.service.status_cache.slot(others[0].seat.participant)
        late, stored = await asyncio.gather(
            replica.store.receive(Upload.of(slot, MessageKind.KEY_SHARES, body)),
            replica.store.receive(Upload.of(other, MessageKind.KEY_SHARES, body)),
            return_exceptions=True,
        )
        assert isinstance(late, ProblemError)
        assert stored == 1  # the number of messages of the phase


async def test_an_enrolled_device_of_a_deleted_study_fails_without_a_failure_of_its_address(
    serve: Serve, sqlite_url: str
) -> None:
    """Otherwise the devices behind one address look like an attack, and repeat their requests."""
    async with serve(sqlite_url, open=False, max_auth_failures=1) as closed:
        key = await keyed(closed)
        study = await study_of(closed, key)
        _, token = await closed.store.access.create_token("phones", 9, None)
        device = await seated(closed, study, token, "a")
        path = f"/v1/studies/{study}"
        assert (await closed.client.post(f"{path}/stop", headers=key)).status_code == 200
        assert (await closed.client.delete(path, headers=key)).status_code == 204
        refused(await device.get("roster"), 404, "not-found")
    async with serve(sqlite_url, open=False, max_auth_failures=1) as closed:  # knows no device
        device.client = closed.client
        for _ in range(3):
            refused(await device.get("roster"), 401, "not-authorised")
        actions = [entry.action for entry in await closed.store.access.audit_entries(20, None)]
        assert "bad credential" not in actions
        device.headers = showing("A" * 43)
        refused(await device.get("roster"), 401, "not-authorised")
        refused(await device.get("roster"), 429, "too-many-requests")


async def test_a_deletion_that_was_interrupted_is_completed_by_the_next(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_ROWS_PER_TRANSACTION", 2)
    study, identities = await stopped(served)
    delete, calls = retention._delete, 0

    def interrupted(*arguments: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OperationalError("", None, Exception("killed"))
        return delete(*arguments)

    monkeypatch.setattr(retention, "_delete", interrupted)
    response = await served.client.delete(f"/v1/studies/{study}")
    assert response.status_code >= 500
    assert "participants" in await tables_with(served, identities)
    monkeypatch.setattr(retention, "_delete", delete)
    assert (await served.client.delete(f"/v1/studies/{study}")).status_code == 204
    assert await tables_with(served, [study, *identities]) == {"audit_entries"}


async def test_rows_of_devices_are_deleted_some_time_after_their_study(
    serve: Serve, database_url: str
) -> None:
    async with serve(database_url) as served:
        study, identities = await finished(served)
        reports, view = await create_reports(served)
        signed = [report(view, number) for number in range(10)]
        for each in signed:
            await put(served, reports, each)
        identities += [each.identity.hex() for each in signed]
        await served.client.post(f"/v1/studies/{reports}/stop")
        answer = (await served.client.get(f"/v1/studies/{study}/heavy-hitters")).json()
        worker = worker_of(served.service)
        await served.pass_days(30)
        await worker.apply()
        assert {"participants", "reports"} <= await tables_with(served, identities)
        running = await served.create()
        (device, *_) = await served.join(running, 3, first=100)
        await served.pass_days(2)
        await worker.apply()
        # What a device has spent on reports counts for all studies, and is kept.
        assert await tables_with(served, identities) == {"device_spending"}
        assert await tables_with(served, [device.identity.public.hex()]) == {"participants"}
        assert (await served.client.get(f"/v1/studies/{study}/heavy-hitters")).json() == answer
        assert (await served.show_round(study)).state == "decoded"


async def test_volunteers_of_a_study_without_a_message_are_deleted_like_other_devices(
    served: Served,
) -> None:
    """Their identities are only in the messages of members."""
    study = await create_drawn(served)
    volunteers = Volunteers.of(study)
    volunteers.away = {3}
    await volunteers.act(served)
    await served.pass_phase(study)
    await served.client.post(f"/v1/studies/{study}/stop")
    identities = [each.identity.public.hex() for each in volunteers.members]
    assert await tables_with(served, identities) == {"member_messages"}
    await served.pass_days(32)
    await worker_of(served.service).apply()
    assert await tables_with(served, identities) == set()


async def test_identities_in_seatings_are_deleted_after_an_interrupted_deletion(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, identities = await stopped(served)
    seating = update(CohortRow).values(seating=bytes.fromhex("".join(identities)))
    await served.store.database.write(lambda session: session.execute(seating) and None)
    await served.pass_days(32)
    worker, of_study = worker_of(served.service), select(CohortRow.seating)

    def interrupt(*_arguments: object) -> None:
        raise OperationalError("", {}, Exception("killed"))

    with monkeypatch.context() as broken:
        broken.setattr(retention, "_delete_leases", interrupt)
        with pytest.raises(OperationalError):
            await worker.apply()
    assert await tables_with(served, identities) == set()
    assert await served.store.database.read(partial(read_all, of_study)) != [None]
    await worker.apply()
    assert await served.store.database.read(partial(read_all, of_study)) == [None]
    assert (await served.show_round(study)).state == "failed"


async def test_a_study_that_an_analyst_deletes_meanwhile_keeps_no_old_rows(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, _ = await stopped(served)
    await served.pass_days(402)
    find = served.store.retention.studies_ended_before

    async def find_one_more(_: RetentionRepository, time: datetime) -> Sequence[str]:
        return ["deleted", *await find(time)]

    monkeypatch.setattr(RetentionRepository, "studies_ended_before", find_one_more)
    await worker_of(served.service, keep_studies_days=400.0).apply()
    assert await tables_with(served, [study]) == set()


async def test_old_studies_and_audit_entries_are_deleted_by_the_settings(served: Served) -> None:
    study, _ = await stopped(served)
    later = await served.create()
    await served.pass_days(402)
    draft = await served.create(start=False)
    await worker_of(served.service).apply()
    entries = (await served.client.get("/v1/audit")).json()["entries"]
    assert [entry["subject"] for entry in entries] == [draft]
    assert (await served.client.get(f"/v1/studies/{study}")).status_code == 200
    await worker_of(served.service, keep_studies_days=400.0).apply()
    refused(await served.client.get(f"/v1/studies/{study}"), 404, "not-found")
    for other in (later, draft):
        assert (await served.client.get(f"/v1/studies/{other}")).status_code == 200


async def test_a_clock_that_is_years_ahead_deletes_nothing_until_an_operator_confirms_it(
    serve: Serve, sqlite_url: str
) -> None:
    """Sessions and idempotency keys stay, too, and so they are there when the clock is right."""
    settings = {"keep_studies_days": 40.0, "keep_devices_days": 30.0, "keep_audit_days": 60.0}
    async with serve(sqlite_url) as served:
        study, identities = await stopped(served)
        owner = Principal("anna@example.org", frozenset({Permission.READ}), is_person=True)
        await served.store.access.start_session(owner)
        await served.pass_days(2)
        before = await tables_with(served, [study, *identities, "anna@example.org"])
    async with serve(sqlite_url) as ahead:  # started again, and asked for changes
        ahead.clock.advance(500 * DAY)
        worker = worker_of(ahead.service, **settings)
        for hour in range(0, 50, 5):
            await worker.apply()
            assert (await ahead.client.get("/operations")).text.count("clock --confirm") == 1
            await ahead.create(name=f"hour {hour}", start=False) if hour < 15 else None
            ahead.clock.advance(5 * 3600)
        assert await tables_with(ahead, [study, *identities, "anna@example.org"]) == before
        state = await ahead.store.retention.confirm_clock()
        assert state.confirmed == ahead.clock()
        await worker.apply()
        assert "clock --confirm" not in (await ahead.client.get("/operations")).text
        assert await tables_with(ahead, [study, *identities, "anna@example.org"]) == set()
        entries = (await ahead.client.get("/v1/audit")).json()["entries"]
        assert (entries[0]["action"], entries[0]["actor"]) == ("confirm clock", "command line")


async def test_the_first_reading_is_compared_with_the_newest_row(served: Served) -> None:
    """A database whose server ended before its first reading."""
    study, _ = await stopped(served)
    erase = delete(ClockReadingRow)
    await served.store.database.write(lambda session: session.execute(erase) and None)
    served.clock.advance(500 * DAY)
    worker = worker_of(served.service, keep_studies_days=40.0)
    for _ in range(3):
        await worker.apply()
        served.clock.advance(DAY)
    assert (await served.client.get(f"/v1/studies/{study}")).status_code == 200


async def test_a_clock_that_was_wrong_for_less_than_a_day_deletes_nothing(served: Served) -> None:
    """Also by less than the week for which it is trusted, and when it is set back."""
    study, identities = await stopped(served)
    await served.pass_days(25)
    worker = worker_of(served.service)
    for days in (6, -6, 6.9, -6.9, -100, 100):
        served.clock.advance(days * DAY)
        await worker.apply()
    assert "participants" in await tables_with(served, identities)
    await served.pass_days(8)
    await worker.apply()
    assert await tables_with(served, identities) == set()
    assert (await served.client.get(f"/v1/studies/{study}")).status_code == 200

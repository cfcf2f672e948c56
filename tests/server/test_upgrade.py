"""A database of the first program, with rows in it, serves this one."""

from base64 import urlsafe_b64encode
from hashlib import sha256
from itertools import product
from typing import Any

from alembic import command
from sqlalchemy import MetaData, text
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

from secagg.deals import SeedDeal
from secagg.keys import SIGNATURE_BYTES
from server import migrations
from server.database import Database
from tests.server.conftest import Serve
from tests.server.harness import NOON, sum_of, together
from tests.server.party import refused
from tests.server.test_migrations import differences

REASON = "the service was upgraded to another protocol"
QUESTION = {
    "mechanism": "adaptive-iblt",
    "threshold": 4.0,
    "contribution": 2,
    "domain": {"kind": "utf8", "max_bytes": 3},
    "words": 2000,
}
TERMS = {
    "cohort_size": 6, "minimum": 3, "cohorts": 1, "corrupt": 0.1, "dropout": 0.35,
    "sigma": 40, "eta": 30, "mode": "semi-honest",
}  # fmt: skip
TIMEOUTS = {"enrolling": 600.0, "sharing": 60.0, "masking": 60.0, "unmasking": 60.0, "patience": 5}
HEARD = {"enrolling": 6, "sharing": 6, "masking": 5, "unmasking": 5, "summed": 0}
HISTORY = [{"phase": p, "entered": NOON.isoformat(), "heard": heard} for p, heard in HEARD.items()]
PLAN = {
    "study": "old",
    "terms": TERMS,
    "seed": "df" * 32,
    "mechanism": "adaptive-iblt",
    "question": QUESTION,
    "t": 1.0,
    "cells": 602,  # as the first tables had, of no sub-tables
}


def rows() -> dict[str, list[dict[str, Any]]]:
    """Return one round with an answer, and one of which one cohort is summed and one masks."""
    study = {"id": "old", "name": b"old", "state": "running", "rounds": 3, "round": 2}
    study |= {"question": QUESTION, "terms": TERMS, "timeouts": TIMEOUTS, "created": NOON}
    small = {"id": "small", "state": "created", "round": 0, "question": QUESTION | {"words": 9}}
    answered = {"state": "decoded", "participants": 5, "distinct": 1.0, "closed": NOON}
    one = {"study": "old", "number": 1, "plan": PLAN | {"round": 1}, "opened": NOON} | answered
    two = {"study": "old", "number": 2, "plan": PLAN | {"round": 2}, "opened": NOON}
    settled = {"degree": 4, "threshold": 2, "seed": b"s" * 32, "digest": b"d" * 32}
    cohort = {"study": "old", "number": 0, "deadline": NOON, "enrolled": 6} | settled
    summed = {"phase": "summed", "history": HISTORY}
    masking = {"phase": "masking", "history": HISTORY[:3]}
    return {
        "studies": [study, study | small],
        "rounds": [one, two | {"state": "running"}],
        "cohorts": [
            cohort | summed | {"id": 1, "round": 1, "sum": b"read"},
            cohort | masking | {"id": 2, "round": 2, "sum": None},
            cohort | summed | {"id": 3, "round": 2, "number": 1, "sum": b"not read by any round"},
        ],
        "participants": [device(*of) for of in product((1, 2, 3), range(6))],
        "messages": [
            {"cohort": cohort, "slot": slot, "kind": kind, "received": NOON, "digest": b"d" * 32}
            for cohort, slot, kind in product((1, 2, 3), range(6), ("envelopes", "vector"))
            if slot or kind == "envelopes"
        ],
        "estimates": [{"study": "old", "item": b"ab", "round": 1, "count": 5.0, "variance": 0.0}],
    }


def device(cohort: int, slot: int) -> dict[str, Any]:
    keys = {"mask_key": bytes([slot + 2] * 32), "seal_key": bytes([slot + 100] * 32)}
    seat = {"cohort": cohort, "slot": slot, "study": "old", "round": min(cohort, 2)}
    own = {"id": f"c{cohort}s{slot}", "device": f"device-{cohort}-{slot}", "joined": NOON}
    secret = {"ticket": sha256(bytes(32)).digest(), "commitment": b"c" * 32}
    return keys | seat | own | secret


def fill(session: Session) -> None:
    connection: Connection = session.connection()
    config = migrations._config()
    config.attributes["connection"] = connection
    command.upgrade(config, "0001")
    tables = MetaData()
    tables.reflect(connection)
    for name, some in rows().items():
        for row in some:
            connection.execute(tables.tables[name].insert(), row)
    if connection.dialect.name == "postgresql":  # its counter does not know of these
        connection.execute(text("SELECT setval('cohorts_id_seq', 3)"))
    connection.execute(text("UPDATE messages SET body = 'of old' WHERE cohort > 1"))


async def test_a_database_with_rows_comes_to_the_schema_of_the_models(database_url: str) -> None:
    database = Database(database_url)
    await database.write(fill)
    await migrations.upgrade(database)
    assert await database.read(lambda session: differences(session.connection())) == []
    kept = text("SELECT count(*) FROM participants JOIN messages USING (cohort, slot)")
    assert await database.read(lambda session: session.scalar(kept)) == 3 * 11
    await database.close()


async def test_what_was_over_stays_what_ran_fails_and_the_study_goes_on(
    serve: Serve, database_url: str
) -> None:
    database = Database(database_url)
    await database.write(fill)
    await database.close()
    async with serve(database_url) as served:
        one = await served.show_round("old", 1)
        assert (one.state, one.participants, one.cohorts[0].phase) == ("decoded", 5, "summed")
        assert one.cohorts[0].survivors == (1, 2, 3, 4, 5)
        assert one.plan.cells == 576
        assert await served.read_sum("old", 1) == b"read"
        two = await served.until_closed("old", 2)
        assert (two.state, two.participants) == ("failed", 0)
        for cohort in two.cohorts:
            assert (cohort.phase, cohort.failure) == ("failed", REASON)
            assert cohort.history[-1].phase == "failed"
        studies = (await served.client.get("/v1/studies")).json()["studies"]
        assert {study["id"] for study in studies} == {"old", "small"}
        assert not await served.app.state.service.store.cohorts.over()  # bodies are forgotten
        devices = await served.join("old", 6, after=2)
        await together(devices, "share", "mask", "reveal")  # nobody confirmed in that study
        assert (await served.until_closed("old", 3)).state == "decoded"
        assert await served.read_sum("old", 3) == sum_of(devices)
        answer = (await served.client.get("/v1/studies/old/heavy-hitters")).json()
        assert answer["heavy_hitters"][0] == {
            "item": "ab",
            "estimate": 11,
            "standard_error": 0,
            "low": 11,
            "high": 11,
        }


async def test_devices_of_before_are_told_that_their_cohort_failed(
    serve: Serve, database_url: str
) -> None:
    database = Database(database_url)
    await database.write(fill)
    await database.close()
    ticket = urlsafe_b64encode(bytes(32)).decode().rstrip("=")
    headers = {"Authorization": f"Bearer {ticket}", "Content-Type": "application/octet-stream"}
    async with serve(database_url) as served:
        for what in ("roster", "survivors"):
            path = f"/v1/participants/c2s1/{what}"
            detail = refused(await served.client.get(path, headers=headers), 410, "cohort-failed")
            assert REASON in detail
        facts = await served.app.state.service.frozen.facts(1)  # its rows can be read
        body = bytes(SeedDeal.nbytes(0) + facts.ring.nbytes + SIGNATURE_BYTES)
        late = await served.client.put(
            "/v1/participants/c2s1/vector", content=body, headers=headers
        )
        refused(late, 409, "conflict")  # it sent another one then
        never = await served.client.put(
            "/v1/participants/c2s0/vector", content=body, headers=headers
        )
        refused(never, 410, "cohort-failed")


async def test_a_study_that_can_be_asked_no_longer_is_refused_with_the_reason(
    serve: Serve, sqlite_url: str
) -> None:
    database = Database(sqlite_url)
    await database.write(fill)
    await database.close()
    async with serve(sqlite_url) as served:
        response = await served.client.post("/v1/studies/small/start")
        assert "words are too few" in refused(response, 409, "wrong-state")
        assert (await served.client.get("/v1/studies/small")).json()["state"] == "created"

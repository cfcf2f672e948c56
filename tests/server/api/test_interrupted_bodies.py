"""Bodies that are interrupted, as without a network, have no effect."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import structlog
import uvicorn
from sqlalchemy import func, select

from server.db.schema import EventRow, MessageRow, ParticipantRow, StudyRow
from tests.server.cohort import Cohort
from tests.server.device import KINDS, Device
from tests.server.harness import STEPS, Served, study_request

_PATIENCE = 60.0
OCTETS = "application/octet-stream"


async def rows(served: Served) -> list[int]:
    """Return the number of rows of each table to which a request may add."""
    counts = [
        select(func.count()).select_from(t)
        for t in (StudyRow, ParticipantRow, MessageRow, EventRow)
    ]
    database = served.store.database
    row_counts: list[int] = await database.read(lambda s: [s.scalar(count) for count in counts])
    return row_counts


@asynccontextmanager
async def connected(served: Served) -> AsyncIterator[asyncio.StreamWriter]:
    """Yield a real connection to the service."""
    config = uvicorn.Config(served.app, lifespan="off", log_config=None)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await server.startup([listener])
        _, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            yield writer
        finally:
            writer.close()
            await server.shutdown([listener])


async def send_half(served: Served, line: str, body: bytes, **headers: str) -> None:
    """Send half of a body over a real connection, close it, and wait for the service's log."""
    fields = {"Host": "test", "Content-Length": str(len(body))} | headers
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    before, requests = await rows(served), []
    with structlog.testing.capture_logs() as logs:
        async with connected(served) as writer:
            writer.write(f"{line} HTTP/1.1\r\n{head}\r\n".encode() + body[: len(body) // 2])
            await writer.drain()
            writer.close()
            async with asyncio.timeout(_PATIENCE):
                while not requests:
                    await asyncio.sleep(0.005)
                    requests = [entry for entry in logs if entry["event"] == "request"]
    (entry,) = requests
    assert (entry["status"], entry["log_level"]) == (400, "info")
    assert await rows(served) == before


async def test_an_interrupted_upload_has_no_effect_and_may_be_sent_again(cohort: Cohort) -> None:
    for step, kind in zip(STEPS, KINDS, strict=True):
        device = await cohort.take_steps_but_last_device(step)
        body = await device.compute(kind)
        headers = {"Content_Type": OCTETS} | device.headers
        await send_half(cohort.served, f"PUT {device.path}/{kind}", body, **headers)
        await device.upload(kind, body)
    await cohort.check_exact_sum()


async def test_an_interrupted_document_gives_no_slot_and_creates_no_study(served: Served) -> None:
    kind = {"Content_Type": "application/json"}
    study = await served.create()
    device = Device(served.client, "device", {}, Random(1))
    device.view = await served.open_round(study)
    request = device.join_request().model_dump_json().encode()
    path = f"/v1/studies/{study}/rounds/1/participants"
    await send_half(served, f"POST {path}", request, **kind, **device.headers)
    await send_half(served, "POST /v1/studies", json.dumps(study_request()).encode(), **kind)
    assert (await device.apply(study, 1)).status_code == 201

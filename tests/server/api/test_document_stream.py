"""The response to a message has the documents that follow, which GET requests return as well."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from unittest.mock import AsyncMock

import httpx
import pytest
from starlette.types import Message

from protocol.api.messages import SlotAssignment
from protocol.api.messages_outside_sums import NEXT_DOCUMENTS
from protocol.api.phases import MessageKind, Phase
from server.api.dependencies import PendingError
from server.api.devices.documents import DocumentReader, DocumentStream
from server.db.repositories.messages.participants import CohortStatus
from tests.server.cohort import Cohort, create_full_cohort, refused
from tests.server.device import KINDS, Device
from tests.server.harness import NOON, STEPS, Served, study_request, together
from tests.server.test_seating import joined, seat
from tests.support.asgi_transport import StreamingAsgiTransport

OCTETS = {"Content-Type": "application/octet-stream"}


@pytest.fixture
async def streaming(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    transport = StreamingAsgiTransport(served.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


def documents(body: bytes) -> Iterator[bytes]:
    while body:
        end = 4 + int.from_bytes(body[:4], "big")
        assert len(body) >= end
        yield body[4:end]
        body = body[end:]


async def put(device: Device, kind: str, body: bytes, wait: float = 10) -> httpx.Response:
    return await device.client.put(
        f"{device.path}/{kind}?wait={wait}", content=body, headers=OCTETS | device.headers
    )


async def test_each_message_is_answered_by_what_a_get_returns(cohort: Cohort) -> None:
    device = cohort.devices[0]
    for step, kind in zip(STEPS, KINDS, strict=True):
        body = await device.compute(kind)
        device.record(kind, body)
        sending = asyncio.create_task(put(device, kind, body))
        await together(cohort.devices[1:], step)
        response = await sending
        following = NEXT_DOCUMENTS.get(MessageKind(kind), ())
        assert response.status_code == (200 if following else 204)
        again = await put(device, kind, body)  # a repetition, in a later phase
        assert again.content == response.content
        assert list(documents(response.content)) == [await device.read(each) for each in following]
    await cohort.check_exact_sum()


async def test_headers_acknowledge_a_message_before_the_documents_exist(
    cohort: Cohort, streaming: httpx.AsyncClient
) -> None:
    device = await cohort.take_steps_but_last_device("share")
    body = await device.compute("key-shares")
    device.record("key-shares", body)
    first = cohort.devices[0]
    path = f"{first.path}/key-shares?wait=10"
    sent = {"content": first.bodies["key-shares"], "headers": OCTETS | first.headers}
    async with streaming.stream("PUT", path, **sent) as response:
        assert response.status_code == 200
        assert "content-length" not in response.headers
        assert response.headers["x-accel-buffering"] == "no"
        await device.upload("key-shares", body)  # the phase ends only now
        assert list(documents(await response.aread())) == [await first.read("encrypted-shares")]


async def test_a_response_ends_without_documents_that_do_not_come_in_time(cohort: Cohort) -> None:
    await cohort.take_steps_but_last_device("share", "check")
    device = cohort.devices[0]
    response = await put(device, "complaints", device.bodies["complaints"], wait=0.05)
    assert (response.status_code, response.content) == (200, b"")
    response = await put(device, "complaints", device.bodies["complaints"], wait=0)
    assert response.status_code == 204


async def test_a_refused_document_ends_the_response_and_its_get_has_the_reason(
    cohort: Cohort,
) -> None:
    await cohort.take_steps("share", "check", "mask")
    device = cohort.devices[0]
    body = await device.compute("confirmation")
    sending = asyncio.create_task(put(device, "confirmation", body))
    await together(cohort.devices[1:3], "confirm")
    assert await cohort.served.pass_phase(cohort.study) == "failed"
    response = await sending
    assert (response.status_code, response.content) == (200, b"")
    refused(await device.get("confirmations"), 410, "cohort-failed")


async def test_a_refused_message_is_not_answered_by_documents(cohort: Cohort) -> None:
    device = cohort.devices[0]
    await cohort.take_steps("share")
    refused(await put(device, "key-shares", bytes(10)), 422, "malformed")
    refused(await put(device, "complaints", device.bodies["key-shares"], wait=31), 422, "malformed")


async def test_a_join_is_answered_by_the_slot_at_once_and_then_by_the_roster(
    served: Served, streaming: httpx.AsyncClient
) -> None:
    study = await served.create()
    devices = await served.join(study, 5)
    last = devices[0].again()
    last.view, last.name = devices[0].view, "last"
    last.__post_init__()
    path = f"/v1/studies/{study}/rounds/1/participants?wait=10"
    first = devices[0]
    for device, status in ((first, 200), (last, 201)):
        sent = {"json": device.join_request().model_dump(), "headers": device.headers}
        async with streaming.stream("POST", path, **sent) as response:
            assert response.status_code == status
            parts = response.aiter_raw()
            (slot,) = documents(await anext(parts))
            if device is first:
                assert slot == first.seat.model_dump_json().encode()
                continue
            (roster,) = documents(b"".join([part async for part in parts]))
            assert roster == await first.read("roster")


async def test_waiting_devices_hold_no_bodies(served: Served, streaming: httpx.AsyncClient) -> None:
    question = study_request()["question"] | {"message_bytes": 401_784}
    cohort = await create_full_cohort(served, question=question)
    await cohort.take_steps("share", "check")
    await cohort.take_steps_but_last_device("mask")
    device = cohort.devices[0]
    body = device.bodies["masked-input"]
    assert len(body) > 100_000
    path, headers = f"{device.path}/masked-input?wait=10", OCTETS | device.headers

    async def copied() -> AsyncIterator[bytes]:
        yield bytes(bytearray(body))

    opened = list[httpx.Response]()
    tracemalloc.start()
    try:
        for _ in range(10):
            request = streaming.build_request("PUT", path, content=copied(), headers=headers)
            opened.append(await streaming.send(request, stream=True))
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert [response.status_code for response in opened] == [200] * 10
    assert held < 3 * len(body)
    for response in opened:
        await response.aclose()


async def test_a_join_is_answered_by_the_roster_of_the_cohort_in_which_the_device_is_seated(
    served: Served, streaming: httpx.AsyncClient
) -> None:
    study, devices = await joined(served)
    path = f"/v1/studies/{study}/rounds/1/participants?wait=10"
    waiting = asyncio.Queue[None]()

    async def roster_of(device: Device) -> bytes:
        sent = {"json": device.join_request().model_dump(), "headers": device.headers}
        async with streaming.stream("POST", path, **sent) as response:
            parts = response.aiter_raw()
            (slot,) = documents(await anext(parts))
            assert SlotAssignment.model_validate_json(slot).slot is None
            waiting.put_nowait(None)
            (roster,) = documents(b"".join([part async for part in parts]))
        return roster

    streams = [asyncio.create_task(roster_of(device)) for device in devices]
    for _ in devices:
        await waiting.get()
    assert await seat(served) == [""]
    rosters = await asyncio.gather(*streams)
    assert rosters == [await device.read("roster") for device in devices]
    assert len(set(rosters)) > 1  # of several cohorts


async def test_waiting_joins_hold_no_bodies(served: Served, streaming: httpx.AsyncClient) -> None:
    study, padding = await served.create(), b" " * 200_000  # which JSON allows
    devices = await served.join(study, 5)
    path = f"/v1/studies/{study}/rounds/1/participants?wait=10"
    opened = list[httpx.Response]()
    tracemalloc.start()
    try:
        for device in devices:
            body = device.join_request().model_dump_json().encode() + padding
            headers = {"content-type": "application/json"} | device.headers
            request = streaming.build_request("POST", path, content=body, headers=headers)
            opened.append(await streaming.send(request, stream=True))
            del body, request
        for response in opened:
            response.request.stream = httpx.ByteStream(b"")  # of this process, as the service is
            del response.request._content
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert [response.status_code for response in opened] == [200] * 5
    assert held < 3 * len(padding)
    for response in opened:
        await response.aclose()


class Recorded:
    """Readers of documents that record how long they were to wait, and the messages sent so far."""

    def __init__(self, ready: Sequence[bool]) -> None:
        self.messages: list[Message] = []
        self.waits: list[tuple[int, float, int]] = []
        self._ready = ready

    def readers(self) -> list[DocumentReader]:
        return [partial(self._read, number) for number in range(len(self._ready))]

    async def _read(self, number: int, wait: float) -> bytes:
        self.waits.append((number, wait, len(self.messages)))
        if wait == 0.0 and not self._ready[number]:
            raise PendingError(CohortStatus(Phase.SHARING, NOON, None))
        return b"%d" % number

    async def send(self, message: Message) -> None:
        self.messages.append(message)

    async def run(self, wait: float) -> None:
        stream = DocumentStream([b"known"], self.readers(), wait)
        await stream({"type": "http"}, AsyncMock(), self.send)


async def test_documents_that_exist_are_sent_together_and_others_are_awaited() -> None:
    recorded = Recorded([True, True, False])
    await recorded.run(10)
    assert [number for number, _, _ in recorded.waits] == [0, 1, 2, 2]
    first, at_once, not_yet, last = (wait for _, wait, _ in recorded.waits)
    assert 9 < last <= first <= 10  # one deadline for all
    assert (at_once, not_yet) == (0, 0)
    start, known, two, end = recorded.messages
    assert start["type"] == "http.response.start"
    assert [*documents(known["body"])] == [b"known"]
    assert [*documents(two["body"])] == [b"0", b"1"]
    assert [*documents(end["body"])] == [b"2"]
    assert (known["more_body"], two["more_body"]) == (True, True)
    assert not end.get("more_body", False)
    assert recorded.waits[-1][2] == 3  # the two were sent before the wait for the third


async def test_a_stream_without_time_left_ends_at_the_first_missing_document() -> None:
    recorded = Recorded([True, False, True])
    await recorded.run(-5)
    assert {wait for _, wait, _ in recorded.waits} == {0.0}
    assert [number for number, _, _ in recorded.waits] == [0, 1, 1]
    assert [*documents(b"".join(each.get("body", b"") for each in recorded.messages))] == [
        b"known",
        b"0",
    ]

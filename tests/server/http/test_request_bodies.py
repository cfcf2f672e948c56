"""Bodies that are too large are refused before they are read, and slow ones meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from server.http import request_limits
from server.http.request_limits import BodyMemory
from server.settings import Settings
from tests.server.cohort import create_full_cohort, refused
from tests.server.conftest import Serve
from tests.server.harness import STEPS, Served, study_request

JSON = {"Content-Type": "application/json"}
OCTETS = {"Content-Type": "application/octet-stream"}
LIMITS = {"max_upload_bytes": 4096}


@pytest.fixture
def short_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept JSON of 1024 bytes at most."""
    monkeypatch.setattr(request_limits, "MAX_JSON_BYTES", 1024)


class Chunks(httpx.AsyncByteStream):
    """A body without a length, which counts how much of it was taken."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self.count):
            self.taken += 1
            yield b"x" * 1024


class Unfinished(httpx.AsyncByteStream):
    """A body of 1024 bytes that pauses before its last one, until `gate`."""

    def __init__(self, gate: asyncio.Event) -> None:
        self.gate = gate
        self.is_paused = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"x" * 1023
        self.is_paused.set()
        await self.gate.wait()
        yield b"x"


def body_memory(served: Served) -> dict[str, int]:
    """Return the bytes of bodies that the service counts, by sender."""
    layer: Any = served.app.middleware_stack
    return dict(layer.body_memory.nbytes_by_sender)


@pytest.mark.usefixtures("short_json")
@pytest.mark.parametrize("length", [{"Content-Length": "1024"}, {}])
async def test_unfinished_bodies_of_one_sender_take_a_limited_memory(
    serve: Serve, sqlite_url: str, length: dict[str, str]
) -> None:
    async with serve(sqlite_url, **LIMITS) as served:
        gate = asyncio.Event()

        async def post(body: Unfinished, sender: dict[str, str]) -> httpx.Response:
            headers = JSON | length | sender
            request = served.client.build_request("POST", "/v1/studies", headers=headers)
            request.stream = body
            return await served.client.send(request)

        for sender in ({"Authorization": "Bearer a"}, {}):  # without a credential: its address
            gate.clear()
            bodies = [Unfinished(gate) for _ in range(4)]
            posts = [asyncio.create_task(post(body, sender)) for body in bodies]
            await asyncio.gather(*(body.is_paused.wait() for body in bodies))
            refusal = await post(Unfinished(gate), sender)
            assert "at most 4096 bytes" in refused(refusal, 429, "too-many-requests")
            assert int(refusal.headers["retry-after"]) > 0
            assert not any(each.done() for each in posts)
            posts[0].cancel()  # its connection is lost
            await asyncio.wait(posts[:1])
            posts[0] = asyncio.create_task(post(bodies[0], sender))
            other = Unfinished(gate)
            posts.append(asyncio.create_task(post(other, {"Authorization": "Bearer b"})))
            gate.set()
            for answer in await asyncio.gather(*posts):
                refused(answer, 400, "malformed")  # not JSON
            assert body_memory(served) == {}


async def test_a_document_has_few_errors_because_each_takes_time(served: Served) -> None:
    names = dict.fromkeys(map(str, range(request_limits.MAX_JSON_NAMES + 1)), 1)
    refusal = await served.client.post("/v1/studies", json=names)
    assert "at most 5,000 names" in refused(refusal, 413, "too-large")
    ones = [1] * 50_000
    for part, fields in (
        ("domain", {"items": ones, "kind": "listed"}),
        ("domain", {"segments": ones}),
        ("committee", {"members": ones}),
    ):
        request = study_request()
        request["question" if part == "domain" else "terms"][part] = fields
        answer = await served.client.post("/v1/studies", json=request)
        assert refused(answer, 422, "malformed")
        assert len(answer.json()["errors"]) < 9


async def test_a_body_that_is_stored_counts_no_longer_while_its_response_waits(
    served: Served,
) -> None:
    cohort = await create_full_cohort(served)
    device = cohort.devices[0]
    body = await device.compute("key-shares")
    headers = device.headers | OCTETS
    path = f"{device.path}/key-shares?wait=20"
    waiting = asyncio.create_task(served.client.put(path, content=body, headers=headers))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    assert body_memory(served) == {}
    waiting.cancel()


@pytest.mark.parametrize("sender", ["", "Bearer of each"])
def test_a_fleet_behind_one_address_sends_its_vectors_at_once(sender: str) -> None:
    settings = Settings()
    memory = BodyMemory(settings.max_upload_bytes, lambda scope: str(scope["sender"]))
    scopes = [{"sender": f"{sender}{device if sender else ''}"} for device in range(1000)]
    for scope in scopes:
        memory.reserve(scope, 40_000)


@pytest.mark.usefixtures("short_json")
async def test_a_body_with_too_large_a_length_is_refused(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, **LIMITS) as served:
        for path, headers in (
            ("/v1/studies", JSON),
            ("/v1/studies/x/start", {}),
            ("/v1/x", OCTETS),
        ):
            response = await served.client.post(path, content=b" " * 5000, headers=headers)
            refused(response, 413, "too-large")
            assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.usefixtures("short_json")
async def test_a_body_without_a_length_is_refused_at_the_first_chunk_too_many(
    serve: Serve, sqlite_url: str
) -> None:
    async with serve(sqlite_url, **LIMITS) as served:
        for headers in (JSON, OCTETS):  # such a route reads all, then checks the type
            body = Chunks(1000)
            request = served.client.build_request("POST", "/v1/studies", headers=headers)
            request.stream = body
            refused(await served.client.send(request), 413, "too-large")
            assert body.taken == 2


async def test_an_upload_without_a_length_is_read_no_further_than_it_may_be(served: Served) -> None:
    cohort = await create_full_cohort(served)
    await cohort.take_steps("share")
    device = cohort.devices[0]
    for what, most in cohort.sizes().items():
        body = Chunks(10**6)
        request = served.client.build_request(
            "PUT", f"{device.path}/{what}", headers=device.headers | OCTETS
        )
        request.stream = body
        response = await served.client.send(request)
        refused(response, 422, "malformed")
        assert body.taken <= most // 1024 + 2


async def test_a_study_with_too_large_uploads_is_refused(serve: Serve, sqlite_url: str) -> None:
    """A masked input contains seed shares, so it is larger than its vector."""
    async with serve(sqlite_url, max_upload_bytes=1024) as served:
        response = await served.client.post("/v1/studies", json=study_request())
        detail = response.json()["detail"]
    assert "this service accepts 1024" in detail
    needed = int(detail.split()[2])
    async with serve(sqlite_url, max_upload_bytes=needed - 1) as served:
        response = await served.client.post("/v1/studies", json=study_request())
        assert response.status_code == 422
    async with serve(sqlite_url, max_upload_bytes=needed) as served:
        cohort = await create_full_cohort(served)
        await cohort.take_steps(*STEPS)
        await cohort.check_exact_sum()
        assert len(cohort.devices[0].vector_body) == needed


class Dripping(httpx.AsyncByteStream):
    """A body that falls silent after its first pieces, or goes on in small ones for ever."""

    def __init__(self, pause: Callable[[], Awaitable[object]]) -> None:
        self._pause = pause

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await self._pause()


@pytest.mark.parametrize(
    ("limit", "seconds", "pause"),
    [
        ("BODY_IDLE_SECONDS", 0.05, asyncio.Event().wait),
        ("BODY_SECONDS", 0.2, lambda: asyncio.sleep(0.01)),
    ],
)
async def test_a_body_that_takes_too_long_is_refused_and_its_connection_closed(
    serve: Serve,
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    seconds: float,
    pause: Callable[[], Awaitable[object]],
) -> None:
    monkeypatch.setattr(request_limits, limit, seconds)
    async with serve(sqlite_url) as served:
        study = await served.create()
        device, *_ = await served.join(study, 6)
        await served.until_phase(study, "sharing")
        for method, path, headers in (
            ("POST", "/v1/studies", JSON),
            ("PUT", f"{device.path}/key-shares", device.headers | OCTETS),
        ):
            request = served.client.build_request(method, path, headers=headers)
            request.headers.pop("content-length", None)
            request.stream = Dripping(pause)
            response = await asyncio.wait_for(served.client.send(request), 20)
            refused(response, 408, "too-slow")
            assert response.headers["connection"] == "close"
        assert len((await served.client.get("/v1/studies")).json()["studies"]) == 1

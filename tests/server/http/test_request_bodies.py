"""Bodies that are too large are refused before they are read."""

from collections.abc import AsyncIterator

import httpx

from tests.server.conftest import Serve
from tests.server.harness import STEPS, Served, study_request
from tests.server.party import gather_party, refused

JSON = {"Content-Type": "application/json"}
OCTETS = {"Content-Type": "application/octet-stream"}
LIMITS = {"max_upload_bytes": 4096, "max_json_bytes": 1024}


class Chunks(httpx.AsyncByteStream):
    """A body without a length, which counts how much of it was taken."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self.count):
            self.taken += 1
            yield b"x" * 1024


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
    party = await gather_party(served)
    await party.go("share")
    device = party.devices[0]
    for what, most in party.sizes().items():
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
        party = await gather_party(served)
        await party.go(*STEPS)
        await party.end()
        assert len(party.devices[0].vector_body) == needed

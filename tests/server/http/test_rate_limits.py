"""Limits on failures, requests and joins: by address, by credential and by token."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from random import Random, SystemRandom
from unittest.mock import AsyncMock, Mock

import httpx
import pytest

from protocol.api.credentials import API_KEY_PREFIX, ENROLMENT_TOKEN_PREFIX, new_secret
from secagg.keys import Identity
from server.http import request_layer, request_limits
from server.http.auth import client_address, rate_limit_key
from server.http.request_limits import BodyMemory, LimitedBody, RateLimit
from server.settings import Settings
from tests.server.cohort import refused
from tests.server.conftest import Serve
from tests.server.credentials import application, book, enrolled, keyed, seated, showing, study_of


def test_a_limit_counts_the_last_minute_and_the_minute_before_in_proportion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 90.0
    monkeypatch.setattr(request_limits, "monotonic", lambda: now)
    limit = RateLimit(10)
    assert [limit.hit("device") for _ in range(12)] == [True] * 10 + [False] * 2
    assert limit.hit("other")
    now = 120.0  # all of them are less than a minute ago
    assert not limit.allows("device")
    now = 150.0  # half of them are
    assert [limit.hit("device") for _ in range(7)] == [True] * 5 + [False] * 2
    now = 239.9
    assert [limit.hit("device") for _ in range(11)] == [True] * 10 + [False]
    now = 400.0
    assert [limit.hit("device") for _ in range(11)] == [True] * 10 + [False]


def test_counts_are_kept_for_two_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(request_limits, "monotonic", lambda: now)
    limit = RateLimit(10)
    for number in range(1000):
        limit.hit(f"device {number}")
    now = 60.0
    limit.hit("device")
    now = 120.0
    limit.hit("device")
    assert len(limit.counts) + len(limit.before) == 2


async def test_an_address_that_fails_too_often_waits_unless_its_credential_is_valid(
    serve: Serve, sqlite_url: str
) -> None:
    """Others share an address: an outsider there must not lock out devices and analysts."""
    async with serve(sqlite_url, open=False, max_auth_failures=3) as served:
        head = await keyed(served)
        study = await study_of(served, head)
        _, token = await book(served).create_token("phones", 2, None)
        device = await seated(served, study, token, "one")
        for _ in range(3):
            refused(await served.client.get("/v1/studies"), 401, "not-authorised")
        false = new_secret(SystemRandom(), API_KEY_PREFIX)
        for stranger in ({}, showing(false)):
            answer = await served.client.get("/v1/studies", headers=stranger)
            refused(answer, 429, "too-many-requests")
            assert int(answer.headers["Retry-After"]) >= 1
        refused(await served.client.post("/v1/devices"), 429, "too-many-requests")
        assert (await served.client.get("/v1/studies", headers=head)).is_success
        assert (await served.client.get("/v1/studies", headers=await keyed(served))).is_success
        assert (await device.get("roster", wait=0)).status_code == 202
        await enrolled(served, token, Identity.generate(Random(2)))
        refusals = [e for e in await book(served).audit_entries(99, None) if e.outcome == "refused"]
        assert len(refusals) == 1  # a minute


async def test_an_address_that_fails_too_often_is_answered_after_those_with_credentials(
    serve: Serve, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that repeat refused requests at once would take the time of all others."""
    monkeypatch.setattr(request_layer, "TOO_MANY_DELAY_SECONDS", 1.0)
    async with serve(sqlite_url, open=False, max_auth_failures=1) as served:
        head = await keyed(served)
        refused(await served.client.get("/v1/studies"), 401, "not-authorised")
        flood = [asyncio.ensure_future(served.client.get("/v1/studies")) for _ in range(20)]
        await asyncio.sleep(0.05)
        assert (await served.client.get("/v1/studies", headers=head)).is_success
        assert not any(each.done() for each in flood)
        for answer in await asyncio.gather(*flood):
            refused(answer, 429, "too-many-requests")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/studies", 429),
        ("GET", "/", 303),
        ("POST", "/login", 429),
        ("POST", "/v1/devices", 429),
        ("GET", "/v1/participants/0/roster", 429),
    ],
)
async def test_each_refusal_of_an_address_that_fails_too_often_is_delayed_once(
    serve: Serve,
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    status: int,
) -> None:
    """Also those of routes that check credentials, tokens and forms themselves."""
    wait = AsyncMock()
    monkeypatch.setattr(request_layer.RefusalQueue, "wait", wait)
    headers = showing(new_secret(SystemRandom())) if path.startswith("/v1") else {}
    form = {"key": new_secret(SystemRandom(), API_KEY_PREFIX)} if path == "/login" else None
    async with serve(sqlite_url, open=False, max_auth_failures=1, max_joins=3) as served:
        headers |= {"Origin": "http://test"}
        answers = [
            await served.client.request(method, path, headers=headers, data=form) for _ in range(6)
        ]
    assert answers[-1].status_code == status
    refusals = [each for each in answers if each.status_code == 429]
    assert wait.call_count == len(refusals) if status == 429 else wait.called


async def test_nothing_is_stored_of_a_request_whose_refusal_is_delayed(
    serve: Serve, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """800 connections with large bodies took 480 MB in 15 seconds."""
    monkeypatch.setattr(request_layer, "TOO_MANY_DELAY_SECONDS", 0.2)
    pieces = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal pieces
        for _ in range(50):
            pieces += 1
            yield bytes(10_000)

    async with serve(sqlite_url, open=False, max_auth_failures=1) as served:
        refused(await served.client.post("/v1/studies"), 401, "not-authorised")
        for headers, expected in (({}, 50), ({"Expect": "100-continue"}, 100)):
            answer = await served.client.post("/v1/studies", headers=headers, content=body())
            refused(answer, 429, "too-many-requests")
            assert pieces == expected


async def test_a_refusal_waits_no_longer_than_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that closed each connection at once took 1.4 GB in 12 seconds, and went on."""
    monkeypatch.setattr(request_layer, "TOO_MANY_DELAY_SECONDS", 60.0)
    messages = iter([{"type": "http.request"}, {"type": "http.disconnect"}])
    scope = {"type": "http", "method": "GET", "headers": []}
    memory = BodyMemory(10**6, lambda _: "")
    body = LimitedBody(scope, AsyncMock(side_effect=messages), Settings(), memory)
    await asyncio.wait_for(request_layer.RefusalQueue().wait(body), 1)


async def test_the_more_refusals_the_longer_each_waits_and_they_are_sent_in_small_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A flood of 1,500 connections that are answered twice a second took most of the time."""
    ends, timeout = list[float](), asyncio.timeout

    def record(end: float) -> asyncio.Timeout:
        ends.append(end)
        return timeout(0)

    monkeypatch.undo()  # the delays of the service, and not those of other tests
    monkeypatch.setattr(asyncio, "timeout_at", record)
    queue, body = request_layer.RefusalQueue(), Mock(discard=asyncio.Event().wait)
    start = asyncio.get_running_loop().time()
    await asyncio.gather(*(queue.wait(body) for _ in range(1500)))
    assert ends[0] - start >= 0.5
    assert ends[200] - ends[0] == pytest.approx(4, abs=0.5)
    assert ends[1499] - ends[0] == pytest.approx(4.5, abs=0.9)  # at most 5 s after its arrival
    batches = Counter(ends[:200])
    assert max(batches.values()) <= 21
    assert len(batches) >= 10


async def test_lookups_are_limited_but_not_of_what_was_valid_within_the_hour(
    serve: Serve, sqlite_url: str
) -> None:
    limits = {"max_auth_failures": 1, "max_joins": 6, "credential_cache_seconds": 1e-6}
    async with serve(sqlite_url, open=False, **limits) as served:
        head, unseen = await keyed(served), await keyed(served)
        study = await study_of(served, head)
        _, token = await book(served).create_token("phones", 3, None)
        device, other = [await seated(served, study, token, name) for name in ("one", "two")]
        assert (await device.get("roster", wait=0)).status_code == 202
        refused(await served.client.get("/v1/studies"), 401, "not-authorised")
        for _ in range(6):
            false = showing(new_secret(SystemRandom()))
            refused(await served.client.get("/v1/studies", headers=false), 429, "too-many-requests")
        refused(
            await served.client.get("/v1/studies", headers=unseen), 429, "too-many-requests"
        )  # not looked up
        assert (await served.client.get("/v1/studies", headers=head)).is_success
        assert (await device.get("roster", wait=0)).status_code == 202
        await enrolled(served, token, Identity.generate(Random(2)))
        other.headers = device.headers  # a slot of another device: it is forgotten
        for _ in range(2):
            refused(await other.get("roster", wait=0), 429, "too-many-requests")
        refused(await device.get("roster", wait=0), 429, "too-many-requests")


async def test_devices_that_enrol_again_after_their_token_expired_do_not_fail(
    serve: Serve, sqlite_url: str
) -> None:
    """`take_part(token=...)` enrols in each call, so honest devices show old tokens for months."""
    async with serve(sqlite_url, open=False, max_auth_failures=3) as served:
        _, token = await book(served).create_token("phones", 9, timedelta(days=1))
        _, newer = await book(served).create_token("phones", 9, timedelta(days=9))
        identity = Identity.generate(Random(1))
        credential = await enrolled(served, token, identity)
        served.clock.advance(2 * 24 * 3600)
        post, again = served.client.post, application(identity, credential)
        for shown in (token,) * 5 + (newer,):
            answer = await post("/v1/devices", json=again, headers=showing(shown))
            assert answer.status_code == 204, answer.text
        late = application(Identity.generate(Random(2)), new_secret(SystemRandom()))
        refused(await post("/v1/devices", json=late, headers=showing(token)), 401, "not-authorised")
        assert sum(issued.used for issued in await book(served).tokens()) == 1


async def test_false_credentials_of_participants_are_limited_and_audited(
    serve: Serve, sqlite_url: str
) -> None:
    async with serve(sqlite_url, open=False, max_auth_failures=3) as served:
        study = await study_of(served, await keyed(served))
        _, token = await book(served).create_token("phones", 1, None)
        device = await seated(served, study, token, "one")
        assert device.seat is not None
        false = showing(new_secret(SystemRandom()))
        tried = (device.seat.participant, "ab" * 8, device.seat.participant)
        for participant in tried:
            path = f"/v1/participants/{participant}/roster"
            answer = await served.client.get(path, headers=false)
            refused(answer, 401, "not-authorised")
        refusals = [e for e in await book(served).audit_entries(9, None) if e.outcome == "refused"]
        assert [(e.action, e.subject) for e in reversed(refusals)] == [
            ("bad credential", device.seat.participant)
        ]
        answer = await served.client.get(path, headers=false)
        refused(answer, 429, "too-many-requests")
        assert (await device.get("roster", wait=0)).status_code == 202


async def test_false_enrolments_leave_the_joins_of_an_address_to_its_devices(
    serve: Serve, sqlite_url: str
) -> None:
    """A stranger with 3,000 in a minute kept all devices of the address from joining."""
    async with serve(sqlite_url, open=False, max_auth_failures=1, max_joins=5) as served:
        study = await study_of(served, await keyed(served))
        _, token = await book(served).create_token("phones", 9, None)
        await enrolled(served, token, Identity.generate(Random(1)))
        statuses = []
        for _ in range(9):
            false = showing(new_secret(SystemRandom(), ENROLMENT_TOKEN_PREFIX))
            answer = await served.client.post("/v1/devices", json={}, headers=false)
            statuses.append(answer.status_code)
        assert statuses == [422] * 4 + [429] * 5  # one was that of the token itself
        refused(await served.client.get("/v1/studies"), 401, "not-authorised")
        device = await seated(served, study, token, "one")
        assert (await device.get("roster", wait=0)).status_code == 202


async def test_guessing_tokens_by_bad_signatures_is_limited(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, open=False, max_auth_failures=3) as served:
        false = application(
            Identity.generate(Random(1)), new_secret(SystemRandom()), signature="00" * 64
        )
        statuses = [
            await served.client.post(
                "/v1/devices",
                json=false,
                headers=showing(new_secret(SystemRandom(), ENROLMENT_TOKEN_PREFIX)),
            )
            for _ in range(4)
        ]
        assert [answer.status_code for answer in statuses] == [422, 422, 422, 429]


async def test_concurrent_failures_are_limited_too(serve: Serve, sqlite_url: str) -> None:
    """All may be let in to try before the first has failed; one of them is recorded."""
    async with serve(sqlite_url, open=False, max_auth_failures=3) as served:
        head = showing(new_secret(SystemRandom(), API_KEY_PREFIX))
        asked = [served.client.get("/v1/studies", headers=head) for _ in range(20)]
        statuses = Counter(answer.status_code for answer in await asyncio.gather(*asked))
        assert statuses == {401: 3, 429: 17}
        assert len(await book(served).audit_entries(100, None)) == 1


@pytest.mark.parametrize("is_open", [True, False])
async def test_refusals_fill_no_database_but_are_counted(
    serve: Serve, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    """Many addresses, or any address of an open service, could write entries without limit."""
    monkeypatch.setattr("server.http.auth._MAX_AUDITED_REFUSALS", 2)
    async with serve(sqlite_url, open=is_open, max_auth_failures=1) as served:
        for place in ("192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.3"):
            transport = httpx.ASGITransport(served.app, client=(place, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                await client.post(
                    "/v1/devices",
                    json=application(Identity.generate(Random(1)), new_secret(Random(1))),
                )
        entries = reversed(await book(served).audit_entries(100, None))
        assert [(entry.actor, entry.subject) for entry in entries] == [
            ("address 192.0.2.1", "without a token"),
            ("service", "1 earlier refusals"),
            ("address 192.0.2.2", "without a token"),
        ]


@pytest.mark.parametrize(
    ("address", "same", "other"),
    [
        ("2001:db8:1:1::1", "2001:db8:1:2:ffff::2", "2001:db8:2:1::1"),
        ("::ffff:192.0.2.1", "192.0.2.1", "::ffff:192.0.2.2"),  # as a socket of both families
        ("unknown", "unknown", "192.0.2.1"),
    ],
)
def test_the_addresses_of_one_network_fail_together(address: str, same: str, other: str) -> None:
    assert rate_limit_key(address) == rate_limit_key(same) != rate_limit_key(other)


def test_an_address_that_a_proxy_passes_on_from_a_client_is_short() -> None:
    """1,000 requests with headers of 60 kB took 67 MB, which limits kept for up to two minutes."""
    assert client_address({"client": ("x" * 60_000, 0)}) == "x" * 64
    assert client_address({"client": ("2001:db8::1", 0)}) == "2001:db8::1"


async def test_a_credential_with_too_many_requests_waits(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, open=False, max_requests=5) as served:
        mine, other = await keyed(served), await keyed(served)
        for _ in range(5):
            assert (await served.client.get("/v1/studies", headers=mine)).is_success
        answer = await served.client.get("/v1/studies", headers=mine)
        refused(answer, 429, "too-many-requests")
        assert (await served.client.get("/v1/studies", headers=other)).is_success


async def test_a_seat_from_which_too_much_is_asked_waits(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, open=False, max_requests=5) as served:
        study = await study_of(served, await keyed(served))
        _, token = await book(served).create_token("phones", 2, None)
        mine, other = [await seated(served, study, token, name) for name in ("one", "other")]
        statuses = [(await mine.get("roster", wait=0)).status_code for _ in range(6)]
        assert statuses == [202] * 5 + [429]
        assert (await other.get("roster", wait=0)).status_code == 202


async def test_joins_and_enrolments_are_limited_by_address_and_by_token(
    serve: Serve, sqlite_url: str
) -> None:
    async with serve(sqlite_url, open=False, max_joins=4) as served:
        study = await study_of(served, await keyed(served))
        _, token = await book(served).create_token("phones", 100, None)
        _, other = await book(served).create_token("tablets", 100, None)
        device, _ = [await seated(served, study, token, name) for name in ("one", "two")]
        detail = refused(await device.apply(study, 1), 429, "too-many-requests")
        assert detail.startswith("too many devices join from this address")
        elsewhere = httpx.ASGITransport(served.app, client=("192.0.2.1", 1))
        async with httpx.AsyncClient(transport=elsewhere, base_url="http://test") as client:
            statuses = []
            for number, shown in enumerate((token, token, token, other, other)):
                asked = application(Identity.generate(Random(number)), new_secret(SystemRandom()))
                answer = await client.post("/v1/devices", json=asked, headers=showing(shown))
                statuses.append(answer.status_code)
        assert statuses == [204, 204, 429, 204, 429]

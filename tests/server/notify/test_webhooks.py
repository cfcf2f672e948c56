"""Webhooks: one signed message when a study has ended, and none to a machine behind the service."""

import asyncio
import hmac
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from socket import getaddrinfo
from typing import Any

import pytest
from sqlalchemy import update
from structlog.testing import capture_logs

from server.db.repositories.studies.webhooks import MAX_TRIES, DueWebhook
from server.db.schema import StudyRow
from server.notify.webhooks import RefusedAddressError, WebhookSender, public_address
from tests.server.conftest import Serve
from tests.server.credentials import keyed
from tests.server.harness import Served, study_request


@pytest.fixture(autouse=True)
def _sends_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.notify.webhooks._POLL_SECONDS", 1e6)


@asynccontextmanager
async def receiver(*statuses: int) -> AsyncIterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """Yield a hook's URL, and the requests that it gets; it answers with `statuses` in turn."""
    requests: list[tuple[dict[str, str], bytes]] = []
    answers = iter(statuses)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
        requests.append((headers, await reader.readexactly(int(headers["content-length"]))))
        location = b"Location: http://127.0.0.1:1/\r\n"
        writer.write(b"HTTP/1.1 %d X\r\n%sContent-Length: 0\r\n\r\n" % (next(answers), location))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://localhost:{server.sockets[0].getsockname()[1]}/hook", requests


def sender(served: Served, *, allows_loopback: bool = True) -> WebhookSender:
    return WebhookSender(served.store, "https://example.org", allows_loopback)


async def send_due(served: Served) -> int:
    """Try once to send what is due; return the number of messages."""
    started = await sender(served).start_due()
    await asyncio.gather(*started)
    return len(started)


async def ended(served: Served, url: str) -> dict[str, Any]:
    """Return a new study with a webhook, which was stopped after its creation."""
    answer = await served.client.post("/v1/studies", json=study_request(webhook=url))
    assert answer.status_code == 201, answer.text
    study: dict[str, Any] = answer.json()
    assert await send_due(served) == 0  # it runs
    await served.client.post(f"/v1/studies/{study['id']}/stop")
    return study


async def test_the_end_of_a_study_is_one_signed_message(each_served: Served) -> None:
    async with receiver(204) as (url, requests):
        study = await ended(each_served, url)
        with capture_logs() as lines:
            await asyncio.gather(*(send_due(each_served) for _ in range(3)))
            assert await send_due(each_served) == 0
    ((headers, body),) = requests
    link = f"https://example.org/studies/{study['id']}"
    facts = {"study": study["id"], "state": "stopped", "end_cause": "stopped", "url": link}
    assert json.loads(body) == facts
    assert headers["host"] == url.split("/")[2]
    key = b64decode(study["webhook_secret"].removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    signature = b64encode(hmac.digest(key, signed, "sha256")).decode()
    assert headers["webhook-signature"] == f"v1,{signature}"
    shown = await each_served.client.get(f"/v1/studies/{study['id']}")
    assert not {"webhook", "webhook_secret"} & shown.json().keys()
    assert "/hook" not in repr(lines)  # the address may have a secret
    assert study["webhook_secret"] not in repr(lines)


async def test_a_failed_message_is_repeated_after_a_restart_and_not_redirected(
    serve: Serve, sqlite_url: str
) -> None:
    async with receiver(302, 500, 200) as (url, requests):
        async with serve(sqlite_url) as served:
            await ended(served, url)
            assert await send_due(served) == 1
            assert await send_due(served) == 0
        async with serve(sqlite_url) as served:
            for pause in (10, 40):
                served.clock.advance(pause - 1)
                assert await send_due(served) == 0
                served.clock.advance(1)
                assert await send_due(served) == 1
            served.clock.advance(10**6)
            assert await send_due(served) == 0
    assert len(requests) == 3
    assert len({headers["webhook-id"] for headers, _ in requests}) == 1


async def test_a_message_that_nobody_takes_is_given_up(served: Served) -> None:
    study = await ended(served, "http://127.0.0.1:1/")
    with capture_logs() as lines:
        for _ in range(MAX_TRIES):
            assert await send_due(served) == 1
            served.clock.advance(12 * 3600)
    assert await send_due(served) == 0
    assert [line["is_last"] for line in lines if line["event"] == "webhook"][-2:] == [False, True]
    served.clock.advance(24 * 3600)
    await served.store.retention.delete_login_sessions(await served.store.database.read_now())
    assert await served.store.webhooks.secret(study["id"]) is None


async def test_a_clock_that_was_ahead_and_a_study_that_cannot_be_read_hold_no_message_back(
    served: Served,
) -> None:
    async with receiver(500, 200, 200) as (url, requests):
        served.clock.advance(500 * 24 * 3600)
        await ended(served, url)
        assert await send_due(served) == 1
        late = (await served.client.post("/v1/studies", json=study_request(webhook=url))).json()
        served.clock.advance(-500 * 24 * 3600)
        unread = (await served.client.post("/v1/studies", json=study_request(webhook=url))).json()
        for study in (late, unread):
            await served.client.post(f"/v1/studies/{study['id']}/stop")
        change = (
            update(StudyRow)
            .where(StudyRow.id == unread["id"])
            .values(question={"mechanism": "gone"})
        )
        await served.store.database.write(lambda session: session.execute(change))
        assert await send_due(served) == 2
    assert len(requests) == 3


async def test_receivers_that_do_not_answer_delay_no_other(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.notify.webhooks._MAX_RUNNING", 25)
    urls = ["http://localhost:1/slow"] * 21 + ["http://localhost:1/good"]
    for url in urls:
        served.clock.advance(1)  # the oldest studies are first
        study = (await served.client.post("/v1/studies", json=study_request(webhook=url))).json()
        await served.client.post(f"/v1/studies/{study['id']}/stop")
    is_sent = asyncio.Event()

    async def send(_: object, due: DueWebhook, __: object) -> int:
        if due.url.endswith("good"):
            is_sent.set()
        await asyncio.sleep(0 if due.url.endswith("good") else 1e6)
        return 200

    monkeypatch.setattr(WebhookSender, "_send", send)
    running = asyncio.create_task(sender(served).run())
    await asyncio.wait_for(is_sent.wait(), 5)
    running.cancel()


PRIVATE = (
    *("127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.1"),
    *("224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fd00::1", "fec0::1", "ff02::1"),
    *("::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:7f00:1::1"),
)


@pytest.mark.parametrize("address", PRIVATE)
async def test_an_address_that_is_not_public_is_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    entries = [(0, 0, 0, "", ("93.184.215.14", 0)), (0, 0, 0, "", (address, 0))]

    monkeypatch.setattr("server.notify.webhooks.getaddrinfo", lambda *_, **__: entries)
    with pytest.raises(RefusedAddressError):
        await public_address("rebound.example.org", allows_loopback=False)
    host = f"[{address}]" if ":" in address else address
    answer = await served.client.post(
        "/v1/studies", json=study_request(webhook=f"https://{host}/hook")
    )
    is_local = ip_address(address).is_loopback  # Python 3.13 counts ::ffff:127.0.0.1
    assert answer.status_code == (201 if is_local else 422)


async def test_a_name_is_resolved_once_and_the_connection_goes_there(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []

    def counted(host: Any, *rest: Any, **options: Any) -> list[Any]:
        if host == "hook.example.org":
            names.append(host)
            host = "127.0.0.1" if len(names) == 1 else "10.0.0.1"
        return getaddrinfo(host, *rest, **options)

    greetings = []

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greetings.append(await reader.read(1000))
        writer.close()

    server = await asyncio.start_server(read, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await ended(served, f"https://hook.example.org:{port}/")
        monkeypatch.setattr("server.notify.webhooks.getaddrinfo", counted)
        await send_due(served)
    assert names == ["hook.example.org"]
    (greeting,) = greetings
    assert b"hook.example.org" in greeting  # the name that the certificate must have


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "x",
            "ftp://example.org",
            "http://example.org",
            "https://",
            "https://u:p@example.org",
        ),
        *("http://localhost/hook", "https://127.0.0.1/", "https://example.org/" + "x" * 500),
    ],
)
async def test_a_closed_service_sends_to_https_of_public_hosts_only(
    closed: Served, url: str
) -> None:
    headers = await keyed(closed)
    request = study_request(webhook=url, start=False)
    answer = await closed.client.post("/v1/studies", json=request, headers=headers)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["location"] == "body.webhook"


async def test_a_repeated_creation_shows_the_same_secret(served: Served) -> None:
    async with receiver(200) as (url, _):
        key = {"Idempotency-Key": "a"}
        listed = {"domain": {"kind": "listed", "items": ["a", "b"]}}
        request = study_request(webhook=url, question=study_request()["question"] | listed)
        first, again = [
            (await served.client.post("/v1/studies", json=request, headers=key)).json()
            for _ in range(2)
        ]
        assert first == again
        assert first["webhook_secret"].startswith("whsec_")
        await served.client.post(f"/v1/studies/{first['id']}/stop")
        assert await send_due(served) == 1
        late = await served.client.post("/v1/studies", json=request, headers=key)
    assert late.json()["webhook_secret"] == first["webhook_secret"]

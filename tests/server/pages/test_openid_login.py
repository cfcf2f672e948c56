"""A login at the OpenID provider starts a session as a key does, for the people who are allowed."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from html import unescape
from random import SystemRandom
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from protocol.api.messages import AuditRecord
from server import service
from server.db.repositories.access.credentials_and_audit import SESSION_IDLE_HOURS
from server.http.auth import COOKIE_NAME
from server.http.login_attempt import LoginAttempt
from server.http.openid_provider import OpenIdProvider
from server.pages.login import ATTEMPT_COOKIE_NAME
from server.pages.rendering import CONTENT_SECURITY_POLICY
from tests.server.conftest import Serve
from tests.server.credentials import key_of, keyed, study_of
from tests.server.fake_provider import (
    CLIENT_SECRET,
    ISSUER,
    OIDC_SETTINGS,
    PUBLIC_URL,
    REDIRECT_URI,
    FakeProvider,
)
from tests.server.harness import Clock, Served

CODE, CALLBACK = "code-0", "/login/oidc/callback"


@pytest.fixture
def fake(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    """Return the provider that services of this test will use."""
    provider = FakeProvider(clock)
    in_memory = partial(OpenIdProvider, transport=provider.transport())
    monkeypatch.setattr(service, "OpenIdProvider", in_memory)
    return provider


@pytest.fixture
async def served(
    serve: Serve,
    sqlite_url: str,
    fake: FakeProvider,  # noqa: ARG001
) -> AsyncIterator[Served]:
    """Yield a service whose people log in at `fake`."""
    async with serve(
        sqlite_url, **OIDC_SETTINGS, credential_cache_seconds=0.001, max_auth_failures=3
    ) as running:
        running.client.base_url = httpx.URL(PUBLIC_URL)
        yield running


async def start(served: Served, next_page: str = "") -> str:
    """Begin a login; return the provider's address to which the browser is sent."""
    answer = await served.client.get("/login/oidc", params={"next": next_page})
    assert answer.status_code == 303
    return answer.headers["location"]


async def log_in(served: Served, fake: FakeProvider, next_page: str = "") -> httpx.Response:
    return await served.client.get(fake.callback(await start(served, next_page)))


async def trail(served: Served) -> tuple[AuditRecord, ...]:
    return await served.store.access.audit_entries(10, None)


async def is_logged_in(served: Served) -> bool:
    return (await served.client.get("/")).status_code == 200


async def test_the_login_page_links_to_the_provider_and_still_takes_keys(served: Served) -> None:
    page = (await served.client.get("/login?next=/studies/a%3Fq=b%26c")).text
    assert 'href="/login/oidc?next=/studies/a%3Fq%3Db%26c"' in page
    assert "Log in with Example &lt;ID&gt;" in page
    assert 'name="key"' in page
    assert CLIENT_SECRET not in page


async def test_a_person_logs_in_and_out(served: Served, fake: FakeProvider) -> None:
    study = await study_of(served, await keyed(served))
    begun = await served.client.get("/login/oidc", params={"next": f"/studies/{study}"})
    cookie = begun.headers["set-cookie"].lower()
    for attribute in ("httponly", "samesite=lax", "path=/login/oidc", "secure", "max-age=600"):
        assert attribute in cookie
    answer = await served.client.get(fake.callback(begun.headers["location"]))
    # A page that leads on: with a redirect, the browser would not send a SameSite=Strict cookie.
    assert answer.status_code == 200
    assert f'<meta http-equiv="refresh" content="0; url=/studies/{study}">' in answer.text
    assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    (session,) = (
        line.lower()
        for line in answer.headers.get_list("set-cookie")
        if line.startswith(COOKIE_NAME)
    )
    for attribute in ("httponly", "samesite=strict", "path=/;", "secure"):
        assert attribute in session
    assert ATTEMPT_COOKIE_NAME not in served.client.cookies
    page = await served.client.get(f"/studies/{study}")
    assert (page.status_code, "<span>anna@example.org</span>" in page.text) == (200, True)
    assert (await served.client.get("/v1/studies")).status_code == 401
    secret = served.client.cookies[COOKIE_NAME]
    await served.client.post("/logout", headers={"Origin": PUBLIC_URL})
    copied = {"Cookie": f"{COOKIE_NAME}={secret}"}
    assert (await served.client.get("/", headers=copied)).status_code == 303
    entries = {entry.action: entry for entry in await trail(served)}
    for action in ("log in", "log out"):
        assert entries[action].actor == "person anna@example.org"
        assert entries[action].outcome == "done"


async def test_the_scopes_of_a_person_open_their_pages_and_no_others(
    served: Served, fake: FakeProvider
) -> None:
    for email, may_write in (("anna@example.org", True), ("ben@example.org", False)):
        fake.claims["email"] = email
        await log_in(served, fake)
        assert await is_logged_in(served)
        page = await served.client.get("/studies/new")
        assert page.status_code == (200 if may_write else 403)
        assert (await served.client.get("/operations")).status_code == 403


@pytest.mark.parametrize(("pause", "uses"), [(SESSION_IDLE_HOURS, 0), (SESSION_IDLE_HOURS - 1, 15)])
async def test_a_session_of_a_person_ends_without_use_and_after_days(
    served: Served, fake: FakeProvider, pause: int, uses: int
) -> None:
    await log_in(served, fake)
    for _ in range(uses):
        served.clock.advance(pause * 3600)
        assert await is_logged_in(served)
    served.clock.advance(pause * 3600)
    assert not await is_logged_in(served)
    await served.store.retention.delete_login_sessions(served.clock())
    with served.store.database.engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM login_sessions")) == 0


async def test_an_operator_ends_the_sessions_of_one_person(
    served: Served, fake: FakeProvider
) -> None:
    await log_in(served, fake)
    assert await served.store.access.revoke("ben@example.org") is None
    assert await is_logged_in(served)
    assert await served.store.access.revoke("Anna@example.org") == "person"
    assert not await is_logged_in(served)
    assert ("end sessions", "Anna@example.org") in {
        (entry.action, entry.subject) for entry in await trail(served)
    }
    assert await served.store.access.revoke("anna@example.org") is None


@pytest.mark.parametrize(
    ("changes", "page", "status"),
    [
        ({}, "/studies/new", 200),
        ({"oidc_allowed": '{"@example.org": ["write", "operate"]}'}, "/studies/new", 200),
        ({"oidc_allowed": '{"@example.org": ["write", "operate"]}'}, "/operations", 403),
        ({"oidc_allowed": '{"anna@example.org": ["read"]}'}, "/studies/new", 403),
        ({"oidc_allowed": '{"anna@example.org": [], "@example.org": ["read"]}'}, "/", 303),
        ({"oidc_allowed": '{"ben@example.org": ["read"]}'}, "/", 303),
        ({"oidc_issuer": None}, "/", 303),
    ],
)
async def test_a_start_with_other_rules_withdraws_scopes_of_sessions_and_adds_none(
    serve: Serve,
    sqlite_url: str,
    fake: FakeProvider,
    changes: dict[str, Any],
    page: str,
    status: int,
) -> None:
    async with serve(sqlite_url, **OIDC_SETTINGS) as before:
        before.client.base_url = httpx.URL(PUBLIC_URL)
        await log_in(before, fake)
        cookie = {"Cookie": f"{COOKIE_NAME}={before.client.cookies[COOKIE_NAME]}"}
    async with serve(sqlite_url, **OIDC_SETTINGS | changes) as after:
        assert (await after.client.get(page, headers=cookie)).status_code == status


async def refused(served: Served, answer: httpx.Response, status: int) -> str:
    """Check that nobody was logged in and no secret shown; return the reason on the page."""
    assert answer.status_code == status
    assert COOKIE_NAME not in served.client.cookies
    entries = [entry.model_dump_json() for entry in await trail(served)]
    assert not any(secret in answer.text + str(entries) for secret in (CODE, CLIENT_SECRET))
    assert not any('"log in"' in entry for entry in entries)
    return unescape(answer.text.partition('role="alert">')[2].partition("</p>")[0])


async def test_a_login_continues_only_in_the_browser_that_began_it(
    served: Served, fake: FakeProvider
) -> None:
    """Otherwise a link could log a reader in as another person."""
    link = fake.callback(await start(served))
    served.client.cookies.clear()
    reason = await refused(served, await served.client.get(link), 401)
    assert "this browser did not begin this login" in reason
    await start(served)  # another attempt of the browser
    assert reason == await refused(served, await served.client.get(link), 401)
    assert [request.method for request in fake.requests] == ["GET"]  # no code was exchanged


async def test_a_login_lasts_ten_minutes_and_its_callback_works_once(
    served: Served, fake: FakeProvider
) -> None:
    link = fake.callback(await start(served))
    cookie = served.client.cookies[ATTEMPT_COOKIE_NAME]
    served.clock.advance(601)
    await refused(served, await served.client.get(link), 401)
    link = fake.callback(await start(served))
    cookie = served.client.cookies[ATTEMPT_COOKIE_NAME]
    assert (await served.client.get(link)).status_code == 200
    served.client.cookies.clear()
    again = {"Cookie": f"{ATTEMPT_COOKIE_NAME}={cookie}"}
    answer = await served.client.get(link, headers=again)
    assert (answer.status_code, COOKIE_NAME in served.client.cookies) == (401, False)


async def test_people_who_are_not_allowed_and_unverified_ones_read_why(
    served: Served, fake: FakeProvider
) -> None:
    fake.claims["email"] = "eve@evil.example"
    reason = await refused(served, await log_in(served, fake), 403)
    assert "this service does not admit eve@evil.example: ask its operator" in reason
    entry = (await trail(served))[0]
    assert (entry.action, entry.outcome) == ("refused login", "refused")
    assert "eve@evil.example" in entry.subject
    fake.claims = {"email_verified": False}
    assert "has not verified" in await refused(served, await log_in(served, fake), 403)


async def test_a_provider_that_is_down_leaves_the_login_with_a_key(
    served: Served, fake: FakeProvider
) -> None:
    fake.answers["/.well-known/openid-configuration"] = httpx.ConnectError("down")
    answer = await served.client.get("/login/oidc")
    assert "try again later, or use an API key" in await refused(served, answer, 503)
    assert 'name="key"' in answer.text


async def test_a_provider_that_fails_in_the_middle_counts_no_failure_of_the_person(
    served: Served, fake: FakeProvider
) -> None:
    fake.answers["/token"] = httpx.ConnectError("down")
    await refused(served, await log_in(served, fake), 503)
    assert not await trail(served)


async def test_callbacks_without_an_attempt_are_counted_by_address(
    served: Served, fake: FakeProvider
) -> None:
    """They end no login of others at the address."""
    for _ in range(3):
        assert (await served.client.get(CALLBACK)).status_code == 401
    answer = await served.client.get(CALLBACK)
    assert (answer.status_code, "text/html" in answer.headers["content-type"]) == (429, True)
    assert (await served.client.get(f"{CALLBACK}?code={'a' * 4001}")).status_code == 422
    assert (await log_in(served, fake)).status_code == 200


async def test_an_address_has_few_codes_a_minute_checked_by_the_provider(
    served: Served, fake: FakeProvider
) -> None:
    async def forged() -> httpx.Response:
        """Send a code of nobody, as the browser of a new attempt."""
        attempt = LoginAttempt.start(SystemRandom(), served.clock(), "")
        cookie = {"Cookie": f"{ATTEMPT_COOKIE_NAME}={attempt.to_cookie()}"}
        query = {"code": "garbage", "state": attempt.state}
        return await served.client.get(CALLBACK, params=query, headers=cookie)

    answers = await asyncio.gather(*(forged() for _ in range(10)))
    assert sorted(answer.status_code for answer in answers) == 3 * [401] + 7 * [429]
    assert [request.method for request in fake.requests].count("POST") == 3
    assert (await log_in(served, fake)).status_code == 429
    key = await key_of(served)
    form = await served.client.post("/login", data={"key": key}, headers={"Origin": PUBLIC_URL})
    assert form.status_code == 303


async def test_a_refused_callback_leaves_the_attempt_of_another_tab(
    served: Served, fake: FakeProvider
) -> None:
    first, second = [fake.callback(await start(served)) for _ in range(2)]
    assert (await served.client.get(first)).status_code == 401
    assert (await served.client.get(second)).status_code == 200


async def test_cookies_are_secure_behind_a_proxy_that_does_not_state_the_scheme(
    served: Served, fake: FakeProvider
) -> None:
    link = fake.callback(await start(served)).removeprefix(PUBLIC_URL)
    cookie = {"Cookie": f"{ATTEMPT_COOKIE_NAME}={served.client.cookies[ATTEMPT_COOKIE_NAME]}"}
    served.client.base_url = httpx.URL(PUBLIC_URL.replace("https", "http"))
    answer = await served.client.get(link, headers=cookie)
    for line in answer.headers.get_list("set-cookie"):
        assert "secure" in line.lower()
    key = {"key": await key_of(served)}
    for host, is_secure in ((PUBLIC_URL, True), ("http://10.0.0.1:8000", False)):
        served.client.base_url = httpx.URL(host.replace("https", "http"))
        headers = {"Origin": host}
        answer = await served.client.post("/login", data=key, headers=headers)
        assert ("secure" in answer.headers["set-cookie"].lower()) is is_secure


@pytest.mark.parametrize(
    "page",
    ["//evil.example", "/\\evil.example", "https://evil.example", '/"><script>', "/v1/studies"],
)
async def test_nobody_is_led_elsewhere_by_logging_in(
    served: Served, fake: FakeProvider, page: str
) -> None:
    answer = await log_in(served, fake, page)
    assert 'content="0; url=/">' in answer.text
    assert '<a href="/">Continue</a>' in answer.text
    url = await start(served)
    forged = served.client.cookies[ATTEMPT_COOKIE_NAME] + page.replace('"', "")
    served.client.cookies.clear()
    cookie = {"Cookie": f"{ATTEMPT_COOKIE_NAME}={forged}"}
    answer = await served.client.get(fake.callback(url), headers=cookie)
    assert (answer.status_code, "evil" in answer.text) == (401, False)


async def test_the_host_of_a_request_does_not_decide_where_the_provider_sends_people(
    served: Served,
) -> None:
    headers = {"Host": "evil.example", "X-Forwarded-Host": "evil.example"}
    answer = await served.client.get("/login/oidc", headers=headers)
    location = httpx.URL(answer.headers["location"])
    assert str(location).startswith(f"{ISSUER}/authorize")
    assert location.params["redirect_uri"] == REDIRECT_URI


async def test_without_a_provider_there_is_no_such_login(closed: Served) -> None:
    for path in ("/login/oidc", CALLBACK):
        assert (await closed.client.get(path)).status_code == 404
    assert "oidc" not in (await closed.client.get("/login")).text

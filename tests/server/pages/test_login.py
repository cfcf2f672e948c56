"""Sessions in cookies open pages and the streams that pages follow, and nothing else."""

from random import SystemRandom

import httpx
import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError

from protocol.api.credentials import SESSION_PREFIX, new_secret
from server.db.repositories.access.credentials_and_audit import SESSION_IDLE_HOURS
from server.http.auth import COOKIE_NAME
from server.principals import Permission
from tests.server.conftest import Serve
from tests.server.credentials import ALL_SCOPES, key_of, keyed, showing, study_of
from tests.server.harness import Served
from tests.server.pages.browsing import SAME_ORIGIN, post

PAGES = ("/", "/studies/new", "/operations", "/studies/{study}", "/studies/{study}/rounds/1")


async def log_in(served: Served, key: str, next_page: str = "") -> httpx.Response:
    return await post(served, "/login", {"key": key, "next": next_page})


async def test_a_stranger_is_redirected_to_login_from_every_page(closed: Served) -> None:
    study = await study_of(closed, await keyed(closed))
    for page in PAGES:
        for name in (study, "0123456789abcdef"):
            path = page.format(study=name)
            answer = await closed.client.get(path)
            assert answer.status_code == 303
            query = "" if path == "/" else f"?next={path}"
            assert answer.headers["location"] == f"/login{query}"
    mistyped = await closed.client.get("/nonsense", headers={"Accept": "text/html"})
    assert (mistyped.status_code, mistyped.headers["location"]) == (303, "/login?next=/nonsense")
    long = await closed.client.get(f"/studies/{study}?q={2000 * 'a'}", follow_redirects=True)
    assert (long.status_code, long.url.path, long.url.query) == (200, "/login", b"")
    live = await closed.client.get("/", headers={"HX-Request": "true"})
    assert (live.status_code, live.headers["hx-redirect"]) == (401, "/login")
    for public in ("/login", "/static/app.css"):
        assert (await closed.client.get(public)).status_code == 200


async def test_a_key_opens_pages_and_streams_by_its_cookie_but_not_the_api(closed: Served) -> None:
    key = await key_of(closed)
    study = await study_of(closed, showing(key))
    await closed.client.post(f"/v1/studies/{study}/stop", headers=showing(key))
    answer = await log_in(closed, key, f"/studies/{study}?q=a")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/studies/{study}?q=a")
    cookie = answer.headers["set-cookie"].lower()
    for flag in ("httponly", "samesite=strict", "path=/"):
        assert flag in cookie
    assert "secure" not in cookie  # the request came over HTTP
    assert closed.client.cookies[COOKIE_NAME] != key
    for page in PAGES:
        assert (await closed.client.get(page.format(study=study))).status_code == 200
    events = await closed.client.get(f"/v1/studies/{study}/events")
    assert "event: study-ended" in events.text
    browser = {"Accept": "text/html"}
    assert (await closed.client.get("/nonsense", headers=browser)).status_code == 404
    for path in ("/v1/studies", f"/v1/studies/{study}", "/v1/audit", "/metrics", "/nonsense"):
        assert (await closed.client.get(path)).status_code == 401
    for path in ("/v1/studies", "/metrics"):
        assert (await closed.client.get(path, headers=browser)).status_code == 401
    stop = await closed.client.post(f"/v1/studies/{study}/stop", headers=SAME_ORIGIN)
    assert stop.status_code == 401


async def test_a_session_opens_nothing_of_the_api(closed: Served) -> None:
    await log_in(closed, await key_of(closed))
    secret = closed.client.cookies[COOKIE_NAME]
    session = showing(secret)
    for path in ("/v1/studies", "/"):
        assert (await closed.client.get(path, headers=session)).status_code in (401, 303)
    closed.client.cookies.clear()
    answer = await log_in(
        closed, closed.client.cookies.get(COOKIE_NAME) or session["Authorization"]
    )
    assert answer.status_code == 401


async def test_a_session_ends_by_a_logout_in_every_browser_that_has_it(closed: Served) -> None:
    await log_in(closed, await key_of(closed))
    copied = {"Cookie": f"{COOKIE_NAME}={closed.client.cookies[COOKIE_NAME]}"}
    await post(closed, "/logout")
    assert (await closed.client.get("/", headers=copied)).status_code == 303


async def test_a_second_login_ends_the_session_before(closed: Served) -> None:
    await log_in(closed, await key_of(closed))
    first = {"Cookie": f"{COOKIE_NAME}={closed.client.cookies[COOKIE_NAME]}"}
    await log_in(closed, await key_of(closed))
    second = {"Cookie": f"{COOKIE_NAME}={closed.client.cookies[COOKIE_NAME]}"}
    closed.client.cookies.clear()
    assert (await closed.client.get("/", headers=first)).status_code == 303
    assert (await closed.client.get("/", headers=second)).status_code == 200


@pytest.mark.parametrize(("pause", "uses"), [(SESSION_IDLE_HOURS, 0), (SESSION_IDLE_HOURS - 1, 15)])
async def test_a_session_ends_without_use_and_after_days(
    serve: Serve, sqlite_url: str, pause: int, uses: int
) -> None:
    async with serve(sqlite_url, open=False, credential_cache_seconds=0.001) as served:
        await log_in(served, await key_of(served))
        for _ in range(uses):
            served.clock.advance(pause * 3600)
            assert (await served.client.get("/")).status_code == 200
        served.clock.advance(pause * 3600)
        assert (await served.client.get("/")).status_code == 303
        await served.store.retention.delete_login_sessions(served.clock())
        with served.store.database.engine.connect() as connection:
            assert connection.scalar(text("SELECT count(*) FROM login_sessions")) == 0


async def test_a_session_opens_pages_while_the_database_refuses_writes(closed: Served) -> None:
    """The use of a session is recorded every five minutes, which readers need not wait for."""
    await log_in(closed, await key_of(closed))
    away = OperationalError("", None, Exception("disk full"))

    def refuse(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if not statement.startswith(("SELECT", "BEGIN")):
            raise away

    event.listen(closed.store.database.engine, "before_cursor_execute", refuse)
    closed.clock.advance(600)
    for _ in range(2):
        closed.service.authenticator.cached_principals.clear()
        assert (await closed.client.get("/")).status_code == 200
    assert closed.store.database.outage.is_open


async def test_a_session_ends_with_its_key(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, open=False, credential_cache_seconds=0.001) as served:
        name, key = await served.store.access.create_key("test", ALL_SCOPES, None)
        await log_in(served, key)
        assert (await served.client.get("/")).status_code == 200
        await served.store.access.revoke(name)
        assert (await served.client.get("/")).status_code == 303


async def test_a_cookie_does_not_stand_in_for_a_bad_header(closed: Served) -> None:
    await log_in(closed, await key_of(closed))
    bad = showing(new_secret(SystemRandom(), "btk_"))
    assert (await closed.client.get("/", headers=bad)).status_code == 303


async def test_over_tls_the_cookie_is_for_tls_only(closed: Served) -> None:
    closed.client.base_url = httpx.URL("https://test")
    form = {"key": await key_of(closed)}
    answer = await closed.client.post("/login", data=form, headers={"Origin": "https://test"})
    assert "secure" in answer.headers["set-cookie"].lower()


async def test_nobody_is_led_elsewhere_by_logging_in(closed: Served) -> None:
    for next_page in (
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "/v1/studies",
        "evil",
    ):
        answer = await log_in(closed, await key_of(closed), next_page)
        assert answer.headers["location"] == "/"


async def test_invalid_keys_are_counted_audited_and_reported(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, open=False, max_auth_failures=3) as served:
        good = await key_of(served)
        for bad in ("", "btk_short", new_secret(SystemRandom(), "btk_")):
            answer = await log_in(served, bad)
            assert answer.status_code == 401
            assert "not a valid API key" in answer.text
            assert "set-cookie" not in answer.headers
        waits = await log_in(served, "btk_short")
        assert (waits.status_code, waits.headers["retry-after"]) == (429, "10")
        assert "text/html" in waits.headers["content-type"]
        assert (await log_in(served, good)).status_code == 303
        trail = await served.store.access.audit_entries(10, None)
        actions = [entry.action for entry in trail]
        assert actions[0] == "log in"
        assert actions.count("bad credential") == 1  # a minute and address
        assert all(good not in entry.model_dump_json() for entry in trail)


async def test_a_reader_finds_the_login_at_an_address_of_many_strangers(
    serve: Serve, sqlite_url: str
) -> None:
    async with serve(sqlite_url, open=False, max_auth_failures=1, max_joins=1) as served:
        for _ in range(3):
            answer = await served.client.get("/studies/0123456789abcdef")
            assert answer.status_code == 303
            assert answer.headers["location"] == "/login?next=/studies/0123456789abcdef"
        statuses = []
        for _ in range(2):  # one of which is looked up
            false = {"Cookie": f"{COOKIE_NAME}={new_secret(SystemRandom(), SESSION_PREFIX)}"}
            statuses.append((await served.client.get("/", headers=false)).status_code)
        assert statuses == [429, 429]


async def test_an_enrolment_token_or_a_devices_credential_is_not_a_key(closed: Served) -> None:
    _, token = await closed.store.access.create_token("phones", 5, None)
    for secret in (token, new_secret(SystemRandom())):
        assert (await log_in(closed, secret)).status_code == 401


async def test_logging_out_deletes_the_cookie_and_is_audited(closed: Served) -> None:
    await log_in(closed, await key_of(closed))
    answer = await post(closed, "/logout")
    assert answer.headers["location"] == "/login"
    assert COOKIE_NAME not in closed.client.cookies
    assert (await closed.client.get("/")).status_code == 303
    trail = await closed.store.access.audit_entries(10, None)
    assert {"log in", "log out"} <= {entry.action for entry in trail}


async def test_a_scope_opens_its_pages_and_no_others(closed: Served) -> None:
    study = await study_of(closed, await keyed(closed))
    for right, opens, not_these in (
        (Permission.READ, ("/", "/studies/{study}"), ("/studies/new", "/operations")),
        (Permission.WRITE, ("/studies/new",), ("/", "/operations", "/studies/{study}")),
        (Permission.OPERATE, ("/operations",), ("/", "/studies/new", "/studies/{study}/rounds/1")),
    ):
        await log_in(closed, await key_of(closed, right))
        for page in opens:
            assert (await closed.client.get(page.format(study=study))).status_code == 200
        for page in not_these:
            answer = await closed.client.get(page.format(study=study))
            assert (answer.status_code, answer.headers["content-type"][:9]) == (403, "text/html")
        if right is not Permission.WRITE:
            stop = await post(closed, f"/studies/{study}/stop")
            assert stop.status_code == 403


async def test_a_foreign_form_changes_nothing(served: Served) -> None:
    """Any page in the same browser could post to an open service."""
    study = await served.create()
    for headers in (
        {},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://test.evil.example"},
        {"Origin": "http://test:81"},
        *(
            {"Origin": invalid}
            for invalid in ("http://[", "http://", "://test", "http://test/", "")
        ),
        {"Origin": "http://test", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://test", "Sec-Fetch-Site": "same-site"},
    ):
        for path in (
            f"/studies/{study}/stop",
            f"/studies/{study}/start",
            "/studies/new",
            "/logout",
        ):
            answer = await served.client.post(path, data={"question": "tracked"}, headers=headers)
            assert answer.status_code == 403
            assert "not sent from a page of this service" in answer.text
        assert (await served.client.get(f"/v1/studies/{study}")).json()["state"] == "running"


async def test_an_open_service_requires_no_login(served: Served) -> None:
    for method in ("GET", "POST"):
        answer = await served.client.request(method, "/login", headers=SAME_ORIGIN)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
    page = await served.client.get("/")
    assert (page.status_code, "open service" in page.text) == (200, True)

"""Who may look: keys in cookies, for pages and the streams that they follow, and nothing else."""

from random import SystemRandom

import httpx
import pytest

from protocol.credentials import make
from server.doorkeeper import COOKIE
from server.principals import Right
from tests.server.conftest import Serve
from tests.server.harness import Served, study_request

HERE = {"Origin": "http://test"}
PAGES = ("/", "/studies/new", "/operations", "/studies/{study}", "/studies/{study}/rounds/1")


async def key_of(served: Served, *scopes: Right) -> str:
    every = scopes or (Right.READ, Right.WRITE, Right.OPERATE)
    _, secret = await served.app.state.service.store.access.create_key("test", every, None)
    return str(secret)


async def study_of(served: Served, key: str) -> str:
    head = {"Authorization": f"Bearer {key}"}
    response = await served.client.post("/v1/studies", json=study_request(), headers=head)
    return str(response.json()["id"])


async def log_in(served: Served, key: str, wanted: str = "") -> httpx.Response:
    form = {"key": key, "next": wanted}
    return await served.client.post("/login", data=form, headers=HERE)


async def test_a_stranger_is_sent_to_log_in_whatever_page_it_asks_for(
    serve: Serve, sqlite_url: str
) -> None:
    async with serve(sqlite_url, open=False) as served:
        study = await study_of(served, await key_of(served))
        for page in PAGES:
            for name in (study, "0123456789abcdef"):
                path = page.format(study=name)
                answer = await served.client.get(path)
                assert answer.status_code == 303
                wanted = "" if path == "/" else f"?next={path}"
                assert answer.headers["location"] == f"/login{wanted}"
        live = await served.client.get("/", headers={"HX-Request": "true"})
        assert (live.status_code, live.headers["hx-redirect"]) == (401, "/login")
        for public in ("/login", "/static/app.css"):
            assert (await served.client.get(public)).status_code == 200


async def test_a_key_opens_pages_and_streams_by_its_cookie_but_not_the_api(
    serve: Serve, sqlite_url: str
) -> None:
    async with serve(sqlite_url, open=False) as served:
        key = await key_of(served)
        study = await study_of(served, key)
        await served.client.post(
            f"/v1/studies/{study}/stop", headers={"Authorization": f"Bearer {key}"}
        )
        answer = await log_in(served, key, f"/studies/{study}?q=a")
        assert (answer.status_code, answer.headers["location"]) == (303, f"/studies/{study}?q=a")
        said = answer.headers["set-cookie"].lower()
        for flag in ("httponly", "samesite=strict", "path=/"):
            assert flag in said
        assert "secure" not in said  # it came by HTTP
        assert served.client.cookies[COOKIE] == key
        for page in PAGES:
            assert (await served.client.get(page.format(study=study))).status_code == 200
        events = await served.client.get(f"/v1/studies/{study}/events")
        assert "event: study-ended" in events.text
        for path in ("/v1/studies", f"/v1/studies/{study}", "/v1/audit", "/metrics"):
            assert (await served.client.get(path)).status_code == 401
        stop = await served.client.post(f"/v1/studies/{study}/stop", headers=HERE)
        assert stop.status_code == 401


async def test_a_cookie_does_not_stand_in_for_a_bad_header(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, open=False) as served:
        await log_in(served, await key_of(served))
        bad = {"Authorization": f"Bearer {make(SystemRandom(), 'btk_')}"}
        assert (await served.client.get("/", headers=bad)).status_code == 303


async def test_over_tls_the_cookie_is_for_tls_only(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, open=False) as served:
        served.client.base_url = httpx.URL("https://test")
        form = {"key": await key_of(served)}
        answer = await served.client.post("/login", data=form, headers={"Origin": "https://test"})
        assert "secure" in answer.headers["set-cookie"].lower()


@pytest.mark.parametrize(
    "wanted", ["//evil.example", "/\\evil.example", "https://evil.example", "/v1/studies", "evil"]
)
async def test_nobody_is_led_elsewhere_by_logging_in(
    serve: Serve, sqlite_url: str, wanted: str
) -> None:
    async with serve(sqlite_url, open=False) as served:
        answer = await log_in(served, await key_of(served), wanted)
        assert answer.headers["location"] == "/"


async def test_bad_keys_are_counted_audited_and_told(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, open=False, most_failures=3) as served:
        good = await key_of(served)
        for bad in ("", "btk_short", make(SystemRandom(), "btk_")):
            answer = await log_in(served, bad)
            assert answer.status_code == 401
            assert "not a key that is good here" in answer.text
            assert "set-cookie" not in answer.headers
        waits = await log_in(served, good)
        assert (waits.status_code, waits.headers["retry-after"]) == (429, "10")
        assert "text/html" in waits.headers["content-type"]
        trail = await served.app.state.service.store.access.trail(10, None)
        assert [one.action for one in trail][:3] == ["bad credential"] * 3
        assert all(good not in one.model_dump_json() for one in trail)


async def test_an_enrolment_token_or_a_devices_credential_is_no_key(
    serve: Serve, sqlite_url: str
) -> None:
    async with serve(sqlite_url, open=False) as served:
        _, token = await served.app.state.service.store.access.create_token("phones", 5, None)
        for secret in (token, make(SystemRandom())):
            assert (await log_in(served, secret)).status_code == 401


async def test_logging_out_forgets_the_key_and_is_audited(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, open=False) as served:
        await log_in(served, await key_of(served))
        answer = await served.client.post("/logout", headers=HERE)
        assert answer.headers["location"] == "/login"
        assert COOKIE not in served.client.cookies
        assert (await served.client.get("/")).status_code == 303
        trail = await served.app.state.service.store.access.trail(10, None)
        assert {"log in", "log out"} <= {one.action for one in trail}


async def test_a_revoked_key_opens_no_page(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, open=False, access_seconds=0.01) as served:
        access = served.app.state.service.store.access
        name, key = await access.create_key("test", (Right.READ,), None)
        await log_in(served, key)
        assert (await served.client.get("/")).status_code == 200
        await access.revoke(name)
        served.app.state.service.keeper._known.clear()
        assert (await served.client.get("/")).status_code == 303


@pytest.mark.parametrize(
    ("right", "opens", "not_these"),
    [
        (Right.READ, ("/", "/studies/{study}"), ("/studies/new", "/operations")),
        (Right.WRITE, ("/studies/new",), ("/", "/operations", "/studies/{study}")),
        (Right.OPERATE, ("/operations",), ("/", "/studies/new", "/studies/{study}/rounds/1")),
    ],
)
async def test_a_scope_opens_its_pages_and_no_others(
    serve: Serve, sqlite_url: str, right: Right, opens: tuple[str, ...], not_these: tuple[str, ...]
) -> None:
    async with serve(sqlite_url, open=False) as served:
        study = await study_of(served, await key_of(served))
        await log_in(served, await key_of(served, right))
        for page in opens:
            assert (await served.client.get(page.format(study=study))).status_code == 200
        for page in not_these:
            answer = await served.client.get(page.format(study=study))
            assert (answer.status_code, answer.headers["content-type"][:9]) == (403, "text/html")
        if right is not Right.WRITE:
            stop = await served.client.post(f"/studies/{study}/stop", headers=HERE)
            assert stop.status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://test.evil.example"},
        {"Origin": "http://test:81"},
        {"Origin": "http://test", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://test", "Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_form_of_another_site_changes_nothing(
    served: Served, headers: dict[str, str]
) -> None:
    """Of an open service as well, which any page on the same machine could post to."""
    study = await served.create()
    for path in (f"/studies/{study}/stop", f"/studies/{study}/start", "/studies/new", "/logout"):
        answer = await served.client.post(path, data={"kind": "tracked"}, headers=headers)
        assert answer.status_code == 403
        assert "not sent from a page of this service" in answer.text
    assert (await served.client.get(f"/v1/studies/{study}")).json()["state"] == "running"


async def test_an_open_service_asks_nobody(served: Served) -> None:
    assert (await served.client.get("/login")).headers["location"] == "/"
    page = await served.client.get("/")
    assert (page.status_code, "open service" in page.text) == (200, True)


@pytest.mark.parametrize("origin", ["http://[", "http://", "://test", "null", "http://test/", ""])
async def test_an_origin_that_is_none_is_refused(
    serve: Serve, sqlite_url: str, origin: str
) -> None:
    """Strangers may send any: one that is no address is no fault of the service."""
    async with serve(sqlite_url, open=False) as served:
        headers = {"Origin": origin}
        answer = await served.client.post("/login", data={"key": "x"}, headers=headers)
        assert (answer.status_code, "Forbidden" in answer.text) == (403, True)

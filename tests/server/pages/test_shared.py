"""Shared links: who has one reads one study, and nothing else, until the link ends."""

import json
import re
from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import select
from structlog.testing import capture_logs

from protocol.api.credentials import secret_digest
from server.db.schema import AuditEntryRow, SharedLinkRow
from server.errors import ProblemError
from server.principals import Permission, Principal
from tests.server.conftest import Serve
from tests.server.credentials import keyed, study_of
from tests.server.fake_provider import OIDC_SETTINGS
from tests.server.harness import Served
from tests.server.pages.browsing import SAME_ORIGIN
from tests.server.pages.test_studies import add_heavy_hitters


async def shared(served: Served, days: float = 1) -> tuple[str, str, dict[str, str]]:
    """Return a new study, the path and query of a link to it, and the header of its owner's key."""
    headers = await keyed(served)
    study = await study_of(served, headers)
    await add_heavy_hitters(served, study, ("apple", "pear"))
    path = f"/v1/studies/{study}/share"
    answer = await served.client.post(path, json={"days": days}, headers=headers)
    assert answer.status_code == 201, answer.text
    return study, answer.json()["url"].removeprefix("http://test"), headers


def with_path(link: str, path: str) -> str:
    """Return a path with the token of a link."""
    return f"{path}?{urlsplit(link).query}"


async def test_a_link_shows_the_page_and_the_files_of_its_study(closed: Served) -> None:
    study, link, headers = await shared(closed)
    other = await study_of(closed, headers)
    answer = await closed.client.get(link)
    page = unescape(answer.text)
    assert answer.status_code == 200
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "apple" in page
    assert not re.search(r'method="post"|EventSource|data-events|>Studies</a>', page)
    ours = {urlsplit(path).path for path in re.findall(r'(?:href|action|hx-get)="(/.*?)"', page)}
    ours = {path for path in ours if not path.startswith("/static/")}
    names = ("heavy-hitters.csv", "heavy-hitters.json", "charts/items.svg")
    files = [f"/shared/{study}/{name}" for name in names]
    assert ours == {f"/shared/{study}", *files}
    assert other not in page
    assert ">test<" not in page  # the name of the owner's key
    for path in files:
        assert "pear" in (await closed.client.get(with_path(link, path))).text
    searched = await closed.client.get(f"{link}&q=app&order=item")
    assert ("apple" in searched.text, "pear" in searched.text) == (True, False)


async def test_a_link_opens_no_other_path_and_changes_nothing(closed: Served) -> None:
    study, link, headers = await shared(closed)
    other = await study_of(closed, headers)
    token = link.partition("token=")[2]
    paths = [f"/shared/{other}", f"/shared/{other}/heavy-hitters.csv", "/shared/nothing"]
    for path in paths:
        assert (await closed.client.get(with_path(link, path))).status_code == 403
    for path in ("/", "/operations", f"/studies/{study}", f"/v1/studies/{study}", "/v1/studies"):
        as_bearer = {"Authorization": f"Bearer {token}"}
        refused = await closed.client.get(with_path(link, path))
        assert refused.status_code in (303, 401)
        assert token not in refused.headers.get("location", "")
        assert (await closed.client.get(path, headers=as_bearer)).status_code in (303, 401)
    cookie = {"Cookie": f"blindtally_session={token}"}
    assert (await closed.client.get(f"/studies/{study}", headers=cookie)).status_code == 303
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = await closed.client.request(method, link, headers=SAME_ORIGIN)
        assert answer.status_code in (404, 405)
    for suffix in ("share", "share/end", "stop", "delete"):
        path = with_path(link, f"/shared/{study}/{suffix}")
        assert (await closed.client.post(path, headers=SAME_ORIGIN)).status_code in (404, 405)
    # A key opens no shared page: the pages of the study are for keys.
    assert (await closed.client.get(f"/shared/{study}", headers=headers)).status_code == 401


@pytest.mark.parametrize("end", ["expired", "revoked", "deleted", "altered", "missing", "twice"])
async def test_a_link_that_has_ended_is_refused_at_once(closed: Served, end: str) -> None:
    study, link, headers = await shared(closed)
    assert (await closed.client.get(link)).status_code == 200
    path = f"/v1/studies/{study}"
    if end == "expired":
        closed.clock.advance(24 * 3600)
    elif end == "revoked":
        await closed.client.delete(f"{path}/share", headers=headers)
    elif end == "deleted":
        await closed.client.post(f"{path}/stop", headers=headers)
        assert (await closed.client.delete(path, headers=headers)).status_code == 204
    link = {
        "altered": link[:-1] + ("A" if link[-1] != "A" else "Q"),
        "missing": link.partition("?")[0],
        "twice": f"{link}&token=btl_{'A' * 43}",
    }.get(end, link)
    answer = await closed.client.get(link)
    assert answer.status_code == 401
    assert "this link has ended" in answer.text
    assert "apple" not in answer.text


@pytest.mark.parametrize("end", ["its end", "revoked"])
async def test_a_link_ends_with_the_key_that_made_it(closed: Served, end: str) -> None:
    _, _, owner = await shared(closed)
    study = await study_of(closed, owner)
    access = closed.store.access
    scopes = [Permission.READ, Permission.WRITE]
    key, secret = await access.create_key("guest", scopes, timedelta(days=1), study)
    link, others = [
        await closed.client.post(
            f"/v1/studies/{study}/share",
            json={"days": 3650},
            headers={"Authorization": f"Bearer {each}"},
        )
        for each in (secret, owner["Authorization"].removeprefix("Bearer "))
    ]
    if end == "revoked":
        await access.revoke(key)
        # The key is still cached.
        late = await closed.client.post(
            f"/v1/studies/{study}/share", json={}, headers={"Authorization": f"Bearer {secret}"}
        )
        assert late.status_code == 401
    else:
        closed.clock.advance(24 * 3600)
    paths = [each.json()["url"].removeprefix("http://test") for each in (link, others)]
    assert [(await closed.client.get(path)).status_code for path in paths] == [401, 200]


async def test_links_of_a_person_end_with_their_session_and_with_the_rule_that_admits_them(
    serve: Serve, sqlite_url: str
) -> None:
    people = ("anna@example.org", "ben@example.org")
    rules = json.dumps({person: ["read", "write"] for person in people})
    async with serve(sqlite_url, **OIDC_SETTINGS | {"oidc_allowed": rules}) as served:
        links = served.store.links
        study, link, _ = await shared(served)
        for person in people:
            maker = Principal(person, frozenset({Permission.WRITE}), is_person=True)
            secret = await served.store.access.start_session(maker)
            logged_in = await served.store.access.find_session(secret_digest(secret))
            assert logged_in is not None
            token, _ = await links.create(study, logged_in, timedelta(days=1))
            path = f"/shared/{study}?token={token}"
            assert (await served.client.get(path)).status_code == 200
            if person == people[0]:
                assert await served.store.access.revoke(person) == "person"
                with pytest.raises(ProblemError):
                    await links.create(study, logged_in, timedelta(days=1))
                assert (await served.client.get(path)).status_code == 401
    rules = json.dumps({people[0]: ["read"], people[1]: ["operate"]})
    async with serve(sqlite_url, **OIDC_SETTINGS | {"oidc_allowed": rules}) as served:
        assert (await served.client.get(path)).status_code == 401
        assert (await served.client.get(link)).status_code == 200


async def test_readers_of_one_link_do_not_shut_out_those_of_another(
    serve: Serve, sqlite_url: str
) -> None:
    async with serve(sqlite_url, open=False, max_requests=10) as served:
        study, link, headers = await shared(served)
        path = f"/v1/studies/{study}/share"
        other = (await served.client.post(path, json={}, headers=headers)).json()["url"]
        answers = [(await served.client.get(link)).status_code for _ in range(11)]
        assert answers == [200] * 10 + [429]
        assert (await served.client.get(other.removeprefix("http://test"))).status_code == 200


async def test_links_of_an_open_service_end_when_it_requires_keys(
    serve: Serve, sqlite_url: str
) -> None:
    async with serve(sqlite_url) as served:
        study = await served.create()
        made = (await served.client.post(f"/v1/studies/{study}/share", json={})).json()
        link = made["url"].removeprefix("http://test")
        assert (await served.client.get(link)).status_code == 200
    async with serve(sqlite_url, open=False) as served:
        assert (await served.client.get(link)).status_code == 401


async def test_a_slash_too_many_sends_the_token_nowhere(closed: Served) -> None:
    study, link, _ = await shared(closed)
    answer = await closed.client.get(with_path(link, f"/shared/{study}/"))
    assert answer.status_code == 404
    assert "location" not in answer.headers


async def test_only_the_digest_of_a_token_is_stored_and_no_line_has_it(closed: Served) -> None:
    with capture_logs() as lines:
        study, link, _ = await shared(closed)
        token = link.partition("token=")[2]
        for path in (link, with_path(link, "/shared/none"), f"{link}x", with_path(link, "/v1/no")):
            await closed.client.get(path)

    def stored(session: Any) -> list[Any]:
        audit = session.scalars(select(AuditEntryRow)).all()
        rows = [(each.actor, each.action, each.subject) for each in audit]
        return [rows, session.scalars(select(SharedLinkRow.digest)).all()]

    audit, digests = await closed.store.database.read(stored)
    assert len(digests) == 1
    assert ("share study", study) in [each[1:] for each in audit]
    assert any(each[1] == "ended link" for each in audit)
    assert token[4:] not in repr([lines, audit, digests])


async def test_a_reader_makes_no_link_and_days_are_limited(closed: Served) -> None:
    study, _, headers = await shared(closed)
    path = f"/v1/studies/{study}/share"
    reader = await keyed(closed, Permission.READ)
    for method in ("POST", "DELETE"):
        answer = await closed.client.request(method, path, json={}, headers=reader)
        assert answer.status_code == 403
    assert "Share…" not in (await closed.client.get(f"/studies/{study}", headers=reader)).text
    writer = await keyed(closed, Permission.WRITE)
    assert (await closed.client.post(path, json={}, headers=writer)).status_code == 403
    form = f"/studies/{study}/share"
    made = await closed.client.post(form, data={"days": "1"}, headers=writer | SAME_ORIGIN)
    assert made.status_code == 403
    for days in (0, -1, 3651, "x"):
        answer = await closed.client.post(path, json={"days": days}, headers=headers)
        assert answer.status_code == 422


async def test_the_page_makes_a_link_and_ends_all(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, public_url="https://example.org/counts") as served:
        study = await served.create()
        made = await served.client.post(
            f"/studies/{study}/share", data={"days": "7"}, headers=SAME_ORIGIN
        )
        for days in ("", "0", "-1", "\xb2", "99999999999999999999"):
            answer = await served.client.post(
                f"/studies/{study}/share", data={"days": days}, headers=SAME_ORIGIN
            )
            assert answer.status_code == 422
        (url,) = re.findall(rf"https://example.org/counts/shared/{study}\?token=[\w-]+", made.text)
        link = url.removeprefix("https://example.org")
        page = (await served.client.get(link)).text
        assert f"/counts/shared/{study}" in page
        assert "Share…" not in page  # although everybody may write on an open service
        assert "1 link is valid now" in (await served.client.get(f"/studies/{study}")).text
        await served.client.post(f"/studies/{study}/share/end", headers=SAME_ORIGIN)
        assert (await served.client.get(link)).status_code == 401

"""A closed service: strangers learn nothing, and each credential is valid for its purpose only."""

import asyncio
import re
from base64 import urlsafe_b64decode
from dataclasses import replace
from itertools import product
from random import Random, SystemRandom
from typing import Any

import pytest
from fastapi.routing import APIRoute
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from protocol.api.credentials import (
    API_KEY_PREFIX,
    ENROLMENT_TOKEN_PREFIX,
    new_secret,
    secret_digest,
)
from protocol.api.messages import RoundView
from secagg.keys import Identity
from server.db.repositories.access.enrolments import EnrolmentRepository
from server.errors import ProblemError
from server.http.auth import COOKIE_NAME
from server.pages import changes, operations, rounds, studies
from server.pages.forms import preview
from server.pages.forms import routes as form_routes
from server.principals import Permission
from tests.server.cohort import refused
from tests.server.conftest import Serve
from tests.server.credentials import (
    ALL_SCOPES,
    application,
    book,
    enrolled,
    keyed,
    showing,
    study_of,
)
from tests.server.device import Device
from tests.server.harness import Served, study_request
from tests.server.listener import listening
from tests.server.pages.browsing import SAME_ORIGIN

PATH_PARAMETERS = {"study": "0123456789abcdef", "number": "1", "cohort": "0", "name": "phones"}
PATH_PARAMETERS |= {"registrar": "ab" * 32, "other": "fedcba9876543210"}


async def paths(served: Served) -> list[tuple[str, str]]:
    """Return the methods and paths of the API, with names of things that are not there."""
    document = (await served.client.get("/openapi.json")).json()
    routes = [(m.upper(), path) for path, methods in document["paths"].items() for m in methods]
    assert len(routes) > 25
    return [
        (method, path.format(**PATH_PARAMETERS, participant="ab" * 8, identity="0" * 64))
        for method, path in routes
        if path not in ("/healthz", "/readyz")
    ]


async def test_a_stranger_is_answered_alike_for_every_path(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, open=False, max_auth_failures=10_000) as served:
        study = await study_of(served, await keyed(served))
        for method, path in await paths(served):
            for target in {path, path.replace(PATH_PARAMETERS["study"], study)}:
                for head in ({}, showing(new_secret(SystemRandom(), "btk_"))):
                    answer = await served.client.request(method, target, headers=head, json={})
                    if target != "/v1/devices":  # which checks its body first
                        refused(answer, 401, "not-authorised")
                        assert "WWW-Authenticate" in answer.headers
                    assert study not in answer.text
        for path in ("/healthz", "/readyz", "/openapi.json"):
            assert (await served.client.get(path)).status_code == 200


async def test_a_missing_key_another_text_and_an_invalid_key_have_different_reasons(
    closed: Served,
) -> None:
    heads: tuple[dict[str, str], ...] = (
        {},
        showing("my-secret-password"),
        {"Authorization": "Basic bXktc2VjcmV0"},
        showing(new_secret(SystemRandom(), API_KEY_PREFIX)),
    )
    reasons = [
        (await closed.client.get("/v1/studies", headers=head)).json()["detail"] for head in heads
    ]
    assert reasons[1] == reasons[2]
    assert "no key of this service: an API key is Bearer btk_ and 43 letters" in reasons[1]
    assert "secret" not in reasons[1]
    assert reasons[::3] == [
        "an API key or a device's credential is required in Authorization: Bearer",
        "the API key or the credential is unknown, expired or revoked",
    ]


async def test_a_key_is_valid_for_its_scopes_only(closed: Served) -> None:
    for right, method, path in (
        (Permission.WRITE, "POST", "/v1/studies"),
        (Permission.WRITE, "POST", "/v1/studies/{study}/stop"),
        (Permission.READ, "GET", "/v1/studies/{study}"),
        (Permission.READ, "GET", "/v1/studies/{study}/heavy-hitters"),
        (Permission.OPERATE, "GET", "/v1/studies/{study}/rounds/1/cohorts/0/sum"),
        (Permission.OPERATE, "GET", "/v1/audit"),
        (Permission.OPERATE, "GET", "/metrics"),
    ):
        study = await study_of(closed, await keyed(closed))
        others = [scope for scope in ALL_SCOPES if scope is not right]
        asked = (method, path.format(study=study))
        for head, is_let in (
            (await keyed(closed, right), True),
            (await keyed(closed, *others), False),
        ):
            answer = await closed.client.request(*asked, headers=head, json=study_request())
            if is_let:  # a sum that does not exist yet is a conflict
                assert answer.is_success or answer.status_code == 409, answer.text
            else:
                assert right in refused(answer, 403, "forbidden")
        refusals = [e for e in await book(closed).audit_entries(50, None) if e.outcome == "refused"]
        assert path.format(study=study) in refusals[0].subject


async def test_only_a_device_joins_and_only_with_json(closed: Served) -> None:
    study = await study_of(closed, await keyed(closed))
    path = f"/v1/studies/{study}/rounds/1/participants"
    others = [scope for scope in ALL_SCOPES if scope is not Permission.TAKE_PART]
    answer = await closed.client.post(path, json={}, headers=await keyed(closed, *others))
    assert Permission.TAKE_PART in refused(answer, 403, "forbidden")
    _, token = await book(closed).create_token("phones", 1, None)
    head = showing(await enrolled(closed, token, Identity.generate(Random(1))))
    answer = await closed.client.post(
        path, content=b"{}", headers=head | {"Content-Type": "text/plain"}
    )
    refused(answer, 415, "wrong-media-type")


async def test_events_are_for_keys_that_read(closed: Served) -> None:
    head = await keyed(closed)
    study = await study_of(closed, head)
    await closed.client.post(f"/v1/studies/{study}/stop", headers=head)
    path = f"/v1/studies/{study}/events"  # it ends at once, for the study did
    refused(await closed.client.get(path), 401, "not-authorised")
    others = await keyed(closed, Permission.WRITE, Permission.OPERATE)
    refused(await closed.client.get(path, headers=others), 403, "forbidden")
    answer = await closed.client.get(path, headers=await keyed(closed, Permission.READ))
    assert answer.status_code == 200
    assert "event: study-ended" in answer.text


async def test_an_expired_or_revoked_key_is_refused(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, open=False, credential_cache_seconds=0.01) as served:
        ending, revoked = await keyed(served, days=1), await keyed(served)
        (second,) = [key for key in await book(served).keys() if key.expires is None]
        for head in (ending, revoked):
            assert (await served.client.get("/v1/studies", headers=head)).status_code == 200
        assert await book(served).revoke(second.id) == "key"
        served.clock.advance(24 * 3600)
        await asyncio.sleep(0.05)  # what was known is forgotten
        for head in (ending, revoked):
            answer = await served.client.get("/v1/studies", headers=head)
            refused(answer, 401, "not-authorised")


async def test_a_device_acts_for_itself_only(closed: Served) -> None:
    head = await keyed(closed)
    study = await study_of(closed, head)
    _, token = await book(closed).create_token("phones", 3, None)
    device = Device(closed.client, "one", {"ab": 1}, Random(1), None)
    credential = await enrolled(closed, token, device.identity)
    other = await enrolled(closed, token, Identity.generate(Random(7)))
    path = f"/v1/studies/{study}/rounds/open"
    answer = await closed.client.get(path, headers=showing(credential), params={"wait": 10})
    view = RoundView.model_validate_json(answer.content)
    device.view, device.headers = view, showing(other)
    refused(await device.apply(study, 1), 403, "forbidden")
    device.headers = showing(credential)
    await device.join(study, view)
    for secret in (other, head["Authorization"].removeprefix("Bearer ")):
        device.headers = showing(secret)
        refused(await device.get("roster", wait=0), 401, "not-authorised")
    device.headers = showing(credential)
    assert (await device.get("roster", wait=0)).status_code == 202
    for what in (f"/v1/studies/{study}", "/v1/audit", f"/v1/studies/{study}/rounds/1"):
        answer = await closed.client.get(what, headers=showing(credential))
        refused(answer, 403, "forbidden")
    unknown = await closed.client.get("/v1/participants/abcd/roster", headers=showing(credential))
    device.headers = showing(other)
    wrong = await device.get("roster", wait=0)
    assert unknown.json() == wrong.json()  # which does not reveal the existing participants


async def test_a_token_lets_a_limited_number_in_and_the_same_again(each_closed: Served) -> None:
    name, token = await book(each_closed).create_token("two", 2, None)
    first, second, third = (Identity.generate(Random(n)) for n in range(3))
    credential = await enrolled(each_closed, token, first)
    again = application(first, credential)
    post = each_closed.client.post
    assert (await post("/v1/devices", json=again, headers=showing(token))).status_code == 204
    another = application(first, new_secret(SystemRandom()))
    refused(await post("/v1/devices", json=another, headers=showing(token)), 409, "conflict")
    stolen = application(second, credential)
    refused(await post("/v1/devices", json=stolen, headers=showing(token)), 409, "conflict")
    await enrolled(each_closed, token, second)
    late = application(third, new_secret(SystemRandom()))
    answer = await post("/v1/devices", json=late, headers=showing(token))
    assert "maximum of 2 devices" in refused(answer, 403, "forbidden")
    assert await book(each_closed).revoke(name) == "token"
    answer = await post("/v1/devices", json=again, headers=showing(token))
    refused(answer, 401, "not-authorised")
    refused(
        await each_closed.client.get("/v1/studies", headers=showing(credential)),
        401,
        "not-authorised",
    )


@pytest.mark.parametrize("same_identity", [True, False])
async def test_concurrent_enrolments_by_two_tokens_are_answered_as_one_after_the_other(
    closed: Served, monkeypatch: pytest.MonkeyPatch, same_identity: bool
) -> None:
    """PostgreSQL locks the rows of the tokens, so only a unique constraint stops the second."""
    (_, token), (_, other) = [await book(closed).create_token("phones", 9, None) for _ in range(2)]
    first, second = Identity.generate(Random(1)), Identity.generate(Random(2))
    credential = new_secret(SystemRandom())
    enrol = EnrolmentRepository.enrol_group
    identities = iter([first.public.hex()])

    async def enrol_after_another(self: EnrolmentRepository, by: bytes, asked: Any) -> Any:
        for identity in identities:  # once
            await enrol(self, secret_digest(other), [replace(asked[0], identity=identity)])
            raise IntegrityError("", None, Exception())
        return await enrol(self, by, asked)

    monkeypatch.setattr(EnrolmentRepository, "enrol_group", enrol_after_another)
    asked = application(first if same_identity else second, credential)
    answer = await closed.client.post("/v1/devices", json=asked, headers=showing(token))
    if same_identity:
        assert answer.status_code == 204, answer.text
    else:
        assert "another identity" in refused(answer, 409, "conflict")
    assert sum(issued.used for issued in await book(closed).tokens()) == 1


async def test_enrolments_of_one_moment_are_each_decided_for_themselves(
    each_closed: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, enrol_group = list[int](), EnrolmentRepository.enrol_group

    async def count(self: EnrolmentRepository, token: bytes, asked: Any) -> Any:
        groups.append(len(asked))
        return await enrol_group(self, token, asked)

    monkeypatch.setattr(EnrolmentRepository, "enrol_group", count)
    enrol = each_closed.store.enrolments.enrol
    _, secret = await book(each_closed).create_token("two phones", 2, None)
    token = secret_digest(secret)
    results = await asyncio.gather(
        enrol(token, "identity 1", b"one"),
        enrol(token, "identity 1", b"one"),  # a repetition
        enrol(token, "identity 1", b"other"),
        enrol(token, "identity 2", b"one"),
        enrol(b"unknown token", "identity 3", b"three"),
        enrol(token, "identity 4", b"four"),
        enrol(token, "identity 5", b"five"),
        return_exceptions=True,
    )
    assert sorted(groups) == [1, 6]  # by the unknown token, and by the other one
    assert [result if isinstance(result, bool) else str(result) for result in results] == [
        True,
        False,
        "this identity has another credential",
        "this credential belongs to another identity",
        "this enrolment token is not valid here",
        True,
        "this enrolment token has enrolled its maximum of 2 devices",
    ]
    with pytest.raises(ProblemError):
        await enrol(b"another unknown token", "identity 6", b"six")
    assert [*each_closed.store.enrolments.groups_by_token] == [b"another unknown token"]
    assert [issued.used for issued in await book(each_closed).tokens()] == [2]
    entries = await book(each_closed).audit_entries(99, None)
    assert [(each.subject, each.outcome) for each in entries if each.action == "enrol"] == [
        ("identity 4", "done"),
        ("identity 1", "done"),
    ]
    find = each_closed.store.access.find_principal
    owners = await asyncio.gather(*(find(each) for each in (b"four", b"five", b"one", b"four")))
    assert [owner and owner.name for owner in owners] == [
        "identity 4",
        None,
        "identity 1",
        "identity 4",
    ]


async def test_a_token_that_is_locked_delays_no_enrolment_by_another(
    serve: Serve, postgres_url: str
) -> None:
    """A revocation locks the row of the token, and takes a while if it has many devices."""
    async with serve(postgres_url, open=False) as served:
        (_, locked), (_, other) = [
            await book(served).create_token("phones", 9, None) for _ in range(2)
        ]
        enrol = served.store.enrolments.enrol
        lock = "SELECT 1 FROM enrolment_tokens WHERE digest = :digest FOR UPDATE"
        with served.store.database.engine.begin() as connection:
            connection.execute(text(lock), {"digest": secret_digest(locked)})
            waiting = asyncio.create_task(enrol(secret_digest(locked), "identity 1", b"one"))
            async with asyncio.timeout(20):
                assert await enrol(secret_digest(other), "identity 2", b"two")
            assert not waiting.done()
        assert await waiting


async def test_an_enrolment_by_another_hand_is_refused(closed: Served) -> None:
    _, token = await book(closed).create_token("phones", 9, None)
    identity, credential = Identity.generate(Random(1)), new_secret(SystemRandom())
    false = application(identity, credential, signature="00" * 64)
    weak = application(identity, credential) | {"identity": "00" * 32}
    strange = new_secret(SystemRandom(), ENROLMENT_TOKEN_PREFIX)
    post = closed.client.post
    for asked in (false, weak):
        refused(await post("/v1/devices", json=asked, headers=showing(token)), 422, "malformed")
    true = application(identity, credential)
    for head in (showing(strange), {}, await keyed(closed)):
        refused(await post("/v1/devices", json=true, headers=head), 401, "not-authorised")
    assert (await book(closed).tokens())[0].used == 0


async def test_an_event_stream_ends_once_its_key_is_revoked(serve: Serve, sqlite_url: str) -> None:
    """Followers with a revoked key get no later events; others do."""
    async with serve(sqlite_url, open=False, credential_cache_seconds=1e-6) as served:
        mine, other = await keyed(served), await keyed(served)
        study = await study_of(served, mine)
        async with listening(served, study, 0, mine) as ends:
            known = len(await ends.until(3))  # created, started, opened
            secret = mine["Authorization"].removeprefix("Bearer ")
            revoked = await book(served).find_principal(secret_digest(secret))
            assert revoked is not None
            await book(served).revoke(revoked.name)
            await served.client.post(f"/v1/studies/{study}/stop", headers=other)
            assert len(await ends.until_over()) == known
        async with listening(served, study, 0, other) as goes_on:
            assert len(await goes_on.until_over()) > known
        async with listening(served, study, 1, mine) as listener:
            await listener.until_over()
            assert listener.status == 401


async def test_an_event_stream_ends_with_the_session_of_its_page(
    serve: Serve, sqlite_url: str
) -> None:
    """The key stays valid, so only the session can end the stream of a copied cookie."""
    async with serve(sqlite_url, open=False, credential_cache_seconds=1e-6) as served:
        key = await keyed(served)
        study = await study_of(served, key)
        secret = key["Authorization"].removeprefix("Bearer ")
        owner = await book(served).find_principal(secret_digest(secret))
        assert owner is not None
        session = await book(served).start_session(owner)
        cookie = {"Cookie": f"{COOKIE_NAME}={session}"}
        async with listening(served, study, 0, cookie) as page:
            known = len(await page.until(3))  # created, started, opened
            await served.service.authenticator.end_session(session)
            await served.client.post(f"/v1/studies/{study}/stop", headers=key)
            assert len(await page.until_over()) == known


async def test_no_secret_is_kept_or_shown(
    closed: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    head = await keyed(closed)
    key = head["Authorization"].removeprefix("Bearer ")
    _, token = await book(closed).create_token("phones", 9, None)
    credential = await enrolled(closed, token, Identity.generate(Random(1)))
    await closed.client.get("/v1/studies", headers=head)
    await closed.client.get("/v1/studies", headers=showing(token))
    store = closed.store
    rows = await store.database.read(
        lambda s: [
            tuple(row)
            for table in ("api_keys", "enrolment_tokens", "devices", "audit_entries")
            for row in s.execute(text(f"SELECT * FROM {table}"))  # noqa: S608
        ]
    )
    statuses = capsys.readouterr()
    for secret in (key, token, credential):
        raw = urlsafe_b64decode(secret[-43:] + "=")
        assert secret not in repr(rows)
        assert not any(raw in row for row in rows)
        assert secret_digest(secret) in {cell for row in rows for cell in row}
        assert secret not in statuses.out + statuses.err
        assert secret not in repr(closed.service)


async def test_the_audit_trail_names_actors_and_actions(closed: Served) -> None:
    head = await keyed(closed)
    study = await study_of(closed, head)
    await closed.client.post(f"/v1/studies/{study}/stop", headers=head)
    await closed.client.get("/v1/studies/none")
    page = (await closed.client.get("/v1/audit", headers=head, params={"limit": 2})).json()
    assert [entry["action"] for entry in page["entries"]] == [
        "GET without credential",
        "stop study",
    ]
    rest = await closed.client.get("/v1/audit", headers=head, params={"before": page["next"]})
    assert [entry["action"] for entry in rest.json()["entries"]] == ["create study", "create key"]
    assert rest.json()["entries"][0]["subject"] == study
    assert rest.json()["next"] is None


async def test_the_audit_trail_keeps_paths_as_they_were_received(closed: Served) -> None:
    await keyed(closed)
    await closed.client.get("/v1/studies/%1b%5B31mred%0aforged%e2%80%ae?key=secret")
    (entry,) = [e for e in await book(closed).audit_entries(9, None) if e.outcome == "refused"]
    assert entry.subject == "/v1/studies/%1b%5B31mred%0aforged%e2%80%ae"


async def test_given_credentials_are_stored_once(closed: Served) -> None:
    key, member = (new_secret(SystemRandom(), API_KEY_PREFIX) for _ in range(2))
    token = new_secret(SystemRandom(), ENROLMENT_TOKEN_PREFIX)
    for _ in range(2):
        await book(closed).add_initial(key, token, member)
    assert [len(await book(closed).keys()), len(await book(closed).tokens())] == [2, 1]
    answer = await closed.client.get("/v1/audit", headers=showing(key))
    assert {entry["action"] for entry in answer.json()["entries"]} == {"create key", "create token"}
    await enrolled(closed, token, Identity.generate(Random(1)))
    assert (await closed.client.get("/v1/audit", headers=showing(member))).status_code == 403
    rounds = await closed.client.get(f"/v1/members/{'a' * 64}/rounds", headers=showing(member))
    assert rounds.status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("demo.localhost:8000", 200),
        ("test", 200),
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("127.0.0.1.evil.example:8000", 403),
        ("localhost.evil.example", 403),
    ],
)
async def test_a_site_whose_name_leads_to_this_machine_reads_no_open_service(
    serve: Serve, sqlite_url: str, host: str, status: int
) -> None:
    """A browser sends the name of the site in Host and Origin, also after "DNS rebinding"."""
    head = {"host": host, "origin": f"http://{host}"}
    async with serve(sqlite_url, open=True) as served:
        for path in ("/v1/studies", "/"):
            answer = await served.client.get(path, headers=head)
            assert answer.status_code == status
    if status == 403:
        async with serve(sqlite_url, open=False) as closed:  # its names are its operator's
            key = await keyed(closed)
            answer = await closed.client.get("/v1/studies", headers=head | key)
            assert answer.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://test:81"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_page_of_another_site_changes_nothing_in_an_open_service(
    served: Served, headers: dict[str, str]
) -> None:
    """A browser asks no permission before it sends a POST without a body for another site."""
    study = await served.create()
    paths = (await served.client.get("/openapi.json")).json()["paths"]
    changing = {
        (method.upper(), re.sub(r"\{\w+\}", study, path))
        for path, methods in paths.items()
        for method in methods.keys() - {"get", "head"}
    }
    assert ("POST", f"/v1/studies/{study}/stop") in changing
    for method, path in changing:
        answer = await served.client.request(method, path, headers=headers)
        assert answer.status_code == 403, (method, path)
    assert (await served.client.get(f"/v1/studies/{study}")).json()["state"] == "running"
    ours = {"Origin": "http://test", "Sec-Fetch-Site": "same-origin"}
    stop = await served.client.post(f"/v1/studies/{study}/stop", headers=ours)
    assert stop.json()["state"] == "stopped"


async def test_a_key_of_one_study_opens_this_study_and_lists_no_other(each_closed: Served) -> None:
    everything = await keyed(each_closed)
    own, other = [await study_of(each_closed, everything) for _ in range(2)]
    key, client = await key_of_study(each_closed, own), each_closed.client
    for path in ("", "/rounds", "/rounds/1", "/heavy-hitters"):
        assert (await client.get(f"/v1/studies/{own}{path}", headers=key)).status_code == 200
    assert (await client.get(f"/studies/{own}", headers=key)).status_code == 200
    (listed,) = (await client.get("/v1/studies", headers=key)).json()["studies"]
    assert listed["id"] == own
    page = (await client.get("/", headers=key)).text
    assert own in page
    assert other not in page
    assert (await client.post(f"/v1/studies/{own}/stop", headers=key)).status_code == 200


async def test_a_key_of_one_study_opens_no_other_path(serve: Serve, sqlite_url: str) -> None:
    """The key has all scopes, and the other study exists."""
    async with serve(sqlite_url, open=False, max_auth_failures=10_000) as served:
        own, other = [await study_of(served, await keyed(served)) for _ in range(2)]
        headers = await key_of_study(served, own) | SAME_ORIGIN
        for method, path in [*await paths(served), *page_paths()]:
            target = path.replace(PATH_PARAMETERS["study"], other)
            lists = {("GET", "/v1/studies"), *product(("GET", "HEAD"), ("/", "/studies"))}
            is_list = (method, path) in lists
            if not is_list and not path.startswith(("/v1/participants/", "/v1/devices")):
                answer = await served.client.request(method, target, headers=headers, json={})
                assert answer.status_code == 403, (method, target)


async def test_a_key_of_one_study_compares_it_with_no_other(closed: Served) -> None:
    everything = await keyed(closed)
    own, other = [await study_of(closed, everything) for _ in range(2)]
    key, ways = await key_of_study(closed, own), (f"compare/{other}", f"changes?compare={other}")
    for path in (f"/v1/studies/{own}/{ways[0]}", f"/studies/{own}/{ways[1]}"):
        for headers, status in ((key, 403), (everything, 409 if path.startswith("/v1") else 200)):
            assert (await closed.client.get(path, headers=headers)).status_code == status, path
        for unknown in ("0123456789abcdef", own[:-1]):  # answered alike
            answer = await closed.client.get(path.replace(other, unknown), headers=key)
            assert answer.status_code == 403, answer.text
    page = (await closed.client.get(f"/studies/{own}/changes", headers=key)).text
    assert 'name="compare"' not in page
    assert (
        'name="compare"'
        in (await closed.client.get(f"/studies/{own}/changes", headers=everything)).text
    )


async def test_a_key_of_one_study_shows_of_no_other_that_it_exists(closed: Served) -> None:
    own, other = [await study_of(closed, await keyed(closed)) for _ in range(2)]
    key = await key_of_study(closed, own)
    for path in ("/v1/studies", "/"):
        answers = [
            (await closed.client.get(path, params={"after": after}, headers=key)).status_code
            for after in (own, other, "0123456789abcdef")
        ]
        assert answers == [200, 422, 422]


async def test_a_key_of_an_unknown_study_is_not_made(closed: Served) -> None:
    with pytest.raises(ProblemError, match="no such study"):
        await closed.store.access.create_key("guest", ALL_SCOPES, None, "0123456789abcdef")


def page_paths() -> list[tuple[str, str]]:
    """Return the method and path of each page that needs a permission."""
    modules = (form_routes, preview, studies, changes, rounds, operations)
    routes = [route for module in modules for route in module.router.routes]
    pages = [
        (method, re.sub("{.*?}", "1", re.sub("{study}", PATH_PARAMETERS["study"], route.path)))
        for route in routes
        if isinstance(route, APIRoute)
        for method in route.methods
    ]
    assert len(pages) > 10
    return pages


async def key_of_study(served: Served, study: str) -> dict[str, str]:
    """Return the header that shows a new key of one study, with all scopes."""
    _, secret = await served.store.access.create_key("guest", ALL_SCOPES, None, study)
    return showing(secret)

"""A closed service: strangers learn nothing, and each credential is valid for its purpose only."""

import asyncio
from base64 import urlsafe_b64decode
from collections import Counter
from datetime import timedelta
from random import Random, SystemRandom
from typing import Any

import httpx
import pytest
from limits import RateLimitItemPerMinute
from sqlalchemy import text

from protocol.credentials import (
    API_KEY_PREFIX,
    ENROLMENT_TOKEN_PREFIX,
    new_secret,
    possession_statement,
    secret_digest,
)
from protocol.messages import EnrolmentRequest, RoundView
from secagg.keys import Identity
from server.db.repositories.access import AccessRepository
from server.http.auth import RateLimits
from server.principals import Permission
from tests.server.conftest import Serve
from tests.server.device import Device
from tests.server.harness import Served, study_request
from tests.server.listener import listening

PATH_PARAMETERS = {"study": "0123456789abcdef", "number": "1", "cohort": "0", "name": "phones"}
ALL_SCOPES = (Permission.READ, Permission.WRITE, Permission.OPERATE)


def book(served: Served) -> AccessRepository:
    access: AccessRepository = served.app.state.service.store.access
    return access


def showing(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def keyed(served: Served, *scopes: Permission, days: float | None = None) -> dict[str, str]:
    lasting = timedelta(days=days) if days else None
    _, secret = await book(served).create_key("test", scopes or ALL_SCOPES, lasting)
    return showing(secret)


async def study_of(served: Served, head: dict[str, str]) -> str:
    response = await served.client.post("/v1/studies", json=study_request(), headers=head)
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


def application(identity: Identity, credential: str, **changes: Any) -> dict[str, Any]:
    raw = secret_digest(credential)
    signature = identity.sign(possession_statement(raw))
    request = EnrolmentRequest(
        identity=identity.public.hex(), credential=raw.hex(), signature=signature.hex()
    )
    return request.model_dump() | changes


async def enrolled(served: Served, token: str, identity: Identity) -> str:
    credential = new_secret(SystemRandom())
    asked = application(identity, credential)
    response = await served.client.post("/v1/devices", json=asked, headers=showing(token))
    assert response.status_code == 204, response.text
    return credential


async def seated(served: Served, study: str, token: str, name: str) -> Device:
    """Return a device that was let in by `token`, and has a seat."""
    device = Device(served.client, name, {"ab": 1}, Random(name), None)
    device.headers = showing(await enrolled(served, token, device.identity))
    path = f"/v1/studies/{study}/rounds/open"
    answer = await served.client.get(path, headers=device.headers, params={"wait": 10})
    await device.join(study, RoundView.model_validate_json(answer.content))
    return device


def problem(response: httpx.Response, status: int, kind: str) -> str:
    assert response.status_code == status, response.text
    assert response.json()["type"].endswith(f":{kind}")
    return str(response.json()["detail"])


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
                        problem(answer, 401, "not-authorised")
                        assert "WWW-Authenticate" in answer.headers
                    assert study not in answer.text
        for path in ("/healthz", "/readyz", "/openapi.json"):
            assert (await served.client.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("right", "method", "path"),
    [
        (Permission.WRITE, "POST", "/v1/studies"),
        (Permission.WRITE, "POST", "/v1/studies/{study}/stop"),
        (Permission.READ, "GET", "/v1/studies/{study}"),
        (Permission.READ, "GET", "/v1/studies/{study}/heavy-hitters"),
        (Permission.OPERATE, "GET", "/v1/audit"),
        (Permission.OPERATE, "GET", "/metrics"),
    ],
)
async def test_a_key_is_valid_for_its_scopes_only(
    serve: Serve, sqlite_url: str, right: Permission, method: str, path: str
) -> None:
    async with serve(sqlite_url, open=False) as served:
        study = await study_of(served, await keyed(served))
        others = [scope for scope in ALL_SCOPES if scope is not right]
        asked = (method, path.format(study=study))
        for head, is_let in (
            (await keyed(served, right), True),
            (await keyed(served, *others), False),
        ):
            answer = await served.client.request(*asked, headers=head, json=study_request())
            if is_let:
                assert answer.is_success, answer.text
            else:
                assert right in problem(answer, 403, "forbidden")
        refused = [e for e in await book(served).audit_entries(50, None) if e.outcome == "refused"]
        assert [path.format(study=study) in e.subject for e in refused] == [True]


async def test_events_are_for_keys_that_read(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, open=False) as served:
        head = await keyed(served)
        study = await study_of(served, head)
        await served.client.post(f"/v1/studies/{study}/stop", headers=head)
        path = f"/v1/studies/{study}/events"  # it ends at once, for the study did
        problem(await served.client.get(path), 401, "not-authorised")
        others = await keyed(served, Permission.WRITE, Permission.OPERATE)
        problem(await served.client.get(path, headers=others), 403, "forbidden")
        answer = await served.client.get(path, headers=await keyed(served, Permission.READ))
        assert answer.status_code == 200
        assert "event: study-ended" in answer.text


async def test_a_stranger_at_the_metrics_is_refused_and_counted(
    serve: Serve, sqlite_url: str
) -> None:
    async with serve(sqlite_url, open=False) as served:
        refused = await served.client.get("/metrics", headers={"X-Request-ID": "of-a-stranger"})
        problem(refused, 401, "not-authorised")
        assert refused.headers["X-Request-ID"] == "of-a-stranger"
        answer = await served.client.get(
            "/metrics", headers=await keyed(served, Permission.OPERATE)
        )
        assert 'blindtally_problem_responses_total{type="not-authorised"} 1.0' in answer.text


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
            problem(answer, 401, "not-authorised")


async def test_a_device_acts_for_itself_only(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, open=False) as served:
        head = await keyed(served)
        study = await study_of(served, head)
        _, token = await book(served).create_token("phones", 3, None)
        device = Device(served.client, "one", {"ab": 1}, Random(1), None)
        credential = await enrolled(served, token, device.identity)
        other = await enrolled(served, token, Identity.generate(Random(7)))
        path = f"/v1/studies/{study}/rounds/open"
        answer = await served.client.get(path, headers=showing(credential), params={"wait": 10})
        view = RoundView.model_validate_json(answer.content)
        device.view, device.headers = view, showing(other)
        problem(await device.apply(study, 1), 403, "forbidden")
        device.headers = showing(credential)
        await device.join(study, view)
        for secret in (other, head["Authorization"].removeprefix("Bearer ")):
            device.headers = showing(secret)
            problem(await device.get("roster", wait=0), 401, "not-authorised")
        device.headers = showing(credential)
        assert (await device.get("roster", wait=0)).status_code == 202
        for what in (f"/v1/studies/{study}", "/v1/audit", f"/v1/studies/{study}/rounds/1"):
            answer = await served.client.get(what, headers=showing(credential))
            problem(answer, 403, "forbidden")
        unknown = await served.client.get(
            "/v1/participants/abcd/roster", headers=showing(credential)
        )
        device.headers = showing(other)
        wrong = await device.get("roster", wait=0)
        assert unknown.json() == wrong.json()  # which does not reveal the existing participants


async def test_a_token_lets_a_limited_number_in_and_the_same_again(
    serve: Serve, database_url: str
) -> None:
    async with serve(database_url, open=False) as served:
        name, token = await book(served).create_token("two", 2, None)
        first, second, third = (Identity.generate(Random(n)) for n in range(3))
        credential = await enrolled(served, token, first)
        again = application(first, credential)
        post = served.client.post
        assert (await post("/v1/devices", json=again, headers=showing(token))).status_code == 204
        another = application(first, new_secret(SystemRandom()))
        problem(await post("/v1/devices", json=another, headers=showing(token)), 409, "conflict")
        stolen = application(second, credential)
        problem(await post("/v1/devices", json=stolen, headers=showing(token)), 409, "conflict")
        await enrolled(served, token, second)
        late = application(third, new_secret(SystemRandom()))
        answer = await post("/v1/devices", json=late, headers=showing(token))
        assert "maximum of 2 devices" in problem(answer, 403, "forbidden")
        assert await book(served).revoke(name) == "token"
        answer = await post("/v1/devices", json=again, headers=showing(token))
        problem(answer, 401, "not-authorised")
        problem(
            await served.client.get("/v1/studies", headers=showing(credential)),
            401,
            "not-authorised",
        )


async def test_an_enrolment_by_another_hand_is_refused(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, open=False) as served:
        _, token = await book(served).create_token("phones", 9, None)
        identity, credential = Identity.generate(Random(1)), new_secret(SystemRandom())
        false = application(identity, credential, signature="00" * 64)
        weak = application(identity, credential) | {"identity": "00" * 32}
        strange = new_secret(SystemRandom(), ENROLMENT_TOKEN_PREFIX)
        post = served.client.post
        for asked in (false, weak):
            problem(await post("/v1/devices", json=asked, headers=showing(token)), 422, "malformed")
        true = application(identity, credential)
        for head in (showing(strange), {}, await keyed(served)):
            problem(await post("/v1/devices", json=true, headers=head), 401, "not-authorised")
        assert (await book(served).tokens())[0].used == 0


async def test_an_address_that_fails_too_often_waits(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, open=False, max_auth_failures=3) as served:
        head = await keyed(served)
        for _ in range(3):
            problem(await served.client.get("/v1/studies"), 401, "not-authorised")
        answer = await served.client.get("/v1/studies")
        problem(answer, 429, "too-many-requests")
        assert int(answer.headers["Retry-After"]) >= 1
        answer = await served.client.get("/v1/studies", headers=head)
        problem(answer, 429, "too-many-requests")
        assert len(await book(served).audit_entries(100, None)) == 4  # one made a key, three failed


async def test_guessing_tokens_under_bad_signatures_is_limited_too(
    serve: Serve, sqlite_url: str
) -> None:
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
    """All may be let in to try before the first has failed; no more than may fail are noted."""
    async with serve(sqlite_url, open=False, max_auth_failures=3) as served:
        head = showing(new_secret(SystemRandom(), API_KEY_PREFIX))
        asked = [served.client.get("/v1/studies", headers=head) for _ in range(20)]
        statuses = Counter(answer.status_code for answer in await asyncio.gather(*asked))
        assert statuses == {401: 3, 429: 17}
        assert len(await book(served).audit_entries(100, None)) == 3


def test_the_addresses_of_one_network_fail_together() -> None:
    def rates() -> RateLimits:
        return RateLimits(RateLimitItemPerMinute(1), RateLimitItemPerMinute(1))

    rates_v6 = rates()
    rates_v6.record_failure("2001:db8:0:1::1")
    assert not rates_v6.may_authenticate("2001:db8:0:1:ffff::2")
    assert rates_v6.may_authenticate("2001:db8:0:2::1")
    other = rates()
    other.record_failure("::ffff:192.0.2.1")
    assert not other.may_authenticate("192.0.2.1")  # the same, as a socket of both families has it
    assert other.may_authenticate("::ffff:192.0.2.2")
    other.record_failure("unknown")
    assert not other.may_authenticate("unknown")


async def test_an_event_stream_ends_once_its_key_is_revoked(serve: Serve, sqlite_url: str) -> None:
    """Followers with a revoked key get no later events; others do."""
    async with serve(sqlite_url, open=False, credential_cache_seconds=1e-6) as served:
        rates_v6, other = await keyed(served), await keyed(served)
        study = await study_of(served, rates_v6)
        async with listening(served, study, 0, rates_v6) as ends:
            known = len(await ends.until(3))  # created, started, opened
            secret = rates_v6["Authorization"].removeprefix("Bearer ")
            revoked = await book(served).find_principal(secret_digest(secret))
            assert revoked is not None
            await book(served).revoke(revoked.name)
            await served.client.post(f"/v1/studies/{study}/stop", headers=other)
            assert len(await ends.until_over()) == known
        async with listening(served, study, 0, other) as goes_on:
            assert len(await goes_on.until_over()) > known
        async with listening(served, study, 1, rates_v6) as refused:
            await refused.until_over()
            assert refused.status == 401


async def test_a_credential_with_too_many_requests_waits(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, open=False, max_requests=5) as served:
        rates_v6, other = await keyed(served), await keyed(served)
        for _ in range(5):
            assert (await served.client.get("/v1/studies", headers=rates_v6)).is_success
        answer = await served.client.get("/v1/studies", headers=rates_v6)
        problem(answer, 429, "too-many-requests")
        assert (await served.client.get("/v1/studies", headers=other)).is_success


async def test_a_seat_from_which_too_much_is_asked_waits(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, open=False, max_requests=5) as served:
        study = await study_of(served, await keyed(served))
        _, token = await book(served).create_token("phones", 2, None)
        rates_v6, other = [await seated(served, study, token, name) for name in ("one", "other")]
        statuses = [(await rates_v6.get("roster", wait=0)).status_code for _ in range(6)]
        assert statuses == [202] * 5 + [429]
        assert (await other.get("roster", wait=0)).status_code == 202


async def test_no_secret_is_kept_or_shown(
    serve: Serve, sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serve(sqlite_url, open=False) as served:
        head = await keyed(served)
        key = head["Authorization"].removeprefix("Bearer ")
        _, token = await book(served).create_token("phones", 9, None)
        credential = await enrolled(served, token, Identity.generate(Random(1)))
        await served.client.get("/v1/studies", headers=head)
        await served.client.get("/v1/studies", headers=showing(token))
        store = served.app.state.service.store
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
            assert secret not in repr(served.app.state.service)


async def test_the_audit_trail_names_actors_and_actions(serve: Serve, database_url: str) -> None:
    async with serve(database_url, open=False) as served:
        head = await keyed(served)
        study = await study_of(served, head)
        await served.client.post(f"/v1/studies/{study}/stop", headers=head)
        await served.client.get("/v1/studies/none")
        page = (await served.client.get("/v1/audit", headers=head, params={"limit": 2})).json()
        assert [entry["action"] for entry in page["entries"]] == [
            "GET without credential",
            "stop study",
        ]
        rest = await served.client.get("/v1/audit", headers=head, params={"before": page["next"]})
        assert [entry["action"] for entry in rest.json()["entries"]] == [
            "create study",
            "create key",
        ]
        assert rest.json()["entries"][0]["subject"] == study
        assert rest.json()["next"] is None


async def test_a_first_key_and_token_made_elsewhere_are_kept_once(
    serve: Serve, database_url: str
) -> None:
    key, token = (
        new_secret(SystemRandom(), "btk_"),
        new_secret(SystemRandom(), ENROLMENT_TOKEN_PREFIX),
    )
    async with serve(database_url, open=False) as served:
        for _ in range(2):
            await book(served).add_initial(key, token)
        assert [len(await book(served).keys()), len(await book(served).tokens())] == [1, 1]
        answer = await served.client.get("/v1/audit", headers=showing(key))
        assert {entry["action"] for entry in answer.json()["entries"]} == {
            "create key",
            "create token",
        }
        await enrolled(served, token, Identity.generate(Random(1)))

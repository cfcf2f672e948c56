"""ID tokens count if the provider made them for this client and attempt; answers are bounded."""

import asyncio
import hmac
import json
from base64 import urlsafe_b64encode
from random import Random
from typing import Any

import httpx
import pytest
from joserfc import jwk
from structlog.testing import capture_logs

from protocol.api.messages import ProblemType
from server.errors import ProblemError
from server.http import openid_issuer, openid_provider
from server.http.login_attempt import LoginAttempt
from server.http.openid_issuer import CLOCK_LEEWAY_SECONDS, MAX_ANSWER_BYTES
from server.http.openid_provider import OpenIdProvider
from server.principals import Permission, Principal
from tests.server.fake_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    KEY,
    FakeProvider,
    oidc_settings,
    on_a_port,
)
from tests.server.harness import NOON, Clock

NOW = int(NOON.timestamp())


@pytest.fixture
def fake(clock: Clock) -> FakeProvider:
    return FakeProvider(clock)


async def log_in(fake: FakeProvider, **changes: str) -> Principal:
    """Log in with a callback that has `changes`."""
    provider = OpenIdProvider(oidc_settings(), fake.transport())
    attempt = LoginAttempt.start(Random(1), fake.clock(), "")
    callback = fake.authorize(await provider.login_url(attempt)) | changes
    return await provider.log_in(attempt, openid_provider.Callback(**callback), fake.clock())


async def refusal(fake: FakeProvider, **changes: str) -> ProblemType:
    """Return the kind of the refusal, which has no secret, nor has the log."""
    with capture_logs() as logs, pytest.raises(ProblemError) as caught:
        await log_in(fake, **changes)
    shown = caught.value.detail + str(logs)
    token = "eyJ"  # how a token begins
    assert not any(text in shown for text in (CLIENT_SECRET, "code-0", token))
    return caught.value.kind


async def test_a_person_has_the_scopes_of_their_address_or_of_their_domain(
    fake: FakeProvider,
) -> None:
    anna = await log_in(fake)
    assert (anna.name, str(anna)) == ("anna@example.org", "person anna@example.org")
    assert anna.permissions == {Permission.READ, Permission.WRITE}
    for name in ("ben", "b" * 78):  # at most 90 characters
        fake.claims["email"] = f"{name}@example.org"
        assert (await log_in(fake)).permissions == {Permission.READ}


@pytest.mark.parametrize(
    "claims",
    [
        {"email_verified": False},
        {"email_verified": None},
        {"email_verified": "true"},
        {"email_verified": 1},
        {"email": None},
        {"email": ["anna@example.org"]},
        {"email": "anna@example.org "},
        {"email": "anna@evil.example@example.org"},
        {"email": "\u212aarl@example.org"},  # the Kelvin sign, whose lower case is k
        {"email": "@example.org"},
        {"email": "a" * 79 + "@example.org"},  # 91 characters
        {"email": "anna@sub.example.org"},
        {"email": "anna@evil.example"},
        {"email": "anna@evilexample.org"},
        {"email": "out@example.org"},
    ],
)
async def test_unverified_malformed_and_other_addresses_are_refused(
    fake: FakeProvider, claims: dict[str, Any]
) -> None:
    fake.claims |= claims
    assert await refusal(fake) is ProblemType.FORBIDDEN


@pytest.mark.parametrize(
    "claims",
    [
        *({name: None} for name in ("iss", "aud", "sub", "nonce", "iat", "exp")),
        {"iss": "https://login.example.org/realms/b"},
        {"iss": "https://login.example.org/realms/a/"},
        {"aud": "another"},
        {"aud": ["another"]},
        {"aud": [CLIENT_ID, "another"]},
        {"aud": [CLIENT_ID, "another"], "azp": "another"},
        {"azp": "another"},
        {"nonce": "another"},
        {"exp": NOW - CLOCK_LEEWAY_SECONDS},
        {"exp": "tomorrow"},
        {"iat": NOW + CLOCK_LEEWAY_SECONDS + 1},
        {"nbf": NOW + CLOCK_LEEWAY_SECONDS + 1},
    ],
)
async def test_a_token_for_others_or_another_time_is_refused(
    fake: FakeProvider, claims: dict[str, Any]
) -> None:
    fake.claims |= claims
    assert await refusal(fake) is ProblemType.NOT_AUTHORISED


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": [CLIENT_ID]},
        {"aud": [CLIENT_ID, "another"], "azp": CLIENT_ID},
        {"azp": CLIENT_ID},
        {"exp": NOW - CLOCK_LEEWAY_SECONDS + 1},
        {"iat": NOW + CLOCK_LEEWAY_SECONDS},
    ],
)
async def test_several_audiences_and_clocks_a_minute_apart_are_accepted(
    fake: FakeProvider, claims: dict[str, Any]
) -> None:
    fake.claims |= claims
    assert (await log_in(fake)).name == "anna@example.org"


def forged(fake: FakeProvider, header: dict[str, Any], secret: bytes | None) -> str:
    """Return a token with valid claims, signed by HMAC with `secret`, or by nothing."""
    nonce = LoginAttempt.start(Random(1), fake.clock(), "").nonce
    payload = fake.id_token(nonce).split(".")[1]
    head = urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode()
    tag = b"" if secret is None else hmac.digest(secret, f"{head}.{payload}".encode(), "sha256")
    return f"{head}.{payload}.{urlsafe_b64encode(tag).rstrip(b'=').decode()}"


@pytest.mark.parametrize("algorithm", ["none", "None", "HS256", "RS256", "", 7, None])
@pytest.mark.parametrize(
    "secret",
    [None, KEY.as_pem(private=False), json.dumps(KEY.as_dict(private=False)).encode()],
    ids=["unsigned", "public key as PEM", "public key as JWK"],
)
async def test_a_token_that_is_not_signed_by_a_private_key_is_refused(
    fake: FakeProvider, algorithm: object, secret: bytes | None
) -> None:
    fake.token = forged(fake, {"alg": algorithm, "kid": "first"}, secret)
    assert await refusal(fake) is ProblemType.NOT_AUTHORISED


async def test_a_symmetric_key_of_the_provider_signs_nothing(fake: FakeProvider) -> None:
    fake.answers["/keys"] = httpx.Response(
        200, json={"keys": [{"kty": "oct", "kid": "first", "k": "c2VjcmV0" * 6}]}
    )
    fake.token = forged(fake, {"alg": "HS256", "kid": "first"}, b"secret" * 6)
    assert await refusal(fake) is ProblemType.NOT_AUTHORISED


async def test_a_token_of_another_key_or_with_an_unknown_condition_is_refused(
    fake: FakeProvider,
) -> None:
    fake.answers["/keys"] = fake.key_set(httpx.Request("GET", "https://a"))
    fake.key = jwk.ECKey.generate_key("P-256", {"kid": "first"})
    assert await refusal(fake) is ProblemType.NOT_AUTHORISED
    for header in ({"alg": "ES256", "kid": "second"}, {"alg": "ES256", "crit": ["x"], "x": 1}):
        fake.token = forged(fake, header, None)
        assert await refusal(fake) is ProblemType.NOT_AUTHORISED
    for malformed in ("eyJ", "eyJ.eyJ.", "eyJ" * 60_000):
        fake.token = malformed
        assert await refusal(fake) is ProblemType.NOT_AUTHORISED


async def test_a_new_key_of_the_provider_is_known_at_the_next_login(fake: FakeProvider) -> None:
    await log_in(fake)
    fake.key, fake.algorithm = jwk.RSAKey.generate_key(2048, {"kid": "second"}), "RS256"
    assert (await log_in(fake)).name == "anna@example.org"


async def test_a_code_is_exchanged_once_and_by_the_attempt_that_asked_for_it(
    fake: FakeProvider,
) -> None:
    provider = OpenIdProvider(oidc_settings(), fake.transport())
    first, second = (LoginAttempt.start(Random(seed), NOON, "") for seed in (1, 2))
    asked = fake.authorize(await provider.login_url(first))
    stolen = openid_provider.Callback(code=asked["code"], state=second.state)
    with capture_logs() as logs, pytest.raises(ProblemError):  # PKCE: another attempt's verifier
        await provider.log_in(second, stolen, NOON)
    assert [line["reason"] for line in logs] == ["the token endpoint answers 'invalid_grant'"]
    callback = openid_provider.Callback(**fake.authorize(await provider.login_url(first)))
    await provider.log_in(first, callback, NOON)
    with pytest.raises(ProblemError, match="log in again"):
        await provider.log_in(first, callback, NOON)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "another"},
        {"iss": "https://evil.example"},
        {"error": "access_denied"},
        {"code": ""},
    ],
)
async def test_a_callback_of_others_reaches_no_token(
    fake: FakeProvider, changes: dict[str, str]
) -> None:
    assert await refusal(fake, **changes) is ProblemType.NOT_AUTHORISED
    assert [request.method for request in fake.requests] == ["GET"]


@pytest.mark.parametrize(
    ("claims", "header", "reason"),
    [
        ({"aud": "another"}, {}, "invalid_claim: Invalid claim: 'aud'"),
        ({"iss": None}, {}, "missing_claim: Missing claim: 'iss'"),
        ({}, {"kid": "second"}, "No key for kid: 'second'"),
        ({}, {"crit": ["x"], "x": 1}, "Unsupported ['x'] in header"),
    ],
)
async def test_the_log_has_the_reason_of_a_refusal(
    fake: FakeProvider, claims: dict[str, Any], header: dict[str, Any], reason: str
) -> None:
    fake.claims |= claims
    fake.header |= header
    with capture_logs() as logs, pytest.raises(ProblemError, match="log in again"):
        await log_in(fake)
    (line,) = logs
    assert (line["log_level"], reason in line["reason"]) == ("warning", True), line


async def test_a_provider_that_names_itself_in_callbacks_always_does(fake: FakeProvider) -> None:
    fake.discovery["authorization_response_iss_parameter_supported"] = True
    assert (await log_in(fake)).name == "anna@example.org"
    provider = OpenIdProvider(oidc_settings(), fake.transport())
    attempt = LoginAttempt.start(Random(1), NOON, "")
    asked = fake.authorize(await provider.login_url(attempt))
    with pytest.raises(ProblemError, match="log in again"):
        await provider.log_in(attempt, openid_provider.Callback(**asked | {"iss": None}), NOON)


@pytest.mark.filterwarnings("ignore:Key size")
async def test_a_short_rsa_key_signs_nothing(fake: FakeProvider) -> None:
    fake.key, fake.algorithm = jwk.RSAKey.generate_key(1024, {"kid": "first"}), "RS256"
    assert await refusal(fake) is ProblemType.NOT_AUTHORISED


@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/token", "/keys"])
@pytest.mark.parametrize(
    "answer",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.Response(500, json={}),
        httpx.Response(302, headers={"Location": "https://evil.example/"}),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json=[]),
        httpx.Response(200, text="[" * 100_000),
        httpx.Response(200, text=" " * MAX_ANSWER_BYTES + "{}"),
    ],
    ids=["down", "slow", "broken", "elsewhere", "page", "list", "deep", "large"],
)
async def test_without_a_good_answer_of_the_provider_nobody_logs_in(
    fake: FakeProvider, path: str, answer: httpx.Response | Exception
) -> None:
    fake.answers[path] = answer
    assert await refusal(fake) is ProblemType.UNAVAILABLE


class Drip(httpx.AsyncByteStream):
    """Body that never ends."""

    async def __aiter__(self) -> Any:
        while True:
            await asyncio.sleep(0.005)
            yield b" "


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("NO_PROXY", "localhost,[::1]"),
        ("HTTPS_PROXY", "ftp://proxy.test"),
        ("HTTPS_PROXY", "http://proxy.test:port"),
        ("ALL_PROXY", "socks5://proxy.test"),
    ],
)
async def test_an_unusable_proxy_variable_is_an_outage_of_the_login_only(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv(variable, value)
    provider = OpenIdProvider(oidc_settings())
    with pytest.raises(ProblemError) as caught:
        await provider.login_url(LoginAttempt.start(Random(1), clock(), ""))
    assert caught.value.kind is ProblemType.UNAVAILABLE


async def test_an_answer_has_a_limited_time(
    fake: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openid_issuer, "_ANSWER_SECONDS", 0.02)
    fake.answers["/keys"] = httpx.Response(200, stream=Drip())
    assert await refusal(fake) is ProblemType.UNAVAILABLE


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": "https://login.example.org/realms/b"},
        {"token_endpoint": "http://login.example.org/token"},
        {"jwks_uri": None},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"token_endpoint": "http://localhost/token"},
        {"jwks_uri": "http://127.0.0.1:8000/v1/studies"},
    ],
)
async def test_a_discovery_document_of_others_or_without_tls_is_refused(
    fake: FakeProvider, changes: dict[str, Any]
) -> None:
    fake.discovery = changes
    assert await refusal(fake) is ProblemType.UNAVAILABLE


async def test_the_addresses_are_requested_once_and_after_a_failure_after_a_pause(
    fake: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = 1000.0
    monkeypatch.setattr(openid_issuer, "monotonic", lambda: time)
    provider = OpenIdProvider(oidc_settings(), fake.transport())
    attempt = LoginAttempt.start(Random(1), NOON, "")
    fake.answers["/.well-known/openid-configuration"] = httpx.ConnectError("refused")
    for _ in range(2):
        with pytest.raises(ProblemError):
            await provider.login_url(attempt)
    time += 4.9
    with pytest.raises(ProblemError):
        await provider.login_url(attempt)
    assert len(fake.requests) == 1
    fake.answers.clear()
    for later, requests in ((5.0, 2), (3599.0, 2), (3601.0, 3)):
        time = 1000.0 + later
        time += 5.0 if later > 5 else 0.0
        await provider.login_url(attempt)
        assert len(fake.requests) == requests


async def test_requests_for_the_addresses_that_wait_for_a_failure_do_not_repeat_it(
    fake: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the last of many people waits ten seconds for each of the others."""
    monkeypatch.setattr(openid_issuer, "_ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(openid_issuer, "_PAUSE_SECONDS", 0.04)
    fake.answers["/.well-known/openid-configuration"] = httpx.Response(200, stream=Drip())
    provider = OpenIdProvider(oidc_settings(), fake.transport())
    attempt = LoginAttempt.start(Random(1), NOON, "")
    with capture_logs() as logs:
        waiting = [provider.login_url(attempt) for _ in range(20)]
        problems = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(problem, ProblemError) for problem in problems)
    assert (len(fake.requests), len(logs)) == (1, 1)


async def test_a_burst_at_a_slow_provider_ends_no_later_login(
    fake: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that wait for others are cancelled when their time is over."""
    with on_a_port(fake):
        provider = OpenIdProvider(oidc_settings(oidc_issuer=fake.issuer))
        attempt = LoginAttempt.start(Random(1), NOON, "")
        url = await provider.login_url(attempt)
        callback = openid_provider.Callback(**fake.authorize(url))
        forged = openid_provider.Callback(code="code-9", state=attempt.state)
        with monkeypatch.context() as slow:
            slow.setattr(openid_issuer, "_ANSWER_SECONDS", 0.1)
            fake.pause = 0.02
            burst = [provider.log_in(attempt, forged, NOON) for _ in range(100)]
            problems = await asyncio.gather(*burst, return_exceptions=True)
        assert all(isinstance(problem, ProblemError) for problem in problems)
        assert ProblemType.UNAVAILABLE in {problem.kind for problem in problems}
        fake.pause = 0.0
        assert (await provider.log_in(attempt, callback, NOON)).name == "anna@example.org"


async def test_a_provider_that_refuses_basic_authentication_gets_the_secret_in_the_form(
    fake: FakeProvider,
) -> None:
    fake.discovery["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    await log_in(fake)
    (request,) = (each for each in fake.requests if each.method == "POST")
    assert "authorization" not in request.headers

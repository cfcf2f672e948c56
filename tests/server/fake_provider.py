"""An OpenID provider in memory, which departs from the standard where a test wants it."""

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from time import sleep
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx
from joserfc import jwk, jwt

from server.settings import Settings

ISSUER = "https://login.example.org/realms/a"
CLIENT_ID = "a client"  # a blank, which must be encoded in the header
CLIENT_SECRET = "a+b:c/Kq7"
PUBLIC_URL = "https://stats.example.org"
REDIRECT_URI = f"{PUBLIC_URL}/login/oidc/callback"
OIDC_SETTINGS: dict[str, Any] = {
    "public_url": f"{PUBLIC_URL}/",
    "oidc_issuer": ISSUER,
    "oidc_client_id": CLIENT_ID,
    "oidc_client_secret": CLIENT_SECRET,
    "oidc_allowed": (
        '{"anna@example.org": ["read", "write"], "@example.org": ["read"], "out@example.org": []}'
    ),
    "oidc_name": "Example <ID>",
    "open": False,
}
KEY = jwk.ECKey.generate_key("P-256", {"kid": "first", "use": "sig"})


def oidc_settings(**changes: Any) -> Settings:
    return Settings(**(OIDC_SETTINGS | changes))


@dataclass
class FakeProvider:
    """Provider that logs in `email`; its `claims` and `answers` replace correct ones."""

    clock: Callable[[], datetime]
    issuer: str = ISSUER
    redirect_uri: str = REDIRECT_URI
    claims: dict[str, Any] = field(default_factory=dict)  # None leaves a claim out
    header: dict[str, Any] = field(default_factory=dict)  # of a token, besides the usual fields
    answers: dict[str, httpx.Response | Exception] = field(default_factory=dict)  # by path
    token: str | None = None  # instead of a signed one
    key: jwk.Key = field(default_factory=lambda: KEY)
    algorithm: str = "ES256"
    discovery: dict[str, Any] = field(default_factory=dict)
    requests: list[httpx.Request] = field(default_factory=list)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    pause: float = 0.0  # seconds before an answer of the token endpoint

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self.answer)

    def authorize(self, url: str) -> dict[str, str]:
        """Log a person in at `url`; return the query of the callback."""
        asked = dict(parse_qsl(urlsplit(url).query))
        assert url.startswith(f"{self.issuer}/authorize?kind=web&")
        assert asked["redirect_uri"] == self.redirect_uri
        assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT_ID)
        assert (asked["code_challenge_method"], asked["scope"]) == ("S256", "openid email")
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked
        return {"code": code, "state": asked["state"], "iss": self.issuer}

    def callback(self, url: str, **changes: str) -> str:
        """Return the address to which the browser that was sent to `url` is sent back."""
        return f"{self.redirect_uri}?{urlencode(self.authorize(url) | changes)}"

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        path = request.url.path.removeprefix("/realms/a")
        answer = self.answers.get(path) or self._routes[path](request)
        if isinstance(answer, Exception):
            raise answer
        # As from a network: a response that has been made is already read, once and for all.
        return httpx.Response(answer.status_code, headers=answer.headers, stream=answer.stream)

    @property
    def _routes(self) -> dict[str, Callable[[httpx.Request], httpx.Response]]:
        return {
            "/.well-known/openid-configuration": self._configuration,
            "/token": self._token,
            "/keys": self.key_set,
        }

    def _configuration(self, _request: httpx.Request) -> httpx.Response:
        document = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize?kind=web",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
        }
        return httpx.Response(200, json=document | self.discovery)

    def key_set(self, _request: httpx.Request) -> httpx.Response:
        unknown = {"kty": "lattice", "kid": "new"}
        keys = [unknown, 7, {"kty": "EC"}, self.key.as_dict(private=False)]
        return httpx.Response(200, json={"keys": keys})

    def _token(self, request: httpx.Request) -> httpx.Response:
        sleep(self.pause)
        form = {name: values[0] for name, values in parse_qs(request.content.decode()).items()}
        given = request.headers.get("authorization", "").removeprefix("Basic ")
        secret = (form.get("client_id"), form.get("client_secret"))
        if given:
            assert b64decode(given) == b"a+client:a%2Bb%3Ac%2FKq7"
        else:
            assert secret == (CLIENT_ID, CLIENT_SECRET)
        asked = self.codes.pop(form["code"], None)
        digest = sha256(form["code_verifier"].encode()).digest()
        challenge = urlsafe_b64encode(digest).rstrip(b"=").decode()
        if asked is None or asked["code_challenge"] != challenge:
            return httpx.Response(400, json={"error": "invalid_grant"})
        assert form["redirect_uri"] == self.redirect_uri
        token = self.token or self.id_token(asked["nonce"])
        return httpx.Response(200, json={"id_token": token, "access_token": "unused"})

    def id_token(self, nonce: str) -> str:
        now = int(self.clock().timestamp())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT_ID,
            "sub": "1",
            "nonce": nonce,
            "iat": now,
            "exp": now + 300,
            "email": "Anna@Example.org",
            "email_verified": True,
        } | self.claims
        sent = {name: value for name, value in claims.items() if value is not None}
        header = {"alg": self.algorithm, "kid": str(self.key.kid), "x-other": "1"} | self.header
        return jwt.encode(header, sent, self.key, [self.algorithm], registry=_ANY_HEADER)


class _AnyHeader(jwt.JWSRegistry):
    """Registry for tokens with any header, also one that no client accepts."""

    def check_header(self, header: dict[str, Any]) -> None: ...


_ANY_HEADER = _AnyHeader(algorithms=["ES256", "RS256"])


@contextmanager
def on_a_port(provider: FakeProvider) -> Iterator[None]:
    """Serve `provider` at a free port of localhost, to which `issuer` is set."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/realms/a/authorize"):  # a page, from which a person returns
                link = escape(provider.callback(origin + self.path))
                page = f'<link rel="icon" href="data:,"><a href="{link}">I am Anna</a>'
                self.send("text/html", page.encode())
            else:
                self.do_POST()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = dict(self.headers.items())
            request = httpx.Request(self.command, origin + self.path, headers=headers, content=body)
            self.send("application/json", provider.answer(request).read())

        def send(self, media_type: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("localhost", 0), Handler) as server:
        origin = f"http://localhost:{server.server_port}"
        provider.issuer = f"{origin}/realms/a"
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()

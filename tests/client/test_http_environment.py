"""Proxies and certificates of the environment: used, or refused with the name of the variable."""

import os
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from blindtally.cli import app
from client.analyst.analyst import Analyst
from client.analyst.async_analyst import AsyncAnalyst
from client.errors import ServiceError, ServiceUnreachableError, UnreadableAnswerError
from client.http.transport import Transport, http_client
from client.http_environment import proxy_of, tls_context
from tests.server.fake_provider import OIDC_SETTINGS

pytestmark = pytest.mark.usefixtures("quick_retries")
SECRET = "not-a-real-password"
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    tls_context.cache_clear()
    yield
    tls_context.cache_clear()


class _Page(BaseHTTPRequestHandler):
    """A proxy, or another program, that answers each request with a page."""

    status = 200

    def do_GET(self) -> None:
        body = b'{"studies": [], "next": null}'
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), _Page) as server:
        server.status = 200  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_request_to_this_machine_uses_no_proxy(
    host: str, server: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "localhost,[::1]")  # which httpx cannot read
    url = f"http://{host}:{server.server_port}"
    with Analyst(url, patience=1) as analyst:
        assert list(analyst.studies()) == []
    async with AsyncAnalyst(url, patience=1) as analyst:
        assert [each async for each in analyst.studies()] == []
    async with http_client(url) as http:
        assert (await Transport(http, 1).send("GET", "/studies")).status_code == 200


@pytest.mark.parametrize(
    ("url", "no_proxy", "is_used"),
    [
        ("http://service.test:8000", "localhost,[::1]", True),
        ("http://service.test:8000", "localhost, service.test", False),
        ("http://service.test:8000", "service.test:8000", False),
        ("http://service.test:8000", "service.test:8001", True),
        ("http://counts.service.test", ".service.test", False),
        ("http://service.test", "*", False),
        ("http://[2001:db8::1]:80", "[2001:db8::1]", False),
        ("http://[2001:db8::1]:80", "2001:db8::1", False),
        ("http://[::1]:8000", "", False),
        ("http://127.9.9.9", "", False),
        ("http://0.0.0.0:8000", "", False),
    ],
)
def test_no_proxy_lists_hosts_that_need_none(
    url: str, no_proxy: str, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "proxy.test:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    with Analyst(url):
        assert (proxy_of(httpx.URL(url)) is not None) is is_used


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("HTTPS_PROXY", f"ftp://me:{SECRET}@proxy.test", "is not the address of a proxy"),
        ("https_proxy", f"http://me:{SECRET}/x@proxy.test", "is not the address of a proxy"),
        ("ALL_PROXY", "http://", "is not the address of a proxy"),
        ("HTTPS_PROXY", "http://proxy.test:port", "is not the address of a proxy"),
        ("https_proxy", f"http:/me:{SECRET}@proxy.test", "is not the address of a proxy"),
        ("https_proxy", f"http://proxy.test/?key={SECRET}", "is not the address of a proxy"),
        ("https_proxy", f"http://proxy.test/#{SECRET}", "is not the address of a proxy"),
        ("all_proxy", "socks5://proxy.test", r"pip install httpx\[socks\]"),
        ("SSL_CERT_FILE", "/nowhere/ca.pem", "No such file or directory"),
        ("SSL_CERT_FILE", __file__, "has no certificates"),
        ("SSL_CERT_FILE", str(Path(__file__).parent), "cannot be used"),
        ("SSL_CERT_DIR", "/nowhere/certificates", "No such file or directory"),
        ("SSLKEYLOGFILE", "/nowhere/keys.log", "No such file or directory"),
    ],
)
def test_an_unusable_variable_is_named(
    variable: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    url = "https://service.test"
    for use in (Analyst, AsyncAnalyst, http_client):
        with pytest.raises(ValueError, match=f"^{variable}.*{reason}") as refusal:
            use(url)
        assert SECRET not in str(refusal.value)
    result = CliRunner().invoke(app, ["studies", "list", "--url", url])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {variable}")
    assert result.stderr.count("\n") == 1
    assert SECRET not in result.output


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("SSL_CERT_FILE", __file__, "SSL_CERT_FILE=.*has no certificates"),
        ("SSL_CERT_DIR", "/nowhere/certificates", "SSL_CERT_DIR=.*No such file"),
        ("HTTPS_PROXY", f"ftp://me:{SECRET}@proxy.test", "HTTPS_PROXY is not the address"),
        ("NO_PROXY", "[::1]", "NO_PROXY"),
    ],
)
def test_a_service_with_an_openid_provider_names_an_unusable_variable(
    variable: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise the service would end in a traceback, or nobody could log in."""
    monkeypatch.setattr("server.telemetry.logs.configure", lambda **_: None)  # it would stay
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setenv(variable, value)
    for name, setting in OIDC_SETTINGS.items():
        monkeypatch.setenv(f"BLINDTALLY_{name.upper()}", str(setting))
    result = CliRunner().invoke(app, ["serve", "--database", f"sqlite:///{tmp_path}/x.db"])
    assert result.exit_code == 2
    *_, line = result.stderr.splitlines()
    assert re.match(f"error: {reason}", line)
    assert "Traceback" not in result.output
    assert SECRET not in result.output


def test_an_unusable_variable_of_https_does_not_concern_http(
    server: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    monkeypatch.setenv("HTTPS_PROXY", "ftp://proxy.test")
    with Analyst(f"http://127.0.0.1:{server.server_port}", patience=1) as analyst:
        assert list(analyst.studies()) == []


@pytest.mark.parametrize("status", [None, 403, 503])
def test_an_error_behind_a_proxy_names_the_proxy(
    status: int | None, server: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy is out of reach, or answers by itself."""
    port = server.server_port if status else 1
    server.status = status  # type: ignore[attr-defined]
    monkeypatch.setenv("HTTP_PROXY", f"http://me:{SECRET}@127.0.0.1:{port}/")
    with (
        Analyst("http://service.test", patience=0.1) as analyst,
        pytest.raises((ServiceError, ServiceUnreachableError)) as refusal,
    ):
        list(analyst.studies())
    assert f"through the proxy http://127.0.0.1:{port} (HTTP_PROXY)" in str(refusal.value)
    assert SECRET not in str(refusal.value)
    assert not isinstance(refusal.value, UnreadableAnswerError)
    assert "HTTP_PROXY" in os.environ

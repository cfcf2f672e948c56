"""The service over HTTPS, by a certificate made here, and its errors without one."""

import asyncio
import re
import ssl
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from blindtally.cli import app
from client.analyst.analyst import Analyst
from client.analyst.async_analyst import AsyncAnalyst
from client.errors import ServiceUnreachableError
from client.http.transport import http_client
from tests.server.conftest import Serve
from tests.server.harness import Served
from tests.server.test_process import running


def test_the_service_uses_https_with_clients_that_trust_its_certificate(
    sqlite_url: str, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, key = pair
    monkeypatch.setenv("BLINDTALLY_HSTS_SECONDS", "3600")
    flags = ("--tls-certificate", str(chain), "--tls-key", str(key))
    with running(sqlite_url, *flags) as process:
        assert process.url.startswith("https://")
        trust = ssl.create_default_context(cafile=str(chain))
        answer = httpx.get(f"{process.url}/readyz", verify=trust, timeout=20)
        assert answer.json() == {"status": "ok"}
        assert answer.headers["strict-transport-security"] == "max-age=3600"
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{process.url}/readyz", timeout=20)  # nobody vouches for it


async def test_a_fleet_uses_https_with_a_certificate_that_it_trusts(
    sqlite_url: str, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, key = pair
    flags = ("--tls-certificate", str(chain), "--tls-key", str(key))
    trust = ssl.create_default_context(cafile=str(chain))
    with running(sqlite_url, *flags) as process:
        async with http_client(process.url) as http:
            with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
                await http.get("/studies")
        monkeypatch.setattr("client.http.address_and_retries.tls_context", lambda: trust)
        async with http_client(process.url) as http:
            assert (await http.get("/studies")).status_code == 200


async def test_hsts_is_sent_over_https_only(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url, hsts_seconds=60) as served:
        answer = await served.client.get("/healthz")
        assert "strict-transport-security" not in answer.headers
        answer = await served.client.get("https://test/healthz")
        assert answer.headers["strict-transport-security"] == "max-age=60"


async def test_only_pages_load_resources(served: Served) -> None:
    for path in ("/v1/studies", "/v1/nothing"):
        policy = (await served.client.get(path)).headers["content-security-policy"]
        assert policy == "default-src 'none'; frame-ancestors 'none'"


def test_a_certificate_that_cannot_be_used_is_refused_in_words(
    tmp_path: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "server.telemetry.logs.configure", lambda **_: None
    )  # it would outlive this test
    chain, key = map(str, pair)
    database = ["--database", f"sqlite:///{tmp_path}/x.db", "--port", "0"]
    for flags, message in (
        (["--tls-certificate", chain], "name both, or neither"),
        (["--tls-certificate", key, "--tls-key", key], "cannot be used"),
        (["--tls-certificate", f"{chain}x", "--tls-key", key], "cannot be used"),
    ):
        result = CliRunner().invoke(app, ["serve", *database, *flags])
        assert result.exit_code in (1, 2)
        assert message in result.output


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("http://127.0.0.1:1", "check the address, and that the service runs there"),
        ("http://nobody.invalid", "no such name is known"),
        ("https://127.0.0.1:{plain}", "does the server use TLS? If not: http://127.0.0.1:{plain}"),
        ("http://127.0.0.1:{tls}", "does the server use TLS? Then: https://127.0.0.1:{tls}"),
    ],
)
async def test_a_wrong_address_ends_the_first_request_at_once(
    url: str, advice: str, pair: tuple[Path, Path]
) -> None:
    def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pair)
    plain = await asyncio.start_server(answer, "127.0.0.1", 0)
    tls = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    ports = {"plain": plain.sockets[0].getsockname()[1], "tls": tls.sockets[0].getsockname()[1]}
    shown = re.escape(f"({advice.format(**ports)}")
    async with plain, tls, asyncio.timeout(20):
        async with AsyncAnalyst(url.format(**ports), patience=1e6) as first:
            with pytest.raises(ServiceUnreachableError, match=shown):
                await first.study("s1")
        analyst = Analyst(url.format(**ports), patience=1e6)
        with analyst, pytest.raises(ServiceUnreachableError, match=shown):
            await asyncio.to_thread(analyst.study, "s1")

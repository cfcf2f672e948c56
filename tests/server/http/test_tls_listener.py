"""TLS connections count from the moment they are accepted, and their handshakes end."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from socket import create_server

import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

from server.http.connection_limits import ConnectionCounter, ConnectionLimits, LimitedHttpProtocol
from server.http.tls_listener import TlsListener
from server.telemetry.metrics import Metrics


@asynccontextmanager
async def listening(pair: tuple[Path, Path], limits: ConnectionLimits) -> AsyncIterator[int]:
    """Yield the port of a listener."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pair)
    config = uvicorn.Config(FastAPI(), ws="none", log_config=None)
    arguments = {"config": config, "server_state": ServerState(), "app_state": {}}
    make_http = partial(LimitedHttpProtocol, limits=limits, **arguments)
    with create_server(("127.0.0.1", 0)) as listener:
        server = TlsListener(listener, context, limits, make_http)
        yield listener.getsockname()[1]
        server.close()
        await server.wait_closed()


async def test_a_connection_counts_before_its_handshake_which_has_to_end(
    pair: tuple[Path, Path],
) -> None:
    """700 connections that sent nothing took all 600 file descriptors of a process for a minute."""
    metrics = Metrics()
    count = partial(metrics.registry.get_sample_value, "blindtally_connections")
    counter = ConnectionCounter(4, lambda _: False, metrics)
    trust = ssl.create_default_context(cafile=str(pair[0]))
    async with listening(pair, ConnectionLimits(0.5, 30, 4096, 20, counter)) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        with suppress(ConnectionError):
            assert await asyncio.wait_for(silent[2][0].read(), 0.4) == b""
        assert count() == 2
        for reader, _ in silent:
            with suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 20) == b""
        assert count() == 0
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
        assert count() == 1
        writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"HTTP/1.1 200")
        for _, each in (*silent, (reader, writer)):
            each.close()
        for _ in range(100):
            if not count():
                break
            await asyncio.sleep(0.02)
        assert count() == 0

"""Second listener of an open service, on an address that phones reach: for `demo --join`.

The process of the demo chooses the address, the certificate and a random token, and passes them on
in the environment, which other users of the machine cannot read. `server.http.join_paths` has what
is reachable there.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from socket import create_server, socket
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from ssl import SSLContext

    import uvicorn
    from fastapi import FastAPI

JOIN_VARIABLE: Final = "_BLINDTALLY_JOIN"
# A browser opens six connections, several may share an address, and a long poll takes 25 seconds.
MAX_CONNECTIONS, MAX_OF_ADDRESS = 200, 60
HEAD_SECONDS, CONNECTION_SECONDS, ANSWER_SECONDS = 10, 60, 30


@dataclass(frozen=True, slots=True)
class JoinListener:
    """Address, token and certificate (a PEM file with its key) of the listener.

    Phones know it by the `name` of the certificate, which may be the address.
    """

    name: str
    host: str
    port: int
    certificate: str
    token: str = field(repr=False)

    def url(self, study: str) -> str:
        """Return the link with which a browser takes part in a study."""
        return f"https://{self.name}:{self.port}/{self.token}/join/{study}"

    def as_environment(self) -> Mapping[str, str]:
        """Return the variable that tells a service to listen."""
        return {JOIN_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def of_environment(cls) -> Self | None:
        """Return the listener that the environment asks for, or None."""
        text = os.environ.get(JOIN_VARIABLE)
        return cls(**json.loads(text)) if text else None

    async def listen(self, server: "uvicorn.Server", app: "FastAPI") -> None:
        """Let a running server of `app` listen here, too; it closes with the server's listeners.

        Raises:
            OSError: if the address is taken, or the certificate cannot be read.
        """
        import uvicorn  # noqa: PLC0415 - the demo's process starts without it

        from server.http.join_paths import JoinPaths  # noqa: PLC0415

        config = uvicorn.Config(
            JoinPaths(app, self.token),
            http="h11",  # the parser of uvicorn that limits the size of headers
            ws="none",
            lifespan="off",
            log_level="error",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ssl_certfile=self.certificate,
        )
        config.load()
        new_protocol: Any = config.http_protocol_class
        options = {"server_state": server.server_state, "app_state": server.lifespan.state}
        protocol = partial(new_protocol, config=config, **options)
        listening = create_server((self.host, self.port))
        server.servers.append(_Door(listening, protocol, config.ssl))  # type: ignore[arg-type]


class _Door:
    """Lets few connections in at a time, of all addresses and of each, and ends slow ones.

    There is no proxy before this listener, and uvicorn has no such limits. A connection has its
    first request after `HEAD_SECONDS`, and ends after `CONNECTION_SECONDS`, once it is answered, or
    `ANSWER_SECONDS` later. What its bytes do to its protocol ends no other connection.
    """

    def __init__(
        self, listening: socket, new_protocol: Callable[[], Any], ssl: "SSLContext | None"
    ) -> None:
        listening.setblocking(False)
        self._listening, self._new_protocol, self._ssl = listening, new_protocol, ssl
        self._open = Counter[str]()
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        self._accepting.cancel()
        self._listening.close()

    async def wait_closed(self) -> None:
        await asyncio.wait([self._accepting])

    async def _accept(self) -> None:
        async with asyncio.TaskGroup() as connections:
            while True:
                try:
                    connection, (host, *_) = await asyncio.get_running_loop().sock_accept(
                        self._listening
                    )
                except OSError:  # such as too many open files
                    await asyncio.sleep(1)
                    continue
                if self._open.total() < MAX_CONNECTIONS and self._open[host] < MAX_OF_ADDRESS:
                    self._open[host] += 1
                    connections.create_task(self._serve(connection, host))
                else:
                    connection.close()

    async def _serve(self, connection: socket, host: str) -> None:
        loop, protocol, transport = asyncio.get_running_loop(), self._new_protocol(), None
        limits = {"ssl_handshake_timeout": HEAD_SECONDS, "ssl_shutdown_timeout": HEAD_SECONDS}
        try:
            with suppress(Exception):  # such as a failed handshake
                transport, _ = await loop.connect_accepted_socket(
                    lambda: protocol, connection, ssl=self._ssl, **limits
                )
                for second in range(CONNECTION_SECONDS + ANSWER_SECONDS):
                    is_silent = second == HEAD_SECONDS and protocol.cycle is None
                    if is_silent or protocol not in protocol.connections:
                        break
                    if second == CONNECTION_SECONDS:
                        protocol.shutdown()
                    await asyncio.sleep(1)
        finally:
            if transport is not None:
                transport.abort()
            self._open[host] -= 1

"""Second listener of an open service, on an address that phones reach: for `demo --join`.

The process of the demo chooses the address, the certificate and a random token, and passes them on
in the environment, which other users of the machine cannot read. `server.http.join_paths` has what
is reachable there.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

JOIN_VARIABLE: Final = "_BLINDTALLY_JOIN"


@dataclass(frozen=True, slots=True)
class JoinListener:
    """Address, token and certificate (a PEM file with its key) of the listener."""

    host: str
    port: int
    certificate: str
    token: str = field(repr=False)

    def url(self, study: str) -> str:
        """Return the link with which a browser takes part in a study."""
        return f"https://{self.host}:{self.port}/{self.token}/join/{study}"

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
            http="httptools",
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
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(protocol, self.host, self.port, ssl=config.ssl)
        server.servers.append(listener)

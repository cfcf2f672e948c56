"""Bare servers with which the service is compared; they accept uploads only.

    raw ASGI                 a function of ASGI; uploads that arrive together share a commit
    FastAPI and SQLAlchemy   a route of FastAPI; each upload has its own session and commit

Each hashes a body, verifies a signature, and acknowledges the body after its commit. Both run in
uvicorn, as the service does: `python -m benchmarks.secure_sums.bare_servers KIND DATABASE PORT`.
"""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from itertools import chain
from random import SystemRandom
from typing import Final

import psutil
import uvicorn
from fastapi import FastAPI, Request, Response
from sqlalchemy import Connection, Engine, LargeBinary, create_engine, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from starlette.types import ASGIApp, Receive, Scope, Send

from benchmarks.secure_sums.load_generator import (
    THREADS,
    DeviceConnection,
    HttpRequest,
    HttpResponse,
)
from benchmarks.secure_sums.meters import CostMeter
from blindtally.demo.server_process import free_port
from secagg.keys import KEY_BYTES, SIGNATURE_BYTES, Identity, is_signed
from server.db.database_url import parse_url
from server.db.group_commit import GroupCommit

KINDS: Final = ("raw ASGI", "FastAPI and SQLAlchemy")
_UPLOADS = 600
_START_SECONDS = 30.0


class Base(DeclarativeBase):
    """Base class of the one table."""


class BareUpload(Base):
    """An upload with the digest of its body."""

    __tablename__ = "bare_uploads"
    digest: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    body: Mapped[bytes] = mapped_column(LargeBinary)


def _checked(body: bytes) -> bytes:
    digest, key = sha256(body[:-SIGNATURE_BYTES]).digest(), body[:KEY_BYTES]
    if not is_signed(key, digest, body[-SIGNATURE_BYTES:]):
        raise ValueError("a signature of a benchmark is wrong")
    return digest


def raw_app(engine: Engine) -> ASGIApp:
    """Return the ASGI function."""
    thread, connection = ThreadPoolExecutor(1), engine.raw_connection()
    place = "?" if engine.dialect.positional else "%s"
    statement = f"INSERT INTO bare_uploads VALUES ({place}, {place})"  # noqa: S608 - no input

    def insert(rows: Sequence[tuple[bytes, bytes]]) -> list[None]:
        cursor = connection.cursor()
        cursor.executemany(statement, rows)
        connection.commit()
        return [None] * len(rows)

    async def commit(rows: Sequence[tuple[bytes, bytes]]) -> list[None]:
        return await asyncio.get_running_loop().run_in_executor(thread, insert, rows)

    groups: GroupCommit[tuple[bytes, bytes], None] = GroupCommit(commit)

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        chunks, is_complete = [], False
        while not is_complete:
            message = await receive()
            chunks.append(message["body"])
            is_complete = not message["more_body"]
        body = b"".join(chunks)
        await groups((_checked(body), body))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    return app


def fastapi_app(engine: Engine) -> ASGIApp:
    """Return the application of FastAPI, whose sessions run in its threads."""
    app = FastAPI()

    def insert(body: bytes) -> None:
        with Session(engine) as session:
            session.add(BareUpload(digest=_checked(body), body=body))
            session.commit()

    @app.put("/uploads/{name}", status_code=204)
    async def put(name: str, request: Request) -> Response:  # noqa: ARG001
        await asyncio.to_thread(insert, await request.body())
        return Response(status_code=204)

    return app


def _engine(url: str) -> Engine:
    engine = create_engine(parse_url(url), pool_size=THREADS, max_overflow=2 * THREADS)
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def prepare(connection: Connection, _record: object) -> None:
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "busy_timeout = 30000"):
                connection.execute(f"PRAGMA {pragma}")  # type: ignore[call-overload]

    return engine


@contextmanager
def _running(kind: str, url: str) -> Iterator[tuple[psutil.Process, int]]:
    port = free_port()
    command = [sys.executable, "-m", __spec__.name, kind, url, str(port)]
    process = subprocess.Popen(command)  # noqa: S603 - our own program
    try:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield psutil.Process(process.pid), port
    finally:
        process.terminate()
        process.wait()


def bare_upload_seconds(kind: str, url: str, nbytes: int) -> float:
    """Return the CPU seconds of the bare server `kind` for an upload of `nbytes`."""
    rng = SystemRandom()
    identity = Identity.generate(rng)
    bodies = []
    for _ in range(_UPLOADS):
        signed = identity.public + rng.randbytes(nbytes - KEY_BYTES - SIGNATURE_BYTES)
        bodies.append(signed + identity.sign(sha256(signed).digest()))
    headers = {"Content-Type": "application/octet-stream"}
    requests = [HttpRequest("PUT", "/uploads/name?wait=30", headers, body) for body in bodies]
    with _running(kind, url) as (process, port), ThreadPoolExecutor(THREADS) as threads:
        connections = [DeviceConnection(port) for _ in range(THREADS)]

        def send(start: int, stop: int) -> list[HttpResponse]:
            """Send requests on all connections at the same time."""
            shares = [requests[first:stop:THREADS] for first in range(start, start + THREADS)]
            answers = threads.map(
                lambda sender, share: [*map(sender.send, share)], connections, shares
            )
            return [*chain.from_iterable(answers)]

        send(0, THREADS)  # opens the connections
        meter = CostMeter([process], None)
        answers = meter.around("upload", lambda: send(THREADS, _UPLOADS))
    if any(answer.status != 204 for answer in answers):
        raise SystemExit(f"{kind}: a bare server refused an upload")
    return meter.spent["upload"] / len(answers)


def main() -> None:
    """Serve the bare server that the command line names."""
    kind, url, port = sys.argv[1:]
    engine = _engine(url)
    Base.metadata.create_all(engine)
    app = (raw_app if kind == KINDS[0] else fastapi_app)(engine)
    uvicorn.run(app, port=int(port), lifespan="off", log_level="error", access_log=False)


if __name__ == "__main__":
    main()

"""The server as a process of its own, as `blindtally serve` starts it, with its log in a file."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx

from blindtally.access import admit

PROGRAM: Final = (sys.executable, "-m", "blindtally")
START_SECONDS: Final = 30.0
MOST_DEVICES: Final = 1_000_000
STOP_SECONDS: Final = 10.0
_LOOK_SECONDS = 0.05
_STOPPING = ("SIGTERM", "SIGHUP")
_TAIL = 15  # lines


class StoppedError(Exception):
    """A signal told this program to stop; `code` is what it exits with then."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.code = 128 + number


class ServiceDownError(RuntimeError):
    """The server did not come up, or ended by itself; the message ends with its log's."""


class Service:
    """A server on a port of this machine, with its database and log in `folder`.

    Unless it `is_open`, it lets in who shows `key`, and devices by `token`, made when it starts.
    Whoever is to stop it when a signal comes, as SIGTERM, asks `check` and has it `heeding` these.
    """

    def __init__(self, folder: Path, port: int = 0, *, is_open: bool = False) -> None:
        self.is_open = is_open
        self.key: str | None = None
        self.token: str | None = None
        self.database = folder / "blindtally.db"
        self.log = folder / "server.log"
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._told: int | None = None  # the signal that came

    @property
    def url(self) -> str:
        """Return where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        """Start it; return once it is ready."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop it."""
        self.stop()

    def arguments(self) -> list[str]:
        """Return the arguments of `blindtally` that serve this database."""
        access = ["--open"] if self.is_open else []
        return ["serve", *access, "--port", str(self.port), "--database", self.database_url]

    @property
    def database_url(self) -> str:
        """Return the URL of its database."""
        return f"sqlite:///{self.database}"

    def start(self) -> None:
        """Start the server; return once it is ready.

        Raises:
            ServiceDownError: if it ends, or is not ready in `START_SECONDS`.
            StoppedError: if a signal comes meanwhile.
        """
        if not self.is_open and self.key is None:
            self.key, self.token = admit(self.database_url, "demo", MOST_DEVICES)
        command = [*PROGRAM, *self.arguments()]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us: we stop it in good order
            )
        deadline = time.monotonic() + START_SECONDS
        try:
            while not self._is_ready():
                self.check(deadline)
                time.sleep(_LOOK_SECONDS)
        except BaseException:
            self.stop()
            raise

    @contextmanager
    def heeding(self) -> Iterator[None]:
        """Heed what ends programs, and as its terminal goes: by default, the server would live on.

        Nothing is raised where a signal comes, which may be anywhere: `check` tells.
        """

        def hear(number: int, _frame: object) -> None:
            self._told = number

        known = [getattr(signal, name) for name in _STOPPING if hasattr(signal, name)]
        before = {one: signal.getsignal(one) for one in known}
        heeded = [one for one, how in before.items() if how is not signal.SIG_IGN]  # as by nohup
        for one in heeded:
            signal.signal(one, hear)
        try:
            yield
        finally:
            for one in heeded:
                signal.signal(one, before[one])

    def check(self, ready_by: float | None = None) -> None:
        """See whether the server is there, and is to be.

        Raises:
            ServiceDownError: if it has ended, or the time `ready_by` is past.
            StoppedError: if a signal has come.
        """
        if self._told is not None:
            raise StoppedError(self._told)
        code = self._process.poll() if self._process else None
        if code is not None:
            raise self._down(f"ended with code {code}")
        if ready_by is not None and time.monotonic() > ready_by:
            raise self._down(f"was not ready within {START_SECONDS:.0f} s")

    def stop(self) -> None:
        """Stop the server in good order, or in any if that takes too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None
        Path(f"{self.database}.lock").unlink(missing_ok=True)  # nobody serves this folder now

    def kill(self) -> None:
        """Kill the server on the spot: it has no time to write anything down."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2.0).is_success
        except httpx.TransportError:
            return False

    def _down(self, what: str) -> ServiceDownError:
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL:]
        tail = "\n".join(f"    {line}" for line in lines)
        return ServiceDownError(f"the server {what}; the end of {self.log}:\n{tail}")


def free_port() -> int:
    """Return a port of this machine that nobody listened on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

"""The server in its own process, started as by `blindtally serve`, with its log in a file."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

import httpx

from blindtally.commands.credentials_and_audit import create_first_credentials
from blindtally.join_listener import JoinListener
from client.process_files import PARENT_VARIABLE
from secagg.errors import PortableError

# The installed packages: not those of a clone that it is started in (`-P`).
COMMAND_PREFIX: Final = (sys.executable, "-P", "-m", "blindtally")
START_SECONDS: Final = 30.0
MAX_DEVICES: Final = 1_000_000
STOP_SECONDS: Final = 10.0
_POLL_SECONDS = 0.05
_SAFE_IN_PATH: Final = "/\\: "  # a URL's other characters have a meaning, as in a?b or a%41b
# Of a listener for phones; this server has no TLS.
TLS_VARIABLES: Final = ("BLINDTALLY_TLS_CERTIFICATE", "BLINDTALLY_TLS_KEY")
_STOP_SIGNALS = ("SIGTERM", "SIGHUP")
_LOG_TAIL_LINES = 15  # lines


class StoppedBySignalError(PortableError):
    """A signal requested that this program stop, with the exit code `code`."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.code = 128 + number


class ServerDownError(RuntimeError):
    """The server did not start, or ended; its notes are the end of its log."""


class ServerProcess:
    """A server on a port of this machine, with its database and log in `folder`.

    Unless the server `is_open`, it admits analysts by `key` and devices by `token`, both created
    at its start. An open one may also listen for browsers of other machines, by `join`. Within
    `handling_signals`, `check` raises after a signal such as SIGTERM.
    """

    def __init__(
        self,
        folder: Path,
        port: int = 0,
        *,
        is_open: bool = False,
        join: JoinListener | None = None,
    ) -> None:
        self.is_open, self.join = is_open, join
        self.key: str | None = None
        self.token: str | None = None
        self.database = folder / "blindtally.db"
        self.log = folder / "server.log"
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._signal_received: int | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def database_url(self) -> str:
        return f"sqlite:///{quote(str(self.database), safe=_SAFE_IN_PATH)}"

    def start(self) -> None:
        """Start the server; return once it is ready.

        Raises:
            ServerDownError: if it ends, or is not ready in `START_SECONDS`.
            StoppedBySignalError: if a signal arrives before.
        """
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start the process of the server, which is not ready yet."""
        if not self.is_open and self.key is None:
            self.key, self.token = create_first_credentials(self.database_url, "demo", MAX_DEVICES)
        command = [*COMMAND_PREFIX, "serve", *(["--open"] if self.is_open else [])]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--database", self.database_url]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                command,
                env={
                    **{name: os.environ[name] for name in os.environ.keys() - {*TLS_VARIABLES}},
                    PARENT_VARIABLE: "1",
                    **(self.join.as_environment() if self.join else {}),
                },
                stdin=subprocess.PIPE,  # closed when this process ends, however it ends
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches this process, which stops the server
            )

    def wait_until_ready(self) -> None:
        """Return once the launched server is ready; it stops if that fails, as in `start`."""
        deadline = time.monotonic() + START_SECONDS
        try:
            with httpx.Client(timeout=2.0, trust_env=False) as client:  # no proxy: this machine
                while not self._is_ready(client):
                    self.check(deadline)
                    time.sleep(_POLL_SECONDS)
        except BaseException:
            self.stop()
            raise

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        """Let `check` raise after SIGTERM and SIGHUP, so that this process ends as by Ctrl-C.

        Nothing is raised at the place where a signal arrives. Without this, the signal ends the
        process at once: it writes no results, and leaves files that only it deletes.
        """

        def record(number: int, _frame: object) -> None:
            self._signal_received = number

        known = [getattr(signal, name) for name in _STOP_SIGNALS if hasattr(signal, name)]
        before = {number: signal.getsignal(number) for number in known}
        # nohup, for example, has a signal ignored
        handled = [number for number, how in before.items() if how is not signal.SIG_IGN]
        for number in handled:
            signal.signal(number, record)
        try:
            yield
        finally:
            for number in handled:
                signal.signal(number, before[number])

    def check(self, ready_by: float | None = None) -> None:
        """Check that the server runs and that no signal has arrived.

        Raises:
            ServerDownError: if the server has ended, or the time `ready_by` is past.
            StoppedBySignalError: if a signal has arrived.
        """
        if self._signal_received is not None:
            raise StoppedBySignalError(self._signal_received)
        code = self._process.poll() if self._process else None
        if code is not None:
            raise self._down_error(f"the server ended with code {code}")
        if ready_by is not None and time.monotonic() > ready_by:
            raise self._down_error(f"the server is not ready {START_SECONDS:.0f} s after its start")

    def stop(self) -> None:
        """Let the server shut down; kill it if that takes longer than `STOP_SECONDS`."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._forget()
        Path(f"{self.database}.lock").unlink(missing_ok=True)  # no process serves this folder now

    def kill(self) -> None:
        """Kill the server at once; it cannot write anything after this."""
        if self._process is not None:
            self._process.kill()
            self._forget()

    def _forget(self) -> None:
        """Wait for the end of a process that was asked to end, and close its standard input."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _is_ready(self, client: httpx.Client) -> bool:
        try:
            return client.get(f"{self.url}/readyz").is_success
        except httpx.TransportError:
            return False

    def _down_error(self, event: str) -> ServerDownError:
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        error = ServerDownError(f"{event}; the end of {self.log}:")
        for line in lines:
            error.add_note(line)
        return error


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port

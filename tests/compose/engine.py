"""A Docker engine for the proof: a running one, or a private one that leaves no trace.

The private engine is dockerd, started as root, with its images in the cache folder and its sockets
in a temporary one. Its other changes (a bridge, rules of its chains, the forwarding of packets, a
key and an empty folder) are undone when it has stopped.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PACKAGES = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "docker-compose": "docker-compose",
    "debootstrap": "debootstrap",
    "iptables-save": "iptables",
}
_START_SECONDS = 60
_STOP_SECONDS = 60
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_FIXED_PATHS = (Path("/etc/docker/key.json"), Path("/run/docker"))  # no option moves them
_BRIDGE = "docker0"
_DOCKER_RULES = re.compile(rf"DOCKER|{_BRIDGE}|\bbr-[0-9a-f]{{12}}\b")  # chains and bridges


class EngineError(RuntimeError):
    """There is no engine, and none can be started; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The address of an engine; a private engine has no images of other users."""

    host: str
    is_private: bool

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of programs that connect to the engine."""
        return os.environ | {"DOCKER_HOST": self.host}


def why_none() -> str | None:
    """Return the reason if there is no engine and none can be started, otherwise None."""
    if running() is not None:
        return None
    if os.geteuid() != 0:
        return "no Docker engine answers, and only root can start one"
    missing = sorted({package for tool, package in PACKAGES.items() if not shutil.which(tool)})
    if missing:
        return f"no Docker engine answers; to start one: apt-get install {' '.join(missing)}"
    return None


def running() -> str | None:
    """Return the address of a running engine, or None."""
    if not shutil.which("docker"):
        return None
    command = ["docker", "info", "--format", "{{.ServerVersion}}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode or not result.stdout.strip():
        return None
    return os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


@contextmanager
def engine(cache: Path, say: Callable[[str], None]) -> Iterator[Engine]:
    """Yield an engine; a private engine keeps its images in `cache` and is stopped at the end.

    Raises:
        EngineError: if there is none; the message names the missing packages.
    """
    host = running()
    if host is not None:
        say(f"using the engine at {host}")
        yield Engine(host, is_private=False)
        return
    if (why := why_none()) is not None:
        raise EngineError(why)
    with (
        _files_as_they_were(),
        _network_as_it_was(),
        tempfile.TemporaryDirectory(prefix="blindtally-engine-") as folder,
    ):
        with _dockerd(cache / "engine", Path(folder)) as socket:
            say(f"started dockerd, with its images in {cache / 'engine'}")
            yield Engine(f"unix://{socket}", is_private=True)
        say("stopped dockerd")


@contextmanager
def _dockerd(images: Path, folder: Path) -> Iterator[Path]:
    """Yield the socket of a daemon that keeps `images`, and anything else in `folder`."""
    images.mkdir(parents=True, exist_ok=True)
    socket, log = folder / "docker.sock", folder / "log"
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            [
                "dockerd",
                f"--host=unix://{socket}",
                f"--data-root={images}",
                f"--exec-root={folder / 'run'}",
                f"--pidfile={folder / 'pid'}",
                "--group=root",
                f"--mtu={_mtu()}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C stops this process, which stops the daemon in order
        )
    try:
        _await(socket, daemon, log)
        yield socket
    finally:
        daemon.terminate()
        try:
            daemon.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _await(socket: Path, daemon: subprocess.Popen[bytes], log: Path) -> None:
    command = ["docker", "--host", f"unix://{socket}", "version"]
    last = time.monotonic() + _START_SECONDS
    while subprocess.run(command, capture_output=True, check=False).returncode:
        if daemon.poll() is not None or time.monotonic() > last:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
            raise EngineError(f"dockerd does not start:\n{tail}")
        time.sleep(0.2)


def _mtu() -> int:
    """Return the largest packet that leaves this machine, which bridges must not exceed."""
    route = _output("ip", "-o", "route", "show", "default").split()
    if "dev" not in route:
        return 1500
    device = route[route.index("dev") + 1]
    return int(Path(f"/sys/class/net/{device}/mtu").read_text())


@contextmanager
def _files_as_they_were() -> Iterator[None]:
    """Remove the files that dockerd makes outside its configured folders."""
    made = [path for path in _FIXED_PATHS if not path.exists()]
    try:
        yield
    finally:
        for path in made:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


@contextmanager
def _network_as_it_was() -> Iterator[None]:
    """Undo the changes of the network that dockerd leaves when it stops."""
    if ":DOCKER" in _output("iptables-save"):  # another engine's, which may still run
        yield
        return
    forwarding = _FORWARDING.read_text()
    policy = _output("iptables", "-S", "FORWARD").splitlines()[0]
    try:
        yield
    finally:
        rules = _output("iptables-save").splitlines(keepends=True)
        kept = "".join(rule for rule in rules if not _DOCKER_RULES.search(rule))
        subprocess.run(["iptables-restore"], input=kept, text=True, check=True)
        subprocess.run(["iptables", *policy.split()], check=True)
        subprocess.run(["ip", "link", "delete", _BRIDGE], capture_output=True, check=False)
        _FORWARDING.write_text(forwarding)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    if (why := why_none()) is not None:  # to standard output, for a script to quote
        sys.stdout.write(f"{why}\n")
        sys.exit(1)

"""Proves docker-compose.yml in a real engine: a replica is killed in mid-round, sums stay exact.

    python -m tests.compose.prove             # all parts
    python -m tests.compose.prove one-shot    # one part: service, one-shot, registrar or dask

Builds the images, starts all services, and plays a fault in the middle of each of six rounds
(`tests/compose/faults.py`). It waits until a cohort of a later round has received some masked
inputs but not all, kills one replica with SIGKILL and leaves it dead. The fleet must then reach the
end of its study with the other replica alone. Each round's sum must equal the sum of its vectors,
which the fleet knows and the server does not. All services must stop on request, before the engine
kills them, and are removed. Then seven members open one-shot sums, and two of them and a replica
are killed (`tests/compose/one_shot.py`), and a registrar enrols a device
(`tests/compose/registrar.py`). Then two workers of Dask share a simulation and one of
them is killed during its work: the result must be that of one process.

If no engine runs, root starts one (`tests/compose/engine.py`) and builds stand-ins for the images
that cannot be pulled (`tests/compose/stand_ins.py`). Only the images remain, 3 GB in the cache
folder. Each part raises Unproved if a promise does not hold.
"""

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from tests.compose import one_shot, registrar, stand_ins
from tests.compose.engine import EngineError, engine
from tests.compose.faults import await_mid_round, play_faults
from tests.compose.project import ROOT, ROUNDS, Compose, Unproved, say

SERVICES = ("database", "server", "proxy", "fleet")
DASK = ("scheduler", "worker", "simulation")
PATIENCE_SECONDS = 900  # for the study to reach its end
BUSY_PROGRAM = (
    "from distributed import Client;"
    "print(any(Client('tcp://127.0.0.1:8786').processing().values()))"
)
SIGKILL_EXIT_CODE = 137
MAX_MEGABYTES = 300  # of the image, next to its 125 MB of python:3.13-slim


def main() -> None:
    """Run docker-compose.yml in a real engine, and kill a replica in mid-round."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        with engine((cache / "blindtally-compose").resolve(), say) as docker:
            if docker.is_private:  # no other user has its images
                stand_ins.build(docker, say)
            with tempfile.TemporaryDirectory() as folder:
                compose = Compose(docker, secrets_in(Path(folder)), free_port())
                for part in sys.argv[1:] or PARTS:
                    PARTS[part](compose)
            if docker.is_private:  # layers of earlier runs that no image uses
                compose.docker("image", "prune", "--force", "--filter=until=24h")
    except (EngineError, Unproved, subprocess.CalledProcessError, RuntimeError) as error:
        typer.echo(f"not proved: {error}", err=True)
        raise SystemExit(1) from None


def secrets_in(folder: Path) -> Path:
    """Return a file of secrets for this run only."""
    path = folder / "env"
    path.touch(mode=0o600)
    path.write_text(
        f"POSTGRES_PASSWORD={secrets.token_hex(32)}\n"
        f"BLINDTALLY_API_KEY=btk_{secrets.token_urlsafe(32)}\n"
        f"BLINDTALLY_ENROLMENT_TOKEN=bte_{secrets.token_urlsafe(32)}\n"
        f"BLINDTALLY_MEMBER_KEY=btk_{secrets.token_urlsafe(32)}\n"
    )
    return path


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def removed(compose: Compose, services: Sequence[str], *profile: str) -> Iterator[None]:
    """Remove what an interrupted run left, and then what this one starts; show logs if it fails."""
    down = (*profile, "down", "--volumes", "--remove-orphans")
    compose(*down, quiet=True)
    try:
        yield
    except BaseException:
        show_logs(compose, services)
        raise
    finally:
        compose(*down, quiet=True)
        say("removed containers, networks and volumes")


def prove(compose: Compose) -> None:
    """Run the study with one replica killed in it, and remove everything."""
    with removed(compose, SERVICES):
        say("building, and starting everything")
        compose("up", "--build", "--detach")
        check_users(compose)
        killed, survivor = compose.containers("server")
        check_size(compose, survivor)
        number = play_faults(compose, killed)
        number = kill_in_mid_round(compose, killed, number)
        await_the_end(compose)
        check_sums(compose)
        check_events(compose)
        check_survivor(compose, killed, survivor, number)
        check_stop(compose, killed)


def check_size(compose: Compose, server: str) -> None:
    """Print the size of packages and code in the image, and refuse a large one."""
    megabytes = int(compose.docker("exec", server, "du", "-sm", "/opt/blindtally").split()[0])
    say(f"packages and code take {megabytes} MB of the image")
    if megabytes > MAX_MEGABYTES:
        raise Unproved(f"more than {MAX_MEGABYTES} MB")


def prove_one_shot(compose: Compose) -> None:
    """Run a study of one-shot sums with two members and a replica killed in it."""
    with removed(compose, one_shot.SERVICES, one_shot.PROFILE):
        compose = one_shot.start(compose)
        check_users(compose, one_shot.SERVICES[:-1])
        one_shot.kill_and_return(compose)
        one_shot.check_reach(compose)
        await_the_end(compose, "one-shot-fleet")
        check_sums(compose, "one-shot-fleet")
        one_shot.check_members(compose)


def prove_registrar(compose: Compose) -> None:
    """Enrol a device at the registrar, kill it, and give it an older copy of its record."""
    with removed(compose, ["registrar"], registrar.PROFILE):
        say("building, and starting a registrar")
        compose(registrar.PROFILE, "up", "--build", "--detach", "registrar")
        check_users(compose, ["registrar"])
        registrar.check_enrolment(compose)


def prove_dask(compose: Compose) -> None:
    """Run the simulation with one worker killed in it: the result is that of one process."""
    profile = "--profile=dask"
    with removed(compose, DASK, profile):
        say("building, and starting the simulation on Dask")
        compose(profile, "up", "--build", "--detach", "simulation")
        (scheduler,), (simulation,) = map(compose.containers, ("scheduler", "simulation"))
        killed, _ = compose.containers("worker")
        await_work(compose, scheduler, simulation)
        compose.docker("kill", killed)
        say(f"killed {killed} during its work")
        await_the_end(compose, "simulation")
        check_result(compose, simulation)


def await_work(compose: Compose, scheduler: str, simulation: str) -> None:
    """Wait until workers are busy."""
    while "True" not in compose.docker("exec", scheduler, "python", "-c", BUSY_PROGRAM):
        if not compose.state(simulation)["Running"]:
            raise Unproved("the simulation ended before a worker was busy")
        time.sleep(0.5)


def check_result(compose: Compose, simulation: str) -> None:
    """Compare the output of the simulation with that of one process without secure sums."""
    command = json.loads(compose.docker("inspect", "--format={{json .Args}}", simulation))
    arguments = command[command.index("simulate") :]
    for last in ("sum=pairwise", next(each for each in arguments if each.startswith("tcp://"))):
        place = arguments.index(last)
        del arguments[place - 1 : place + 1]  # with its option
    alone = subprocess.run(
        [sys.executable, "-m", "blindtally", *arguments],
        env=os.environ | {"COLUMNS": "120"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    expected = [line.rstrip() for line in alone.stdout.splitlines() if line]
    printed = [line.rstrip() for line in compose.docker("logs", simulation).splitlines()]
    if [line for line in printed if line] != expected:
        raise Unproved(f"one process has another result:\n{alone.stdout}")
    for line in printed[-3:]:
        say(line)
    say("the output of the simulation is that of one process")


def show_logs(compose: Compose, services: Sequence[str]) -> None:
    """Print the end of each container's log."""
    for service in services:
        for container in compose.containers(service):
            typer.echo(f"--- {container}\n{compose.docker('logs', '--tail=40', container)}")


def check_users(
    compose: Compose, services: Sequence[str] = ("database", "server", "proxy")
) -> None:
    """Check that no container runs as root or may become root."""
    for service in services:
        for container in compose.containers(service):
            status = compose.docker("exec", container, "cat", "/proc/1/status")
            users = re.search(r"^Uid:\s+(\d+)\s+(\d+)", status, re.MULTILINE)
            allowed = re.search(r"^CapBnd:\s+(\w+)", status, re.MULTILINE)
            if users is None or "0" in users.groups():
                raise Unproved(f"{container} runs as root")
            if allowed is None or int(allowed[1], 16):
                raise Unproved(f"{container} has capabilities: {allowed}")
    say("no container runs as root or has a capability")


def kill_in_mid_round(compose: Compose, replica: str, after: int) -> int:
    """Kill `replica` while vectors arrive in a round after `after`; return the round's number."""
    await_mid_round(compose, after + 1)
    compose.docker("kill", replica)
    number, phase = compose.latest_phase()
    if phase in {"summed", "failed"}:
        raise Unproved(f"{replica} was killed too late, in a round that is {phase}")
    say(f"killed {replica} in round {number}, {phase}")
    return number


def await_the_end(compose: Compose, service: str = "fleet") -> None:
    """Wait for the end of the fleet, or of another service that ends by itself."""
    (container,) = compose.containers(service)
    last = time.monotonic() + PATIENCE_SECONDS
    while (state := compose.state(container))["Running"]:
        if time.monotonic() > last:
            raise Unproved(f"the {service} has not ended within {PATIENCE_SECONDS} s")
        time.sleep(1)
    if state["ExitCode"] != 0:
        raise Unproved(f"the {service} failed: {state['ExitCode']}")


def check_sums(compose: Compose, service: str = "fleet") -> None:
    """Check that each round has an exact sum."""
    (fleet,) = compose.containers(service)
    log = compose.docker("logs", fleet)
    lines = [line for line in log.splitlines() if re.match(r"round \d+/", line)]  # not other lines
    for line in lines:
        say(line)
    exact = [line for line in lines if "sum exact" in line]
    if not len(exact) == len(lines) == compose.rounds:
        raise Unproved(f"{len(exact)} exact sums of {compose.rounds} rounds")
    if compose.query("SELECT count(*) FROM cohorts WHERE phase <> 'summed'") != "0":
        raise Unproved("a cohort has no sum")


def check_events(compose: Compose) -> None:
    """Check the events of the study through the proxy, from its creation to its end."""
    study = compose.query("SELECT id FROM studies")
    request = urllib.request.Request(
        f"http://127.0.0.1:{compose.port}/v1/studies/{study}/events",
        headers={"Authorization": f"Bearer {compose.api_key}"},
    )
    with urllib.request.urlopen(request, timeout=30) as stream:  # noqa: S310 - a fixed URL
        kinds = re.findall(r"^event: (\S+)$", stream.read().decode(), re.MULTILINE)
    closed = kinds.count("round-closed")
    if kinds[:1] != ["study-created"] or kinds[-1] != "study-ended" or closed != ROUNDS:
        raise Unproved(f"the event stream is not complete: {kinds}")
    say(f"the event stream has {len(kinds)} events, from creation to end")


def check_survivor(compose: Compose, killed: str, survivor: str, number: int) -> None:
    """Check that only the survivor served since round `number`, without a restart."""
    dead = compose.state(killed)
    if dead["Running"] or dead["ExitCode"] != SIGKILL_EXIT_CODE:
        raise Unproved(f"{killed} is not dead: {dead}")
    restarts = compose.docker("inspect", "--format={{.RestartCount}}", survivor).strip()
    if not compose.state(survivor)["Running"] or restarts != "0":
        raise Unproved(f"{survivor} ended as well and was started {restarts} times")
    since = f"--since={dead['FinishedAt']}"
    closed = compose.docker("logs", since, survivor).count('"round closed"')
    if closed != ROUNDS - number + 1:
        raise Unproved(f"{survivor} closed {closed} rounds alone")
    with urllib.request.urlopen(f"http://127.0.0.1:{compose.port}/readyz", timeout=10) as answer:
        if answer.status != 200:
            raise Unproved(f"the proxy answers {answer.status}")
    say(f"{survivor} closed {closed} rounds alone and still serves")


def check_stop(compose: Compose, killed: str) -> None:
    """Check that all services stop on request, before the engine kills them."""
    began = time.monotonic()
    compose("stop", quiet=True)
    codes = {
        container: compose.state(container)["ExitCode"]
        for service in SERVICES
        for container in compose.containers(service)
        if container != killed
    }
    if SIGKILL_EXIT_CODE in codes.values():
        raise Unproved(f"not all services stopped by themselves: {codes}")
    say(f"all stopped in {time.monotonic() - began:.1f} s: {codes}")


PARTS = {
    "service": prove,
    "one-shot": prove_one_shot,
    "registrar": prove_registrar,
    "dask": prove_dask,
}


if __name__ == "__main__":
    main()

"""Proves docker-compose.yml in a real engine: a replica is killed in mid-round, sums stay exact.

    python -m tests.compose.prove --help

Builds the images, starts everything, waits until a cohort of a later round is masking with some
vectors heard and others not, kills one replica with SIGKILL and leaves it dead. Then the fleet
must reach the end of its study, with every round's sum equal to the sum of the vectors in it
(which the fleet knows and the server does not), all of it by the survivor. At last everything
must stop when told to, before the engine kills it, and is removed. Then a simulation is shared by
two workers of Dask, one of which is killed at its work: it must find what one process finds.

Where no engine runs, root starts one (`tests/compose/engine.py`), and stand-ins are made for the
images that cannot be pulled (`tests/compose/stand_ins.py`). Images are kept in the cache folder,
3 GB, and that is all that stays.
"""

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tests.compose import stand_ins
from tests.compose.engine import Engine, EngineError, engine

ROOT = Path(__file__).parents[2]
PROJECT = "blindtally-proof"
SERVICES = ("database", "server", "proxy", "fleet")
DASK = ("scheduler", "worker", "simulation")
SIMULATED = 1002  # devices a round: two cohorts
BUSY = (
    "from distributed import Client;"
    "print(any(Client('tcp://127.0.0.1:8786').processing().values()))"
)
KILLED = 137  # exit code after SIGKILL
# In the database and not through the API, so that it needs nobody's leave.
MID_ROUND = (
    "FROM cohorts c WHERE c.phase = 'masking' AND c.round >= 2 AND c.enrolled > (SELECT count(*)"
    " FROM messages m WHERE m.cohort = c.id AND m.kind = 'masked-input') AND EXISTS"
    " (SELECT 1 FROM messages m WHERE m.cohort = c.id AND m.kind = 'masked-input')"
)
PHASES = "SELECT round || ' ' || phase FROM cohorts ORDER BY id DESC LIMIT 1"


class Unproved(AssertionError):  # noqa: N818 - that is what it says
    """Something that was to be proved is not so."""


@dataclass(frozen=True, slots=True)
class Compose:
    """One project of docker-compose.yml in `engine`, with secrets in `env_file`."""

    engine: Engine
    env_file: Path
    port: int
    devices: int
    rounds: int

    @property
    def _environment(self) -> dict[str, str]:
        return self.engine.environment | {
            "BLINDTALLY_PORT": str(self.port),
            "FLEET_DEVICES": str(self.devices),
            "FLEET_ROUNDS": str(self.rounds),
            "SIMULATION_CLIENTS": str(SIMULATED),
        }

    def __call__(self, *words: str, quiet: bool = False) -> None:
        """Run one command of compose; its words go to standard error, unless `quiet`."""
        program = ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]
        command = [*program, f"--project-name={PROJECT}", f"--env-file={self.env_file}", *words]
        output = subprocess.DEVNULL if quiet else None
        subprocess.run(
            command, cwd=ROOT, env=self._environment, stdout=output, stderr=output, check=True
        )

    def docker(self, *words: str) -> str:
        """Return what one command of docker prints."""
        done = subprocess.run(
            ["docker", *words],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Unproved(f"docker {' '.join(words)}: {done.stdout.strip()}")
        return done.stdout

    def containers(self, service: str) -> list[str]:
        """Return the names of a service's containers, running or not."""
        labels = [f"com.docker.compose.project={PROJECT}", f"com.docker.compose.service={service}"]
        filters = [word for label in labels for word in ("--filter", f"label={label}")]
        return sorted(self.docker("ps", "--all", "--format={{.Names}}", *filters).split())

    def state(self, container: str) -> dict[str, object]:
        """Return how a container is."""
        state: dict[str, object] = json.loads(
            self.docker("inspect", "--format={{json .State}}", container)
        )
        return state

    def ask(self, question: str) -> str:
        """Return what the database answers."""
        (database,) = self.containers("database")
        client = ("psql", "--username=blindtally", "--tuples-only", "--no-align", "--quiet")
        return self.docker("exec", database, *client, f"--command={question}").strip()


def main(
    cache: Annotated[
        Path | None,
        typer.Option(help="Where an engine of our own keeps images [$XDG_CACHE_HOME/...]."),
    ] = None,
    devices: Annotated[int, typer.Option(min=20, help="Devices in a round.")] = 60,
    rounds: Annotated[int, typer.Option(min=3, help="Rounds of the study.")] = 4,
    patience: Annotated[
        int, typer.Option(min=60, help="Seconds for the study to reach its end.")
    ] = 900,
    service: Annotated[bool, typer.Option(help="Prove the service.")] = True,
    dask: Annotated[bool, typer.Option(help="Prove the simulation on Dask.")] = True,
    purge: Annotated[bool, typer.Option(help="Remove the cache folder at the end.")] = False,
) -> None:
    """Run docker-compose.yml in a real engine, and kill a replica in mid-round."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = (cache or home / "blindtally-compose").resolve()
    try:
        with engine(cache, say) as found:
            if found.is_ours:  # its images are nobody else's
                stand_ins.build(found, say)
            with tempfile.TemporaryDirectory() as folder:
                compose = Compose(found, secrets_in(Path(folder)), free_port(), devices, rounds)
                if service:
                    prove(compose, patience)
                if dask:
                    prove_dask(compose, patience)
            if found.is_ours:  # what no image is built from, of earlier runs
                compose.docker("image", "prune", "--force", "--filter=until=24h")
    except (EngineError, Unproved, subprocess.CalledProcessError, RuntimeError) as error:
        typer.echo(f"not proved: {error}", err=True)
        raise typer.Exit(1) from None
    finally:
        if purge:
            shutil.rmtree(cache, ignore_errors=True)


def say(line: str) -> None:
    """Tell what is being done, and when."""
    typer.echo(f"{time.strftime('%H:%M:%S')} {line}")


def secrets_in(folder: Path) -> Path:
    """Return a file of secrets for this run alone."""
    path = folder / "env"
    path.touch(mode=0o600)
    path.write_text(
        f"POSTGRES_PASSWORD={secrets.token_hex(32)}\n"
        f"BLINDTALLY_API_KEY=btk_{secrets.token_urlsafe(32)}\n"
        f"BLINDTALLY_ENROLMENT_TOKEN=bte_{secrets.token_urlsafe(32)}\n"
    )
    return path


def free_port() -> int:
    """Return a port that nobody listens on, or did a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def prove(compose: Compose, patience: int) -> None:
    """Run the study with one replica killed in it, and remove everything.

    Raises:
        Unproved: if anything is not as it was promised.
    """
    compose("down", "--volumes", "--remove-orphans", quiet=True)  # of a run that was cut off
    try:
        say("building, and starting everything")
        compose("up", "--build", "--detach")
        check_users(compose)
        killed, survivor = compose.containers("server")
        number = kill_in_mid_round(compose, killed)
        await_the_end(compose, patience)
        check_sums(compose)
        check_events(compose)
        check_survivor(compose, killed, survivor, number)
        check_stop(compose, killed)
    except BaseException:
        show_logs(compose, SERVICES)
        raise
    finally:
        compose("down", "--volumes", "--remove-orphans", quiet=True)
        say("removed containers, networks and volume")


def prove_dask(compose: Compose, patience: int) -> None:
    """Run the simulation with one worker killed in it: it finds what one process finds.

    Raises:
        Unproved: if anything is not as it was promised.
    """
    profile = "--profile=dask"
    compose(profile, "down", "--volumes", "--remove-orphans", quiet=True)
    try:
        say("building, and starting the simulation on Dask")
        compose(profile, "up", "--build", "--detach", "simulation")
        (scheduler,), (simulation,) = map(compose.containers, ("scheduler", "simulation"))
        killed, _ = compose.containers("worker")
        await_work(compose, scheduler, simulation)
        compose.docker("kill", killed)
        say(f"killed {killed} at its work")
        await_the_end(compose, patience, "simulation")
        check_result(compose, simulation)
    except BaseException:
        show_logs(compose, DASK)
        raise
    finally:
        compose(profile, "down", "--volumes", "--remove-orphans", quiet=True)
        say("removed containers and network")


def await_work(compose: Compose, scheduler: str, simulation: str) -> None:
    """Wait until workers are busy."""
    while "True" not in compose.docker("exec", scheduler, "python", "-c", BUSY):
        if not compose.state(simulation)["Running"]:
            raise Unproved("the simulation ended before a worker was busy")
        time.sleep(0.5)


def check_result(compose: Compose, simulation: str) -> None:
    """Compare what the simulation printed with that of one process here, summed in the open."""
    command = json.loads(compose.docker("inspect", "--format={{json .Args}}", simulation))
    asked = command[command.index("simulate") : command.index("--dask")]
    asked.remove("--secagg")
    alone = subprocess.run(
        [sys.executable, "-m", "blindtally", *asked],
        env=os.environ | {"COLUMNS": "120"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    wanted = [line.rstrip() for line in alone.stdout.splitlines() if line]
    told = [line.rstrip() for line in compose.docker("logs", simulation).splitlines()]
    if [line for line in told if line] != wanted:
        raise Unproved(f"one process finds something else:\n{alone.stdout}")
    for line in told[-3:]:
        say(line)
    say("the simulation found what one process finds, to the letter")


def show_logs(compose: Compose, services: Sequence[str]) -> None:
    """Print the end of what each container said."""
    for service in services:
        for container in compose.containers(service):
            typer.echo(f"--- {container}\n{compose.docker('logs', '--tail=40', container)}")


def check_users(compose: Compose) -> None:
    """Nothing runs as root, or may become it."""
    for service in ("database", "server", "proxy"):
        for container in compose.containers(service):
            status = compose.docker("exec", container, "cat", "/proc/1/status")
            users = re.search(r"^Uid:\s+(\d+)\s+(\d+)", status, re.MULTILINE)
            allowed = re.search(r"^CapBnd:\s+(\w+)", status, re.MULTILINE)
            if users is None or "0" in users.groups():
                raise Unproved(f"{container} runs as root")
            if allowed is None or int(allowed[1], 16):
                raise Unproved(f"{container} has capabilities: {allowed}")
    say("nothing runs as root or has a capability")


def kill_in_mid_round(compose: Compose, replica: str) -> int:
    """Kill `replica` while a cohort's vectors come in; return the number of the round."""
    waiting = "PERFORM pg_sleep(0.01)"
    compose.ask(
        "SET statement_timeout = '300s';"
        f" DO $$ BEGIN WHILE NOT EXISTS (SELECT 1 {MID_ROUND}) LOOP {waiting}; END LOOP; END $$"
    )
    compose.docker("kill", replica)
    number, phase = compose.ask(PHASES).split()
    if phase in {"summed", "failed"}:
        raise Unproved(f"{replica} was killed too late, in a round that is {phase}")
    say(f"killed {replica} in round {number}, {phase}")
    return int(number)


def await_the_end(compose: Compose, patience: int, service: str = "fleet") -> None:
    """Wait for the fleet, or what else ends by itself."""
    (container,) = compose.containers(service)
    last = time.monotonic() + patience
    while (state := compose.state(container))["Running"]:
        if time.monotonic() > last:
            raise Unproved(f"the {service} has not ended within {patience} s")
        time.sleep(1)
    if state["ExitCode"] != 0:
        raise Unproved(f"the {service} failed: {state['ExitCode']}")


def check_sums(compose: Compose) -> None:
    """Every round has a sum, and it is exact."""
    (fleet,) = compose.containers("fleet")
    log = compose.docker("logs", fleet)
    lines = [line for line in log.splitlines() if re.match(r"round \d+/", line)]  # and not news
    for line in lines:
        say(line)
    exact = [line for line in lines if "sum exact" in line]
    if not len(exact) == len(lines) == compose.rounds:
        raise Unproved(f"{len(exact)} exact sums of {compose.rounds} rounds")
    if compose.ask("SELECT count(*) FROM cohorts WHERE phase <> 'summed'") != "0":
        raise Unproved("a cohort has no sum")


def check_events(compose: Compose) -> None:
    """Read what happened in the study, from its creation to its end, through the proxy."""
    study = compose.ask("SELECT id FROM studies")
    key = re.search(r"^BLINDTALLY_API_KEY=(.+)$", compose.env_file.read_text(), re.MULTILINE)
    assert key is not None  # we wrote it
    request = urllib.request.Request(
        f"http://127.0.0.1:{compose.port}/v1/studies/{study}/events",
        headers={"Authorization": f"Bearer {key[1]}"},
    )
    with urllib.request.urlopen(request, timeout=30) as stream:  # noqa: S310 - our own URL
        kinds = re.findall(r"^event: (\S+)$", stream.read().decode(), re.MULTILINE)
    closed = kinds.count("round-closed")
    if kinds[:1] != ["study-created"] or kinds[-1] != "study-ended" or closed != compose.rounds:
        raise Unproved(f"the event stream is not whole: {kinds}")
    say(f"the event stream tells of {len(kinds)} events, from creation to end")


def check_survivor(compose: Compose, killed: str, survivor: str, number: int) -> None:
    """Nobody but the survivor served since round `number`, and it was never started again."""
    dead = compose.state(killed)
    if dead["Running"] or dead["ExitCode"] != KILLED:
        raise Unproved(f"{killed} is not dead: {dead}")
    restarts = compose.docker("inspect", "--format={{.RestartCount}}", survivor).strip()
    if not compose.state(survivor)["Running"] or restarts != "0":
        raise Unproved(f"{survivor} fell, too, and was started {restarts} times")
    since = f"--since={dead['FinishedAt']}"
    closed = compose.docker("logs", since, survivor).count('"round closed"')
    if closed != compose.rounds - number + 1:
        raise Unproved(f"{survivor} closed {closed} rounds alone")
    with urllib.request.urlopen(f"http://127.0.0.1:{compose.port}/readyz", timeout=10) as answer:
        if answer.status != 200:
            raise Unproved(f"the proxy answers {answer.status}")
    say(f"{survivor} closed {closed} rounds alone, and serves on")


def check_stop(compose: Compose, killed: str) -> None:
    """All that still runs stops when it is told to, before it is killed."""
    began = time.monotonic()
    compose("stop", quiet=True)
    codes = {
        container: compose.state(container)["ExitCode"]
        for service in SERVICES
        for container in compose.containers(service)
        if container != killed
    }
    if KILLED in codes.values():
        raise Unproved(f"not everything stopped by itself: {codes}")
    say(f"all stopped in {time.monotonic() - began:.1f} s: {codes}")


if __name__ == "__main__":
    typer.run(main)

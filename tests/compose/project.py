"""One project of docker-compose.yml in an engine: its commands, containers and database."""

import json
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import typer

from tests.compose.engine import Engine

ROOT = Path(__file__).parents[2]
PROJECT = "blindtally-proof"
DEVICES, ROUNDS = 60, 24  # connections are held for 145 s, about 15 rounds
SIMULATED_DEVICES = 1002  # per round: two cohorts
_LAST_PHASE = "SELECT round || ' ' || phase FROM cohorts ORDER BY id DESC LIMIT 1"
# The database's volume, which a proof can fill.
FILES = ("docker-compose.yml", "tests/compose/small_volume.yml")


class Unproved(AssertionError):  # noqa: N818 - a result, not a defect of the proof
    """A promise of docker-compose.yml that does not hold."""


@dataclass(frozen=True, slots=True)
class Compose:
    """One project of docker-compose.yml in `engine`, with secrets in `env_file`."""

    engine: Engine
    env_file: Path
    port: int
    devices: int = DEVICES
    rounds: int = ROUNDS

    @property
    def _environment(self) -> dict[str, str]:
        return self.engine.environment | {
            "BLINDTALLY_PORT": str(self.port),
            "FLEET_DEVICES": str(self.devices),
            "FLEET_ROUNDS": str(self.rounds),
            "SIMULATION_CLIENTS": str(SIMULATED_DEVICES),
        }

    def __call__(self, *words: str, quiet: bool = False) -> None:
        """Run one command of compose; print its output unless `quiet`."""
        program = ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]
        files = [f"--file={file}" for file in FILES]
        command = [*program, *files, f"--project-name={PROJECT}", f"--env-file={self.env_file}"]
        output = subprocess.DEVNULL if quiet else None
        subprocess.run(
            [*command, *words],
            cwd=ROOT,
            env=self._environment,
            stdout=output,
            stderr=output,
            check=True,
        )

    def docker(self, *words: str) -> str:
        """Return the output of one command of docker."""
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
        """Return the names of a service's containers, running or stopped."""
        labels = [f"com.docker.compose.project={PROJECT}", f"com.docker.compose.service={service}"]
        filters = [word for label in labels for word in ("--filter", f"label={label}")]
        return sorted(self.docker("ps", "--all", "--format={{.Names}}", *filters).split())

    def state(self, container: str) -> dict[str, object]:
        """Return the state of a container."""
        state: dict[str, object] = json.loads(
            self.docker("inspect", "--format={{json .State}}", container)
        )
        return state

    def query(self, statement: str) -> str:
        """Return the answer of the database to a query."""
        (database,) = self.containers("database")
        client = ("psql", "--username=blindtally", "--tuples-only", "--no-align", "--quiet")
        return self.docker("exec", database, *client, f"--command={statement}").strip()

    def wait_for(self, condition: str, seconds: int) -> None:
        """Wait until the database has a row of `condition`, which begins with FROM."""
        self.query(
            f"SET statement_timeout = '{seconds}s';"
            f" DO $$ BEGIN WHILE NOT EXISTS (SELECT 1 {condition})"
            " LOOP PERFORM pg_sleep(0.01); END LOOP; END $$"
        )

    def latest_phase(self) -> tuple[int, str]:
        """Return the number of the latest round, and its phase."""
        number, phase = self.query(_LAST_PHASE).split()
        return int(number), phase

    @property
    def api_key(self) -> str:
        """Return the key of the operator."""
        key = re.search(r"^BLINDTALLY_API_KEY=(.+)$", self.env_file.read_text(), re.MULTILINE)
        assert key is not None  # secrets_in wrote it
        return key[1]


def say(line: str) -> None:
    """Print a step of the proof with the time."""
    typer.echo(f"{time.strftime('%H:%M:%S')} {line}")

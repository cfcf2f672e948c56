"""A registrar, a server and devices in separate processes: enrolment over HTTP, in each way."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from blindtally.demo.server_process import COMMAND_PREFIX, ServerProcess, free_port
from blindtally.fleet_run.registrar_key_files import create_key_file, load_key_file
from client.analyst.analyst import Analyst
from protocol.api.messages import StudyView, Timeouts
from protocol.domains.strings import Utf8
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.question_and_plan import Terms
from tests.server.fake_provider import FakeProvider, on_a_port

DEVICES = 12
COHORTS = 2
TERMS = {"cohort_size": 6, "minimum": 5, "cohorts": COHORTS, "corrupt": 0.1, "dropout": 0.2}
QUESTION = AdaptiveIbltQuestion(threshold=5, contribution=4, domain=Utf8(max_bytes=6), words=1500)
# One process, whose devices share only their program.
DEVICE_PROGRAM = """
import asyncio, json, sys
from client.device.device_state import DeviceState
from client.device.take_part import take_part
from protocol.device_policy.policy import Policy

url, registrar, key, study, *proofs = sys.argv[1:]
policy = Policy(registrar=bytes.fromhex(key), min_cohort=3, max_epsilon=8)

async def main():
    taken = await asyncio.gather(*(
        take_part(
            url, ["common"], policy, study=study, device_state=DeviceState.in_memory(),
            registrar=registrar, registrar_token=proof, wait=60,
        )
        for proof in proofs
    ))
    print(json.dumps([[str(each.state), each.error] for (each,) in taken]))

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def _private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class RunningRegistrar:
    """A registrar in a process; `stop` kills it, as a power cut would."""

    def __init__(self, key: Path, *options: str) -> None:
        self.key, self.options, self.port = key, options, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        port = "--port", str(self.port)
        command = [*COMMAND_PREFIX, "registrar", "serve", str(self.key), *port, *self.options]
        self.process = subprocess.Popen(command, env=dict(os.environ))
        late = time.monotonic() + 60
        while time.monotonic() < late and self.process.poll() is None:
            try:
                httpx.get(f"{self.url}/healthz", trust_env=False).raise_for_status()
            except httpx.HTTPError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError("the registrar does not start")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@contextmanager
def serving_registrar(key: Path, *options: str) -> Iterator[RunningRegistrar]:
    registrar = RunningRegistrar(key, *options)
    try:
        registrar.start()
        yield registrar
    finally:
        registrar.stop()


def blindtally(*words: str) -> str:
    done = subprocess.run([*COMMAND_PREFIX, *words], capture_output=True, check=True, text=True)
    return done.stdout


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "registrar.key"
    create_key_file(path)
    return path


def take_part(url: str, registrar: str, key: Path, study: str, *proofs: str) -> list[list[str]]:
    public = load_key_file(key).public.hex()
    words = [sys.executable, "-c", DEVICE_PROGRAM, url, registrar, public, study, *proofs]
    done = subprocess.run(words, capture_output=True, check=False, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    taken: list[list[str]] = json.loads(done.stdout)
    return taken


def allow(key: Path, study: StudyView) -> None:
    """Let the registrar of `key` sign for `study`, while it runs."""
    file = key.with_name(f"{study.id}.json")
    file.write_text(study.model_dump_json())
    blindtally("registrar", "allow", str(key), str(file))


def a_round_is_counted(service: ServerProcess, url: str, key: Path, proofs: list[str]) -> None:
    """Create a study for the registrar of `key`, and let devices with `proofs` take part."""
    public = load_key_file(key).public.hex()
    with Analyst(service.url) as analyst:
        terms = Terms.model_validate(TERMS | {"registrar": public})
        quick = Timeouts(idle=0.5)
        study = analyst.create("words", QUESTION, terms=terms, rounds=1, timeouts=quick)
        allow(key, study.view)
        assert take_part(service.url, url, key, study.id, *proofs) == [["finished", ""]] * DEVICES
        study.wait()
        assert [(row.item, row.estimate) for row in study.heavy_hitters()] == [("common", DEVICES)]


def test_devices_with_tokens_are_enrolled_seated_and_counted(
    service: ServerProcess, key: Path
) -> None:
    proofs = blindtally("registrar", "tokens", str(key), "--count", str(DEVICES)).split()
    with serving_registrar(key, "--url", service.url) as registrar:
        a_round_is_counted(service, registrar.url, key, proofs)
        registrar.stop()  # at any moment: what it has answered is on the disk
        registrar.start()
        metrics = httpx.get(f"{registrar.url}/metrics", trust_env=False)
        assert metrics.status_code == 200
        a_round_is_counted(service, registrar.url, key, proofs)


def test_devices_that_a_command_knows_are_enrolled(
    service: ServerProcess, key: Path, tmp_path: Path
) -> None:
    command = tmp_path / "is-real"
    command.write_text("#!/bin/sh\ngrep -q certificate\n")
    command.chmod(0o700)
    proofs = [f"certificate-{number}" for number in range(DEVICES)]
    with serving_registrar(key, "--url", service.url, "--check", str(command)) as registrar:
        a_round_is_counted(service, registrar.url, key, proofs)


def test_devices_with_an_account_at_a_provider_are_enrolled(
    service: ServerProcess, key: Path
) -> None:
    provider = FakeProvider(lambda: datetime.now(UTC))
    with on_a_port(provider):
        options = "--issuer", provider.issuer, "--audience", "phones"
        proofs = []
        for number in range(DEVICES):
            provider.claims = {"aud": "phones", "sub": str(number)}
            proofs.append(provider.id_token("-"))
        with serving_registrar(key, "--url", service.url, *options) as registrar:
            a_round_is_counted(service, registrar.url, key, proofs)


def test_a_device_without_a_proof_or_at_another_registrar_sends_nothing(
    service: ServerProcess, key: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.key"
    create_key_file(other)
    (token,) = blindtally("registrar", "tokens", str(other)).split()
    public = load_key_file(key).public.hex()
    with Analyst(service.url) as analyst, serving_registrar(other) as registrar:
        terms = Terms.model_validate(TERMS | {"registrar": public})
        study = analyst.create("words", QUESTION, terms=terms, rounds=1)
        allow(key, study.view)
        for proof in (token, "btr_invented"):
            ((state, error),) = take_part(service.url, registrar.url, key, study.id, proof)
            assert (state, "refuses this device" in error) == ("rejected", True)
        study.stop()

"""A registrar and a server in processes: enrolment over HTTP, and a registrar that is killed."""

import asyncio
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from blindtally.cli import app
from blindtally.demo.server_process import COMMAND_PREFIX, free_port
from blindtally.fleet_run.registrar_key_files import create_key_file
from client.analyst.analyst import Analyst
from client.device.device_state import DeviceState
from client.device.driver import EndState
from client.device.take_part import ParticipationOutcome, take_part
from protocol.api.messages import Timeouts
from protocol.device_policy.policy import Policy
from protocol.domains.strings import Utf8
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.question_and_plan import Terms

DEVICES = 12
COHORTS = 2
TERMS = {"cohort_size": 6, "minimum": 5, "cohorts": COHORTS, "corrupt": 0.1, "dropout": 0.2}
QUESTION = AdaptiveIbltQuestion(
    threshold=5, contribution=4, domain=Utf8(max_bytes=6), message_bytes=4784
)


class RunningRegistrar:
    """A registrar in a process; `stop` kills it, as a power cut would."""

    def __init__(self, key: Path, service: str) -> None:
        port = str(free_port())
        words = ("registrar", "serve", str(key), "--url", service, "--port", port)
        self.command, self.url = [*COMMAND_PREFIX, *words], f"http://127.0.0.1:{port}"

    def __enter__(self) -> "RunningRegistrar":
        self.process = subprocess.Popen(self.command, env=dict(os.environ))
        late = time.monotonic() + 60
        while time.monotonic() < late and self.process.poll() is None:
            try:
                httpx.get(f"{self.url}/healthz", trust_env=False).raise_for_status()
            except httpx.HTTPError:
                time.sleep(0.05)
            else:
                return self
        raise AssertionError("the registrar does not start")

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def blindtally(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_devices_with_tokens_are_enrolled_seated_and_counted_also_by_one_that_was_killed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    key = tmp_path / "registrar.key"
    public = create_key_file(key).public
    policy = Policy(registrar=public, min_cohort=3, max_epsilon=8)
    tokens = blindtally("registrar", "tokens", str(key), "--count", str(DEVICES)).split()
    registrar = RunningRegistrar(key, url)

    async def taken(study: str, proofs: Sequence[str]) -> list[ParticipationOutcome]:
        devices = (
            take_part(
                url, ["common"], policy, study=study, device_state=DeviceState.in_memory(),
                registrar=registrar.url, registrar_token=proof, wait=60,
            )
            for proof in proofs
        )  # fmt: skip
        return [outcome for (outcome,) in await asyncio.gather(*devices)]

    def a_round_is_counted(analyst: Analyst) -> None:
        terms = Terms.model_validate(TERMS | {"registrar": public.hex()})
        quick = Timeouts(idle=0.5)
        study = analyst.create("words", QUESTION, terms=terms, rounds=1, timeouts=quick)
        file = tmp_path / "study.json"
        file.write_text(study.view.model_dump_json())
        blindtally("registrar", "allow", str(key), str(file))  # while it runs
        (stranger,) = asyncio.run(taken(study.id, ["btr_invented"]))
        assert (stranger.state, stranger.last_step) == (EndState.REJECTED, None)
        assert "refuses this device" in stranger.error
        outcomes = asyncio.run(taken(study.id, tokens))
        assert {(each.state, each.error) for each in outcomes} == {(EndState.FINISHED, "")}
        study.wait()
        assert [(row.item, row.estimate) for row in study.heavy_hitters()] == [("common", DEVICES)]

    with Analyst(url) as analyst:
        with registrar:  # killed at any moment: what it has answered is on the disk
            a_round_is_counted(analyst)
        with registrar:
            assert httpx.get(f"{registrar.url}/metrics", trust_env=False).status_code == 200
            a_round_is_counted(analyst)

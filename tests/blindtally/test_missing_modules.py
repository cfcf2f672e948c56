"""Systems and installations that lack modules: Windows is played by a Python without POSIX."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Runs its first argument without the modules and functions that only POSIX has. filelock keeps the
# system's locks: it has those of Windows as well.
HIDDEN_POSIX = """
import os, signal, sys
import filelock
sys.modules |= dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios"))
for name in ("pread", "pwrite", "fchmod", "fork", "geteuid", "O_CLOEXEC"):
    delattr(os, name)
for name in ("pthread_sigmask", "SIGHUP"):
    delattr(signal, name)
exec(sys.argv.pop(1))
"""
COMMAND_LINE = "from blindtally.cli import app; app()"
STUDY = """
import sys
from random import Random
from blindtally import Analyst, Device, DeviceState, Identity, Policy, Tracked, Utf8

url, folder = sys.argv[1:]
registrar = Identity.generate(Random(1))
question = Tracked(threshold=5, contribution=1, domain=Utf8(max_bytes=16), words=2000)
policy = Policy(min_cohort=8, registrar=registrar.public)
with Analyst(url) as analyst:
    study = analyst.create("s", question, devices=20, rounds=1, registrar=registrar.public.hex())

    def sign(_registry, identity):
        return registrar.sign(study.view.registry.enrolment_statement(identity))

    devices = [
        Device(url, policy, device_state=DeviceState.on_disk(f"{folder}/{number}"),
               enrolment_signer=sign)
        for number in range(20)
    ]
    parts = [device.start(["hello"], study=study.id, wait=60.0) for device in devices]
    for part in parts:
        (outcome,) = part.result(timeout=120)
        assert outcome.state == "finished", outcome
    study.wait()
    print(study.heavy_hitters()[0])
"""


def play(program: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", HIDDEN_POSIX, program, *map(str, arguments)]


def test_an_analyst_devices_on_a_disk_and_a_server_need_nothing_of_posix(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'made.db'}"
    serve = play(COMMAND_LINE, "serve", "--open", "--port", 0, "--database", database)
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            program = play(STUDY, url, tmp_path)
            environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
            done = subprocess.run(
                program, capture_output=True, text=True, check=False, env=environment
            )
        finally:
            server.terminate()
    assert "item='hello'" in done.stdout, done.stderr
    assert (tmp_path / "0" / "journal").stat().st_size > 0


@pytest.mark.parametrize(
    "command",
    [
        "simulate tracked --data words --devices 20 --rounds 1 --workers 2",
        "demo --devices 30 --rounds 1 --out made",
        "member made.key --new",
    ],
)
def test_a_command_runs_without_posix(tmp_path: Path, command: str) -> None:
    program = play(COMMAND_LINE, *command.split())
    subprocess.run(program, cwd=tmp_path, capture_output=True, check=True)


def test_the_command_without_its_extra_names_it() -> None:
    program = "import sys; sys.modules |= {'rich': None, 'typer': None}\n"
    program += "from blindtally.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert b"error: the command blindtally needs" in done.stderr
    assert b"[cli]" in done.stderr

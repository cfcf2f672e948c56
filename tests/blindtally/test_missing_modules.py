"""Systems and installations that lack modules: Windows is played by a Python without POSIX."""

import os
import subprocess
import sys
from pathlib import Path

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
# Commands, of which one starts a server without POSIX, which has one more study before it stops.
PROGRAM = """
import shlex, sys
from random import Random
from blindtally import Analyst, Device, DeviceState, Identity, Policy, Tracked, Utf8
from blindtally.cli import app
from blindtally.demo import server_process

registrar = Identity.generate(Random(1))
question = Tracked(threshold=5, contribution=1, domain=Utf8(max_bytes=16), message_bytes=5784)
policy = Policy(min_cohort=4, registrar=registrar.public)
stop = server_process.ServerProcess.stop

def study_and_stop(service):
    server_process.ServerProcess.stop = stop
    with Analyst(service.url) as analyst:
        key = registrar.public.hex()
        study = analyst.create("s", question, devices=10, rounds=1, registrar=key)

        def sign(_registry, identity):
            return registrar.sign(study.view.registry.enrolment_statement(identity))

        devices = [
            Device(service.url, policy, device_state=DeviceState.on_disk(f"devices/{number}"),
                   enrolment_signer=sign)
            for number in range(10)
        ]
        parts = [device.start(["hello"], study=study.id, wait=60.0) for device in devices]
        for part in parts:
            (outcome,) = part.result(timeout=120)
            assert outcome.state == "finished", outcome
        study.wait()
        print(study.heavy_hitters()[0])
    stop(service)

server_process.COMMAND_PREFIX = (*sys.orig_argv[:3], sys.argv.pop(1))
server_process.ServerProcess.stop = study_and_stop
for command in sys.argv[1:]:
    app(shlex.split(command), standalone_mode=False)
"""


def test_commands_an_analyst_devices_on_a_disk_and_a_server_need_nothing_of_posix(
    tmp_path: Path,
) -> None:
    commands = (
        "member made.key --new",
        "simulate tracked --data words --devices 20 --rounds 1 --workers 2",
        "demo --devices 12 --rounds 1 --out made",
    )
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN_POSIX, PROGRAM, COMMAND_LINE, *commands],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    assert "item='hello'" in done.stdout, done.stderr
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "devices" / "0" / "journal").stat().st_size > 0
    assert (tmp_path / "made" / "results.json").exists()
    assert (tmp_path / "made.key").exists()


def test_the_command_without_its_extra_names_it() -> None:
    program = "import sys; sys.modules |= {'rich': None, 'typer': None}\n"
    program += "from blindtally.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert b"error: the command blindtally needs" in done.stderr
    assert b"[cli]" in done.stderr

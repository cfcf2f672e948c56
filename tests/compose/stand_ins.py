"""Stand-ins for the images of docker-compose.yml where no registry of images can be reached.

They are built from Debian's packages and have the names of the real images, so that
docker-compose.yml runs unchanged. This Debian has the same versions (Python 3.13, PostgreSQL 17,
HAProxy 3.0). The image for Python has the certificates and the package index of this machine, so
that builds get their packages; these images are therefore for this machine only.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.compose.engine import Engine

SUITE = "trixie"
IMAGES = {
    "python:3.13-slim": "python.Dockerfile",
    "postgres:17": "postgres.Dockerfile",
    "haproxy:3.0": "haproxy.Dockerfile",
}
_BASE = f"blindtally-stand-in:{SUITE}"
_FILES = Path(__file__).parent / "stand_ins"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP_OPTIONS = ("index-url", "extra-index-url", "trusted-host", "timeout")


def build(engine: Engine, say: Callable[[str], None]) -> None:
    """Build the stand-ins that `engine` does not have yet, or that changed."""
    if not _has(engine, _BASE):
        say(f"making a base image of Debian {SUITE}")
        _import_base(engine)
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder) / "context"
        shutil.copytree(_FILES, context)
        shutil.copy(_CERTIFICATES, context)
        (context / "pip.conf").write_text(_pip_settings())
        for image, file in IMAGES.items():
            say(f"building a stand-in for {image}")
            command = ["docker", "build", "--quiet", f"--build-arg=BASE={_BASE}"]
            command += [f"--file={context / file}", f"--tag={image}", str(context)]
            subprocess.run(command, env=engine.environment, stdout=subprocess.DEVNULL, check=True)


def _has(engine: Engine, image: str) -> bool:
    command = ["docker", "image", "inspect", image]
    result = subprocess.run(command, env=engine.environment, capture_output=True, check=False)
    return result.returncode == 0


def _import_base(engine: Engine) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", SUITE]
        made = subprocess.run(
            [*command, str(root), _mirror()], capture_output=True, text=True, check=False
        )
        if made.returncode:
            raise RuntimeError(f"debootstrap failed: {made.stdout[-500:]}{made.stderr[-500:]}")
        shutil.rmtree(root / "var/cache/apt/archives")
        (root / "var/cache/apt/archives/partial").mkdir(parents=True)
        files = subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE)
        subprocess.run(
            ["docker", "import", "-", _BASE],
            env=engine.environment,
            stdin=files.stdout,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        if files.wait():
            raise RuntimeError("tar failed")


def _mirror() -> str:
    """Return the mirror of Debian's packages that this machine uses."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    wanted = ["Created-By: Packages", "Label: Debian", "Component: main"]
    targets = subprocess.run([*command, *wanted], capture_output=True, text=True, check=True)
    if not targets.stdout.strip():
        raise RuntimeError("apt knows no mirror of Debian: run apt-get update")
    return targets.stdout.split()[0]


def _pip_settings() -> str:
    """Return the settings of pip on this machine, without its local files."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = ["[global]", f"cert = {_CERTIFICATES}"]
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        option = name.rpartition(".")[2].replace("default-timeout", "timeout")
        kept = [word for word in value.strip("'\"").split() if not word.startswith(("file:", "/"))]
        if option in _PIP_OPTIONS and kept:
            lines.append(f"{option} = {' '.join(kept)}")
    return "\n".join(dict.fromkeys(lines)) + "\n"

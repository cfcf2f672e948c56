"""The bundle that the service serves is that of the modules in js/, small, and without others."""

import gzip
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.js.node import NODE, ROOT

JS = ROOT / "js"
SOURCES = sorted((JS / "src").rglob("*.js"))
BUNDLE = ROOT / "server" / "pages" / "static" / "blindtally-device.js"
# These may only fall; the goals are 30,000 and 12,000 bytes, and 1,400 lines.
MAX_BYTES, MAX_COMPRESSED, MAX_LINES = 36_871, 16_751, 2_391


def test_the_bundle_and_its_modules_grow_no_more() -> None:
    body = BUNDLE.read_bytes()
    assert len(body) <= MAX_BYTES
    assert len(gzip.compress(body, 9)) <= MAX_COMPRESSED
    assert sum(len(path.read_text().splitlines()) for path in SOURCES) <= MAX_LINES


def test_modules_import_no_package() -> None:
    text = "".join(path.read_text() for path in SOURCES if path.name != "node_journal.js")
    assert not re.findall(r'from "[^.]', text)


def test_the_bundle_is_made_of_the_modules(tmp_path: Path) -> None:
    if not (JS / "node_modules").is_dir():
        pytest.skip("`make js` installs esbuild, and CI runs it before the tests")
    _, *options, _ = json.loads((JS / "package.json").read_text())["scripts"]["build"].split()
    made, esbuild = tmp_path / "made.js", JS / "node_modules" / ".bin" / "esbuild"
    environment = {"PATH": f"{NODE.parent}:{os.environ['PATH']}"}
    command = [esbuild, *options, f"--outfile={made}"]
    subprocess.run(command, cwd=JS, env=environment, check=True)
    assert made.read_bytes() == BUNDLE.read_bytes()

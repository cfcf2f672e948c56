"""The bundle that the service serves is that of the modules in js/, small, and without others."""

import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.js.node import NODE, ROOT

JS = ROOT / "js"
SOURCES = sorted((JS / "src").rglob("*.js"))
BUNDLE = ROOT / "server" / "pages" / "static" / "blindtally-device.js"
BROTLI = Path(f"{BUNDLE}.br")  # the service sends these bytes
# These may only fall. Comments and blank lines do not count.
MAX_BYTES, MAX_BROTLI_BYTES, MAX_CODE_LINES = 28_535, 12_000, 1_400


def test_the_bundle_and_its_modules_grow_no_more() -> None:
    assert BUNDLE.stat().st_size <= MAX_BYTES
    assert BROTLI.stat().st_size <= MAX_BROTLI_BYTES
    unpack = "process.stdout.write(zlib.brotliDecompressSync(fs.readFileSync(process.argv[1])))"
    assert subprocess.check_output([NODE, "-e", unpack, BROTLI]) == BUNDLE.read_bytes()
    lines = [line.strip() for path in SOURCES for line in path.read_text().splitlines()]
    assert sum(not line.startswith(("/**", "*", "//")) for line in lines if line) <= MAX_CODE_LINES


def test_modules_import_no_package() -> None:
    text = "".join(path.read_text() for path in SOURCES if path.name != "node_journal.js")
    assert not re.findall(r'from "[^.]', text)


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of esbuild and tsc, with Node on the path."""
    if not (JS / "node_modules").is_dir():
        pytest.skip("`make js` installs esbuild and tsc, and CI runs it before the tests")
    monkeypatch.setenv("PATH", f"{NODE.parent}:{os.environ['PATH']}")
    return JS / "node_modules" / ".bin"


def test_the_bundle_is_made_of_the_modules(tools: Path, tmp_path: Path) -> None:
    build = json.loads((JS / "package.json").read_text())["scripts"]["build"]
    made = tmp_path / "made.js"
    command = build.replace(f"../{BUNDLE.relative_to(ROOT)}", str(made))
    subprocess.run(["sh", "-c", f"PATH={tools}:$PATH; {command}"], cwd=JS, check=True)
    assert made.read_bytes() == BUNDLE.read_bytes()
    assert Path(f"{made}.br").is_file()


def test_the_package_has_the_types_of_the_example(tools: Path, tmp_path: Path) -> None:
    npm = NODE.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    subprocess.run([NODE, npm, "pack", "--pack-destination", tmp_path], cwd=JS, check=True)
    (archive,) = tmp_path.glob("*.tgz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "node_modules", filter="data")
    package = (tmp_path / "node_modules" / "package").rename(tmp_path / "node_modules/blindtally")
    names = {path.name for path in package.iterdir()}
    assert names == {"LICENSE", "README.md", "package.json", "src", "types"}
    example = shutil.copy(ROOT / "examples" / "node" / "take_part.mjs", tmp_path)
    options = "--noEmit --checkJs --strict --module nodenext --target es2022 --types node"
    types = "--typeRoots", JS / "node_modules" / "@types"
    subprocess.run([tools / "tsc", *options.split(), *types, example], check=True)

"""Each example works with a real service, and imports only public names."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from blindtally.demo.server_process import ServerProcess

FOLDER = Path(__file__).parents[1] / "examples"
PARSER = "ValueError: empty header | parse_header (mail.py) | read (mailbox.py) | main (app.py)"
PRINTED = {
    "keyboard_words": ["emoji      18", "brunch     12", "lol        12", "selfie     12"],
    "crash_signatures": [
        f"   40 (40 to 40)  {PARSER}",
        "   16 (16 to 16)  MemoryError | decode (image.py) | show (gallery.py) | main (app.py)",
    ],
    "slow_urls": ["/search  52 s"],
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ServerProcess(tmp_path_factory.mktemp("service"), is_open=True) as running:
        yield running.url


def run(example: str, argument: str) -> list[str]:
    """Return the lines that an example prints."""
    command = [sys.executable, FOLDER / f"{example}.py", argument]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("example", [*PRINTED, "latency_quantiles"])
def test_an_example_explains_itself(example: str) -> None:
    usage, *description = run(example, "--help")
    assert usage.startswith(f"usage: {example}.py")
    assert f"    python examples/{example}.py [URL]" in description


@pytest.mark.parametrize("example", PRINTED)
def test_an_example_prints_its_answer(example: str, url: str) -> None:
    devices, *answer = run(example, url)
    assert devices.endswith("devices: finished")
    assert sorted(answer) == sorted(PRINTED[example])


def test_the_quantiles_are_private_and_in_order(url: str) -> None:
    """The intervals may miss the truth, so it is not compared."""
    devices, *quantiles, _, server, _, _ = run("latency_quantiles", url)
    assert devices == "60 devices: finished"
    values = [float(line.split()[1]) for line in quantiles]
    assert len(values) == 3
    assert values == sorted(values)
    assert float(server.removeprefix("server: epsilon ")) <= 3


def test_examples_import_public_names_only_and_are_short() -> None:
    programs = sorted(FOLDER.glob("*.py"))
    assert {path.stem for path in programs} == {*PRINTED, "latency_quantiles", "crowd"}
    for path in programs:
        text = path.read_text()
        modules = {
            node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)
        }
        assert modules <= {"argparse", "blindtally", "crowd", "random", "contextlib"} | {
            "collections",
            "collections.abc",
            "typing",
        }
        assert len(text.splitlines()) < 60

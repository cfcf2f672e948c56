"""Each example works with a real service, and imports only public names."""

import ast
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.server.application import on_a_port

FOLDER = Path(__file__).parents[1] / "examples"
PARSER = "ValueError: empty header | parse_header (mail.py) | read (mailbox.py) | main (app.py)"
PRINTED = {
    "keyboard_words": ["emoji      18", "brunch     12", "lol        12", "selfie     12"],
    "crash_signatures": [
        f"   40 (40 to 40)  {PARSER}",
        "   16 (16 to 16)  MemoryError | decode (image.py) | show (gallery.py) | main (app.py)",
    ],
    "slow_urls": ["/search  10 devices"],
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with on_a_port(tmp_path_factory.mktemp("service")) as running:
        yield running.url


Run = Callable[[str, str], list[str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs an example, and returns the lines that it prints."""

    def lines(example: str, argument: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [f"{example}.py", argument])
        monkeypatch.syspath_prepend(FOLDER)
        with suppress(SystemExit):  # of --help
            runpy.run_path(str(FOLDER / f"{example}.py"), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return lines


@pytest.mark.parametrize("example", [*PRINTED, "latency_quantiles"])
def test_an_example_explains_itself(example: str, run: Run) -> None:
    usage, *description = run(example, "--help")
    assert usage.startswith(f"usage: {example}.py")
    assert f"    python examples/{example}.py [URL]" in description


@pytest.mark.parametrize("example", PRINTED)
def test_an_example_prints_its_answer(example: str, url: str, run: Run) -> None:
    devices, *answer = run(example, url)
    assert devices.endswith("devices: finished")
    assert sorted(answer) == sorted(PRINTED[example])


def test_the_quantiles_are_private_and_in_order(url: str, run: Run) -> None:
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

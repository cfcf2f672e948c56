"""Commands and programs in the documents work, and their links lead to files."""

import math
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from blindtally import Study
from blindtally.cli import COMMANDS, app
from blindtally.commands.credentials_and_audit import create_first_credentials
from blindtally.demo.server_process import ServerProcess
from blindtally.fleet_run.registrar_key_files import create_key_file
from blindtally.fleet_run.scenario import FleetScenario
from blindtally.planning.sum_plan import AssumedItems
from blindtally.simulate.scenario import Scenario
from paper.commands import app as paper
from protocol.api.messages import Timeouts
from protocol.device_policy.policy import MAX_SHARINGS, MIN_SIGMA
from server.settings import Settings

ROOT = Path(__file__).parents[1]
FOLDERS = (".", "docs", "docs/mechanisms", "docs/recipes", "docs/research", "examples")
PAGES = sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.md"))
SOURCE_FOLDERS = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."]
PYTHON_FILES = [path for folder in SOURCE_FOLDERS for path in folder.rglob("*.py")]
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in (path.stem, *re.findall(r"def (test_\w+)", path.read_text()))
}
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")
CODE_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SERVICE_URL = "http://127.0.0.1:8000"
RUN = CliRunner()
SERVICE_COMMANDS = (
    "serve",
    "restore",
    "studies",
    "fleet",
    "demo",
    "try",
    "privacy",
    "query",
    "changes",
    "member",
    "login",
    "logout",
    "watch",
)
# The figures are drawn in tests/paper.
LONG_COMMANDS = (
    ["keys", "revoke"],
    ["keys", "create", "guest"],
    ["tokens", "revoke"],
    ["grid"],
    ["fig3"],
    ["cdf"],
    ["registrar", "allow"],
    ["registrar", "tokens", "phones.key", "--revoke"],
    ["registrar", "serve"],
)


def blocks(page: Path, language: str) -> Iterator[str]:
    yield from re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


FIGURES = ["python", "-m", "paper"]


def commands() -> list[list[str]]:
    """Return the words of each `blindtally ...` and `python -m paper ...` line of a shell block."""
    pages = [page for page in PAGES if page.parent.name != "recipes"]  # tests/test_recipes.py
    lines = [line for page in pages for block in blocks(page, "sh") for line in block.splitlines()]
    names = tuple(f"{name} " for name in ("blindtally", " ".join(FIGURES)))
    return [shlex.split(line, comments=True) for line in lines if line.startswith(names)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} points at {target}"


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and the documentation's site make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    headings = re.findall(r"^#+ (.*)$", CODE_BLOCK.sub("", page.read_text()), re.MULTILINE)
    return frozenset(map(slug, headings))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_anchors_of_links_are_headings(page: Path) -> None:
    for target, anchor in ANCHOR.findall(CODE_BLOCK.sub("", page.read_text())):
        path = page.parent / target if target else page
        if "://" not in target and path.suffix == ".md":
            assert anchor in anchors(path.resolve()), f"{page.name} points at {target}#{anchor}"


def test_an_anchor_is_the_text_of_its_heading() -> None:
    assert slug("Limits, TLS and `proxies`") == "limits-tls-and-proxies"
    assert slug("A [link](x.md) to *t*: how?") == "a-link-to-t-how"


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert [each["name"] for each in citation["authors"]] == [
        each["name"] for each in project["authors"]
    ]


def test_pages_link_to_each_picture() -> None:
    links = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in LINK.findall(page.read_text())
    }
    pictures = [path for ending in ("png", "svg") for path in ROOT.glob(f"docs/**/*.{ending}")]
    assert pictures
    assert not [path.name for path in pictures if path not in links]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_table_is_whole(page: Path) -> None:
    """A blank line inside a table would make text of its other half."""
    tables: list[str] = re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE)
    for table in tables:
        _, separator, *_ = [*table.splitlines(), "", ""]
        assert re.fullmatch(r"\|(?: ?:?-+:? ?\|)+", separator), f"{page.name}: {table[:80]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_files_and_tests_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    for name in re.findall(r"`((?:[\w/]+/)?\w+\.py)`", text):
        assert any(path.match(name) for path in PYTHON_FILES), f"{page.name} names {name}"
    assert not set(re.findall(r"`(test_\w+)`", text)) - TESTS


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands_in_the_documents_work(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program, words = (paper, words[3:]) if words[:3] == FIGURES else (app, words[1:])
    if words[0] == "registrar" and words[1] in ("show", "tokens"):
        create_key_file(Path(words[2]))
    if words[0] in ("keys", "tokens", "audit", "backup", "clock"):
        create_first_credentials("sqlite:///blindtally.db", "service", 1)
    # These run for long, or need a service or its database: only their options are checked.
    if words[0] in SERVICE_COMMANDS or any(words[: len(long)] == long for long in LONG_COMMANDS):
        words = [*words, "--help"]
    result = RUN.invoke(program, words)
    assert result.exit_code == 0, result.output


def test_the_documents_show_each_command() -> None:
    shown = {words[1] for words in commands()} | {"demo"}  # shown as a make target
    assert shown >= COMMANDS.keys()


def test_the_page_of_commands_has_each_command_and_variable_of_the_service() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    shown = {
        line.split()[1]
        for block in blocks(ROOT / "docs" / "cli.md", "sh")
        for line in block.splitlines()
    }
    assert shown >= COMMANDS.keys()
    assert all(f"`BLINDTALLY_{name.upper()}`" in page for name in Settings.model_fields)
    for form in (AssumedItems, FleetScenario, Scenario):
        assert all(re.search(f"`{name}[=`]", page) for name in form.model_fields)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("service"), is_open=True) as running:
        yield running


def run(page: str, code: str, service: ServerProcess) -> dict[str, Any]:
    """Return the variables of a page's program at its end."""
    assert SERVICE_URL in code
    variables: dict[str, Any] = {}
    exec(compile(code.replace(SERVICE_URL, service.url), page, "exec"), variables)  # noqa: S102
    return variables


def test_the_python_of_the_readme_works(
    service: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Study, "wait", Study.stop)  # no device joins, so that it would wait
    (code,) = blocks(ROOT / "README.md", "python")
    assert run("README.md", code, service)["study"].state == "stopped"


def test_the_sdk_page_is_one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client.device.device_state.user_state_path", lambda name: tmp_path / name)
    monkeypatch.setattr(
        "client.analyst.study_creation.Timeouts", lambda: Timeouts(idle=60)
    )  # shared machines
    variables: dict[str, Any] = {}
    code = "\n".join(blocks(ROOT / "docs" / "sdk.md", "python"))
    exec(compile(code, "sdk.md", "exec"), variables)  # noqa: S102
    assert {row.item: row.estimate for row in variables["heavy_hitters"]} == {
        "hello": 11,
        "good evening": 5,
    }
    assert list(variables["frame"]["item"]) == ["hello", "good evening"]
    assert variables["study"].state == "finished"
    variables["test_the_app_takes_part"]()


def test_the_documents_state_one_probability_for_a_study() -> None:
    """Add the draws of holders that a device makes in a study, and the draw of seats."""
    probability = (MAX_SHARINGS + 1) * 2.0**-MIN_SIGMA
    for page in ("docs/threat-model.md", "docs/security-proof.md"):
        assert f"2^{math.log2(probability):.0f}" in (ROOT / page).read_text(encoding="utf-8")

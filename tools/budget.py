"""Figures of the code that may only fall, next to their limits in `budget.toml`.

`python tools/budget.py` prints each figure with its limit and goal, and ends with code 1 if one is
above its limit. `--lower` writes the present figures as the limits, where they are lower. To raise
a limit, change it by hand and state the reason in its `why`.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
LIMITS: Final = ROOT / "budget.toml"
PACKAGES: Final = ("blindtally", "client", "protocol", "secagg", "server")
_REFERENCE_FOLDER: Final = "protocol/reference_mechanisms"  # a plug-in of this distribution
_CONCRETE: Final = re.compile(
    r"^\s*from protocol\.(oracles|(reference_)?mechanisms)\.(?!registry\b|quality_goal\b)",
    re.MULTILINE,
)


def _files(*folders: str, suffixes: tuple[str, ...] = (".py",)) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes and "__pycache__" not in path.parts:
                yield path


def _lines(*folders: str) -> int:
    files = _files(*folders, suffixes=(".py", ".pyx"))
    kept = [path for path in files if ROOT / _REFERENCE_FOLDER not in path.parents]
    return sum(len(path.read_text().splitlines()) for path in kept)


def importers() -> int:
    """Return the number of files outside `protocol` that import a concrete mechanism or oracle.

    The public names in `blindtally/__init__.py` are the exception.
    """
    public = ROOT / "blindtally" / "__init__.py"
    files = [path for path in _files("server", "client", "blindtally") if path != public]
    return sum(bool(_CONCRETE.search(path.read_text())) for path in files)


def installed_lines() -> int:
    """Return the lines of the five packages without reference mechanisms."""
    return _lines(*PACKAGES)


def test_lines() -> int:
    """Return the lines of all tests."""
    return _lines("tests")


def is_research(page: str) -> bool:
    """Return whether `page`, a path below docs, is a proof, a derivation or a measurement.

    Pages in view link to research, and the site's navigation and search leave it out.
    """
    return page.startswith("research/") or page == "security-proof.md"


def _words(of_research: bool) -> int:
    pages = _files("docs", suffixes=(".md",))
    chosen = [
        page
        for page in pages
        if is_research(page.relative_to(ROOT / "docs").as_posix()) == of_research
    ]
    return sum(len(page.read_text(encoding="utf-8").split()) for page in chosen)


def document_words() -> int:
    """Return the words in view: README and docs without research."""
    return len((ROOT / "README.md").read_text(encoding="utf-8").split()) + _words(False)


def research_words() -> int:
    """Return the words of research in docs."""
    return _words(True)


def options() -> int:
    """Return the options in the `--help` of the command that has most."""
    from typer.testing import CliRunner  # noqa: PLC0415 - most figures need no installation

    from blindtally.cli import COMMANDS, app  # noqa: PLC0415

    def most(words: list[str]) -> int:
        text = CliRunner().invoke(app, [*words, "--help"]).stdout
        _, _, listed = text.partition("Commands ")
        names = re.findall(r"^\W ([a-z][a-z-]*)  ", listed, re.MULTILINE)
        own = len(re.findall(r"^\W*--[a-z]", text, re.MULTILINE))
        return max([own, *(most([*words, name]) for name in names)])

    return max(most([name]) for name in COMMANDS)


def settings() -> int:
    """Return the settings of the service."""
    from server.settings import Settings  # noqa: PLC0415

    return len(Settings.model_fields)


def policy_fields() -> int:
    """Return the fields of a device's policy."""
    from dataclasses import fields  # noqa: PLC0415

    from protocol.device_policy.policy import Policy  # noqa: PLC0415

    return len(fields(Policy))


def foreign_private_names() -> int:
    """Return the number of private names that are imported from other distributions."""
    own = {*PACKAGES, *sys.stdlib_module_names}
    return sum(_foreign_private_names(path, own) for path in _files(*PACKAGES))


def _foreign_private_names(path: Path, own: set[str]) -> int:
    """Return the imports of `path` from other distributions that have a private part."""
    modules: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules += [f"{node.module}.{each.name}" for each in node.names]
    foreign = [each for each in modules if each.split(".")[0] not in own]
    return sum(any(re.match("_[a-z]", part) for part in each.split(".")) for each in foreign)


@cache
def modules_of_a_round() -> tuple[str, ...]:
    """Return the paths of the modules that a whole round over HTTP enters."""
    from tools.round_path import entered_modules  # noqa: PLC0415

    # Another process plays it, because a profiler and a service change the state of one.
    with ProcessPoolExecutor(1, get_context("spawn")) as other:
        return tuple(sorted(other.submit(entered_modules).result()))


def round_modules() -> int:
    """Return the number of modules that a whole round over HTTP enters."""
    return len(modules_of_a_round())


FIGURES: Final[tuple[Callable[[], int], ...]] = (
    importers,
    installed_lines,
    test_lines,
    document_words,
    research_words,
    options,
    settings,
    policy_fields,
    foreign_private_names,
    round_modules,
)


def figures() -> dict[str, int]:
    """Return all figures by name."""
    return {figure.__name__: figure() for figure in FIGURES}


def excesses(values: dict[str, int], limits: dict[str, Any]) -> list[str]:
    """Return a line for each of `values` that is above its limit."""
    return [
        f"{name}: {value:,} is above the limit of {limits[name]['limit']:,}: remove something, or "
        "raise the limit in budget.toml and state why"
        for name, value in values.items()
        if value > limits[name]["limit"]
    ]


def _lower(values: dict[str, int]) -> None:
    """Write `values` as limits where they are lower; lines and words in whole hundreds."""
    text = LIMITS.read_text()
    values = {name: -(-v // 100) * 100 if v > 1_000 else v for name, v in values.items()}
    for name, value in values.items():
        section = re.compile(rf"(\[{name}\]\nlimit = )(\d+)")
        text = section.sub(lambda m, v=value: f"{m[1]}{min(v, int(m[2]))}", text)  # type: ignore[misc]
    LIMITS.write_text(text)


def main() -> int:
    """Print the figures, and return the exit code."""
    values, limits = figures(), tomllib.loads(LIMITS.read_text())
    if "--lower" in sys.argv:
        _lower(values)
        limits = tomllib.loads(LIMITS.read_text())
    for name, value in values.items():
        limit, goal = limits[name]["limit"], limits[name]["goal"]
        print(f"{name.replace('_', ' '):24} {value:8,}  limit {limit:7,}  goal {goal:7,}")
    too_many = excesses(values, limits)
    print(*too_many, sep="\n")
    return 1 if too_many else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())

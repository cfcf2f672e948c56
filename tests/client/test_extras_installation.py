"""Commands that install an extra, for each source of the installed blindtally."""

import json
import runpy
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from client import extras_installation
from client.extras_installation import (
    COMPILED_MODULES,
    describe_missing,
    install_command,
    slower_reader,
)

ROOT = Path(__file__).parents[2]
FOLDER = {"url": "file:///home/me/my%20clone", "dir_info": {"editable": True}}


@pytest.mark.parametrize(
    ("direct_url", "target"),
    [
        (None, "'blindtally[demo]'"),
        (FOLDER, "-e '/home/me/my clone[demo]'"),
        (FOLDER | {"dir_info": {}}, "'/home/me/my clone[demo]'"),
        ({"url": "https://example.org/x.whl", "archive_info": {}}, "'blindtally[demo]'"),
    ],
)
def test_an_extra_is_installed_from_the_same_source(
    direct_url: dict[str, object] | None, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = SimpleNamespace(read_text=lambda _: direct_url and json.dumps(direct_url))
    build = SimpleNamespace(read_text=lambda _: None)
    monkeypatch.setattr(
        "client.extras_installation.distributions", lambda **_: iter((build, installed))
    )
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    assert install_command("demo") == f"pip install {target}"


def test_the_pip_is_this_pythons_if_the_shell_has_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/home/me/.venv")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    assert install_command("demo").startswith(f"{sys.executable} -m pip install ")


def test_a_clone_is_compiled_in_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain installation would compile elsewhere, and Python finds a clone's modules first."""
    monkeypatch.setattr(extras_installation, "COMPILED_MODULES", {"not_compiled": ""})
    assert f"install -e '{ROOT}[demo]'" in str(slower_reader("demo"))


@pytest.mark.parametrize(
    ("user", "names"),
    [
        ("oracles/report_counting", ["count_hashed", "count_preimages", "count_solutions"]),
        ("sketches/iblt/peeling", ["add_entry", "peel"]),
    ],
)
def test_modules_compiled_for_another_interface_are_not_used(
    user: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their loops check no index. Early ones have no number."""
    kernel = f"protocol/{user}_kernel".replace("/", ".")
    only = {kernel: COMPILED_MODULES[kernel]}
    monkeypatch.setattr(extras_installation, "COMPILED_MODULES", only)
    reference = import_module(only[kernel])
    current = reference.INTERFACE
    for number in ({}, {"INTERFACE": current + 1}, {"INTERFACE": current}):
        monkeypatch.setitem(sys.modules, kernel, SimpleNamespace(**dict.fromkeys(names), **number))
        used = runpy.run_path(str(ROOT / "protocol" / f"{user}.py"))
        is_used = number == {"INTERFACE": current}
        assert all(used[name] is (None if is_used else vars(reference)[name]) for name in names)
        assert is_used == ("are of another version. With" not in str(slower_reader("demo")))


def test_every_module_that_is_compiled_is_known() -> None:
    compiled = sorted((ROOT / "protocol").rglob("*.pyx"))
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in compiled)
    assert list(names) == [*COMPILED_MODULES]


def test_a_module_of_python_is_never_called_an_extra() -> None:
    text = describe_missing(ModuleNotFoundError(name="fcntl"), "server")
    assert "fcntl, which this system" in text
    assert "extra" not in text

"""Commands that install the optional parts of blindtally, of `pyproject.toml` and `setup.py`."""

import json
import os
import shlex
import sys
from contextlib import suppress
from importlib import import_module
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

COMPILED_MODULES: Final = {  # with the modules of numpy that take their place
    "protocol.oracles.report_counting_kernel": "protocol.oracles.numpy_report_counting",
    "protocol.sketches.iblt.peeling_kernel": "protocol.sketches.iblt.numpy_peeling",
}


def slower_reader(extra: str) -> str | None:
    """Return a line on how to compile the modules that read sums; None if they are."""
    fault = ""
    with suppress(ImportError):
        compiled = [getattr(import_module(name), "INTERFACE", 0) for name in COMPILED_MODULES]
        if compiled == [import_module(name).INTERFACE for name in COMPILED_MODULES.values()]:
            return None
        fault = " Those that are installed are of another version."
    clone = Path(__file__).parents[1]
    command = f"{install_command(extra)} --force-reinstall --no-cache-dir"
    if (clone / "setup.py").exists():  # the modules of a plain installation are elsewhere
        command = shlex.join([*_pip_command(), "install", "-e", f"{clone}[{extra}]"])
    return (
        "tables and reports are read by numpy, several times slower than by compiled modules."
        f"{fault} With a C compiler (Debian, Ubuntu: gcc, python3-dev) this makes them: {command}"
    )


def describe_missing(error: ModuleNotFoundError, extra: str) -> str:
    """Return the name of the missing module or part, and the way to add it."""
    if error.name in sys.stdlib_module_names:
        return f"Python's module {error.name}, which this system ({sys.platform}) does not have"
    return f"{error.name}, which an extra brings: {install_command(extra)}"


def install_command(extra: str) -> str:
    """Return the command that installs `extra` from the source of the installed blindtally."""
    source = _direct_url()
    folder = unquote(urlsplit(source.get("url", "")).path) if "dir_info" in source else ""
    options = ["-e"] if folder and source["dir_info"].get("editable") else []
    return shlex.join([*_pip_command(), "install", *options, f"{folder or 'blindtally'}[{extra}]"])


def _direct_url() -> dict[str, Any]:
    """Return pip's record of the source, empty for a package from a registry [PEP 610]."""
    # In a clone, the metadata of a build come first, which have no record.
    texts = (each.read_text("direct_url.json") for each in distributions(name="blindtally"))
    return dict(json.loads(next(filter(None, texts), "{}")))


def _pip_command() -> list[str]:
    """Return the pip of this Python, which is plain `pip` if its environment is active."""
    is_active = sys.prefix == sys.base_prefix or os.environ.get("VIRTUAL_ENV") == sys.prefix
    return ["pip"] if is_active else [sys.executable, "-m", "pip"]

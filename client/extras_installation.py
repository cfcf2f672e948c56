"""Commands that install the optional dependencies of `pyproject.toml`."""

import json
import os
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any
from urllib.parse import unquote, urlsplit


def install_command(extra: str) -> str:
    """Return the command that installs `extra` from the source of the installed blindtally."""
    source = _direct_url()
    folder = unquote(urlsplit(source.get("url", "")).path) if "dir_info" in source else ""
    options = ["-e"] if folder and source["dir_info"].get("editable") else []
    return shlex.join([*_pip_command(), "install", *options, f"{folder or 'blindtally'}[{extra}]"])


def _direct_url() -> dict[str, Any]:
    """Return pip's record of the source, empty for a package from a registry [PEP 610]."""
    try:
        text = distribution("blindtally").read_text("direct_url.json")
    except PackageNotFoundError:
        return {}
    return dict(json.loads(text or "{}"))


def _pip_command() -> list[str]:
    """Return the pip of this Python, which is plain `pip` if its environment is active."""
    is_active = sys.prefix == sys.base_prefix or os.environ.get("VIRTUAL_ENV") == sys.prefix
    return ["pip"] if is_active else [sys.executable, "-m", "pip"]

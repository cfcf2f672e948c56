"""How to install what only some programs need: the extras of `pyproject.toml`."""

import json
import os
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any
from urllib.parse import unquote, urlsplit


def install(extra: str) -> str:
    """Return the command that installs `extra`, from where blindtally itself was installed."""
    told = _direct_url()
    folder = unquote(urlsplit(told.get("url", "")).path) if "dir_info" in told else ""
    kept = ["-e"] if folder and told["dir_info"].get("editable") else []
    return shlex.join([*_pip(), "install", *kept, f"{folder or 'blindtally'}[{extra}]"])


def _direct_url() -> dict[str, Any]:
    """Return where pip had us from, nothing if from a registry [PEP 610]."""
    try:
        text = distribution("blindtally").read_text("direct_url.json")
    except PackageNotFoundError:
        return {}
    return dict(json.loads(text or "{}"))


def _pip() -> list[str]:
    """Return the pip of this Python: the shell's own, if its environment was activated."""
    is_mine = sys.prefix == sys.base_prefix or os.environ.get("VIRTUAL_ENV") == sys.prefix
    return ["pip"] if is_mine else [sys.executable, "-m", "pip"]

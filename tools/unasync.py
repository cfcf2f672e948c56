"""Generator of the analyst's blocking classes from the asynchronous ones: `make generate`.

The asynchronous modules are written by hand. Each blocking module is the same text without `async`
and `await`, and with the blocking name of each class or function. The result is committed, so that
editors, type checkers and `help()` read ordinary code; a test compares it with its source.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
GENERATED: Final = {  # each module and its source
    "client/analyst/sender.py": "client/analyst/async_sender.py",
    "client/analyst/analyst.py": "client/analyst/async_analyst.py",
}
REPLACEMENTS: Final = {
    r"\bawait asyncio\.to_thread\(\s*([\w.]+), ": r"\1(",
    r"\b(async|await) ": "",
    r"\bAsync(?=[A-Z])": "",  # AsyncStudy, AsyncIterator, AsyncClient, ...
    r"\basync_(?=[a-z])": "",
    r"\b__a(enter|exit)__": r"__\1__",
    r"\ba(iter_sse|iter_raw|closing|close)\b": r"\1",
    r"\benter_async_context\b": "enter_context",
    r"\basyncio\b": "time",
    r"\bin an event loop\b": "in a thread",
}


def blocking(source: str) -> str:
    """Return the text of the blocking module that is generated from `source`."""
    text = (ROOT / source).read_text(encoding="utf-8")
    for pattern, replacement in REPLACEMENTS.items():
        text = re.sub(pattern, replacement, text)
    header = f"# Generated from {Path(source).name} by `make generate`; do not edit.\n"
    ruff = [sys.executable, "-m", "ruff"]
    for command in (
        ["check", "--quiet", "--fix", "--unsafe-fixes", "--select", "C416,F401,I,UP028"],
        ["format", "--quiet"],
    ):
        options = [*command, "--stdin-filename", source, "-"]
        text = subprocess.run(  # noqa: S603 - no input from outside
            [*ruff, *options], input=text, cwd=ROOT, text=True, capture_output=True, check=True
        ).stdout
    return header + text


if __name__ == "__main__":
    for module, source in GENERATED.items():
        (ROOT / module).write_text(blocking(source), encoding="utf-8")

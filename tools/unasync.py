"""Generator of the analyst's blocking classes from the asynchronous ones: `make generate`.

The asynchronous module is written by hand. The blocking module is the same text without `async` and
`await`, and with the blocking name of each class or function. The result is committed, so that
editors, type checkers and `help()` read ordinary code; a test compares it with its source.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
GENERATED: Final = ROOT / "client/analyst/analyst.py"
SOURCE: Final = ROOT / "client/analyst/async_analyst.py"
REPLACEMENTS: Final = {
    r"\bawait asyncio\.to_thread\(\s*([\w.]+), ": r"\1(",
    r"\b(async|await) ": "",
    r"\bAsync(?=[AIS])": "",  # AsyncAnalyst, AsyncIterator, AsyncSender, AsyncStudy
    r"\basync_(?=[a-z])": "",
    r"\b__a(enter|exit)__": r"__\1__",
    r"\basyncio\b": "time",
    r"\bin an event loop\b": "in a thread",
}


def blocking() -> str:
    """Return the text of the blocking module."""
    text = SOURCE.read_text(encoding="utf-8")
    for pattern, replacement in REPLACEMENTS.items():
        text = re.sub(pattern, replacement, text)
    header = f"# Generated from {SOURCE.name} by `make generate`; do not edit.\n"
    ruff = [sys.executable, "-m", "ruff"]
    for command in (
        ["check", "--quiet", "--fix", "--unsafe-fixes", "--select", "C416,F401,I,UP028"],
        ["format", "--quiet"],
    ):
        options = [*command, "--stdin-filename", str(SOURCE), "-"]
        text = subprocess.run(  # noqa: S603 - no input from outside
            [*ruff, *options], input=text, cwd=ROOT, text=True, capture_output=True, check=True
        ).stdout
    return header + text


if __name__ == "__main__":
    GENERATED.write_text(blocking(), encoding="utf-8")

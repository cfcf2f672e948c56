"""Counts of the documents' prose, and names in code that name nothing.

`python -m tests.support.language PATH...` prints the findings in files or folders: sentences of
more than 40 words in Markdown and notebooks, and vague names in Python. Only the standard library
is needed.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_SENTENCE_WORDS = 40
VAGUE_NAMES = {"one", "found", "told", "heard", "said", "whose", "whoever", "whatever"}
# A constant of these words alone names nothing: MANY, IN_ONE.
_VAGUE = """
A ALL ANY AT BAD BIG BOTH EACH ENOUGH EVERY FAILED FALSE FEW FIRST FOR FOUND GOOD HERE IN IS IT ITS
LARGE LAST LATE LITTLE LONG LOST LOW MADE MANY MORE MUCH NEW NEXT NO NONE NOTHING OF OFTEN ON ONCE
ONE OTHER OTHERS OUT OVER OWN REST SEVERAL SHORT SLOW SMALL SOME THE TO TOO TWICE TWO UP WHAT WHOLE
WHY WRONG
"""
VAGUE_WORDS = frozenset(_VAGUE.split())
CONSTANT_PREFIXES = {"MOST": "MAX", "LEAST": "MIN", "FEWEST": "MIN"}

_CODE_BLOCK = re.compile(r"^ *```.*?^ *```$|^    [^\n]*$|^\s*[|<][^\n]*$", re.DOTALL | re.MULTILINE)
_LINK_TARGET = re.compile(r"(?<=\])\([^)]*\)|https?://\S+")
_CODE = re.compile(r"``[^`]*``|`[^`\n]*(?:\n[^`\n]*)?`")
_BLOCK_START = re.compile(r"\n\s*\n|^\s*(?:[-*+]|\d+\.|#+|>)\s", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!et al)(?<!vs)[.!?][)\"”*_]*(?=\s)")
_WORD = re.compile(r"[^\W_]+(?:['’./,-][^\W_]+)*")


def prose(path: Path) -> str:
    """Return the text of a page without code, tables and link targets."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [each for each in json.loads(text)["cells"] if each["cell_type"] == "markdown"]
        text = "\n\n".join("".join(each["source"]) for each in cells)
    return _CODE.sub("code", _LINK_TARGET.sub("", _CODE_BLOCK.sub("", text)))


def rate(pattern: str, *pages: Path) -> float:
    """Return how often a pattern occurs per 1,000 words of the pages' prose."""
    text = " ".join(map(prose, pages)).lower()
    return 1000 * len(re.findall(rf"\b(?:{pattern})\b", text)) / len(_WORD.findall(text))


def findings(path: Path) -> list[str]:
    """Return the findings in one file, one line each."""
    return [f"{path}: {finding}" for finding in _findings(path)]


def _findings(path: Path) -> Iterator[str]:
    if path.suffix == ".py":
        yield from _vague_names(ast.parse(path.read_text(encoding="utf-8")))
        return
    for block in _BLOCK_START.split(prose(path)):
        for sentence in _SENTENCE_END.split(block):
            count = len(_WORD.findall(sentence))
            if count > MAX_SENTENCE_WORDS:
                words = " ".join(sentence.split()[:6])
                yield f"“{words} ...”: split this sentence of {count} words"


def _vague_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
            ) if name in VAGUE_NAMES:
                yield f"line {node.lineno}: “{name}”: name what it holds: row, report, result"
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                parts = name.strip("_").split("_")
                if parts[0] in CONSTANT_PREFIXES:
                    start = CONSTANT_PREFIXES[parts[0]]
                    yield f"line {statement.lineno}: “{name}”: start its name with {start}"
                elif name.isupper() and VAGUE_WORDS.issuperset(parts):
                    yield f"line {statement.lineno}: “{name}”: name what it holds, with a noun"


def files(*paths: Path) -> list[Path]:
    """Return the checked files at or below `paths`: those that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = []
    for path in paths:
        if path.is_dir():
            names = subprocess.run(command, cwd=path, check=True, capture_output=True).stdout
            listed += [path / name for name in names.decode().split("\0")]
        else:
            listed.append(path)
    return [path for path in listed if path.suffix in {".py", ".md", ".ipynb"} and path.is_file()]


def main(arguments: list[str]) -> int:
    """Print the findings at or below each path, and return the exit code."""
    paths = [Path(argument) for argument in arguments] or [Path()]
    lines = [line for path in files(*paths) for line in findings(path)]
    print(*lines, sep="\n")  # noqa: T201
    return bool(lines)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

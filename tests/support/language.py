"""Plain-English check of prose and names: `python -m tests.support.language PATH...`.

Reads docstrings, comments, messages, names, templates, scripts and Markdown, and reports each
phrase that the tables of `language.toml` reject: its place, its words and what to write instead.
Code in backticks, fenced code blocks and link targets are not prose.

Only the standard library is needed, so the check runs before any dependency is installed.
"""

import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.prose import Prose, blank, prose_of

RULES: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
MAX_SENTENCE_WORDS = 40
SUFFIXES = {".Dockerfile", ".cfg", ".css", ".html", ".ipynb", ".js", ".mako", ".md", ".py"}
SUFFIXES |= {".pxd", ".pyi", ".pyx", ".toml", ".yml"}
FILE_NAMES = {"Dockerfile", "Makefile", "make_env", "postgres-entrypoint", "run"}

_CODE = re.compile(r"``[^`]*``|`[^`\n]*(?:\n[^`\n]*)?`")
_WORD = re.compile(r"[^\W_]+(?:['’./,-][^\W_]+)*")
_SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!et al)(?<!vs)[.!?][)\"”*_]*(?=\s)")


@dataclass(frozen=True, slots=True)
class Finding:
    """A phrase to rewrite, where it is, and what to write instead."""

    path: str
    line: int
    words: str
    instead: str

    def __str__(self) -> str:
        """Return the finding as one line, in the form that editors follow."""
        return f"{self.path}:{self.line}: “{self.words}”: {self.instead}"


def check(path: Path) -> list[Finding]:
    """Return the findings in one file, in the order of its lines."""
    findings = set()
    for prose in prose_of(path, path.read_text(encoding="utf-8")):
        for offset, words, instead in _violations(prose):
            line = prose.lines[min(prose.text.count("\n", 0, offset), len(prose.lines) - 1)]
            findings.add(Finding(str(path), line, " ".join(words.split()), instead))
    return sorted(findings, key=lambda finding: (finding.line, finding.words))


def files(*paths: Path) -> list[Path]:
    """Return the files to check at or below `paths`: those that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = []
    for path in paths:
        if path.is_dir():
            names = subprocess.run(command, cwd=path, check=True, capture_output=True).stdout
            listed += [path / name for name in names.decode().split("\0")]
        else:
            listed.append(path)
    return [path for path in dict.fromkeys(listed) if _is_checked(path)]


def _is_checked(path: Path) -> bool:
    is_ours = "vendored" not in path.parts and path.name != "language.toml"
    return is_ours and (path.suffix in SUFFIXES or path.name in FILE_NAMES) and path.is_file()


def _violations(prose: Prose) -> Iterator[tuple[int, str, str]]:
    """Yield the offset and the words of each violation, and what to write instead."""
    text = prose.text if prose.kind == "name" else _CODE.sub(blank, prose.text)
    if prose.kind == "constant":
        yield from _constant(text)
        return
    for table in ("names",) if prose.kind == "name" else ("phrases", "sentences"):
        yield from _phrases(table, text)
    for pattern, instead in _starts(prose.kind):
        if match := pattern.match(text):
            yield match.start(1), match[1], instead
    if prose.kind == "paragraph":
        yield from _long_sentences(prose.text)


def _phrases(table: str, text: str) -> Iterator[tuple[int, str, str]]:
    searched = text if table == "sentences" else text.lower()
    any_phrase, phrases = _patterns(table)
    for match in any_phrase.finditer(searched):
        start, end = match.span()
        instead = next(instead for phrase, instead in phrases if phrase.match(searched, start))
        yield start, text[start:end], instead


@cache
def _patterns(table: str) -> tuple[re.Pattern[str], list[tuple[re.Pattern[str], str]]]:
    """Return the pattern of a table's phrases together, and each with what to write instead."""
    before = r"(?:^|(?<=[.!?]\s))" if table == "sentences" else r"\b(?<![’'-])"
    after = r"(?:['’]s)?(?![\w’'])"
    phrases = {key.replace(" ", r"\s+"): instead for key, instead in RULES[table].items()}
    return re.compile(f"{before}(?:{'|'.join(phrases)}){after}"), [
        (re.compile(f"(?:{phrase}){after}"), instead) for phrase, instead in phrases.items()
    ]


@cache
def _starts(kind: str) -> list[tuple[re.Pattern[str], str]]:
    return [
        (re.compile(rf"\W*({start['words']})\b".replace(" ", r"\s+")), start["instead"])
        for start in RULES["starts"]
        if kind in start["of"]
    ]


def _constant(name: str) -> Iterator[tuple[int, str, str]]:
    rules = RULES["constants"]
    parts = name.strip("_").split("_")
    if parts[0] in rules["prefixes"] and len(parts) > 1:
        yield 0, name, rules["prefixes"][parts[0]]
    elif all(part in rules["empty"].split() for part in parts):
        yield 0, name, "name the constant by what it holds, with a noun: MAX_TRACKED_ITEMS"
    elif parts[0] in rules["prepositions"].split():
        yield 0, name, "start the constant's name with a noun, or an adjective before its noun"


def _long_sentences(text: str) -> Iterator[tuple[int, str, str]]:
    start = 0
    for end in [*(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]:
        sentence = text[start:end]
        count = len(_WORD.findall(_CODE.sub("code", sentence)))
        if count > MAX_SENTENCE_WORDS:
            offset = end - len(sentence.lstrip())
            words = " ".join(sentence.split()[:6])
            yield offset, f"{words} ...", f"split this sentence of {count} words"
        start = end


def main(arguments: list[str]) -> int:
    """Print the findings at or below each path, or with --counts their number in each folder."""
    paths = [Path(argument) for argument in arguments if argument != "--counts"]
    findings = [finding for path in files(*paths or [Path()]) for finding in check(path)]
    if "--counts" in arguments:
        counts = Counter(str(Path(finding.path).parent) for finding in findings)
        print(*(f"{count:6} {folder}" for folder, count in sorted(counts.items())), sep="\n")  # noqa: T201
    else:
        print(*findings, sep="\n")  # noqa: T201
    print(f"{len(findings)} findings", file=sys.stderr)  # noqa: T201
    return bool(findings)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""Prose is counted, and names in code name something (`tests/support/language.py`).

`python -m tests.support.language PATH...` prints the findings at a path while it is rewritten.
"""

from pathlib import Path

import pytest

from tests.support import language

ROOT = Path(__file__).parents[1]
GUIDES = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in (
        "access", "dashboard", "mechanisms", "observability", "operations", "registrar", "sdk"
    )),
    *sorted((ROOT / "docs" / "recipes").glob("*.md")),
]  # fmt: skip
# Per 1,000 words of all guides.
FLOORS = {"you|your|yours": 10, "for example": 2}


def test_sentences_have_at_most_forty_words_and_names_are_not_vague() -> None:
    lines = [line for path in language.files(ROOT) for line in language.findings(path)]
    assert not lines, "\n".join(["rewrite:", *lines])


@pytest.mark.parametrize("words", FLOORS)
def test_guides_address_their_reader_and_give_examples(words: str) -> None:
    assert language.rate(words, *GUIDES) >= FLOORS[words]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.py", "_MANY = 3\n", "line 1: “_MANY”"),
        ("a.py", "IN_ONE: int = 3\n", "line 1: “IN_ONE”"),
        ("a.py", "MOST_BYTES = 3\n", "MAX"),
        ("a.py", "\ndef f(found): pass\n", "line 2: “found”"),
        ("a.py", "for one in x: pass\n", "“one”"),
        ("a.md", "Short. " + "A word " * 21 + "ends.\n", "“A word A word A word ...”: split"),
        ("a.ipynb", '{"cells": [{"cell_type": "markdown", "source": ["%s"]}]}' % ("a " * 41), "41"),
    ],
)
def test_the_check_reports_a_violation(name: str, text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    (line,) = language.findings(path)
    assert line.startswith(str(path))
    assert words in line


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", '"""Whoever says so."""\n\nMAX_BYTES = 3\nFIRST_ROW_BYTES = 4\n'),
        (
            "a.md",
            "A [page](a/b/c), `x`.\n\n```sh\n" + "word " * 50 + "\n```\n\n" + "- a word\n" * 30,
        ),
        ("a.md", "| a | b |\n|---|---|\n| " + "word " * 50 + "| b |\n"),
    ],
)
def test_the_check_accepts_ordinary_english(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert language.findings(path) == []


def test_a_rate_is_per_thousand_words(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("You see " + "word " * 98 + "\n\n```\nyou\n```\n")
    assert language.rate("you", path) == 10

"""Plain English in the whole tree, by the rules of `tests/support/language.toml`.

`python -m tests.support.language PATH...` prints the findings at a path while it is rewritten.
"""

from pathlib import Path

import pytest

from tests.support import language

ROOT = Path(__file__).parents[1]

# Never checked: the violations planted below.
EXCEPTIONS = {"tests/test_language.py"}


def findings(path: Path) -> list[str]:
    """Return the findings in a file of the tree, one line each."""
    return [str(finding).replace(f"{ROOT}/", "") for finding in language.check(path)]


def checked() -> list[Path]:
    """Return the files that no exception covers."""
    return [
        path for path in language.files(ROOT) if path.relative_to(ROOT).as_posix() not in EXCEPTIONS
    ]


def test_prose_and_names_are_plain_english() -> None:
    lines = [line for path in checked() for line in findings(path)]
    assert not lines, "\n".join(["rewrite:", *lines])


def test_an_exception_that_passes_leaves_the_list() -> None:
    passing = [
        name
        for name in sorted(EXCEPTIONS)
        if not (ROOT / name).exists() or not findings(ROOT / name)
    ]
    assert not passing, f"these pass or are gone, so remove them from EXCEPTIONS: {passing}"


PLANTED = [
    ("a.py", '"""What a device sends."""\n', 1, "What"),
    ("a.pyx", '"""What a device sends."""\n', 1, "What"),
    ("a.pyx", '"""Keys."""\n\ncdef int f():\n    """Return what is left."""\n', 4, "Return what"),
    ("a.pyx", "cdef int keys  # lost with these odds\n", 1, "odds"),
    ("a.py", '"""Keys."""\n\nclass A:\n    """Who joins."""\n', 4, "Who"),
    ("a.py", '"""Keys."""\n\ndef f():\n    """When it ends."""\n', 4, "When"),
    ("a.py", '"""Keys."""\n\ndef f():\n    """Of a key, the bytes."""\n', 4, "Of"),
    ("a.py", '"""Keys."""\n\ndef f():\n    """Return what is left."""\n', 4, "Return what"),
    ("a.py", '"""Keys.\n\nLost with these odds.\n"""\n', 3, "odds"),
    ("a.py", 'x = "shares of whoever\'s vector arrived"\n', 1, "whoever's"),
    ("a.py", '"""Keys."""\n\ndef f():\n    """Yield why it fails."""\n', 4, "Yield why"),
    ("a.py", 'f(help="Until it is over.")\n', 1, "Until"),
    ("a.py", "x = 1  # so\ny = 2\n# at most so\n# many bytes\n", 3, "so many"),
    ("a.py", 'x = (\n    "the device that "\n    f"{1} told it"\n)\n', 3, "told"),
    ("a.py", 'f(help="And the other end.")\n', 1, "And"),
    ("a.py", 'f(help="the other end")\n', 1, "the"),
    ("a.py", 'raise ValueError("must be above 0")\n', 1, "must"),
    ("a.py", "_MANY = 3\n", 1, "_MANY"),
    ("a.py", "MOST_BYTES = 3\n", 1, "MOST_BYTES"),
    ("a.py", "_IN_A_ROW = 3\n", 1, "_IN_A_ROW"),
    ("a.py", "def f(false_odds): pass\n", 1, "odds"),
    ("a.py", "for HeardOf in x: pass\n", 1, "Heard"),
    ("test_a.py", "def test_devices_vanish(): pass\n", 1, "vanish"),
    ("a.md", "# Title\n\nThe rounds mend\nthe sum.\n", 3, "mend"),
    ("a.md", "| a | belie |\n|---|---|\n", 1, "belie"),
    ("a.md", "```mermaid\nA->>B: whoever joins\n```\n", 2, "whoever"),
    ("a.md", "Short. " + "A word " * 21 + "ends.\n", 1, "A word A word A word ..."),
    ("a.md", "The end. Nor is it.\n", 1, "Nor"),
    ("a.ipynb", '{"cells": [\n{"cell_type": "markdown",\n"source": ["amid"]}]}', 3, "amid"),
    ("a.html", "<p>{{ odds }}</p>\n<p>so\nmany</p>\n", 2, "so many"),
    ("a.html", '<a title="for good">x</a>\n', 1, "for good"),
    ("a.js", "a = 1; // hang on\n", 1, "hang on"),
    ("a.js", '\nshow("nothing but it");\n', 2, "nothing but"),
    ("Makefile", "run: ## tell all\n", 1, "tell"),
    ("a.yml", "a: 1  # lest it ends\n", 1, "lest"),
]

PLAIN = [
    ("a.py", '"""Shares of keys: two devices are told apart by `odds`."""\n\nMAX_BYTES = 3\n'),
    (
        "a.py",
        'class A:\n    """A key."""\n\n    def f(self):\n        """Return whether it is."""\n',
    ),
    ("a.py", 'raise ValueError(f"{name} must be above 0")\nf(help="Bytes per device.")\n'),
    ("a.py", 'x = "http://a/#odds"; y = "odds"\n'),
    ("a.md", "A [page](odds.md), `whoever`.\n\n```sh\nodds\n```\n\n" + "- a word or two\n" * 30),
    ("a.html", '{% if odds %}<p class="odds so many">none</p>{% endif %}\n'),
    ("a.js", "const odds = told; // probability\n"),
]


@pytest.mark.parametrize(("name", "text", "line", "words"), PLANTED)
def test_the_check_reports_a_violation(
    name: str, text: str, line: int, words: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    reported = [(finding.line, finding.words) for finding in language.check(path)]
    assert reported == [(line, words)]


@pytest.mark.parametrize(("name", "text"), PLAIN)
def test_the_check_accepts_plain_english(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert language.check(path) == []


def test_a_finding_names_its_place_its_words_and_the_replacement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.md"
    path.write_text("The odds.\n")
    assert language.main([str(path)]) == 1
    assert capsys.readouterr().out == f"{path}:1: “odds”: write probability\n"

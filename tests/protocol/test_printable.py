"""A stranger's text is one line of visible characters, and equal-looking texts differ."""

from unicodedata import is_normalized

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.printable import check_name, escape_hidden, escaped_traceback, printable
from tests.support.terminal_codes import CORPUS, FORBIDDEN, HOSTILE

CHARACTERS = st.sampled_from([*"".join(CORPUS), *"\\xu01nbe\u0302\xea\u1112\u1161\u212b", "\ud800"])


@pytest.mark.parametrize("code", CORPUS, ids=ascii)
def test_a_code_is_shown_by_escapes(code: str) -> None:
    for shown in (printable(f"a{code}b"), escape_hidden(f"a{code}b")):
        assert shown.isprintable()
        assert not FORBIDDEN & set(shown)
        assert shown.startswith("a\\")


@given(st.text(CHARACTERS, max_size=8), st.text(CHARACTERS, max_size=8))
def test_different_texts_differ_and_are_in_normal_form(text: str, other: str) -> None:
    assert (printable(text) == printable(other)) is (text == other)
    assert is_normalized("NFC", printable(text))
    assert escape_hidden(escape_hidden(text)) == escape_hidden(text)


def test_equal_looking_texts_are_told_apart() -> None:
    alike = ["p\xeache", "pe\u0302che", "p\xeache\u200b", "p\xeache\ufe0f", r"pe\u0302che"]
    assert len({printable(text) for text in alike}) == len(alike)
    assert printable("p\xeache \u4f60\u597d \u0645 \U0001f600 C:\\dir") == (
        "p\xeache \u4f60\u597d \u0645 \U0001f600 C:\\dir"
    )


def test_a_traceback_has_no_line_that_looks_like_a_message() -> None:
    error = ValueError(f"{HOSTILE}\n2026-11-28 [info] forged")
    lines = escaped_traceback((ValueError, error, None)).split("\n")
    assert all(line.startswith("    ") and line.isprintable() for line in lines)


@pytest.mark.parametrize("code", [each for each in CORPUS if each not in "\u200d\ufe0f\xa0\u3000"])
def test_a_name_has_no_control_and_no_invisible_characters(code: str) -> None:
    with pytest.raises(ValueError, match=r"no control or invisible characters: U\+"):
        check_name(f"a{code}b")


@pytest.mark.parametrize("name", ["plain", "na\xefve", "\u2764\ufe0f", "a\u200cb", "a\u3000b"])
def test_a_name_of_any_language_is_allowed(name: str) -> None:
    assert check_name(name) == name

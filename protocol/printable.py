r"""Texts of strangers, as one line that a terminal, a log or an error can show.

    printable("\x1b[31mred\n")  is  \x1b[31mred\n   because a terminal would run the characters
    printable("pe\u0302che")    is  pe\u0302che     because it looks like "p\xeache", another item
    printable("C:\\x1b")        is  C:\\x1b         so that it differs from an escape

Different texts have different results. Escaped are the characters that show nothing, move the
cursor, or reverse their neighbours: control and format characters, separators other than the space,
private and unknown characters, lone surrogates, and letters and marks without a shape. Of a text
that is not in normal form C, characters that the normal form changes are escaped, too.

Source: the escapes of Python; Unicode, for letters and marks (Default_Ignorable_Code_Point).
"""

import re
from traceback import format_exception
from types import TracebackType
from typing import Final, TypeAlias
from unicodedata import category, combining, is_normalized

CrashInfo: TypeAlias = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)
_MAX_CELL_CHARS: Final = 32
# Characters that `str.isprintable` accepts, although a screen shows nothing for them.
_INVISIBLE_RANGES: Final = (
    *((0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2800, 0x2800)),
    *((0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xE0100, 0xE01EF)),
)
_INVISIBLE: Final = frozenset(
    chr(code) for first, last in _INVISIBLE_RANGES for code in range(first, last + 1)
)
# They join parts of emoji and of words in some languages, or select the style of an emoji.
_NAME_JOINERS: Final = frozenset("\u200c\u200d\ufe0e\ufe0f")
_ESCAPE: Final = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[tnr\\])")
_HANGUL_PARTS: Final = ("\u1160", "\u11ff")  # letters of a syllable after its first one


def printable(text: str) -> str:
    """Return `text` on one line, with escapes instead of characters that are not visible.

    Backslashes of a text with escapes are doubled, so call it once.
    """
    escaped = escaped_characters(text)
    if not escaped and not _ESCAPE.search(text):
        return text
    doubled = text.replace("\\", "\\\\")
    shown = "".join(_escape(each) if each in escaped else each for each in doubled)
    if is_normalized("NFC", shown):
        return shown
    # A mark stands behind an escape, and would join its last letter.
    return "".join(each if each.isascii() else _escape(each) for each in shown)


def escaped_characters(text: str) -> list[str]:
    """Return the characters of `text` that `printable` escapes, each once."""
    hidden = {each: None for each in text if is_hidden(each)}
    if not is_normalized("NFC", text):
        hidden |= {each: None for each in text if _is_composed(each)}
        if not is_normalized("NFC", "".join(each for each in text if each not in hidden)):
            hidden |= {each: None for each in text if not each.isascii()}
    return list(hidden)


def escape_hidden(text: str) -> str:
    """Return `text` on one line, with escapes instead of hidden characters; twice is as once."""
    if text.isprintable() and text.isascii():
        return text
    return "".join(_escape(each) if is_hidden(each) else each for each in text)


def escaped_traceback(crash: CrashInfo) -> str:
    """Return the traceback, without hidden characters.

    Its lines are indented, so that none looks like a message or a line of a log.
    """
    lines = "".join(format_exception(*crash)).splitlines()
    return "\n".join(f"    {escape_hidden(line)}" for line in lines)


def is_hidden(character: str) -> bool:
    """Return whether a screen shows nothing for `character`, or shows other characters moved."""
    return not character.isprintable() or character in _INVISIBLE


def check_name(name: str) -> str:
    """Return `name`, which a person has chosen; raises ValueError if it has hidden characters.

    Allowed are all blanks within a line, and the joiners of emoji and words.
    """
    for each in name:
        if is_hidden(each) and category(each) != "Zs" and each not in _NAME_JOINERS:
            raise ValueError(f"a name has no control or invisible characters: U+{ord(each):04X}")
    return name


def _is_composed(character: str) -> bool:
    """Return whether the normal form C may join `character` with another, or change it."""
    first, last = _HANGUL_PARTS
    is_part = combining(character) > 0 or first <= character <= last
    return is_part or not is_normalized("NFC", character)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def cell_text(cell: object) -> str:
    """Return a cell of a table, which may come from a device, without hidden characters."""
    text = f"{cell:,.6g}" if isinstance(cell, float) else "" if cell is None else str(cell)
    return printable(text)


def one_line(cell: object) -> str:
    """Return `cell_text` as one short line."""
    text = cell_text(cell)
    return text if len(text) <= _MAX_CELL_CHARS else text[: _MAX_CELL_CHARS - 1] + "…"

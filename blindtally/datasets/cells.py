"""Meaning of one cell of a data file: an item, a count, or a missing value.

    7  +7  7.0  7e0          the count 7
    (empty)  NaN  NA  - ?    no count
    1.000  1,000  1'000      refused: 1 in one country is 1,000 in another

`NaN`, `NULL` and empty cells are missing values. `NA`, `None`, `null` and `nan` may be words or
codes, so they are items and users; only where a number is expected, they are missing, too.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Final

from secagg.errors import PortableError

MAX_TOTAL_COUNT: Final = 2**62  # numpy draws from such counts
MISSING_MARKS: Final = frozenset(
    {"", "NaN", "NaT", "<NA>", "NULL", r"\N", "N/A", "n/a", "#N/A", "#NULL!"}
)
PERHAPS_MISSING: Final = ("NA", "None", "none", "null", "nan", "nil", "-", "?")
_NO_COUNTS: Final = {mark.casefold() for mark in (*MISSING_MARKS, *PERHAPS_MISSING)}
# Programs write the sign, the kind and the payload of a NaN.
_NAN: Final = re.compile(r"[-+]?[sq]?nan(\d+|\(.*\))?")
_MAX_COUNT_DIGITS: Final = 19
# An exponent of three digits is that of no count.
_NUMBER: Final = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]{1,2})?", re.IGNORECASE)
DECIMAL_COMMA: Final = re.compile(r"\s*[-+]?\d+,\d+\s*")
_SEPARATOR: Final = r"[., '’_\u00a0\u202f]"
# In India, groups of two digits stand before the last three.
_SEPARATED: Final = re.compile(
    rf"[-+]?\d{{1,3}}({_SEPARATOR}\d{{2,3}})*{_SEPARATOR}\d{{3}}([.,]\d*)?"
)
# Lists in brackets, and tags such as <a><b> and #a #b.
_LIST: Final = re.compile(r"\[.*\]|\{.*\}|\(.*\)|(<[^<>]+>){2,}|#\S+(\s+#\S+)+", re.DOTALL)
# Names of browsers have them, with separators in between.
_PARENTHESES: Final = re.compile(r"\([^)]*\)")
_LIST_SEPARATORS: Final = (";", "|", ",", " / ", "\n", "\u3001", " ")


class DataError(PortableError, ValueError):
    """A data file cannot be used; the message names the file, and the line if one is at fault."""

    def __init__(self, path: Path, fault: str, line: int | None = None) -> None:
        super().__init__(f"{path}: {fault}" if line is None else f"{path}, line {line}: {fault}")


def item_fault(item: str) -> str:
    """Return the reason why this is not an item, empty if it may be an item."""
    if item in MISSING_MARKS and item:
        return f"whose item is {item!r}"
    if not item or item.isspace():
        return "without an item"
    if "\0" in item:
        return "whose item has a zero byte"
    if not item.isascii() and any("\ud800" <= character <= "\udfff" for character in item):
        return "whose item is half a character (a surrogate)"
    return ""


def parse_count(cell: str) -> int | None:
    """Return the whole number in a cell, None if there is none.

    Raises:
        ValueError: if the cell has something else, or separators of thousands.
    """
    if cell.isascii() and cell.isdecimal() and len(cell) <= _MAX_COUNT_DIGITS:
        return int(cell)
    text, advice = cell.strip(), ""
    folded = text.casefold()
    if folded in _NO_COUNTS or _NAN.fullmatch(folded):
        return None
    if _SEPARATED.fullmatch(text):
        advice = ", without separators of thousands, and without decimals that look like these"
    elif _NUMBER.fullmatch(text):
        number = Decimal(text)
        if 0 <= number < MAX_TOTAL_COUNT and number == int(number):
            return int(number)
    raise ValueError(f"a count is a whole number from 1 up{advice}, got {cell[:40]!r}")


def may_be_count(cell: str) -> bool:
    """Return whether a cell has a count, also in a notation that `parse_count` refuses."""
    return _count_state(cell) is True


def may_be_counts(cells: Iterable[str]) -> bool:
    """Return whether the cells have counts, where they are not missing."""
    return {_count_state(cell) for cell in cells} - {None} == {True}


def _count_state(cell: str) -> bool | None:
    """Return whether a cell may be a count, None if a count is missing there."""
    try:
        return None if parse_count(cell) is None else True
    except ValueError:
        text = cell.strip()
        return text.isdecimal() or _SEPARATED.fullmatch(text) is not None


def may_be_lists(cells: Iterable[str], signs: str, *, may_have_blanks: bool) -> bool:
    """Return whether half of the cells are lists, as their syntax or one of `signs` shows.

    Or a fifth have a separator that other texts have, too, and in most of these parts come again:
    one in another place, or all (both if they are words). In "Paris, FR", the country is last.
    """
    texts = {text for cell in cells if (text := cell.strip())}
    if 2 * sum(_LIST.fullmatch(text) is not None for text in texts) >= (len(texts) or 1):
        return True
    plain = [_PARENTHESES.sub("", text) for text in texts]
    separators = _LIST_SEPARATORS[: None if may_have_blanks else -1]
    return any(_have_lists(plain, each, is_sign=each in signs) for each in separators)


def _have_lists(texts: Iterable[str], separator: str, *, is_sign: bool) -> bool:
    split = [[part for each in text.split(separator) if (part := each.strip())] for text in texts]
    lists = [parts for parts in split if len(parts) > 1]
    places = defaultdict[str, list[tuple[bool, bool]]](list)
    for parts in split:
        for place, part in enumerate(parts, 1):
            places[part].append((place == 1, place == len(parts)))
    of_lists = [[places[part] for part in parts] for parts in lists]
    again = [
        (any(len({*each}) > 1 for each in at), all(len(each) > 1 for each in at)) for at in of_lists
    ]
    number = sum(map(all if separator == " " else any, again))
    is_usual = number > 1 and 2 * number > len(lists) >= 0.2 * len(split)
    return is_usual or (is_sign and 2 * len(lists) >= (len(split) or 1))

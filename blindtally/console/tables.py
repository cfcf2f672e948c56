"""Tables that fit a terminal of 80 columns: words on the left, numbers on the right.

Cells may have any length: they are folded, and never cut. A `str` is text and never markup. Cells
are `printable`, so that an item is one line, and equal-looking items differ.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from rich.console import Group
from rich.table import Table
from rich.text import Text

from blindtally.console.terminal import Terminal
from protocol.printable import printable

if TYPE_CHECKING:
    from protocol.mechanisms.registry import AnyQuestion

Printable: TypeAlias = Group | Table | Text | str
# A blank at the end of a text is not seen, so it is shown as this.
_BLANK: Final = "\\x20"
_KEY_NOTE: Final = (
    "# and digits: key of an item whose string was not fetched. A round fetches a limited number "
    "of strings, those of the most common items first: more rounds or more words fetch more of them"
)


def key_notes(question: "AnyQuestion", items: Iterable[str]) -> list[str]:
    """Return an explanation if `items` have the key of an item instead of its string."""
    return [_KEY_NOTE] if any(map(question.domain.is_key, items)) else []


def result_table(
    words: Sequence[str],
    numbers: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str | None = None,
) -> Group:
    """Return `rows` under headings, `words` to the left and `numbers` to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in words:
        table.add_column(_cell(heading), overflow="fold", no_wrap=heading == "id")
    for heading in numbers:
        table.add_column(_cell(heading), justify="right", overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    return Group(*([bold_lines(title)] if title else []), table)


def bold_lines(*lines: str) -> Group:
    return Group(*(Text(printable(line), "bold") for line in lines))


def fact_table(rows: Mapping[str, str | Sequence[str]]) -> Table:
    """Return a table of names and texts, each in one line or in several."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows.items():
        lines = [text] if isinstance(text, str) else text
        table.add_row(_cell(name), Group(*map(_cell, lines)))
    return table


def _cell(text: str) -> Text:
    """Return a cell of any text, whose blanks at the ends are seen."""
    shown = printable(text)
    inner = shown.strip(" ")
    start = len(shown) - len(shown.lstrip(" "))
    return Text(_BLANK * start + inner + _BLANK * (len(shown) - start - len(inner)))


def print_parts(*parts: Printable) -> None:
    """Print `parts` to standard output, with an empty line before and after a table."""
    screen, last = Terminal(), None
    for part in parts:
        if last is not None and not (isinstance(last, str) and isinstance(part, str)):
            screen.print()
        screen.print(part)
        last = part


def format_epsilon(value: float | None, none: str = "no bound") -> str:
    """Return an epsilon with four digits."""
    return none if value is None else f"{value:.4g}"

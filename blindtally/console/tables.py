"""Tables that fit a terminal of 80 columns: words on the left, numbers on the right.

What comes from data may be of any length: it is folded where there is no room for it, never cut.
A `str` is text here and never markup, whatever brackets are in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

Printable: TypeAlias = Group | Table | Text | str


def result_table(
    words: Sequence[str],
    numbers: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str | None = None,
) -> Group:
    """Return `rows` under headings, `words` to the left and `numbers` to the right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in words:
        made.add_column(heading, overflow="fold")
    for heading in numbers:
        made.add_column(heading, justify="right", overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))
    return Group(*([Text(title, "bold")] if title else []), made)


def fact_table(rows: Mapping[str, str]) -> Table:
    """Return names with what is to be said of each, in as many lines as that takes."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, told in rows.items():
        made.add_row(Text(name), Text(told))
    return made


def print_parts(*parts: Printable) -> None:
    """Print `parts` to standard output, with an empty line before and after a table."""
    screen, last = Console(highlight=False), None
    for part in parts:
        if last is not None and not (isinstance(last, str) and isinstance(part, str)):
            screen.print()
        screen.print(Text(part) if isinstance(part, str) else part)
        last = part

"""Columns of users, items and counts, recognised by their names or named by the caller.

A name is compared without case, blanks, `_` and `-`, so that `user_id`, `User ID` and `userId` are
the same. `user`, `item` and `count` come before their synonyms. If only the item is missing and
only one column is left, that column is the item. Columns of 0, 1, 2, ... or 1, 2, 3, ... number
rows. Nothing else is guessed: where a column may have two meanings, or has no name, `find_columns`
raises an error that lists the columns.

The caller names columns in one text: `product` is the item, and `item=product,user=customer` are
item and user. With `user=`, each row is a device; with `count=`, each row is one item.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, TypeAlias, get_args

from blindtally.datasets.cells import DECIMAL_COMMA, may_be_counts, may_be_lists

Role: TypeAlias = Literal["item", "user", "count"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
_MAIN_NAMES: Final = {
    "item": re.compile("items?"),
    "user": re.compile("user(id)?|uid"),
    "count": re.compile("counts?"),
}
_NAMES: Final[dict[Role, re.Pattern[str]]] = {
    "item": re.compile(
        "(items?|values?|words?|terms?|tokens?|strings?|texts?|ur[li]s?|links?|domains?|hosts?"
        "|websites?|sites?|pages?|query|queries|search|search(term|query)|keywords?|products?|skus?"
        "|articles?|songs?|tracks?|artists?|movies?|films?|titles?|books?|apps?|applications?"
        "|packages?|emojis?|hashtags?|tags?|labels?|commands?|events?|errors?)(id|name|code|key)?"
    ),
    # No plurals: a column "users" is a number of users.
    "user": re.compile(
        "uid|(user|device|client|customer|person|member|visitor|session|account|subscriber"
        "|participant|respondent|patient|household|player|buyer|employee|student)"
        "(id|no|number|uuid|guid|key|hash|name)?"
    ),
    "count": re.compile(
        "counts?|cnt|n|freq|frequency|frequencies|occurrences?|quantity|qty|hits|visits|views"
        "|clicks|votes|uses|times|population|(item|total|hit|view|visit)counts?"
    ),
}
# Columns whose names end with these words hold neither counts nor users.
_ATTRIBUTE: Final = re.compile(
    "date|time|datetime|timestamp|year|month|week|day|hour|rank|rating|score|price|age|latitude"
    "|longitude"
)
_IDENTIFIER: Final = re.compile("id|code|index")
# Names of numbers of things, such as "Number of Orders", "# items" and "items_total".
_TOTAL: Final = "counts?|cnt|totals?|sum|amount|qty|quantity|freq|frequency|frequencies"
_NUMBER_NAME: Final = re.compile(
    f"(#|n|no|nr|nb|num|numbers?|anzahl|menge|nombre|cantidad|{_TOTAL})( .*)?|.* ({_TOTAL})"
)
_PLURAL: Final = re.compile(r"\w{2,}[^\Wius]s")
# Numbers are recognised in the format of any country.
_NUMBER: Final = re.compile(r"[-+]?[\d.,' ]*\d")
_PAIRS: Final = re.compile(r",(?=(?:item|user|count)=)")
_ADVICE: Final = (
    "Name them: --column item=NAME,user=NAME,count=NAME, with user= if each row is a device, and "
    "count= if each row is one item"
)


class ColumnError(ValueError):
    """The columns of items, users and counts cannot be told apart, or one does not exist."""


class UnclearColumnsError(ColumnError):
    """Several readings are plausible; `find_columns` adds the names, and some cells of each."""

    header: Sequence[str] = ()
    cells: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, slots=True)
class Columns:
    """Places of the columns; without `user`, each row is a device if it has no count.

    `others` are the places of columns that may name users instead.
    """

    item: int
    user: int | None = None
    count: int | None = None
    others: tuple[int, ...] = ()

    @property
    def used(self) -> set[int]:
        return {place for place in (self.item, self.user, self.count) if place is not None}

    def of(self, header: Sequence[str]) -> dict[Role, str | None]:
        """Return the names of the columns."""
        places = zip(ROLES, (self.item, self.user, self.count), strict=True)
        return {role: None if place is None else header[place] for role, place in places}


def role_of(name: str) -> Role | None:
    """Return the role of a column that has this name."""
    plain = _plain(name)
    return next((role for role, names in _NAMES.items() if names.fullmatch(plain)), None)


def named_columns(choice: str | None, header: Sequence[str]) -> dict[Role, str]:
    """Return the names in the caller's `choice`, which is one name of the header, or pairs."""
    if choice is None:
        return {}
    if choice in header:
        return {"item": choice}
    pairs = [pair.partition("=") for pair in _PAIRS.split(choice)]
    named = {role: name for role in ROLES for key, equals, name in pairs if equals and key == role}
    return named if len(named) == len(pairs) else {"item": choice}


def find_columns(
    header: Sequence[str], cells: Sequence[Sequence[str]], choice: str | None = None
) -> Columns:
    """Return the columns, given their names and some cells of each.

    Raises:
        ColumnError: if `choice` names a column that does not exist, or two readings are plausible.
    """
    named = named_columns(choice, header)
    places: dict[Role, int | None] = {
        role: _named_place(role, named[role], header) for role in ROLES if role in named
    }
    numbers = [name for name in header if _NUMBER.fullmatch(name)]
    try:
        columns = _recognised(places, header, cells)
        recognised = columns.used - set(places.values())
        numbers = [header[place] for place in recognised if header[place] in numbers]
    except ColumnError as error:
        if not numbers:
            if isinstance(error, UnclearColumnsError):
                error.header, error.cells = header, cells
            raise
    if numbers:
        raise ColumnError(
            f"{numbers[0]!r} is a number, not the name of a column: the first line must be a "
            "header, such as item,count or user,item"
        )
    if "item" not in named:
        _refuse_lists(columns, header[columns.item], cells[columns.item])
    return columns


def is_attribute(name: str) -> bool:
    """Return whether a column with this name has dates, prices and so on, and no users."""
    return _ATTRIBUTE.fullmatch(_words(name)[-1]) is not None


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall("#|[A-Z]?[a-z]+|[A-Z]+", name)] or [""]


def _named_place(role: Role, name: str, header: Sequence[str]) -> int | None:
    if not name and role != "item":
        return None
    if name not in header:
        raise ColumnError(
            f"no column is named {name!r}; the columns are {', '.join(map(repr, header))}"
        )
    if header.count(name) > 1:
        raise ColumnError(
            f"{header.count(name)} columns are named {name!r}: give them different names"
        )
    return header.index(name)


def _recognised(
    named: dict[Role, int | None], header: Sequence[str], cells: Sequence[Sequence[str]]
) -> Columns:
    """Return the columns: those that the caller `named`, and others by their names."""
    places, is_free = dict(named), set(range(len(header))) - set(named.values())
    for role in ROLES:
        if role not in places:
            place = _recognised_place(role, header, cells, sorted(is_free))
            if place is not None:
                places[role] = place
                is_free.remove(place)
    item, user, count = (places.get(role) for role in ROLES)
    is_known = item is not None and (user is not None or count is not None)
    free = [
        place
        for place in sorted(is_free)
        if header[place]
        or (any(cells[place]) and not _numbers_rows(cells[place], must_be_consecutive=not is_known))
    ]
    if item is None:
        item, free = _only_column(header, free or sorted(is_free)), []
    if not {"user", "count"} <= named.keys():
        _refuse_unnamed(header, free)
    if user is None and count is None and "user" not in places and free:
        raise _unclear("user", header)
    # A main name decides, and any other name only if no other column has whole numbers.
    counts = [] if count is None else [count]
    is_decided = any(_has_main_name("count", header[place]) for place in counts)
    if "count" not in named and not is_decided:
        for place in free:
            if not _is_other(header[place]) and may_be_counts(cells[place]):
                raise _unclear("count", header, *counts, place)
    others = [place for place in free if not is_attribute(header[place])]
    return Columns(item, user, count, () if "user" in places else tuple(others))


def _only_column(header: Sequence[str], places: Sequence[int]) -> int:
    """Return the only one of `places`, which is the item next to users or counts."""
    if len(places) != 1 or len(header) == 1:
        raise _unclear("item", header)
    return places[0]


def _numbers_rows(cells: Sequence[str], *, must_be_consecutive: bool) -> bool:
    """Return whether cells count the rows from 0 or 1; or only increase, as after a selection."""
    if not all(cell.isascii() and cell.isdecimal() and len(cell) < 19 for cell in cells):
        return False
    numbers = [int(cell) for cell in cells]
    if len(numbers) > 1 and not must_be_consecutive:
        return all(low < high for low, high in pairwise(numbers))
    return numbers in ([*range(len(numbers))], [*range(1, len(numbers) + 1)])


def _is_row_number(name: str, cells: Sequence[str]) -> bool:
    """Return whether a column with a synonym of `count` numbers three rows or more."""
    return (
        not _has_main_name("count", name)
        and len(cells) > 2
        and _numbers_rows(cells, must_be_consecutive=True)
    )


def _refuse_unnamed(header: Sequence[str], free: Sequence[int]) -> None:
    for place in free:
        if not header[place]:
            raise ColumnError(
                f"column {place + 1} has no name, and may hold items, users or counts: write its "
                f"name into the first line; the columns are {', '.join(map(repr, header))}"
            )


def _refuse_lists(columns: Columns, name: str, cells: Sequence[str]) -> None:
    """Refuse a column of items whose cells may be lists of items, or numbers of items."""
    words, has_user = _words(name), columns.user is not None
    is_plural = has_user and not _is_other(name) and any(map(_PLURAL.fullmatch, words))
    is_number = has_user and (is_plural or _NUMBER_NAME.fullmatch(" ".join(words)))
    if 2 * sum(DECIMAL_COMMA.fullmatch(cell) is not None for cell in cells) > len(cells):
        first = cells[0].strip()
        fault = f"{first!r} in column {name!r} is a list, or {first.replace(',', '.')} is meant"
    elif may_be_lists(cells, ";|," if is_plural else ";|", may_have_blanks=columns.count is None):
        fault = f"a cell of column {name!r} has a list"
    elif is_number and may_be_counts(cells):
        fault = f"column {name!r} may have the number of a row's items"
    else:
        return
    choice = shlex.quote(f"item={name}")
    raise ColumnError(
        f"{fault}: write a row for each item, or add --column {choice} if each cell is one item"
    )


def _recognised_place(
    role: Role, header: Sequence[str], cells: Sequence[Sequence[str]], free: Sequence[int]
) -> int | None:
    """Return the only free column with a name of `role`, and with a main name if one has it."""
    fitting = [
        place
        for place in free
        if role_of(header[place]) == role
        and not (role == "count" and _is_row_number(header[place], cells[place]))
    ]
    main = [place for place in fitting if _has_main_name(role, header[place])]
    candidates = main or fitting
    if len(candidates) > 1:
        raise _unclear(role, header, *candidates)
    return candidates[0] if candidates else None


def _has_main_name(role: Role, name: str) -> bool:
    return _MAIN_NAMES[role].fullmatch(_plain(name)) is not None


def _is_other(name: str) -> bool:
    return any(names.fullmatch(_words(name)[-1]) for names in (_ATTRIBUTE, _IDENTIFIER))


def _unclear(role: Role, header: Sequence[str], *places: int) -> UnclearColumnsError:
    listed = ", ".join(repr(name) for name in header)
    if len(places) == 1:
        fault = f"column {header[places[0]]!r} may be the count of the item, or another number"
    elif places:
        fault = f"{len(places)} columns may hold the {role}s"
    elif role == "user":
        fault = "no name of a column stands for users or for counts"
    else:
        fault = f"no name of a column stands for {role}s"
    return UnclearColumnsError(f"{fault}; the columns are {listed}. {_ADVICE}")

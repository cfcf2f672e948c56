"""Numbers, times and items as text for people; templates use all of these functions as filters."""

import math
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from protocol.api.headline import known_digits, share_text
from protocol.mechanisms.registry import MECHANISMS
from protocol.printable import escaped_characters

if TYPE_CHECKING:
    from protocol.question_and_plan import Terms

__all__ = ["known_digits"]  # a filter, too
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_UNITS = ("B", "kB", "MB", "GB", "TB")
_DASH = "–"


def number(value: float | None) -> str:
    """Return a number with separated thousands; a dash for None."""
    if value is None or not math.isfinite(value):
        return _DASH
    return f"{value:,.0f}"


def significant(value: float | None) -> str:
    """Return a number with about three significant digits."""
    if value is None or not math.isfinite(value):
        return _DASH
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(part: float | None, whole: float | None = 1.0) -> str:
    """Return a share as a percentage."""
    if part is None or not whole:
        return _DASH
    return f"{100 * part / whole:.0f}%"


def share(value: float | None) -> str:
    """Return a share with at most two significant digits, such as 4.2%."""
    return _DASH if value is None else share_text(value)


def nbytes(size: float | None) -> str:
    """Return a size in bytes with a suitable unit (powers of 1,000)."""
    if size is None:
        return _DASH
    unit = 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {_UNITS[unit]}" if unit else f"{size:.0f} B"


def duration(span: timedelta | float | None) -> str:
    """Return a duration, which is in seconds if it is a number."""
    if span is None:
        return _DASH
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE:.0f} min {seconds % _MINUTE:.0f} s"
    if seconds < _DAY:
        return f"{seconds // _HOUR:.0f} h {seconds % _HOUR // _MINUTE:.0f} min"
    return f"{seconds // _DAY:.0f} d {seconds % _DAY // _HOUR:.0f} h"


def ago(then: datetime | None, now: datetime) -> str:
    """Return the time from `then` to `now`, rounded to one unit."""
    if then is None:
        return "never"
    seconds = (now - then).total_seconds()
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= unit:
            return f"{seconds // unit:.0f} {name} ago"
    return "just now" if seconds < 10 else f"{seconds:.0f} s ago"


def timestamp(then: datetime | None) -> str:
    """Return a time in UTC, to the second."""
    return _DASH if then is None else f"{then:%Y-%m-%d %H:%M:%S} UTC"


def small_number(value: float) -> str:
    """Return a small number such as a delta, without zeros in its exponent."""
    return f"{value:g}".replace("e-0", "e-")


def epsilon_text(value: float | None) -> str:
    """Return an epsilon; None means that there is no bound."""
    return "no bound" if value is None else f"{value:.3g}"


def invisible_characters(text: str) -> list[str]:
    """Return the characters of `text` that a page does not show as they are, each once."""
    return [f"U+{ord(character):04X}" for character in escaped_characters(text)]


def summed_group(terms: "Terms") -> str:
    """Return the name of the devices that are added up: those of a cohort if a round has many."""
    return "round" if terms.cohorts == 1 else "cohort"


def items_label(mechanism: str) -> str:
    """Return a label of the items in a round's table."""
    return MECHANISMS[mechanism].description.items_label

"""Numbers, times and items in words, as people read them; templates know these as filters."""

import math
import unicodedata
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_UNITS = ("B", "kB", "MB", "GB", "TB")
_NONE = "–"
_HIDDEN = frozenset(("Cc", "Cf", "Co", "Cs", "Zl", "Zp"))  # categories that show nothing


def number(value: float | None, digits: int = 0) -> str:
    """Return a number with its thousands apart; a dash for none."""
    if value is None or not math.isfinite(value):
        return _NONE
    return f"{value:,.{digits}f}"


def short(value: float | None) -> str:
    """Return a number in about three digits."""
    if value is None or not math.isfinite(value):
        return _NONE
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(part: float | None, whole: float | None = 1.0) -> str:
    """Return a share as a percentage."""
    if part is None or not whole:
        return _NONE
    return f"{100 * part / whole:.0f}%"


def nbytes(size: float | None) -> str:
    """Return a size in the unit that suits it (powers of 1,000)."""
    if size is None:
        return _NONE
    step = 0
    while size >= 1000 and step < len(_UNITS) - 1:
        size, step = size / 1000, step + 1
    return f"{size:.3g} {_UNITS[step]}" if step else f"{size:.0f} B"


def lasting(span: timedelta | float | None) -> str:
    """Return how long something took."""
    if span is None:
        return _NONE
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
    """Return how long ago something was, roughly."""
    if then is None:
        return "never"
    seconds = (now - then).total_seconds()
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= unit:
            return f"{seconds // unit:.0f} {name} ago"
    return "just now" if seconds < 10 else f"{seconds:.0f} s ago"


def instant(then: datetime | None) -> str:
    """Return a time to the second, in UTC."""
    return _NONE if then is None else f"{then:%Y-%m-%d %H:%M:%S} UTC"


def tiny(value: float) -> str:
    """Return a small number such as a delta, without zeros in its exponent."""
    return f"{value:g}".replace("e-0", "e-")


def epsilon(value: float | None) -> str:
    """Return an epsilon; one without bound is said to be so."""
    return "no bound" if value is None else f"{value:.3g}"


def hidden(text: str) -> list[str]:
    """Return the characters of `text` that show nothing, or turn what is beside them around."""
    found = dict.fromkeys(one for one in text if unicodedata.category(one) in _HIDDEN)
    return [f"U+{ord(one):04X}" for one in found]


def items_of(mechanism: str) -> str:
    """Return what the items of a round's table are: `tracked` counts beside it what is known."""
    return "New items" if mechanism == "tracked" else "Distinct items"


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "number": number,
    "short": short,
    "percent": percent,
    "nbytes": nbytes,
    "lasting": lasting,
    "ago": ago,
    "instant": instant,
    "tiny": tiny,
    "epsilon": epsilon,
    "hidden": hidden,
    "items_of": items_of,
}

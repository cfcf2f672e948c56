"""Media types that a request accepts: the ranges of its Accept fields and their weights.

    Accept: text/csv;q=0.5, application/*, image/png;q=0

accepts CSV with weight 0.5, JSON with weight 1, and no PNG. The most specific range that matches a
type decides [RFC 9110, 12.5.1].
"""

import re

from starlette.types import Scope

_WEIGHT = re.compile(r"(?:0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)")
_WEIGHT_PARAMETER = re.compile(r";\s*q\s*=\s*([^;]*)", re.IGNORECASE)


def accepted_ranges(scope: Scope) -> dict[str, float]:
    """Return the weight of each range, with its parameters, in a request's Accept fields.

    A weight that is not a number from 0 to 1 counts as 0. Without a field everything is accepted.
    """
    fields = b",".join(value for name, value in scope["headers"] if name == b"accept")
    weights = dict[str, float]()
    for entry in fields.decode("latin-1").split(","):
        weight = _WEIGHT_PARAMETER.search(entry)
        text = "1" if weight is None else weight[1].strip()
        if media_range := _WEIGHT_PARAMETER.sub("", entry).strip().lower():
            weights[media_range] = float(text) if _WEIGHT.fullmatch(text) else 0.0
    return weights or {"*/*": 1.0}


def prefers(scope: Scope, media_type: str, to: str) -> bool:
    """Return whether a request gives a type without parameters more weight than the type `to`."""
    ranges = accepted_ranges(scope)
    return _weight(ranges, media_type) > _weight(ranges, to)


def _weight(ranges: dict[str, float], media_type: str) -> float:
    matching = (media_type, f"{media_type.partition('/')[0]}/*", "*/*")
    weights = {media_range.partition(";")[0].strip(): each for media_range, each in ranges.items()}
    return next((weights[each] for each in matching if each in weights), 0.0)

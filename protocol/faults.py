"""What pydantic finds wrong with a document, in words that name both ends of what is allowed.

pydantic names the end that was crossed: "Input should be less than or equal to 16". The other
one is in the JSON Schema of what was asked for, at the place that the fault names:

    must be within 1 and 16, not 17        must have 1 to 64 characters
    Input should be a valid number, above 0 and at most 1

A place's names are fields, positions in lists, and the tags that tell the members of a union
apart; a name that is none of these is pydantic's own for a member, and leads nowhere further.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

from pydantic import TypeAdapter, ValidationError

Schema: TypeAlias = Mapping[str, Any]
Place: TypeAlias = tuple[int | str, ...]

_CROSSED = {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}
_NO_NUMBER = {
    *("int_type", "int_parsing", "int_from_float", "int_parsing_size"),
    *("float_type", "float_parsing", "finite_number"),
}
_LENGTHS = {
    "string_too_short": ("minLength", "maxLength", "characters"),
    "string_too_long": ("minLength", "maxLength", "characters"),
    "bytes_too_short": ("minLength", "maxLength", "bytes"),
    "bytes_too_long": ("minLength", "maxLength", "bytes"),
    "too_short": ("minItems", "maxItems", "items"),
    "too_long": ("minItems", "maxItems", "items"),
}
_ENDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_MOST_SAID = 10**15  # of a number that is said back


def faults_of(error: ValidationError, *forms: object) -> Iterator[tuple[Place, str]]:
    """Yield where each fault is, and what, of a document that is one of `forms`.

    Or a part of one, which was made by itself: pydantic tells the name of its model. Where it
    tells none of these, the document is of the first form.
    """
    schema = _named(error.title, map(_schema_of, forms)) or _schema_of(forms[0])
    for each in error.errors(include_url=False):
        yield each["loc"], worded(each, schema)


def worded(fault: Mapping[str, Any], schema: Schema) -> str:
    """Return what is wrong by one of pydantic's faults; `schema` is of the whole document."""
    message = str(fault["msg"]).removeprefix("Value error, ")
    kind, where = fault["type"], fault["loc"]
    if kind in _CROSSED and (span := _span(schema, where)):
        return f"must be {span}{_said(fault)}"
    if kind in _NO_NUMBER and (span := _span(schema, where)):
        return f"{message}, {span}"
    if kind in _LENGTHS:
        least, most, what = _LENGTHS[kind]
        ends = _ends(schema, where, (least, most))
        if ends is not None and None not in ends:
            low, high = ends
            many = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            return f"must have {many} {what}"
    return message


def _named(title: str, schemas: Iterable[Schema]) -> Schema | None:
    for schema in schemas:
        parts = schema.get("$defs", {})
        if title == schema.get("title"):
            return schema
        if title in parts:
            return {**parts[title], "$defs": parts}
    return None


@cache
def _schema_of(form: object) -> Schema:
    known: Any = form
    return TypeAdapter(known).json_schema()


def _span(schema: Schema, where: Place) -> str:
    """Return the numbers that are allowed at a place; nothing if that is not known."""
    ends = _ends(schema, where, _ENDS)
    if ends is None:
        return ""
    least, above, most, below = (None if end is None else _number(end) for end in ends)
    if least and most:
        return f"within {least} and {most}"
    high = f"at most {most}" if most else f"below {below}" if below else ""
    if least and not high:
        return f"{least} or more"
    low = f"at least {least}" if least else f"above {above}" if above else ""
    return " and ".join(part for part in (low, high) if part)


def _ends(schema: Schema, where: Place, names: Sequence[str]) -> tuple[Any, ...] | None:
    """Return what a place's schema has under `names`; None if it has none, or two different."""
    places = [schema]
    for name in where:
        places = [part for place in places for part in _into(schema, place, name)] or places
    parts = [part for place in places for part in _members(schema, place)]
    found = {tuple(map(part.get, names)) for part in parts} - {(None,) * len(names)}
    return found.pop() if len(found) == 1 else None


def _into(root: Schema, place: Schema, name: int | str) -> Iterator[Schema]:
    """Yield what a field, a position or a tag leads to: nothing, or in a union several."""
    place = _resolved(root, place)
    tags = place.get("discriminator", {}).get("mapping", {})
    union = _union(place)
    if name in tags:
        yield {"$ref": tags[name]}
    elif union:
        for one in union:
            yield from _into(root, one, name)
    elif inner := _field(place, name):
        yield inner


def _field(place: Schema, name: int | str) -> Schema | None:
    if isinstance(name, str):
        inner = place.get("properties", {}).get(name, place.get("additionalProperties"))
    else:
        listed = place.get("prefixItems", ())
        inner = listed[name] if name < len(listed) else place.get("items")
    return inner if isinstance(inner, Mapping) else None


def _members(root: Schema, place: Schema) -> Iterator[Schema]:
    """Yield what a place may hold: itself, or the members of a union."""
    place = _resolved(root, place)
    union = _union(place)
    if not union:
        yield place
    for one in union:
        yield from _members(root, one)


def _union(place: Schema) -> list[Schema]:
    return [*place.get("anyOf", ()), *place.get("oneOf", ())]


def _resolved(root: Schema, place: Schema) -> Schema:
    if "$ref" not in place:
        return place
    found: Any = root
    for name in place["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    return _resolved(root, found)


def _number(end: float) -> str:
    return f"{int(end):,}" if end == int(end) and abs(end) <= _MOST_SAID else f"{end:g}"


def _said(fault: Mapping[str, Any]) -> str:
    """Return the number that was given; nothing if it is long, or was not kept."""
    given = fault.get("input")
    if isinstance(given, bool) or not isinstance(given, int | float):
        return ""
    return f", not {_number(given)}" if abs(given) <= _MOST_SAID else ""

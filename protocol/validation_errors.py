"""Validation errors of pydantic, in plain words that state both limits of the allowed range.

Errors state what a value must be, and never name a type of pydantic or a regular expression.
pydantic names the limit that was crossed. The other is in the JSON Schema of the expected document,
at the location of the fault: "must be from 1 to 16, not 17". The parts of a location are fields,
positions in lists, and the tags that select a member of a union. Any other part is pydantic's own
name of a member, and is skipped.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

from pydantic import TypeAdapter, ValidationError

Schema: TypeAlias = Mapping[str, Any]
Location: TypeAlias = tuple[int | str, ...]

_BOUND_ERRORS = {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}
_WHOLE_NUMBER_ERRORS = {"int_type", "int_parsing", "int_from_float", "int_parsing_size"}
_NUMBER_ERRORS = {"float_type", "float_parsing", "finite_number"}
_LENGTH_ERRORS = {
    "string_too_short": ("minLength", "maxLength", "characters"),
    "string_too_long": ("minLength", "maxLength", "characters"),
    "bytes_too_short": ("minLength", "maxLength", "bytes"),
    "bytes_too_long": ("minLength", "maxLength", "bytes"),
    "too_short": ("minItems", "maxItems", "items"),
    "too_long": ("minItems", "maxItems", "items"),
}
# Plain words by type of error; names in braces are those of its context.
_PLAIN_WORDS = dict.fromkeys(_WHOLE_NUMBER_ERRORS, "must be a whole number")
_PLAIN_WORDS |= dict.fromkeys(_NUMBER_ERRORS, "must be a number")
_PLAIN_WORDS |= dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false")
_PLAIN_WORDS |= dict.fromkeys(("list_type", "tuple_type", "set_type"), "must be a list")
_PLAIN_WORDS |= dict.fromkeys(
    ("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type"),
    "must be an object with named fields",
)
_PLAIN_WORDS |= dict.fromkeys(("literal_error", "enum"), "must be {expected}")
_PLAIN_WORDS |= {
    "finite_number": "must be a finite number",
    "missing": "is missing",
    "string_type": "must be text",
    "string_unicode": "must be text",
    "extra_forbidden": "is not a known field",
    "union_tag_not_found": "must have a field {discriminator}",
    "union_tag_invalid": "must have one of {expected_tags} as its {discriminator}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
}
# What a regular expression allows.
PATTERN_WORDS = {
    r"^[0-9a-f]{64}$": "64 hexadecimal digits (0 to 9, a to f)",
    r"^[0-9a-f]{128}$": "128 hexadecimal digits (0 to 9, a to f)",
    r"^([0-9a-f]{64})?$": "64 hexadecimal digits (0 to 9, a to f), or empty",
    r"^([0-9a-f]{2})*$": "pairs of hexadecimal digits (0 to 9, a to f)",
    r"^[a-z0-9][a-z0-9-]{0,63}$": "1 to 64 letters a to z, digits and hyphens, without a hyphen at "
    "the start",
    r"^[a-z0-9][a-z0-9-]{0,39}$": "1 to 40 letters a to z, digits and hyphens, without a hyphen at "
    "the start",
    r"^[ -~]*$": "text of printable ASCII characters",
    r"^[!-~]{1,200}$": "1 to 200 printable ASCII characters, without spaces",
    r"^[^:\x00-\x1f]+$": "text without colons and control characters",
    r"^[0-9A-Za-z_-]{1,64}$": "1 to 64 letters, digits, hyphens and underscores",
    r"^[0-9A-Za-z]{1,64}$": "1 to 64 letters and digits",
    r"^[0-9A-Za-z]{0,64}$": "at most 64 letters and digits",
    r"^\d{1,9}-\d{1,9}$": "two numbers with a hyphen between them, such as 1-5",
}
_BOUND_KEYWORDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_MAX_ECHOED_NUMBER = 10**15  # larger numbers are not repeated in errors


def validation_faults(error: ValidationError, *forms: object) -> Iterator[tuple[Location, str]]:
    """Yield the location and the text of each fault of a document of one of `forms`.

    The document may also be a part of a form that was validated by itself. The error has the name
    of its model; for an unknown name, the first form is used.
    """
    schema = _schema_named(error.title, map(_schema_of, forms)) or _schema_of(forms[0])
    for fault in error.errors(include_url=False):
        yield fault["loc"], describe_fault(fault, schema)


def describe_fault(fault: Mapping[str, Any], schema: Schema) -> str:
    """Return the text of one of pydantic's faults; `schema` is that of the whole document."""
    kind, location = fault["type"], fault["loc"]
    message = _plain_words(fault)
    if kind in _BOUND_ERRORS and (span := _allowed_range(schema, location)):
        return f"must be {span}{_received_value(fault)}"
    if kind in _WHOLE_NUMBER_ERRORS | _NUMBER_ERRORS and (span := _allowed_range(schema, location)):
        return f"{message}, {span}"
    if kind in _LENGTH_ERRORS:
        minimum, maximum, unit = _LENGTH_ERRORS[kind]
        bounds = _bounds(schema, location, (minimum, maximum))
        if bounds is not None and None not in bounds:
            low, high = bounds
            length = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            return f"must have {length} {unit}"
    return message


def _plain_words(fault: Mapping[str, Any]) -> str:
    """Return the text of a fault without limits; pydantic's own if there is no plainer one."""
    kind, context = fault["type"], fault.get("ctx", {})
    if kind == "string_pattern_mismatch" and context.get("pattern") in PATTERN_WORDS:
        return f"must be {PATTERN_WORDS[context['pattern']]}"
    if kind in _PLAIN_WORDS:
        return _PLAIN_WORDS[kind].format_map(context)
    return str(fault["msg"]).removeprefix("Value error, ")


def _schema_named(title: str, schemas: Iterable[Schema]) -> Schema | None:
    for schema in schemas:
        parts = schema.get("$defs", {})
        if title == schema.get("title"):
            return schema
        if title in parts:
            return {**parts[title], "$defs": parts}
    return None


@cache
def _schema_of(form: Any) -> Schema:  # noqa: ANN401 - any type that pydantic knows
    return TypeAdapter(form).json_schema()


def _allowed_range(schema: Schema, location: Location) -> str:
    """Return the range of numbers that is allowed at a location; empty if it is unknown."""
    bounds = _bounds(schema, location, _BOUND_KEYWORDS)
    if bounds is None:
        return ""
    minimum, above, maximum, below = (None if end is None else _number(end) for end in bounds)
    if minimum and maximum:
        return f"from {minimum} to {maximum}"
    high = f"at most {maximum}" if maximum else f"below {below}" if below else ""
    if minimum and not high:
        return f"{minimum} or more"
    low = f"at least {minimum}" if minimum else f"above {above}" if above else ""
    return " and ".join(part for part in (low, high) if part)


def _bounds(schema: Schema, location: Location, names: Sequence[str]) -> tuple[Any, ...] | None:
    """Return the values under `names` at a location; None if there are none, or several."""
    schemas = [schema]
    for name in location:
        inner = [part for each in schemas for part in _subschemas(schema, each, name)]
        schemas = inner or schemas
    members = [member for each in schemas for member in _members(schema, each)]
    bounds = {tuple(map(member.get, names)) for member in members} - {(None,) * len(names)}
    return bounds.pop() if len(bounds) == 1 else None


def _subschemas(root: Schema, schema: Schema, name: int | str) -> Iterator[Schema]:
    """Yield the schemas of a field, a position or a tag: none, or several in a union."""
    schema = _resolved(root, schema)
    tags = schema.get("discriminator", {}).get("mapping", {})
    union = _union(schema)
    if name in tags:
        yield {"$ref": tags[name]}
    elif union:
        for member in union:
            yield from _subschemas(root, member, name)
    elif inner := _field(schema, name):
        yield inner


def _field(schema: Schema, name: int | str) -> Schema | None:
    if isinstance(name, str):
        inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
    else:
        listed = schema.get("prefixItems", ())
        inner = listed[name] if name < len(listed) else schema.get("items")
    return inner if isinstance(inner, Mapping) else None


def _members(root: Schema, schema: Schema) -> Iterator[Schema]:
    """Yield the members of a union, or the schema itself."""
    schema = _resolved(root, schema)
    union = _union(schema)
    if not union:
        yield schema
    for member in union:
        yield from _members(root, member)


def _union(schema: Schema) -> list[Schema]:
    return [*schema.get("anyOf", ()), *schema.get("oneOf", ())]


def _resolved(root: Schema, schema: Schema) -> Schema:
    if "$ref" not in schema:
        return schema
    target: Any = root
    for name in schema["$ref"].removeprefix("#/").split("/"):
        target = target[name]
    return _resolved(root, target)


def _number(end: float) -> str:
    return f"{int(end):,}" if end == int(end) and abs(end) <= _MAX_ECHOED_NUMBER else f"{end:g}"


def _received_value(fault: Mapping[str, Any]) -> str:
    """Return the received number; empty if it is long or not known."""
    value = fault.get("input")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    return f", not {_number(value)}" if abs(value) <= _MAX_ECHOED_NUMBER else ""

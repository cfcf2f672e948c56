"""Fields of a command, which `--set NAME=VALUE` sets, so that `--help` lists what most people need.

Each field is an option, too: `--dropout 0.1` is `--set dropout=0.1`. One that is true or false is a
flag: `--repeat-exact` is `--set repeat_exact=true`.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from typer.core import TyperCommand

from protocol.validation_errors import validation_faults

T = TypeVar("T")


class FieldOptions(TyperCommand):
    """Command in which each field of `--set` is an option, too."""

    def field_types(self) -> Mapping[str, object]:
        """Return the type of each field, by name."""
        raise NotImplementedError

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 (typer's)
        known = {"--help", *(name for option in self.params for name in option.opts)}
        given = {each.partition("=")[0] for each in args if each.startswith("--")}
        if given <= known:
            return super().parse_args(ctx, args)
        fields = self.field_types()
        try:
            return super().parse_args(ctx, [*_with_sets(args, known, fields)])
        except Exception as error:
            # The class is one of typer or of click, depending on their versions.
            if hasattr(error, "option_name") and hasattr(error, "possibilities"):
                options = {*known, *(f"--{name.replace('_', '-')}" for name in fields)}
                error.possibilities = get_close_matches(error.option_name, options)
            raise


def _with_sets(args: list[str], known: set[str], fields: Mapping[str, object]) -> Iterator[str]:
    """Yield `args`, with options of fields as values of `--set`."""
    rest = iter(args)
    for each in rest:
        option, equals, value = each.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        if not option.startswith("--") or option in known or name not in fields:
            yield each
            continue
        if not equals:
            value = "true" if fields[name] is bool else next(rest, "")
        yield from ("--set", f"{name}={value}")


def annotations_of(model: type[BaseModel]) -> dict[str, object]:
    """Return the types of the fields of a `model`, by name."""
    return {name: field.annotation for name, field in model.model_fields.items()}


def parse_field(pair: str) -> tuple[str, Any]:
    """Return the name and the value of a NAME=VALUE: the value is JSON, or otherwise the text.

    Raises:
        ValueError: if there is no value.
    """
    name, equals, value = pair.partition("=")
    if not equals:
        raise ValueError(f"--set takes NAME=VALUE, got {pair!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def unknown_field(owner: str, name: str, known: Collection[str]) -> str:
    """Return the error for the name of no field, with the nearest one, or with all of them."""
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
    return f"{owner} has no field {name!r}: {hint}"


def collect_fields(owner: str, pairs: Iterable[str], types: Mapping[str, object]) -> dict[str, Any]:
    """Return the values of NAME=VALUE `pairs`: all of a tuple or dict, else the last one.

    Raises:
        ValueError: if a pair is malformed, or `owner` has no such field.
    """
    values = dict[str, Any]()
    for name, value in map(parse_field, pairs):
        if name not in types:
            raise ValueError(unknown_field(owner, name, types))
        is_list = get_origin(types[name]) in (tuple, dict)
        values[name] = [*values.get(name, ()), value] if is_list else value
    return values


def validated(form: type[T], values: Mapping[str, object]) -> T:
    """Return the `form`, a model or a dataclass, with these `values` of its fields.

    Raises:
        ValueError: if a value is invalid; the error names its field.
    """
    try:
        return TypeAdapter(form).validate_python(values)
    except ValidationError as error:
        faults = validation_faults(error, form)
        named = (": ".join([*map(str, path[:2]), fault]) for path, fault in faults)
        raise ValueError("; ".join(named)) from None

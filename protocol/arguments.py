"""Arguments of questions, plans, policies and other documents, and the error of wrong ones.

    Tracked(threshhold=20, message_bytes=9000)
    ArgumentsError: Tracked: threshhold is not a field (did you mean threshold?); missing:
    contribution, domain

The error is one of pydantic, with its faults, and also a TypeError: callers may catch either.
Documents of JSON are parsed by `model_validate`, whose errors are not changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from inspect import Signature, signature
from typing import TYPE_CHECKING, Any, Self, TypeAlias, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from protocol.validation_errors import Location, validation_faults

Fault: TypeAlias = tuple[str, str, Mapping[str, Any], Location]  # type, message, context, location
_MODEL_TYPES = {"model_type", "model_attributes_type", "dataclass_type"}


class ArgumentsError(ValidationError, TypeError):
    """Arguments of which no question, plan, policy or other document can be made.

    The text lists all faults in plain words. It repeats no received text, which may be a secret.
    """

    def __str__(self) -> str:
        return str(self.__dict__["text"])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the function that makes a copy, and its arguments: all but received values."""
        faults = [_fault(each) for each in self.errors(include_url=False)]
        return type(self).of, (self.title, faults, str(self), (), self.__dict__)

    @classmethod
    def of(
        cls,
        title: str,
        faults: Sequence[Fault],
        text: str,
        received: Sequence[object] = (),
        attributes: Mapping[str, object] | None = None,
    ) -> Self:
        """Return the error with a `text` on the faults of a class, and the value of each fault."""
        values = received or [None] * len(faults)
        details = [
            InitErrorDetails(
                type=PydanticCustomError(kind, message, dict(context)), loc=location, input=value
            )
            for (kind, message, context, location), value in zip(faults, values, strict=True)
        ]
        error = cls.from_exception_data(title, details, hide_input=True)
        assert isinstance(error, cls)
        error.args = (text,)
        error.__dict__.update(attributes or {}, text=text)
        return error


class _SignatureOfInit:
    """Signature of a class that has no other: that of its constructor, without `self`."""

    def __get__(self, cls: type, _metaclass: type | None = None) -> Signature:
        _, *parameters = signature(cls.__init__).parameters.values()  # type: ignore[misc]
        return Signature(parameters)


class NamedFields(type):
    """Metaclass of classes whose arguments are named fields, and whose wrong calls are explained.

    `public_name` of such a class is the name by which programs import it, if it has another.
    """

    if not TYPE_CHECKING:  # type checkers know the fields
        __signature__ = _SignatureOfInit()

        def __call__(cls, *args: object, **fields: object) -> object:
            names = _fields_of(cls)
            if args:
                example = ", ".join(f"{name}=..." for name in _required(names) or list(names)[:1])
                name = _public_name(cls)
                text = f"{name} takes its arguments by name: {name}({example})"
                raise ArgumentsError.of(cls.__name__, [("positional", text, {}, ())], text)
            unknown = fields.keys() - names if "__dataclass_fields__" in vars(cls) else ()
            if unknown:
                faults = [("extra_forbidden", "Unknown", {}, (name,)) for name in sorted(unknown)]
                words = [_unknown_field(name, names) for name in sorted(unknown)]
                text = f"{_public_name(cls)}: {'; '.join(words)}"
                raise ArgumentsError.of(cls.__name__, faults, text)
            try:
                return super().__call__(**fields)
            except ValidationError as error:
                raise _explained(cls, error) from None


def _explained(cls: type[BaseModel], error: ValidationError) -> ArgumentsError:
    """Return the error that explains one of pydantic about the arguments of `cls`."""
    faults = error.errors(include_url=False)
    names, words = cls.model_fields, list[str]()
    missing = [str(each["loc"][0]) for each in faults if _is_missing(each)]
    for fault, (location, text) in zip(faults, validation_faults(error, cls), strict=True):
        if fault["type"] == "extra_forbidden" and len(location) == 1:
            words.append(_unknown_field(str(location[0]), names))
            missing = [name for name in missing if f"mean {name}?" not in words[-1]]
        elif not _is_missing(fault):
            words.append(": ".join([*map(str, location), _typed(fault, text, cls)]))
    if missing:
        words.append(f"missing: {', '.join(missing)}")
    received = [each["input"] for each in faults]
    text = f"{_public_name(cls)}: {'; '.join(words)}"
    return ArgumentsError.of(error.title, [_fault(each) for each in faults], text, received)


def _unknown_field(name: str, names: Mapping[str, Any]) -> str:
    near = get_close_matches(name, names, 1)
    advice = f"did you mean {near[0]}?" if near else f"fields: {', '.join(names)}"
    return f"{name} is not a field ({advice})"


def _typed(fault: Mapping[str, Any], text: str, cls: type[BaseModel]) -> str:
    """Return the text of a fault, with the type of the received value if that is the fault."""
    kind, location = fault["type"], fault["loc"]
    if kind in _MODEL_TYPES and len(location) == 1:
        expected = _models(cls.model_fields[location[0]].annotation)
        text = f"must be one of {', '.join(dict.fromkeys(expected))}"
    is_type = kind.endswith(("_type", "_parsing"))
    return f"{text}, not of type {type(fault['input']).__name__}" if is_type else text


def _models(annotation: object) -> Iterator[str]:
    """Yield the public names of the models in a type."""
    if isinstance(annotation, NamedFields):
        yield _public_name(annotation)
    for part in get_args(annotation):
        yield from _models(part)


def _is_missing(fault: Mapping[str, Any]) -> bool:
    return fault["type"] == "missing" and len(fault["loc"]) == 1


def _fault(error: Mapping[str, Any]) -> Fault:
    context = {
        name: value if isinstance(value, int | float) else str(value)
        for name, value in error.get("ctx", {}).items()
    }
    return error["type"], error["msg"], context, error["loc"]


def _fields_of(cls: type) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = getattr(cls, "model_fields", None) or vars(cls).get(
        "__dataclass_fields__", {}
    )
    return fields


def _required(fields: Mapping[str, Any]) -> list[str]:
    return [n for n, field in fields.items() if getattr(field, "is_required", lambda: False)()]


def _public_name(cls: type) -> str:
    name: str = vars(cls).get("public_name") or cls.__name__.removesuffix("Question")
    return name

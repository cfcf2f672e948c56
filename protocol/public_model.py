"""Base of all public documents: they are frozen, complete, and have no unknown fields.

Wrong arguments of one raise an `ArgumentsError`; a wrong JSON document raises pydantic's error.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field, StringConstraints, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from protocol.arguments import NamedFields

# JSON may escape half a character ("\ud800"), which UTF-8 cannot hold. pydantic checks this only
# for strings with a constraint.
Text: TypeAlias = Annotated[str, StringConstraints(min_length=0)]
Hex32 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Id = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z_-]{1,64}$")]  # of the service
Rate = Annotated[float, Field(ge=0, lt=1)]
T = TypeVar("T")
# Rows of a document. The error of a malformed list names its first wrong row: all errors of a
# million rows would take gigabytes, and those of a large request a second.
Rows: TypeAlias = Annotated[tuple[T, ...], FailFast()]


if TYPE_CHECKING:
    _ExplainingModel = BaseModel
else:

    class _NamedFieldsOfModel(NamedFields, type(BaseModel)):
        pass

    class _ExplainingModel(BaseModel, metaclass=_NamedFieldsOfModel):
        pass


class PublicModel(_ExplainingModel):
    """Public document: frozen, complete, and without unknown fields."""

    # The input may be a secret key, pasted by mistake.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )


def invalid(faults: Iterable[str]) -> ValidationError:
    """Return the error that lists all of the `faults`, so that users can fix them all at once."""
    errors = [
        InitErrorDetails(
            type=PydanticCustomError("value_error", "{fault}", {"fault": fault}), input=None
        )
        for fault in faults
    ]
    return ValidationError.from_exception_data("faults", errors)

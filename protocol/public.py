"""What every public fact has in common: it is frozen, complete, and has no unknown field."""

from collections.abc import Iterable
from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

# JSON may escape half a character ("\ud800"), which no bytes can hold. pydantic sees that only
# where a string has some constraint.
Text: TypeAlias = Annotated[str, StringConstraints(min_length=0)]


class Public(BaseModel):
    """Something said in public: frozen, complete, and without a field nobody knows."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def refuse(faults: Iterable[str]) -> None:
    """Refuse a document for every one of `faults`, and not for the first alone; for none if empty.

    Raises:
        ValidationError: a ValueError that lists them, as validators may raise it.
    """
    errors = [
        InitErrorDetails(
            type=PydanticCustomError("value_error", "{fault}", {"fault": fault}), input=None
        )
        for fault in faults
    ]
    if errors:
        raise ValidationError.from_exception_data("faults", errors)

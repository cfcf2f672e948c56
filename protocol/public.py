"""What every public fact has in common: it is frozen, complete, and has no unknown field."""

from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, StringConstraints

# JSON may escape half a character ("\ud800"), which no bytes can hold. pydantic sees that only
# where a string has some constraint.
Text: TypeAlias = Annotated[str, StringConstraints(min_length=0)]


class Public(BaseModel):
    """Something said in public: frozen, complete, and without a field nobody knows."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

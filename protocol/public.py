"""What every public fact has in common: it is frozen, complete, and has no unknown field."""

from pydantic import BaseModel, ConfigDict


class Public(BaseModel):
    """Something said in public: frozen, complete, and without a field nobody knows."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

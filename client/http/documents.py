"""Documents of the service: JSON that a client reads within limits, or refuses as malformed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from client.credentials import cause_without_secrets
from client.errors import MAX_JSON_VALUES, has_many_values, short_text
from secagg.errors import UnsafeRequestError

MAX_SHOWN_FAULTS: Final = 10  # of a document; the text of thousands takes longer than reading it

M = TypeVar("M", bound=BaseModel)


def parse_document(model: type[M], body: bytes) -> M:
    """Return the document in the JSON of an answer.

    Raises:
        UnsafeRequestError: if it is malformed, or has more than `MAX_JSON_VALUES` values.
    """
    if has_many_values(body):
        raise UnsafeRequestError(f"sent a document of more than {MAX_JSON_VALUES:,} values")
    with refusing_malformed():
        return model.model_validate_json(body)


@contextmanager
def refusing_malformed() -> Iterator[None]:
    """Raise UnsafeRequestError instead of the ValueError of a malformed answer."""
    try:
        yield
    except ValueError as error:  # pydantic's ValidationError is one
        text = short_text(f"sent a malformed answer: {_faults(error)}")
        raise UnsafeRequestError(text) from cause_without_secrets(error)


def _faults(error: ValueError) -> str:
    """Return the faults of a document without its values, of which pydantic shows parts."""
    if not isinstance(error, ValidationError):
        return str(error)
    if error.error_count() > MAX_SHOWN_FAULTS:
        return f"{error.error_count():,} faults"
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    texts = ((".".join(map(str, fault["loc"])), fault["msg"]) for fault in faults)
    return "; ".join(": ".join(filter(None, text)) for text in texts)

"""How a call becomes a method: it looks like the call, but returns what the call answers.

Types see that by themselves; this is for people, who read `help(Study.quantiles)`.
"""

from collections.abc import Callable
from functools import WRAPPER_ASSIGNMENTS, update_wrapper
from inspect import Parameter, signature
from types import GenericAlias
from typing import Any, Final, TypeVar, get_args, get_origin

from client.calls import Listing
from client.tables import Table

_SELF: Final = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
_TAKEN: Final = tuple(name for name in WRAPPER_ASSIGNMENTS if not name.startswith("__annot"))

F = TypeVar("F", bound=Callable[..., Any])


def like(call: Callable[..., Any], method: F, *, known: int = 0, returns: object = None) -> F:
    """Return `method` with the name, the sentences and the arguments of `call`.

    The first `known` arguments of the call are the object's to say. It `returns` what the call
    answers, unless told otherwise.
    """
    asked = signature(call)
    kind = asked.return_annotation
    (answer,) = get_args(kind)
    if returns is None:
        returns = GenericAlias(Table, (answer,)) if get_origin(kind) is Listing else answer
    update_wrapper(method, call, assigned=_TAKEN)
    parameters = [_SELF, *list(asked.parameters.values())[known:]]
    method.__signature__ = asked.replace(  # type: ignore[attr-defined]
        parameters=parameters, return_annotation=returns
    )
    return method

"""Compilation of functions by numba, at their first call.

Importing this module imports numba. Compiling takes seconds; the machine code is cached next to
the source file, or in the user's cache if that folder cannot be written.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def jit_compiled(function: F, *, inline: bool = False) -> F:
    """Return `function` compiled at its first call.

    References to arrays are borrowed and not counted, which doubles the speed. The function
    releases the interpreter's lock, so that a server answers requests while it decodes.
    """
    options: dict[str, Any] = {"error_model": "numpy", "forceinline": inline, "_nrt": False}
    options["nogil"] = True
    try:
        compiled: F = njit(cache=True, **options)(function)
    except RuntimeError:  # no folder for the cache, as in a read-only container
        compiled = njit(**options)(function)
    return compiled


def jit_inlined(function: F) -> F:
    """Return `function` compiled into the functions that call it."""
    return jit_compiled(function, inline=True)

"""Array types, searches, finite fields, tail bounds, and modules of scipy.

Devices and analysts install without scipy, so each of its modules is imported at its first use:

    from protocol.numerics import special

    special.ndtri(0.975)
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["fft", "optimize", "special"]


class _LazyModule:
    """Module `name`, which is imported when one of its attributes is first read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        try:
            value = getattr(import_module(self._name), attribute)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{error}: install blindtally[server] or blindtally[simulate]", name=error.name
            ) from None
        setattr(self, attribute, value)
        return value


if TYPE_CHECKING:
    from scipy import fft, optimize, special
else:
    fft = _LazyModule("scipy.fft")
    optimize = _LazyModule("scipy.optimize")
    special = _LazyModule("scipy.special")

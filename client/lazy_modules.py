"""Modules that are imported at their first use, so that programs start without a wait."""

from importlib import import_module


class LazyModule:
    """Module `name`, which is imported when one of its attributes is read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        return getattr(import_module(self._name), attribute)

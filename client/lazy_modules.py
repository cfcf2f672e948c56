"""Modules that are imported at their first use, so that programs start without a wait."""

import asyncio
from collections.abc import Callable
from importlib import import_module
from inspect import getdoc, signature
from typing import Any


class LazyModule:
    """Module `name`, which is imported when one of its attributes is read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        return getattr(import_module(self._name), attribute)


class LazyCoroutineFunction:  # noqa: D101 - a property has it
    # The coroutine function `name` of a module, which is imported at the first call. Its
    # documentation is the function's, so that help() shows it.

    def __init__(self, module: str, name: str) -> None:
        self.__module__, self.__name__, self.__qualname__ = module, name, name

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(import_module(self.__module__), self.__name__)
        return function

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return f"{self.__name__}{signature(self.__wrapped__)}\n\n{getdoc(self.__wrapped__)}"

    async def __call__(self, *args: object, **options: object) -> object:
        # In a thread, because the import may take a second, in which the event loop goes on.
        function = await asyncio.to_thread(getattr, self, "__wrapped__")
        return await function(*args, **options)

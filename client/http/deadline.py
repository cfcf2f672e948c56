"""Deadlines of calls: a task of the event loop is cancelled, and a thread is left behind.

A peer that sends a byte of its headers from time to time never exceeds the limit of one read. So
the whole call has a limit.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import copy_context
from threading import Thread
from typing import TypeVar

import httpx

T = TypeVar("T")


async def async_within(seconds: float, function: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `function`; raises httpx.ReadTimeout if it takes longer."""
    try:
        async with asyncio.timeout(seconds):
            return await function()
    except TimeoutError as error:
        raise _timeout(seconds) from error


def within(seconds: float, function: Callable[[], T]) -> T:
    """Return the result of `function`; raises httpx.ReadTimeout if it takes longer.

    `function` runs in a thread, which ends with the program if nothing else ends it.
    """
    result = Future[T]()

    def run() -> None:
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    Thread(target=copy_context().run, args=(run,), daemon=True).start()
    try:
        return result.result(seconds)
    except TimeoutError as error:
        raise _timeout(seconds) from error


def _timeout(seconds: float) -> httpx.ReadTimeout:
    return httpx.ReadTimeout(f"no response within {seconds:.0f} s")

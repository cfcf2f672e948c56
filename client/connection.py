"""Address of a service, and repetition of requests that fail for the moment.

Repetitions are quiet: stamina would show each of them on the terminal of the user's program. They
are in the log of this module, at the level DEBUG.
"""

import logging
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, ParamSpec, TypeVar

import httpx
import stamina
from stamina.instrumentation import (
    RetryDetails,
    RetryHook,
    get_on_retry_hooks,
    set_on_retry_hooks,
)

from client.errors import is_retryable, printable
from protocol.api.messages import MAX_RETRY_SECONDS

_LOG: Final = logging.getLogger(__name__)
_MAX_PORT: Final = 2**16 - 1

P = ParamSpec("P")
T = TypeVar("T")


def service_url(url: str) -> str:
    """Return `url` in one form, because one service has one identity of the device.

    Raises:
        ValueError: if it is not the address of a service.
    """
    shown = re.sub(r"//[^/?#]*@", "//", repr(url))  # without a password
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise ValueError(f"{shown} is not an address: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"{shown} is not an http or https address, such as http://127.0.0.1:8000")
    if "%" in parsed.host or not 0 < (parsed.port or 1) <= _MAX_PORT:
        raise ValueError(f"{shown} has a host or a port that cannot exist")
    if {"?", "#"} & set(str(url)):
        raise ValueError(f"{shown} is not the address of a service: leave out '?' and '#'")
    return str(parsed).rstrip("/")


def shown_url(url: str) -> str:
    """Return a service's address without the user and password that it may have."""
    return str(httpx.URL(url).copy_with(userinfo=b"")).rstrip("/")


def repeated(function: Callable[P, T], patience: float, jitter: float = 1.0) -> Callable[P, T]:
    """Return `function` with repetitions for `patience` seconds, as `is_retryable` allows.

    `function` may be asynchronous. The waits between repetitions differ by up to `jitter` seconds.
    """

    def retry_delay(error: Exception) -> bool | float:
        delay = is_retryable(error)
        if delay is not False:
            _silence_hooks()
        return delay if isinstance(delay, bool) else min(delay, patience)

    retry = stamina.retry(
        on=retry_delay,
        attempts=None,
        timeout=patience,
        wait_max=MAX_RETRY_SECONDS,
        wait_jitter=jitter,
    )
    return retry(function)


class _QuietHook:
    """Hook of stamina that logs our repetitions, and passes those of others on to `hook`."""

    def __init__(self, hook: RetryHook) -> None:
        self._hook = hook

    def __call__(self, details: RetryDetails) -> AbstractContextManager[None] | None:
        if not details.name.startswith("client."):
            return self._hook(details)
        reason = printable(str(details.caused_by))
        _LOG.debug(
            "request %d failed, next in %.1f s: %s", details.retry_num, details.wait_for, reason
        )
        return None


def _silence_hooks() -> None:
    """Wrap the hooks of stamina; not at import, because its defaults import logging libraries."""
    hooks = get_on_retry_hooks()
    if not all(isinstance(hook, _QuietHook) for hook in hooks):
        set_on_retry_hooks(
            hook if isinstance(hook, _QuietHook) else _QuietHook(hook) for hook in hooks
        )
